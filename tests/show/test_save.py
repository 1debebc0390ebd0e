"""Results as Markdown, pictures and JSON: whole files, nothing in a name becomes markup."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import xml.etree.ElementTree as ET

import pytest

from perfkit.base.errors import UsageError
from perfkit.base.machine import stamp
from perfkit.experiment.compare.same import same_result
from perfkit.experiment.process.result import RunResult
from perfkit.measure.compare import compare
from perfkit.show import alt_text, markdown
from perfkit.show._as_markdown import escaped
from perfkit.show.files import save

NASTY = "a|b<img src=x onerror=y>$x_1$ `c` [l](http://e) @me & *b*"


@pytest.fixture(scope="module")
def comparison():
    found = compare(lambda: sum(range(200)), lambda: sum(range(100)), budget_s=0.3, max_blocks=6)
    return dataclasses.replace(
        found, names=(NASTY, "other\nline"), sentence=f"{NASTY} is slow.", warnings=(NASTY,)
    )


def cells(row: str) -> list[str]:
    """Cells of a row of a table in GitHub's Markdown: pipes behind a backslash are text."""
    return row.replace("\\|", "\0").strip("|").split("|")


def test_markdown_is_a_table_in_which_names_stay_names(comparison) -> None:
    said = comparison.to_markdown()
    rows = [line for line in said.splitlines() if line.startswith("|")]
    assert len({len(cells(row)) for row in rows}) == 1, rows
    assert len(rows) == 2 + 3
    # each mark has its backslash before it
    for mark in "<>`[]*|$@&_":
        at = [i for i, c in enumerate(said) if c == mark]
        outside = [i for i in at if said[i - 1] != "\\"]
        if mark == "|":
            outside = [i for i in outside if not _in_table(said, i)]
        if mark in "<>":
            outside = [i for i in outside if not _is_fold(said, i)]
        if mark == "*":
            outside = [i for i in outside if not _is_bold(said, i)]
        assert not outside, (mark, [said[i - 5 : i + 5] for i in outside])
    assert "![" not in said
    assert "measured here" in said


def _in_table(said: str, i: int) -> bool:
    begin = said.rfind("\n", 0, i) + 1
    return said[begin] == "|"


def _is_fold(said: str, i: int) -> bool:
    return any(at.start() <= i < at.end() for at in re.finditer(r"</?(details|summary)>", said))


def _is_bold(said: str, i: int) -> bool:
    return any(at.start() <= i < at.end() for at in re.finditer(r"^\*\*[^*]+\*\*", said, re.M))


def test_a_picture_has_its_words_in_it(comparison, tmp_path) -> None:
    png = comparison.save(tmp_path / "c.png")
    data = png.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data.startswith(b"\x89PNG")
    assert width > 500
    assert height > 200
    assert b"Description" in data
    svg = comparison.save(tmp_path / "c.svg")
    root = ET.fromstring(svg.read_text(encoding="utf-8"))
    assert root.attrib["role"] == "img"
    by_id = {child.attrib.get("id"): child.text for child in root}
    assert by_id["pk-desc"] == alt_text(comparison).replace("\n", "\N{REPLACEMENT CHARACTER}")
    assert by_id["pk-title"]
    assert list(tmp_path.iterdir()) != []
    assert {p.name for p in tmp_path.iterdir()} == {"c.png", "c.svg"}, "no temporary file stays"


def test_a_users_dark_style_leaves_the_figure_readable(comparison) -> None:
    from matplotlib import rc_context, style

    with rc_context(), style.context("dark_background"):
        drawn = comparison.figure()
    assert drawn.get_facecolor()[:3] == (1, 1, 1)
    assert {axes.xaxis.label.get_color() for axes in drawn.axes} == {"black"}


def test_json_is_the_dict(comparison, tmp_path) -> None:
    made = json.loads(comparison.save(tmp_path / "c.json").read_text())
    assert made["ratio"] == comparison.ratio
    assert made["provenance"]["kind"] == "measured here"


def test_runs_and_answers_have_forms(tmp_path) -> None:
    run = RunResult(
        run_id=1,
        values={"x|y": "<b>"},
        state="failed",
        message="no | <i>",
        step=None,
        wait_share=None,
        samples_per_s=None,
        peak_bytes=None,
        peak_kind="",
        n_steps=0,
        n_quiet=0,
        provenance=stamp(),
    )
    assert "<b>" not in run.to_markdown().replace("\\<b\\>", "")
    assert "no \\| \\<i\\>" in markdown([run, dataclasses.replace(run, run_id=2)])
    assert json.loads(save([run], tmp_path / "runs.json").read_text())[0]["state"] == "failed"
    assert save([run], tmp_path / "runs.png").stat().st_size > 1000
    same = same_result(lambda: 1.0, lambda: 2.0)
    assert "Not the same result" in same.to_markdown()
    assert json.loads(same.save(tmp_path / "same.json").read_text())["same"] is False
    with pytest.raises(UsageError, match="no picture"):
        same.save(tmp_path / "same.png")


def test_an_ab_result_has_all_forms(tmp_path) -> None:
    from perfkit.experiment.compare.ab import ABResult, Block

    blocks = tuple(Block(10.0 + i % 3, 5.0 + i % 2, "abba") for i in range(6))
    found = ABResult(
        names=("a|1", "b"),
        a={"x": 1},
        b={"x": 2},
        ratio=2.0,
        low=1.8,
        high=float("inf"),
        per="step",
        confidence=0.95,
        blocks=blocks,
        runs=(),
        same=None,
        sentence="b is 2× as fast as a|1.",
        warnings=(),
        stopped="time budget",
        duration_s=1.0,
        provenance=stamp(),
    )
    assert "a\\|1" in found.to_markdown()
    assert "in turn, 6 blocks, 1.00 s; stopped by: time budget." in found.to_text()
    assert "drift" not in found.to_text(), "there is no interval"
    known = dataclasses.replace(found, blocks=blocks[:1], high=2.2).to_text()
    assert "1 block, 1.00 s; stopped by: time budget. The interval allows for drift." in known
    for ending in ("md", "png", "svg", "json"):
        assert found.save(tmp_path / f"ab.{ending}").stat().st_size > 100
    ET.parse(tmp_path / "ab.svg")


def test_what_has_no_such_form_is_refused_and_leaves_no_file(comparison, tmp_path) -> None:
    with pytest.raises(UsageError, match=r"take one of \.txt, \.md"):
        comparison.save(tmp_path / "c.pdf")
    with pytest.raises(UsageError, match="cannot write"):
        comparison.save(tmp_path / "nowhere" / "c.md")
    assert list(tmp_path.iterdir()) == []


def test_lists_and_headings_begin_nowhere() -> None:
    assert escaped("1. first") == "1\\. first"
    assert escaped("- item") == "\\- item"
    assert escaped("# title") == "\\# title"
    assert escaped("two\nlines\tx\x1b[0m").count("\n") == 0
