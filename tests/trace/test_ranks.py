"""Several ranks: who is slow, who waits for whom; read a few at a time, nothing is left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
    shown = str(found)
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
