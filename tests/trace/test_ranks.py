"""Several ranks: who is slow, who waits for whom; read a few at a time, nothing is left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from simulated_traces import Simulated, cpu_training

from perfkit.base.errors import TraceError
from perfkit.trace import Ranks, ranks
from perfkit.trace.ask.ranks import _communication_ms


def _job(folder: Path, slow: int, n_ranks: int = 4, lag: float = 200) -> list[Path]:
    """``n_ranks`` ranks with two collectives a step; one computes ``lag`` µs longer.

    Clocks of the ranks differ by hours. A collective takes 50 µs once all are there.
    """
    paths = []
    for rank in range(n_ranks):
        sim = Simulated()
        base = rank * 3.6e9
        for i in range(3):
            at = base + i * 2_000
            sim.step(i, at, 2_000)
            compute = 300 + (lag if rank == slow else 0)
            for k in range(2):
                begin = at + k * 800
                sim.kernel("aten::mm", begin, begin + 10, compute)
                sim.kernel(
                    "c10d::allreduce_", begin + 12, begin + 10 + compute,
                    50 + (0 if rank == slow else lag), name="ncclDevKernel_AllReduce_Sum",
                )  # fmt: skip
        text = sim.json().replace(
            b'{"schemaVersion"', b'{"distributedInfo": {"rank": %d}, "schemaVersion"' % rank, 1
        )
        path = folder / f"rank{rank}.json"
        path.write_bytes(text)
        paths.append(path)
    return paths


@pytest.fixture(autouse=True)
def _no_reader_is_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))  # a browser of other tests, say
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


def test_the_straggler_is_the_one_that_the_others_wait_for(tmp_path: Path) -> None:
    found: Ranks = ranks(list(reversed(_job(tmp_path, slow=2))))
    assert [r.rank for r in found.ranks] == [0, 1, 2, 3]
    assert found.stragglers == (2,)
    assert found.n_collectives == 6
    assert set(found.waits_ms) == {(0, 2), (1, 2), (3, 2)}
    assert found.waits_ms[0, 2] == pytest.approx(0.4)  # 2 collectives a step, 200 µs each
    assert found.ranks[2].waited_ms == 0
    assert found.ranks[2].last_in == 6
    assert found.ranks[0].communication_ms == pytest.approx(0.5)
    assert found.imbalance == pytest.approx(1_000 / 700)


def test_balanced_ranks_have_no_straggler(tmp_path: Path) -> None:
    found = ranks(_job(tmp_path, slow=0, lag=0), at_once=1)
    assert found.stragglers == ()
    assert found.imbalance == pytest.approx(1)


def test_of_many_ranks_one_that_is_last_once_is_no_straggler(tmp_path: Path) -> None:
    paths = _job(tmp_path, slow=3, n_ranks=12)
    once = json.loads(paths[5].read_bytes())
    first = next(e for e in once["traceEvents"] if "nccl" in e["name"])
    first["dur"] /= 100
    paths[5].write_text(json.dumps(once))
    found = ranks(paths, at_once=1)
    assert [r.last_in for r in found.ranks if r.last_in] == [5, 1]
    assert found.stragglers == (3,)
    shown = found.to_text()
    assert "For whom the others wait" in shown
    assert "5 for 3" not in shown


def test_what_cannot_be_read_is_left_out_and_told(tmp_path: Path) -> None:
    paths = _job(tmp_path, slow=1, n_ranks=2)
    broken = tmp_path / "broken.json"
    broken.write_text("no trace")
    found = ranks([*paths, broken, tmp_path / "missing.json"])
    assert len(found.ranks) == 2
    assert sum("left out" in w for w in found.warnings) == 2


def test_no_readable_trace_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="none of 2"):
        ranks([tmp_path / "a.json", tmp_path / "b.json"])
    with pytest.raises(TraceError, match="none of 1"):
        ranks([tmp_path / "a.json"])
    with pytest.raises(ValueError, match="at least one"):
        ranks([])
    with pytest.raises(ValueError, match="at_once"):
        ranks([tmp_path / "a.json"], at_once=0)


def test_ranks_without_a_device_or_numbers_are_compared_as_far_as_they_go(tmp_path: Path) -> None:
    paths = []
    for i in range(2):
        path = tmp_path / f"{i}.json"
        path.write_bytes(cpu_training(3, wait=100 * i).json())
        paths.append(path)
    found = ranks(paths)
    assert found.imbalance is None
    assert found.n_collectives == 0
    assert found.ranks[1].host_ms["data wait"] == pytest.approx(0.1)
    assert any("numbered" in w for w in found.warnings)


def test_it_works_from_a_script_without_a_guard(tmp_path: Path) -> None:
    paths = [str(p) for p in _job(tmp_path, slow=1, n_ranks=3)]
    script = tmp_path / "script.py"
    script.write_text(
        f"print('started')\nfrom perfkit.trace import ranks\nprint(ranks({paths!r}).stragglers)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "started\n(1,)\n"


def test_collectives_on_the_host_are_communication_of_their_rank() -> None:
    answer = {"communication_us": 0.0, "host_us": [{"communication": 5000.0, "other": 1.0}]}
    assert _communication_ms(answer, 1) == 5.0
    assert _communication_ms(answer | {"communication_us": 2000.0}, 1) == 2.0


# ---- collectives of the host, and of groups --------------------------------------------------

_OTHER_THREAD = 103


def _host_job(folder: Path, late_us: float) -> list[Path]:
    """Two ranks that ask gloo for two all-reduces at once; rank 1 asks ``late_us`` later.

    Once both are there, the first takes 100 µs, and the second, which waits for it, 60 more.
    """
    paths = []
    for rank in range(2):
        sim = Simulated()
        for i in range(3):
            at = rank * 3.6e9 + i * 5_000
            sim.step(i, at, 5_000)
            asked = at + 500 + rank * late_us
            end = at + 500 + late_us + 100
            sim.host("aten::mm", at + 10, asked - at - 10)
            sim.label("gloo:all_reduce", asked, end - asked, tid=_OTHER_THREAD)
            sim.label("gloo:all_reduce", asked + 1, end + 60 - asked - 1, tid=_OTHER_THREAD)
        path = folder / f"rank{rank}.json"
        path.write_bytes(_of_rank(sim, rank))
        paths.append(path)
    return paths


def _of_rank(sim: Simulated, rank: int) -> bytes:
    return sim.json().replace(
        b'{"schemaVersion"', b'{"distributedInfo": {"rank": %d}, "schemaVersion"' % rank, 1
    )


def test_who_waits_for_whom_is_told_of_collectives_on_the_host(tmp_path: Path) -> None:
    found = ranks(_host_job(tmp_path, late_us=900), at_once=1)
    assert found.on_host
    assert found.stragglers == (1,)
    assert found.n_collectives == 6
    # the second all-reduce waits for the first one, on both ranks: that is no skew
    assert found.waits_ms == {(0, 1): pytest.approx(0.9)}
    assert found.skew_ms == pytest.approx(0.45)  # mean of both
    assert found.transfer_ms == pytest.approx(0.16)
    assert "450 µs is waiting for a later rank" in found.to_text().replace("\n", " ")


def test_no_skew_is_all_transfer(tmp_path: Path) -> None:
    found = ranks(_host_job(tmp_path, late_us=0), at_once=1)
    assert found.stragglers == ()
    assert found.skew_ms == pytest.approx(0)
    assert found.transfer_ms == pytest.approx(0.16)


def test_collectives_of_a_group_are_compared_within_it(tmp_path: Path) -> None:
    """Two groups of two ranks, as for tensor parallelism: in each the second rank is late."""
    paths = []
    for rank in range(4):
        group = rank // 2
        late = rank % 2
        sim = Simulated()
        for i in range(3):
            at = i * 5_000
            sim.step(i, at, 5_000)
            asked = at + 500 + late * (500 + 400 * group)
            end = at + 2_000
            external = sim.host("c10d::allreduce_", asked - 20, 10)
            sim.device(
                "ncclDevKernel_AllReduce", asked, end - asked,
                sim.call("cudaLaunchKernel", asked - 18, 5, external),
                **{"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8,
                   "Out msg nelems": 8, "Group size": 2,
                   "Process Group Ranks": str([2 * group, 2 * group + 1])},
            )  # fmt: skip
        path = tmp_path / f"rank{rank}.json"
        path.write_bytes(_of_rank(sim, rank))
        paths.append(path)
    found = ranks(paths, at_once=1)
    assert found.n_collectives == 6
    assert found.waits_ms == {(2, 3): pytest.approx(0.9), (0, 1): pytest.approx(0.5)}
    assert found.stragglers == (3, 1)


def test_of_very_many_ranks_the_late_one_is_found_and_pairs_are_few() -> None:
    """Summaries alone: what each rank's trace says is read elsewhere."""
    from perfkit.trace.ask.ranks import ranks_of

    found = ranks_of([_summary(rank, late=rank == 700) for rank in range(1_024)])
    assert found.stragglers == (700,)
    assert len(found.waits_ms) == 1_023
    assert {whom for _, whom in found.waits_ms} == {700}
    assert found.ranks[700].waited_ms == 0


