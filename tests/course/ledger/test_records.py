from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perfkit.base.errors import RecordError, UsageError
from perfkit.course.ledger.recording import Figure
from perfkit.course.ledger.records import (
    Device,
    _digest,
    file_name,
    read_record,
    read_records,
    slug,
    write_record,
)
from tests.course.ledger.made_records import GPU, made


def test_what_was_played_is_neither_written_nor_read(tmp_path: Path) -> None:
    record = made(device=GPU, type="cuda", gpus=1)
    path = write_record(record, tmp_path)
    played = replace(record, provenance=replace(record.provenance, kind="played"))
    with pytest.raises(UsageError, match="played GPU"):
        write_record(played, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    # a file with a digest of its own is refused as well
    path.write_text(json.dumps(played.to_dict()))
    with pytest.raises(RecordError, match="'played', not recorded"):
        read_record(path)


def test_written_and_read_back_it_is_the_same(tmp_path: Path) -> None:
    figures = {"ratio": Figure(2.123456789012345, "×", 2.0, 2.3), "n": Figure(7, "B", kind="exact")}
    record = made(figures=figures)
    path = write_record(record, tmp_path)
    assert path == tmp_path / "cpu-amd-epyc-0000-of-a-test" / "A9.json"
    assert read_record(path) == record
    assert json.loads(path.read_text())["schema"] == "perfkit.record/1"
    assert [p.name for p in path.parent.iterdir()] == ["A9.json"]  # no half file beside it


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"value": 5.0', '"value": 6.0'),
        ('"holds": true', '"holds": false'),
        ("2026-01-02", "2026-02-02"),
        ("NVIDIA H100", "NVIDIA H200"),
        ("a fifth", "a tenth"),
        ('"kind": "exact"', '"kind": "measured"'),
        ('"warnings": []', '"warnings": ["no"]'),
    ],
)
def test_an_edited_record_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = write_record(made(device=GPU, type="cuda", gpus=1), tmp_path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(RecordError) as refused:
        read_record(path)
    message = str(refused.value)
    assert str(path) in message
    assert "was changed since it was recorded" in message
    assert "perfkit record --claim A9" in message


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu", "toy"])
def test_a_record_of_any_accelerator_is_read_back(tmp_path: Path, kind: str) -> None:
    """Also of one that this machine's perfkit does not know: the record may be older or newer."""
    record = made(device=GPU, type=kind, gpus=1)
    path = write_record(record, tmp_path)
    assert path.parent.name == record.device.slug == slug(GPU)
    assert read_record(path) == record
    assert not record.device.is_cpu


def test_layout_is_no_edit(tmp_path: Path) -> None:
    record = made()
    path = write_record(record, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert read_record(path) == record


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "names no schema"),
        ("{}", "names no schema"),
        ('{"schema": "perfkit.record/9"}', "this perfkit reads perfkit.record/1"),
        ('{"schema": "perfkit.record/1"}', "was changed"),
        (" " * (2 << 20), "is not a record"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "A9.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=says):
        read_record(path)


def test_a_torn_file_is_refused_and_the_others_are_read(tmp_path: Path) -> None:
    kept = made("A2", lesson="03")
    write_record(kept, tmp_path)
    torn = write_record(made(), tmp_path)
    torn.write_bytes(torn.read_bytes()[:-40])
    found = read_records([tmp_path])
    assert found.records == (kept,)
    assert list(found.refused) == [torn]


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("lesson",), None),
        (("lesson",), "<script>"),
        (("device", "name"), 5),
        (("device", "type"), "an abacus"),
        (("device", "type"), 7),
        (("provenance", "when_utc"), None),
        (("provenance", "versions"), ["torch"]),
        (("warnings",), [{}]),
        (("budget_s",), "long"),
        (("duration_s",), float("nan")),
        (("headline",), "x" * 5000),
    ],
)
def test_a_sealed_record_with_a_part_that_cannot_be_is_refused(
    tmp_path: Path, where: tuple[str, ...], value: object
) -> None:
    path = write_record(made(), tmp_path)
    content = json.loads(path.read_text())
    del content["digest"]
    within = content
    for name in where[:-1]:
        within = within[name]
    within[where[-1]] = value
    path.write_text(json.dumps(content | {"digest": _digest(content)}))
    found = read_records([tmp_path])
    assert not found.records
    (reason,) = found.refused.values()
    assert len(reason) < len(str(path)) + 300


def test_a_record_found_twice_counts_once(tmp_path: Path) -> None:
    write_record(made(), tmp_path / "a")
    write_record(made(), tmp_path / "b")
    write_record(made(when="2026-03-03T00:00:00+00:00"), tmp_path / "c")
    found = read_records([tmp_path / name for name in ("a", "b", "c", "not there")])
    assert [one.date for one in found.of("A9")] == ["2026-03-03", "2026-01-02"]


def test_a_second_lesson_has_a_file_of_its_own(tmp_path: Path) -> None:
    assert file_name("A16", "01-measure") == "A16.json"
    assert file_name("A16", "08") == "A16-08.json"
    first = made("A16", lesson="01", figures={"share": Figure(0.5, "1")})
    second = made("A16", lesson="08", figures={"ratio": Figure(9.0, "×")})
    write_record(second, tmp_path)
    write_record(first, tmp_path)
    assert read_records([tmp_path]).of("A16") == [first, second]


def test_a_name_that_would_mean_two_figures_is_refused(tmp_path: Path) -> None:
    write_record(made("A16", lesson="01"), tmp_path)
    with pytest.raises(UsageError, match="lesson 08 and of lesson 01 both have a figure 'bytes_"):
        write_record(made("A16", lesson="08"), tmp_path)
    write_record(made("A16", lesson="01"), tmp_path)  # the same lesson again replaces its own


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "intel-xeon-cpu-2-20ghz"),
        ("../../etc", "etc"),
        ("", "unknown"),
    ],
)
def test_a_device_s_folder(name: str, folder: str) -> None:
    assert slug(name) == folder
    assert Device(name, "cuda", 1).slug == folder
    assert Device(name, "cpu").slug == f"cpu-{folder}"
