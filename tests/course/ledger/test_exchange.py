"""Records in one file for a pull request, and from one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfkit.base.errors import RecordError, UsageError
from perfkit.cli import main
from perfkit.course.ledger import ledger as ledger_module
from perfkit.course.ledger.claims import claims
from perfkit.course.ledger.exchange import export_records, import_records, read_export
from perfkit.course.ledger.ledger import ledger
from perfkit.course.ledger.recording import Figure
from perfkit.course.ledger.records import (
    BUSY,
    KeptError,
    Record,
    Records,
    read_record,
    read_records,
    write_record,
)
from tests.course.ledger.made_records import GPU, here, made

HASH = "sha256:" + 64 * "0"


def of_a_lesson(**options: Any) -> Record:
    one = made(**options)
    return replace(
        one, notebook="06-host-to-device.ipynb", notebook_hash=HASH, budget_s=None, budget_scale=2.0
    )


def busy(record: Record) -> Record:
    return replace(record, warnings=(f"{BUSY}: 80 % of its processors",))


def test_out_and_in_again_is_the_same(tmp_path: Path) -> None:
    records = [made(), of_a_lesson(device=GPU, type="cuda", gpus=1)]
    export_records(records, tmp_path / "mine.json")
    assert read_export(tmp_path / "mine.json") == tuple(records)
    taken = import_records(read_export(tmp_path / "mine.json"), tmp_path / "in")
    assert [one.path is not None for one in taken] == [True, True]
    assert set(map(repr, read_records([tmp_path / "in"]).records)) == set(map(repr, records))
    again = import_records(records, tmp_path / "in")
    assert [one.kept for one in again] == ["it is there already"] * 2


def test_a_newer_record_and_one_of_a_quiet_machine_stay(tmp_path: Path) -> None:
    now = of_a_lesson(when="2026-03-01T00:00:00+00:00")
    write_record(now, tmp_path)
    older = of_a_lesson(when="2026-02-01T00:00:00+00:00")
    newer_busy = busy(of_a_lesson(when="2026-04-01T00:00:00+00:00"))
    assert [one.path for one in import_records([older, newer_busy], tmp_path)] == [None, None]
    with pytest.raises(KeptError, match=r"the record of 2026-03-01, of a quiet machine, stays"):
        write_record(newer_busy, tmp_path)
    assert read_records([tmp_path]).records == (now,)
    # a busy one gives way, even to an older one of a quiet machine
    folder = tmp_path / "other"
    write_record(newer_busy, folder)
    write_record(busy(now), folder)
    assert import_records([older], folder)[0].path is not None


_TOO_LARGE = {"n": {"value": 10**400, "unit": "ms", "low": None, "high": None, "kind": "exact"}}


def sealed(record: Record, **changes: Any) -> dict[str, Any]:
    from perfkit.course.ledger.records import _digest

    content = record.to_dict() | changes
    content.pop("digest")
    return content | {"digest": _digest(content)}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], r"has the schema None; --import reads perfkit\.records/1"),
        ({"schema": "perfkit.records/9", "records": []}, r"has the schema 'perfkit\.records/9'"),
        ({"schema": "perfkit.records/1", "records": []}, "holds no records"),
        ({"schema": "perfkit.records/1", "records": [3]}, "record 1 is not a record"),
        (
            {"schema": "perfkit.records/1", "records": [made().to_dict() | {"holds": False}]},
            "record 1 was changed since it was recorded",
        ),
        (
            {"schema": "perfkit.records/1", "records": [sealed(made(), schema="perfkit.record/9")]},
            r"this perfkit reads perfkit\.record/1 and perfkit\.record/2",
        ),
        (
            {"schema": "perfkit.records/1", "records": [sealed(made(), claim="Z9")]},
            "record 1: no claim 'Z9'",
        ),
        (
            {"schema": "perfkit.records/1", "records": [sealed(made(), lesson="01")]},
            "lesson 01 does not test claim A9",
        ),
        (
            {
                "schema": "perfkit.records/1",
                "records": [
                    made().to_dict(),
                    sealed(made(), provenance=made().provenance.to_dict() | {"kind": "played"}),
                ],
            },
            "record 2 is not a complete record: .*'played', not recorded",
        ),
        (
            {"schema": "perfkit.records/1", "records": [sealed(of_a_lesson(), notebook_hash="x")]},
            "notebook_hash: expected `str` matching",
        ),
        (
            {"schema": "perfkit.records/1", "records": [sealed(made(), holds=None)]},
            "holds: expected `bool`, got `null`",
        ),
        (
            {"schema": "perfkit.records/1", "records": [sealed(made(), title="half: \udc80")]},
            "record 1 is not a complete record: UnicodeEncodeError",
        ),
        (
            {"schema": "perfkit.records/1", "records": [sealed(made(), figures=_TOO_LARGE)]},
            "record 1 is not a complete record: .*a figure must be a finite number",
        ),
        *(
            ({"schema": "perfkit.records/1", "records": [made(when=when).to_dict()]}, says)
            for when, says in (
                ("9999-12-31", "record 1 .* its when_utc '9999-12-31' is no time like 2026-"),
                ("<b>zz", "record 1 .* its when_utc '<b>zz' is no time like 2026-"),
                ("2026-01-02T03:04:05", "record 1 .* '2026-01-02T03:04:05' is no time like"),
                ("9999-12-31T00:00:00+00:00", "1 is of 9999-12-31T00:00:00.00:00, in the future"),
            )
        ),
    ],
)
def test_what_is_not_sound_is_refused_as_a_whole(
    tmp_path: Path, content: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=says):
        read_export(path)
    assert main(["record", "--import", str(path), "--out", str(tmp_path / "in")]) != 0
    assert "theirs.json" in capsys.readouterr().err
    assert not (tmp_path / "in").exists()


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"schema": ')
    for name in ("half.json", "absent.json"):
        with pytest.raises(RecordError, match=f"{name} cannot be read as an export"):
            read_export(tmp_path / name)


def test_the_command_takes_this_machine_s_records_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, file = tmp_path / "records", tmp_path / "mine.json"
    for one in (made(device=here()), made("A1", lesson="00", device=here()), made()):
        write_record(one, records)
    assert main(["record", "--export", str(file), "--out", str(records), "--claim", "a9"]) == 0
    assert f"1 record of {here()}" in capsys.readouterr().out
    (one,) = read_export(file)
    assert (one.claim, one.device.name) == ("A9", here())
    assert main(["record", "--import", str(file), "--out", str(tmp_path / "in")]) == 0
    assert "1 record of 1 taken" in capsys.readouterr().out
    assert read_record(tmp_path / "in" / one.device.slug / "A9.json") == one


def test_nothing_to_export_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_record(made(), tmp_path / "records")
    file = str(tmp_path / "mine.json")
    assert main(["record", "--export", file, "--out", str(tmp_path / "records")]) != 0
    assert "no such record was made on this machine" in capsys.readouterr().err
    with pytest.raises(UsageError, match="nothing to export"):
        export_records([], tmp_path / "x.json")
    assert main(["record", "06", "--import", file]) != 0


def test_a_record_of_another_hash_is_older_than_the_lesson() -> None:
    old, plain = of_a_lesson(), made("A1", lesson="00")
    name = "06-host-to-device.ipynb"
    for hashes, older in (({name: HASH}, ()), ({name: HASH[:-1] + "1"}, (old,)), ({}, ())):
        found = ledger(Records((old, plain)), None, hashes)
        rows = {row.claim.id: row for row in found.rows}
        assert rows["A9"].older == older
        assert rows["A1"].older == ()  # of a program: which lesson it belonged to is not known
        assert ("older than the lesson" in " ".join(found.to_text().split())) == bool(older)
        assert rows["A9"].to_dict()["records"][0]["older_than_lesson"] == bool(older)
    assert len(found.rows) == len(claims())


def test_old_records_are_read_as_they_were(tmp_path: Path) -> None:
    """A file of ``perfkit.record/1`` keeps its bytes and its digest."""
    one = made(figures={"n": Figure(1, "1", kind="exact")})
    path = write_record(one, tmp_path)
    content = json.loads(path.read_bytes())
    assert content["schema"] == "perfkit.record/1"
    assert "notebook" not in content
    assert read_record(path) == one
    assert ledger_module.status_of(one).startswith("holds")