def _three() -> list[dict[str, Any]]:
    """Three ranks, three steps, two kinds of collectives in each; rank 1 is late by 400 µs."""
    made = []
    for rank, compute_us in enumerate((600.0, 500.0, 500.0)):
        one = _summary(rank, late=rank == 1)
        dur_us = [50.0 if rank == 1 else 450.0, 20.0] * 3
        one |= {
            "step_names": ["a", "b", "c"], "wall_us": [1_000.0, 1_100.0, 3_000.0],
            "host_us": [{"forward": 100.0}, {"forward": 200.0}, {"forward": 600.0}],
            "device_us": [{"compute": compute_us + more} for more in (-100, 0, 100)],
            "idle_us": {"sync": 90.0}, "overlapped_us": 60.0, "communication_us": sum(dur_us),
        }  # fmt: skip
        one["collectives"] |= {
            "names": ["reduce", "gather"], "step": [0, 0, 1, 1, 2, 2], "name": [0, 1] * 3,
            "dur_us": dur_us,
        }  # fmt: skip
        made.append(one)
    return made


def test_what_is_told_of_ranks_is_per_step() -> None:
    from perfkit.trace.ask.ranks import ranks_of

    found = ranks_of(_three())
    first, late, _ = found.ranks
    assert (first.n_steps, first.step_ms) == (3, 1.1)
    assert first.host_ms == {"forward": pytest.approx(0.3)}
    assert first.device_ms == {"compute": pytest.approx(0.6)}
    assert (first.idle_ms, first.overlapped_ms) == ({"sync": 0.03}, 0.02)
    assert first.communication_ms == pytest.approx(0.47)
    assert (first.waited_ms, first.last_in, late.waited_ms, late.last_in) == (
        pytest.approx(0.4), 0, 0, 3,
    )  # fmt: skip
    assert found.n_collectives == 6
    assert found.waits_ms == {(0, 1): pytest.approx(0.4), (2, 1): pytest.approx(0.4)}
    assert found.stragglers == (1,)
    assert found.imbalance == pytest.approx(3 * 600 / 1_600)
    assert found.skew_ms == pytest.approx(0.8 / 3)
    assert found.transfer_ms == pytest.approx(0.07)
    assert (found.on_host, found.warnings) == (False, ())
    # one that recorded a step less does not make the others' steps longer
    made = _three()
    made[2] |= {"wall_us": [1_000.0, 1_100.0]}
    assert ranks_of(made).waits_ms[0, 1] == pytest.approx(0.4)


