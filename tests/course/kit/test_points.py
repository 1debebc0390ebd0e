"""Key points are a list; the status of claims comes only from records."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.base.errors import UsageError
from perfkit.course.kit import points
from perfkit.course.kit._recorded import recorded_folders, taught_claims
from perfkit.course.kit.points import KeyPoints
from perfkit.course.ledger.ledger import ledger
from perfkit.course.ledger.records import read_records


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
