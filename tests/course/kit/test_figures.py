from __future__ import annotations

from pathlib import Path

import pytest

from perfkit.base.errors import RecordError, UsageError
from perfkit.course.kit.figures import figure
from perfkit.course.ledger.claims import claims
from perfkit.course.ledger.recording import Figure
from perfkit.course.ledger.records import write_record
from tests.course.ledger.made_records import GPU, SOMEWHERE, here, made


def test_its_repr_is_one_line_with_value_interval_place_and_date(tmp_path: Path) -> None:
    figures = {"step_ratio": Figure(2.345, "×", 2.1, 2.61), "bytes": Figure(33_554_432, "B")}
    write_record(made(figures=figures), tmp_path)
    found = figure("A9.step_ratio", folders=[tmp_path])
    assert repr(found) == (
        f"A9.step_ratio: 2.35× [2.10, 2.61], recorded on {SOMEWHERE}, 2026-01-02"
    )
    assert found.value == 2.345
    assert "32.0 MiB" in repr(figure("A9.bytes", folders=[tmp_path]))


@pytest.mark.parametrize(
    ("made_of", "text"),
    [
        (Figure(100_663_296, "B", kind="exact"), "100,663,296 B, counted "),
        (Figure(5.0, "×", kind="exact"), "5.00×, counted "),
        (Figure(3, "of 3 trainers"), "3 of 3 trainers, "),
        (Figure(0.25, "1", kind="simulated"), "0.250, simulated, "),
        (Figure(12.5, "ms", 12.0, 13.0, kind="predicted"), "12.5 ms [12.0 ms, 13.0 ms], predicted"),
        (Figure(-3.21, "GB/s"), "-3.21 GB/s, "),
    ],
)
def test_each_kind_and_unit_has_its_form(tmp_path: Path, made_of: Figure, text: str) -> None:
    write_record(made(figures={"it": made_of}), tmp_path)
    shown = repr(figure("A9.it", folders=[tmp_path])).replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert shown.startswith(f"A9.it: {text}"), shown


def test_this_machine_s_record_goes_before_a_newer_one(tmp_path: Path) -> None:
    write_record(made(when="2027-01-01T00:00:00+00:00"), tmp_path)
    mine = {"bytes_ratio": Figure(4.0, "×", kind="exact")}
    write_record(made(device=here(), figures=mine), tmp_path)
    found = figure("A9.bytes_ratio", folders=[tmp_path])
    assert repr(found) == "A9.bytes_ratio: 4.00×, counted here, 2026-01-02"


def test_a_kind_of_device_can_be_asked_for(tmp_path: Path) -> None:
    gpu = {"ratio": Figure(3.0, "×")}
    write_record(made(figures={"ratio": Figure(2.0, "×")}), tmp_path)
    assert not figure("A9.ratio", device="cuda", folders=[tmp_path]).recorded
    write_record(made(device=GPU, type="cuda", gpus=1, figures=gpu), tmp_path)
    assert figure("A9.ratio", device="cuda", folders=[tmp_path]).value == 3.0
    assert figure("A9.ratio", device="cpu", folders=[tmp_path]).value == 2.0


def test_without_a_record_it_says_so_and_raises_nothing(tmp_path: Path) -> None:
    for claim in claims():
        found = figure(f"{claim}.anything", folders=[tmp_path])
        assert not found.recorded
        assert found.value is None
        assert repr(found) == (
            f"{claim}.anything: not recorded yet (perfkit record --claim {claim})"
        )


def test_an_unknown_name_lists_near_ones(tmp_path: Path) -> None:
    write_record(made(), tmp_path)
    with pytest.raises(UsageError, match=r"has a figure 'byte_ratio'; near ones: A9\.bytes_ratio"):
        figure("A9.byte_ratio", folders=[tmp_path])


@pytest.mark.parametrize(
    ("key", "says"),
    [("F9.x", "no claim 'F9'; near ones: .*9"), ("A99.x", "near ones: A9"), ("a9.x", "near.*A9"),
     ("A9", "a key is claim.name"), ("A9.", "a key is"), ("", "a key is")],
)  # fmt: skip
def test_a_key_that_cannot_be_is_told(tmp_path: Path, key: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        figure(key, folders=[tmp_path])


def test_a_record_changed_by_hand_is_refused(tmp_path: Path) -> None:
    path = write_record(made(), tmp_path)
    path.write_text(path.read_text().replace("5.0", "9.0"))
    with pytest.raises(RecordError, match="was changed since it was recorded"):
        figure("A9.bytes_ratio", folders=[tmp_path])
