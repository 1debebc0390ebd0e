"""A number in a notebook's prose that is bound to a record agrees with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfkit.course.kit.figures import disagreements
from perfkit.course.ledger.recording import Figure
from perfkit.course.ledger.records import read_records, write_record
from tests.course.ledger.made_records import GPU, made

ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT / "data" / "recorded"
FIGURES = {
    "bytes_ratio": Figure(5.0, "×", kind="exact"),
    "batch": Figure(100_663_296, "B", kind="exact"),
    "step_ratio": Figure(2.345, "×", 2.1, 2.61),
    "step": Figure(12.5, "ms", 12.0, 13.0),
    "share": Figure(0.714, "1", 0.70, 0.73),
    "no_interval": Figure(3.14159, "ms"),
    "syncs": Figure(945, "1", kind="exact"),
}


def test_every_notebook_s_bound_numbers_agree_with_the_records() -> None:
    notebooks = sorted((ROOT / "notebooks").rglob("*.ipynb"))
    assert notebooks
    if not read_records([RECORDED]).records:
        pytest.skip("nothing is recorded in data/recorded yet")
    wrong = disagreements(notebooks, folders=[RECORDED])
    assert not wrong, "\n" + "\n".join(map(str, wrong))


def test_every_committed_record_is_as_it_was_written() -> None:
    assert (RECORDED / "README.md").is_file()
    assert not read_records([RECORDED]).refused


def notebook(folder: Path, *cells: str) -> Path:
    path = folder / "99-made.ipynb"
    listed = [{"cell_type": "markdown", "id": f"cell{n}", "source": [text]}
              for n, text in enumerate(cells)]  # fmt: skip
    code = {"cell_type": "code", "id": "code", "source": '<data value="A9.no">1</data>'}
    path.write_text(json.dumps({"cells": [*listed, code]}))
    return path


def wrong_in(folder: Path, text: str) -> list[str]:
    write_record(made(figures=FIGURES), folder)
    return [one.reason for one in disagreements([notebook(folder, text)], folders=[folder])]


def bound(key: str, text: str, more: str = "") -> str:
    return f'It is <data value="{key}"{more}>{text}</data> here.'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bytes_ratio", "5.0×"),
        ("bytes_ratio", "**5×**"),
        ("bytes_ratio", "5 times"),
        ("bytes_ratio", "5"),
        ("batch", "100,663,296 B"),
        ("batch", "100 663 296 bytes"),
        ("batch", "96 MiB"),
        ("batch", "101 MB"),
        ("batch", "100.7 MB"),
        ("step_ratio", "2.3×"),
        ("step_ratio", "2.35×"),
        ("step_ratio", "2.2×"),  # inside the interval
        ("step", "12.5 ms"),
        ("step", "12,500 µs"),
        ("step", "0.0125 s"),
        ("step", "13 ms"),
        ("share", "71 %"),
        ("share", "0.7"),
        ("no_interval", "3.1 ms"),
        ("no_interval", "3 ms"),
        ("syncs", "945 waits"),
        ("syncs", "about 945"),
    ],
)
def test_what_agrees_at_the_precision_shown(tmp_path: Path, name: str, text: str) -> None:
    assert wrong_in(tmp_path, bound(f"A9.{name}", text)) == []


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("bytes_ratio", "5.1×", "the record says 5.00×"),
        ("bytes_ratio", "6×", "the record says 5.00×"),
        ("bytes_ratio", "-5×", "the record says"),
        ("bytes_ratio", "5 ms", "its unit is not the record's"),
        ("bytes_ratio", "five", "there is no number in it"),
        ("batch", "100,663,297 B", "the record says"),
        ("batch", "97 MiB", "the record says"),
        ("batch", "96 MB", "the record says"),
        ("batch", "100,663,296", ""),
        ("step_ratio", "2.0×", "the record says 2.35× [2.10, 2.61]"),
        ("step_ratio", "2.7×", "the record says"),
        ("step", "12.5 s", "the record says"),
        ("step", "14 ms", "the record says"),
        ("share", "75 %", "the record says"),
        ("share", "71 ms", "its unit is not"),
        ("no_interval", "3.2 ms", "the record says"),
        ("syncs", "946", "the record says"),
        ("syncs", "945 ms", "its unit is not"),
        ("absent", "5×", "no record has this figure"),
    ],
)
def test_what_disagrees_is_found(tmp_path: Path, name: str, text: str, says: str) -> None:
    found = wrong_in(tmp_path, bound(f"A9.{name}", text))
    if not says:  # the number alone is taken in the record's unit
        assert found == []
        return
    assert len(found) == 1
    assert says in found[0]


@pytest.mark.parametrize(
    "text",
    [
        "<data>5×</data>",
        '<data value="A9">5×</data>',
        '<data value="A9.bytes_ratio">5× and no end',
        "no beginning</data>",
        bound("A9.bytes_ratio", "5×", ' data-device="tpu"'),
        bound("B1.bytes_ratio", "5×"),  # a claim without a record
        bound("Z9.bytes_ratio", "5×"),
    ],
)
def test_a_binding_that_binds_nothing_is_found(tmp_path: Path, text: str) -> None:
    assert len(wrong_in(tmp_path, text)) == 1


def test_prose_that_only_writes_about_it_is_left_alone(tmp_path: Path) -> None:
    text = 'Write `<data value="A9.no">1</data>`.\n\n```html\n<data value="A9.no">1</data>\n```\n'
    assert wrong_in(tmp_path, text) == []


def test_the_message_names_notebook_cell_and_text(tmp_path: Path) -> None:
    write_record(made(figures=FIGURES), tmp_path)
    path = notebook(tmp_path, "# Title", bound("A9.bytes_ratio", "7×"))
    (found,) = disagreements([path], folders=[tmp_path])
    assert str(found).startswith("99-made.ipynb, cell1: '7×' (A9.bytes_ratio): the record says 5.0")


def test_an_exact_figure_may_be_any_record_s_a_measured_one_only_the_newest_s(
    tmp_path: Path,
) -> None:
    write_record(made(figures=FIGURES), tmp_path)
    newer = {"bytes_ratio": Figure(4.0, "×", kind="exact"), "step": Figure(20.0, "ms", 19.0, 21.0)}
    later = "2027-01-01T00:00:00+00:00"
    write_record(made(device=GPU, type="cuda", gpus=1, figures=newer, when=later), tmp_path)
    for text, n in [
        (bound("A9.bytes_ratio", "5×"), 0),
        (bound("A9.bytes_ratio", "4×"), 0),
        (bound("A9.bytes_ratio", "3×"), 1),
        (bound("A9.step", "20 ms"), 0),
        (bound("A9.step", "12.5 ms"), 1),
        (bound("A9.step", "12.5 ms", ' data-device="cpu"'), 0),
        (bound("A9.step", "20 ms", ' data-device="cpu"'), 1),
    ]:
        assert len(disagreements([notebook(tmp_path, text)], folders=[tmp_path])) == n, text


def test_a_record_that_was_edited_backs_nothing(tmp_path: Path) -> None:
    path = write_record(made(figures=FIGURES), tmp_path)
    path.write_text(path.read_text().replace("5.0", "7.0"))
    made_notebook = notebook(tmp_path, bound("A9.bytes_ratio", "7×"))
    (found,) = disagreements([made_notebook], folders=[tmp_path])
    assert "was changed since it was recorded" in found.reason
