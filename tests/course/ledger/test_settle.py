"""A lesson's cell settles a claim: judged by its criterion, shown beside the records."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfkit.base import machine
from perfkit.base.errors import MissingError, UsageError
from perfkit.course.kit._places import lessons
from perfkit.course.kit._recorded import taught_claims
from perfkit.course.kit.claim import claim, recorded
from perfkit.course.ledger import criteria as criteria_module
from perfkit.course.ledger.claims import claims
from perfkit.course.ledger.criteria import Criterion, all_of, criteria, criterion, faster
from perfkit.course.ledger.notebook import code_hash, read_notebook, settling_cells
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.ledger.settle import KIND, LessonClaim
from perfkit.show import RESULT_MIME
from tests.course.ledger.made_records import GPU, here, made

BYTES = Figure(5.0, "×", kind="exact")


def judged(judge: Any, *records: Any) -> LessonClaim:
    one = Criterion("A9", "06-host-to-device", "bytes of a batch", "a batch takes fewer", judge)
    return LessonClaim(claims()["A9"], one, records)


def outcome(holds: bool | None) -> Outcome:
    return Outcome(holds, {"bytes_ratio": BYTES}, "bytes_ratio", "A fifth of the bytes.")


@pytest.mark.parametrize(
    ("holds", "verdict"),
    [(True, "holds here"), (False, "does not hold here"), (None, "not decided")],
)
def test_the_verdict_is_the_criterion_s(holds: bool | None, verdict: str) -> None:
    settled = judged(lambda a, *, b: outcome(holds)).settle(1, b=2)
    assert settled.verdict == verdict
    assert settled.headline == BYTES


def test_it_is_shown_beside_what_was_recorded() -> None:
    others = made(device=here()), made(device=GPU, type="cuda", gpus=1, holds=False)
    settled = judged(lambda: outcome(True), *others).settle()
    rows = [line for line in str(settled).splitlines() if "5.00×" in line]
    assert len(rows) == 3
    assert "this run" in rows[0]
    assert "counted here" in rows[0]
    assert "this machine" in rows[1]
    assert GPU in rows[2]
    assert "does not hold" in rows[2]
    assert "a batch takes fewer" in str(settled)


@pytest.mark.parametrize(
    ("error", "missing"), [(ValueError("no\nrows"), False), (MissingError("needs a GPU"), True)]
)
def test_what_cannot_be_judged_does_not_raise_into_the_lesson(
    error: Exception, missing: bool
) -> None:
    def judge() -> Outcome:
        raise error

    settled = judged(judge).settle()
    assert settled.verdict == "not decided"
    assert settled.missing is missing
    assert settled.headline is None
    assert " ".join(str(error).split()) in " ".join(str(settled).split())
    assert judged(lambda: 3).settle().verdict == "not decided"
    assert judged(lambda: outcome(True)).settle("too", "many").verdict == "not decided"


def test_the_output_of_the_cell_carries_the_outcome() -> None:
    bundle = judged(lambda: outcome(True)).settle()._repr_mimebundle_()
    data = json.loads(json.dumps(bundle[RESULT_MIME]))
    assert data["type"] == KIND
    assert Outcome.from_dict(data["outcome"]) == outcome(True)


def test_a_small_budget_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_BUDGET_SCALE", "0.1")
    ratio = Figure(1.1, "×", 0.9, 1.3)
    measured = Outcome(True, {"bytes_ratio": BYTES, "time_ratio": ratio}, "bytes_ratio", "So.")
    assert "0.1 of the usual budget: expect wide" in str(judged(lambda: measured).settle())
    # what was counted has no interval, and what could not be judged no figure
    assert "usual budget" not in str(judged(lambda: outcome(True)).settle())
    assert "usual budget" not in str(judged(lambda: 3).settle())


def test_what_is_not_decided_says_so_beside_every_ratio() -> None:
    figures = {
        "time_ratio": Figure(1.1, "×", 0.9, 1.3),
        "one_block_ratio": Figure(1.2, "×"),
        "bytes_ratio": BYTES,
        "share": Figure(40.0, "%"),
    }

    def said(holds: bool | None, headline: str) -> str:
        one = Outcome(holds, figures, headline, "Two workers are 1.10× as fast.")
        return " ".join(str(judged(lambda: one).settle()).split())

    undecided = said(None, "time_ratio")
    assert (
        "Not decided: Two workers are 1.10× as fast. 95 % intervals: time ratio 1.10× [0.900, "
        "1.30]; one block ratio 1.20× (no interval). It holds if" in undecided
    )
    assert "not decided 1.20× (no interval)" in said(None, "one_block_ratio")
    decided = said(True, "one_block_ratio")
    assert "Two workers are 1.10× as fast. It holds if" in decided
    assert "ot decided" not in decided
    assert "no interval" not in decided


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (1.2, 1.4, True),
        (0.6, 0.9, False),
        (0.95, 1.05, False),  # next to no difference: that is an answer
        (0.7, 1.5, None),
        (None, None, None),
        (1.2, None, None),
        (None, 0.8, None),
        (1.01, 1.5, True),
        (1.0, 1.5, None),
        (0.5, 0.99, False),
        (0.5, 1.0, None),
        (0.91, 1.1, False),  # within a tenth
        (0.9, 1.05, None),
        (0.95, 1.11, None),
    ],
)
def test_faster_says_nothing_where_the_interval_is_too_wide(
    low: float | None, high: float | None, says: bool | None
) -> None:
    found = SimpleNamespace(ratio=1.0, low=low, high=high)
    assert faster(found) is says


def test_all_of_three_values() -> None:
    assert all_of(True, True) is True
    assert all_of(True, None) is None
    assert all_of(None, False) is False
    assert all_of(False, True) is False
    assert all_of(None, None) is None


def test_a_claim_has_one_criterion_in_a_lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criteria_module, "_REGISTRY", {})
    mark = criterion("A9", lesson="06", title="bytes", holds_if="fewer")

    @mark
    def one() -> Outcome:
        return outcome(True)

    mark(one)  # a module that is imported again

    with pytest.raises(UsageError, match="two criteria for A9"):

        @mark
        def two() -> Outcome:
            return outcome(True)

    with pytest.raises(UsageError, match="no claim 'Z9'"):
        criterion("Z9", lesson="06", title="bytes", holds_if="fewer")
    with pytest.raises(UsageError, match="title and holds_if"):
        criterion("A9", lesson="06", title="bytes", holds_if=" ")


def test_a_gpu_that_had_no_part_in_it_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_default_device", lambda: "NVIDIA H100")
    on = {name: SimpleNamespace(provenance=machine.stamp(device=name)) for name in ("cpu", "GPU")}

    def device(*measured: object) -> str:
        return judged(lambda *_: outcome(True)).settle(*measured).provenance.device

    assert device(on["cpu"], 3.0, "text") == "cpu"
    assert device({"a": [on["cpu"], on["cpu"]]}) == "cpu"
    for others in ((), (3.0,), (on["GPU"],), (on["cpu"], on["GPU"]), (on["cpu"], object())):
        assert device(*others) == "NVIDIA H100"


def test_a_claim_is_asked_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    found = claim("A1")
    assert found.criterion.number == "00"
    assert found.criterion.holds_if in " ".join(str(found).split())
    with pytest.raises(UsageError, match="no claim 'Q1'"):
        claim("Q1")
    monkeypatch.setattr("perfkit.course.kit.claim.criteria", lambda **_: [])
    with pytest.raises(UsageError, match="no cell of the lessons settles claim A11"):
        claim("A11")


def test_what_only_the_record_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERFKIT_RECORD_CLAIMS", raising=False)
    assert not recorded("A5")
    monkeypatch.setenv("PERFKIT_RECORD_CLAIMS", "A1,A5")
    assert recorded("A5", "C2")
    assert not recorded("A")


def test_every_claim_that_a_lesson_lists_has_its_criterion_and_its_cell() -> None:
    by_lesson = {path.name[:2]: settling_cells(read_notebook(path)) for path in lessons()}
    wanted = {(one.number, one.claim) for one in criteria()}
    assert {(n, claim) for n, cells in by_lesson.items() for claim in cells} == wanted
    taught = {
        (number, claim)
        for claim, lessons_ in (taught_claims() or {}).items()
        for number in (lesson[:2] for lesson in lessons_)
    }
    assert taught == wanted


def notebook(*cells: tuple[str, list[str]]) -> dict[str, Any]:
    return {
        "cells": [
            {"cell_type": "code", "metadata": {"tags": tags}, "source": source, "outputs": []}
            for source, tags in cells
        ]
    }


SETTLES = 'claim("A9").settle(1)'


def test_the_hash_is_of_the_code_that_is_recorded() -> None:
    first = notebook(("x = 1", []), ('guess.lock("")', ["not-recorded"]), (SETTLES, []), ("y", []))
    same = notebook(
        ("x = 1  \n", ["hide"]), ('guess.lock("b")', ["not-recorded"]), (SETTLES, []), ("z", [])
    )
    same["cells"].insert(0, {"cell_type": "markdown", "metadata": {}, "source": ["# text"]})
    same["cells"][1]["outputs"] = [{"output_type": "stream", "text": "1"}]
    assert code_hash(first) == code_hash(same)
    other = notebook(("x = 2", []), (SETTLES, []))
    assert code_hash(other) != code_hash(first)


def test_which_cell_settles_what() -> None:
    found = settling_cells(
        notebook(
            (SETTLES, []),
            ('display(claim("B6", lesson="07").settle(a, b))', []),
            ('claim("A1")', []),
            ('claim("C2").settle()', ["not-recorded"]),
        )
    )
    assert found == {"A9": 0, "B6": 1}


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": [1]}', '{"cells": [{"cell_type": "x"}]}'])
def test_what_is_no_notebook_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.ipynb").write_text(text)
    with pytest.raises(UsageError, match=r"a\.ipynb cannot be read as a notebook"):
        read_notebook(tmp_path / "a.ipynb")