def test_doubts_about_ranks_are_told_only_where_they_are() -> None:
    from perfkit.trace.ask.ranks import ranks_of

    for numbers in ((None, 1, 2), (1, 1, 2)):
        found = ranks_of([one | {"rank": n} for one, n in zip(_three(), numbers, strict=True)])
        assert [r.rank for r in found.ranks] == [0, 1, 2]
        assert any("numbered in the order given" in w for w in found.warnings)
    assert ranks_of([_three()[0] | {"rank": None}]).warnings == ()
    alone = _three()
    for one in alone[1:]:
        one["collectives"] |= {"step": [], "name": [], "dur_us": []}
        one |= {"communication_us": 0.0}
    said = ranks_of(alone).warnings
    assert any("2 kinds of collectives, which differ" in w for w in said)  # in all three steps
    assert any("was matched" in w for w in said)
    assert ranks_of(alone[:1]).warnings == ranks_of(alone[1:]).warnings == ()
    assert ranks_of(alone).stragglers == ()
    alone[0] |= {"device_us": [{}] * 3}
    alone[0]["collectives"] |= {"on_host": True}
    found = ranks_of(alone)
    assert found.on_host
    assert found.imbalance == 1  # of those with a device
    # one more collective on one rank: nobody knows which of them met
    more = _three()
    for what, value in (("step", 0), ("name", 0), ("dur_us", 5.0)):
        more[0]["collectives"][what] = [value, *more[0]["collectives"][what]]
    found = ranks_of(more)
    assert found.n_collectives == 5
    assert any("1 kind of collectives, which differ" in w for w in found.warnings)


