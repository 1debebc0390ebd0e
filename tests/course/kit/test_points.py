"""Key points are a list; the status of claims comes only from records."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.base.errors import UsageError
from perfkit.course.kit import points
from perfkit.course.kit._recorded import recorded_folders, taught_claims
from perfkit.course.kit.points import KeyPoints
from perfkit.course.ledger.ledger import ledger
from perfkit.course.ledger.recording import Figure
from perfkit.course.ledger.records import Records, read_records
from tests.course.ledger.made_records import made


def test_points_alone_never_change() -> None:
    shown = KeyPoints("Look first.", "Compare <interleaved>.")
    assert repr(shown) == "Key points\n- Look first.\n- Compare <interleaved>."
    assert "Compare &lt;interleaved&gt;." in shown._repr_html_()


def test_without_a_record_no_claim_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "recorded_folders", list)
    monkeypatch.setattr(points, "taught_claims", lambda: {"A1": ("00-start-here",)})
    said = " ".join(repr(KeyPoints("Look first.", claims=["A1", "A5"])).split())
    assert "The ledger says - A1 (" in said
    assert "): not recorded" in said
    assert "): not yet taught" in said
    assert "holds" not in said


def test_a_claim_that_was_tested_otherwise_says_what_was_tested() -> None:
    row = next(
        row for row in ledger(read_records(recorded_folders()), taught_claims()).rows if row.tested
    )
    said = " ".join(repr(KeyPoints("Look first.", claims=[row.claim.id])).split())
    assert "as tested" in said
    assert " ".join(f"; tested: {row.tested}".split()) in said


def test_points_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="at least one"):
        KeyPoints()
    with pytest.raises(UsageError, match="'Z9'"):
        KeyPoints("a", claims=["A1", "Z9"])
    with pytest.raises(UsageError, match=r"\['A1'\]"):
        KeyPoints("a", claims="A1")
    points: Any = KeyPoints
    for given in ((3,), ("a", None)):
        with pytest.raises(UsageError, match="are texts"):
            points(*given)
    with pytest.raises(UsageError, match="are texts"):
        points("a", claims=[["A1"]])


def counted(value: float) -> dict[str, Figure]:
    return {"calls": Figure(value, "1", kind="exact")}


def test_a_claim_of_two_lessons_is_shown_as_the_lesson_of_the_points_measured_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = Records(
        (
            made("A16", lesson="01-measure", figures=counted(1_617)),
            made("A16", lesson="08-custom-loss", figures=counted(60_449)),
            made("A15", lesson="08-custom-loss", figures=counted(82)),
        )
    )
    taught = {"A16": ("01-measure", "08-custom-loss"), "A15": ("08-custom-loss",)}
    monkeypatch.setattr(points, "read_records", lambda _: records)
    monkeypatch.setattr(points, "taught_claims", lambda: taught)
    of_08 = repr(KeyPoints("Look first.", claims=["A15", "A16"]))
    assert "60,449" in of_08
    assert "1,617" not in of_08
    # A16 alone is taught in both: the first lesson's, as in the ledger
    assert "1,617" in repr(KeyPoints("Look first.", claims=["A16"]))
    # without a record of its own, a lesson shows what there is
    taught["A16"], taught["D1"] = ("01-measure", "09-precision"), ("09-precision",)
    assert "1,617" in repr(KeyPoints("Look first.", claims=["D1", "A16"]))
