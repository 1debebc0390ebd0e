"""The course map agrees with each lesson, and its links work."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
LESSONS = sorted(NOTEBOOKS.glob("[0-9][0-9]-*.ipynb"))
SOLUTIONS = sorted((NOTEBOOKS / "solutions").glob("*.ipynb"))

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_ROW = re.compile(r"^\| (\d\d) \| \[(.+?)\]\((.+?)\) \| (\d+) \+ (\d+) \| .+ \| (.+?) \|$", re.M)
_BREAK = re.compile(r"^\| (\d+):(\d\d) \| (\d+) \| (.+?) \|.*\|$", re.M)


def _markdown(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def _claims(text: str) -> set[str]:
    """``"E1–E6 B5"`` as a set of ids."""
    found = set()
    for word in text.split():
        first, _, last = word.partition("–")
        numbers = range(int(first[1:]), int(last[1:] if last else first[1:]) + 1)
        found |= {f"{first[0]}{number}" for number in numbers}
    return found


def test_the_map_agrees_with_the_lessons() -> None:
    rows = _ROW.findall(_markdown(NOTEBOOKS / "README.md"))
    assert [row[2] for row in rows] == [path.name for path in LESSONS]
    for (number, title, file, teaching, exercise, claims), path in zip(rows, LESSONS, strict=True):
        said = nbformat.read(path, as_version=4).metadata
        assert file.startswith(f"{number}-")
        assert title == said["title"]
        assert int(teaching) == said["perfkit"]["teaching_minutes"], file
        assert int(exercise) == said["perfkit"]["exercise_minutes"], file
        assert _claims(claims) == set(said["perfkit"]["claims"]), file


def test_the_plans_have_no_gap_and_time_for_every_lesson() -> None:
    text = _markdown(NOTEBOOKS / "README.md")
    minutes = {row[0]: int(row[3]) + int(row[4]) for row in _ROW.findall(text)}
    plans = text.split("\n## ")
    plans = [part for part in plans if len(_BREAK.findall(part)) > 3]
    assert len(plans) == 3
    for plan in plans:
        rows = [(int(h) * 60 + int(m), int(n), what) for h, m, n, what in _BREAK.findall(plan)]
        for (start, length, what), (following, _, _) in itertools.pairwise(rows):
            assert start + length == following, what
        assert sum(what.startswith(("break", "lunch")) for _, _, what in rows) >= 2
        for _, length, what in rows:
            for number in re.findall(r"\blesson (\d\d)", what):
                assert length >= minutes[number], what


_LATER = re.compile(r"^Left for later: lessons (.+?), (\d+) h (\d+) min in all", re.M | re.S)


def _numbers(words: str) -> set[str]:
    """``"03, 05 and 07 to 19"`` as a set of lessons."""
    found = set()
    for first, last in re.findall(r"(\d\d)(?: to (\d\d))?", words):
        found |= {f"{number:02d}" for number in range(int(first), int(last or first) + 1)}
    return found


def test_each_plan_has_every_lesson_or_says_what_is_left() -> None:
    text = _markdown(NOTEBOOKS / "README.md")
    minutes = {row[0]: int(row[3]) + int(row[4]) for row in _ROW.findall(text)}
    half, day, two_days = (p for p in text.split("\n## ") if len(_BREAK.findall(p)) > 3)
    for plan, before in ((half, ""), (day, ""), (two_days, day)):
        taught = {
            number
            for *_, what in _BREAK.findall(before) + _BREAK.findall(plan)
            for number in re.findall(r"\blesson (\d\d)", what)
        }
        left = set(minutes) - taught
        later = _LATER.search(plan)
        assert _numbers(later.group(1) if later else "") == left
        if later:
            hours, rest = map(int, later.groups()[1:])
            assert 60 * hours + rest == sum(minutes[number] for number in left)


def _slots(plan: str) -> dict[str, int]:
    """Minutes that a plan has for each of its lessons."""
    return {
        number: int(length)
        for _, _, length, what in _BREAK.findall(plan)
        for number in re.findall(r"\blesson (\d\d)", what)
    }


def _needs(text: str) -> dict[str, set[str]]:
    """Lessons that a lesson needs besides 00, as the map says it."""
    said = text.partition("All lessons need 00;")[2].partition("\nIf you take them")[0]
    needs: dict[str, set[str]] = {}
    for part in said.split(";"):
        who, _, what = part.partition("also need")
        for number in _numbers(who):
            needs.setdefault(number, set()).update(_numbers(what))
    return needs


def test_whoever_has_several_gpus_is_sent_to_no_lesson_before_what_it_needs() -> None:
    text = _markdown(NOTEBOOKS / "README.md")
    needs = _needs(text)
    assert needs["15"] == {"12"}
    assert needs["16"] == {"01", "12"}
    half, day, two_days = (p for p in text.split("\n## ") if len(_BREAK.findall(p)) > 3)

    words = re.search(r"several GPUs, begin with (.+?); if you buy them, with (.+?)\.", half, re.S)
    assert words is not None
    for order in words.groups():
        known = set(_slots(half))
        for number in re.findall(r"\d\d", order):
            assert needs[number] <= known, number
            known.add(number)

    instead = re.search(
        r"With\s+several GPUs, take (.+?) in place of (.+?); that needs (\d+) minutes more", day
    )
    assert instead is not None
    new, old = _numbers(instead[1]), _numbers(instead[2])
    slots, later = _slots(day), _slots(two_days)
    taught = (set(slots) - old) | new
    assert all(needs.get(number, set()) <= taught for number in taught)
    more = sum(later[number] for number in new) - sum(slots[number] for number in old)
    assert int(instead[3]) == more == 5

    left_out = re.search(r"leave out (.+?), and take their (\d+) minutes", two_days, re.S)
    assert left_out is not None
    assert int(left_out[2]) == sum(later[number] for number in _numbers(left_out[1])) == 65


@pytest.mark.parametrize(
    "path",
    [NOTEBOOKS / "README.md", NOTEBOOKS / "instructor-notes.md", *LESSONS, *SOLUTIONS],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_links_lead_to_files(path: Path) -> None:
    for address in _LINK.findall(_markdown(path)):
        parts = urlsplit(address)
        if not parts.scheme and parts.path:
            assert (path.parent / unquote(parts.path)).exists(), address


def test_every_lesson_has_a_symptom_that_leads_to_it() -> None:
    text = _markdown(NOTEBOOKS / "README.md")
    part = text.partition("## From symptom to lesson")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .+ \| \[(\d\d)\]\((.+?)\) \|$", part, re.M)
    assert [f"{number} {file}" for number, file in rows] == [
        f"{p.name[:2]} {p.name}" for p in LESSONS
    ]


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.name)
def test_a_solution_links_to_its_lesson(path: Path) -> None:
    assert f"../{path.name}" in _LINK.findall(_markdown(path))


@pytest.mark.parametrize(
    ("path", "following"),
    # where the next one is not written yet, a lesson says so
    [(a, b) for a, b in itertools.pairwise(LESSONS) if int(b.name[:2]) == int(a.name[:2]) + 1],
    ids=lambda path: path.name[:2],
)
def test_a_lesson_ends_with_the_next_one(path: Path, following: Path) -> None:
    last = nbformat.read(path, as_version=4).cells[-1]
    title = nbformat.read(following, as_version=4).metadata["title"]
    assert last.cell_type == "markdown"
    assert f"lesson {following.name[:2]}, *{title}*" in last.source
    assert _LINK.findall(last.source) == [following.name]