def _summary(rank: int, *, late: bool) -> dict[str, Any]:
    dur_us = 50.0 if late else 450.0 + rank % 7
    return {
        "path": f"rank{rank}", "rank": rank, "n_events": 1, "step_names": ["a", "b"],
        "wall_us": [1_000.0] * 2, "host_us": [{}] * 2, "device_us": [{"compute": 500.0}] * 2,
        "idle_us": {}, "communication_us": 2 * dur_us, "overlapped_us": 0.0, "warnings": [],
        "collectives": {
            "on_host": False, "names": ["allreduce"], "step": [0, 1], "name": [0, 0],
            "dur_us": [dur_us, dur_us], "asked": {"before": 0, "within": 2, "after": 0},
        },
    }  # fmt: skip


def test_where_collectives_are_asked_for_is_told(tmp_path: Path) -> None:
    """Two before the backward pass, as for sharded parameters, three within, four after it."""
    from perfkit.trace.ask.rank_summary import summarize

    sim = Simulated()
    for i in range(3):
        at = i * 5_000
        sim.step(i, at, 5_000)
        for asked in (100, 200, 1_500, 1_600, 1_700, 3_000, 3_100, 3_200, 3_300):
            sim.label("gloo:all_gather", at + asked, 50, tid=_OTHER_THREAD)
        sim.host("autograd::engine::evaluate_function: AddmmBackward0", at + 1_000, 1_000)
    path = tmp_path / "t.json"
    path.write_bytes(sim.json())
    said = summarize(path)["collectives"]
    assert said["asked"] == {"before": 6, "within": 9, "after": 12}
    assert said["on_host"]
    assert said["dur_us"] == [50.0] * 27
    # where the operators that ask are on record, their times count, but not behind the last step
    for times in ((1_500, 6_500, 11_500, 11_600), (16_000,)):
        for at in times:
            sim.host("c10d::allreduce_", at, 20)
        path.write_bytes(sim.json())
        said = summarize(path)["collectives"]
        assert said["asked"] == {"before": 0, "within": 4, "after": 0}


def test_a_summary_has_the_lengths_sizes_and_rank_that_were_recorded(tmp_path: Path) -> None:
    from perfkit.trace.ask.rank_summary import summarize

    sim = Simulated()
    sim.step(0, 0, 1_000)
    for k, name in enumerate(("allgather", "allreduce")):  # at the same time, on two streams
        sim.device(
            "ncclDevKernel", 100 + 50 * k, 200, sim.call("cudaLaunchKernel", 10 + 10 * k, 5),
            **{"Collective name": name, "dtype": "Float", "In msg nelems": 8,
               "Out msg nelems": 32, "Group size": 4},
        )  # fmt: skip
        sim.events[-1]["tid"] = sim.events[-1]["args"]["stream"] = 20 + k
    path = tmp_path / "t.json"
    for rank, known in (("3", 3), ("true", None), ('"3"', None)):
        told = f'{{"distributedInfo": {{"rank": {rank}}}, "schemaVersion"'
        path.write_bytes(sim.json().replace(b'{"schemaVersion"', told.encode(), 1))
        found = summarize(path)
        assert found["rank"] == known
    said = found["collectives"]
    assert said["names"] == ["allgather Float 32", "allreduce Float 32"]
    assert said["dur_us"] == [200, 200]
