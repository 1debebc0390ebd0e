"""Lessons run in a real kernel, which has ended afterwards whatever happened."""

from __future__ import annotations

import errno
import json
import re
import signal
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from perfkit.base.errors import MissingError, UsageError
from perfkit.course.kit import tour as tour_
from perfkit.course.kit._links import relink
from perfkit.course.kit.page import html_page
from perfkit.course.kit.tour import LessonFailedError, LessonRun, run_lesson, tour
from perfkit.show import RESULT_MIME

pytestmark = pytest.mark.slow

RESULTS = """
from IPython.display import display

def show(kind, **numbers):
    result = {"application/vnd.perfkit.result+json": {"type": kind, **numbers},
              "text/plain": f"the {kind}", "text/html": "<b>bold</b><script src='http://x'></script>"}
    display(result, raw=True)

show("profile")
show("comparison", ratio=2.5, low=2.25, high=2.75, sentence="It is 2.5 times as fast.")
show("comparison", ratio=1.0, low=0.9, high=1.1, sentence="No difference seen.")
"""
PID = "import os, pathlib; pathlib.Path('pid').write_text(str(os.getpid()))"


def _made(folder: Path) -> Path:
    (folder / "data").mkdir()
    (folder / "data" / "make_images.py").write_text("")
    (folder / "notebooks").mkdir()
    return folder


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(_made(tmp_path))
    return tmp_path


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lessons run without a kernel: they show nothing, and say that they took half a minute."""

    def run(path: Path, say: object) -> LessonRun:
        notebook = nbformat.read(path, as_version=4)
        title = tour_._title(notebook, path.stem)
        page = html_page(notebook, title=title)
        return LessonRun(path.stem, 30.0, (), (), page, notebook, title)

    monkeypatch.setattr(tour_, "run_lesson", run)


def _lesson(clone: Path, *sources: str, name: str = "00-start-here") -> Path:
    cells = [new_markdown_cell("# Why is it slow?\n\nA text."), *map(new_code_cell, sources)]
    path = clone / "notebooks" / f"{name}.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return path


def _kernel_is_gone(clone: Path) -> bool:
    return not psutil.pid_exists(int((clone / "notebooks" / "pid").read_text()))


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A clone after a tour of one lesson, and what the tour printed."""
    odd = "[1], {'type': 'comparison'}"  # results that are not perfkit's
    others = (
        f"for one in ({odd}):\n    display({{'{RESULT_MIME}': one, 'text/plain': 'x'}}, raw=True)"
    )
    folder = _made(tmp_path_factory.mktemp("toured"))
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        path = _lesson(folder, PID, RESULTS, others, "import math; math.pi")
        before = path.read_bytes()
        tour(["00"], folder / "out", said.append)
        assert path.read_bytes() == before
    return folder, "\n".join(said)


def test_a_tour_prints_and_writes_what_was_found(toured: tuple[Path, str]) -> None:
    folder, printed = toured
    assert re.search(r"cell  1/4 +\d+\.\d s  import os", printed)
    assert "the profile" in printed
    assert "It is 2.5 times as fast." in printed

    summary = json.loads((folder / "out" / "summary.json").read_text())
    (lesson,) = summary["lessons"]
    assert lesson["lesson"] == "00-start-here"
    assert lesson["seconds"] > 0
    assert (lesson["ratio"], lesson["interval"]) == (2.5, [2.25, 2.75])
    assert [c["ratio"] for c in lesson["comparisons"]] == [2.5, 1.0]  # and no odd one
    assert summary["provenance"]["kind"] == "measured here"
    assert _kernel_is_gone(folder)


def test_the_page_has_no_script_and_may_ask_nobody(toured: tuple[Path, str]) -> None:
    page = (toured[0] / "out" / "00-start-here.html").read_text(encoding="utf-8")
    own, _, outputs = page.partition("<body")
    assert "<script" not in own
    assert not re.search(r"<(link|script|img)[^>]+(src|href)=.?https?:", own)
    assert "<title>Why is it slow?</title>" in own
    # What an output brings along cannot load: the policy stands before it and allows no request.
    (policy,) = re.findall(r"<meta[^>]+Content-Security-Policy[^>]*>", own)
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "<b>bold</b>" in outputs
    assert "3.14159" in outputs


def test_a_cell_that_raises_is_named(clone: Path) -> None:
    path = _lesson(clone, PID, "1 / 0  # here")
    with pytest.raises(LessonFailedError) as caught:
        run_lesson(path, lambda _: None)
    message = str(caught.value)
    assert "lesson 00-start-here, cell 2 of 2 ('1 / 0  # here')" in message
    assert "ZeroDivisionError: division by zero" in message
    assert "\n" not in message
    assert _kernel_is_gone(clone)


def test_a_cell_that_hangs_is_ended(clone: Path) -> None:
    path = _lesson(clone, PID, "import time; time.sleep(60)")
    with pytest.raises(LessonFailedError, match=r"cell 2 of 2 .*: no end after 5 s"):
        run_lesson(path, lambda _: None, cell_timeout_s=5)
    assert _kernel_is_gone(clone)


def test_a_kernel_that_dies_is_told(clone: Path) -> None:
    path = _lesson(clone, PID, "os._exit(1)")
    with pytest.raises(LessonFailedError, match=r"cell 2 of 2 .*: its kernel died"):
        run_lesson(path, lambda _: None)
    assert _kernel_is_gone(clone)


def test_a_failing_lesson_does_not_lose_the_others(
    clone: Path, played: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lesson(clone, "1")
    _lesson(clone, "print('so far')", "1 / 0", name="01-measure")
    (clone / "notebooks" / "02-broken.ipynb").write_text("{")
    _lesson(clone, "1", name="03-storage")
    really, plays = run_lesson, tour_.run_lesson
    broken = ("01-measure", "02-broken")
    monkeypatch.setattr(
        tour_, "run_lesson", lambda path, say: (really if path.stem in broken else plays)(path, say)
    )
    said: list[str] = []
    with pytest.raises(LessonFailedError) as caught:
        tour([], clone / "out", said.append)
    message = str(caught.value)
    assert message.startswith("2 of 4 lessons failed: lesson 01-measure, cell 2 of 2")
    assert "lesson 02-broken cannot be read" in message
    assert "\n" not in message

    summary = json.loads((clone / "out" / "summary.json").read_text())
    assert [lesson["lesson"] for lesson in summary["lessons"]] == ["00-start-here", "03-storage"]
    assert [lesson["lesson"] for lesson in summary["failed"]] == ["01-measure", "02-broken"]
    assert "ZeroDivisionError" in summary["failed"][0]["reason"]
    assert "so far" in (clone / "out" / "01-measure.html").read_text()
    assert not (clone / "out" / "02-broken.html").exists()
    index = (clone / "out" / "index.html").read_text()
    assert index.count("Did not run to its end") == 2
    _check_links(clone / "out")


def test_an_interrupted_tour_keeps_what_it_has(clone: Path, played: None) -> None:
    _lesson(clone, "1")
    _lesson(clone, "1", name="01-measure")

    def say(line: str) -> None:
        if "01-measure" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tour([], clone / "out", say)
    summary = json.loads((clone / "out" / "summary.json").read_text())
    assert [lesson["lesson"] for lesson in summary["lessons"]] == ["00-start-here"]
    assert "01-measure" not in (clone / "out" / "00-start-here.html").read_text()
    assert (clone / "out" / "index.html").is_file()
    _check_links(clone / "out")


class _EndedError(KeyboardInterrupt):
    pass


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, _EndedError)]
)
def test_a_signal_in_a_cell_ends_the_tour_and_its_kernel(
    clone: Path, number: signal.Signals, raised: type[BaseException]
) -> None:
    """SIGTERM was told as Ctrl-C, and its handler was gone from then on."""

    def terminated(*_: object) -> None:
        raise _EndedError

    _lesson(clone, PID, "import time; time.sleep(60)")
    _lesson(clone, "1", name="01-measure")

    def say(line: str) -> None:
        if "cell  2/2" in line:
            signal.raise_signal(number)  # nbclient has a handler of its own for it

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        with pytest.raises(raised) as ended:
            tour([], clone / "out", say)
        assert type(ended.value) is raised
        assert signal.getsignal(signal.SIGTERM) is terminated
    finally:
        signal.signal(signal.SIGTERM, before)
    assert _kernel_is_gone(clone)
    summary = json.loads((clone / "out" / "summary.json").read_text())
    assert (summary["lessons"], summary["failed"]) == ([], [])


@pytest.mark.parametrize("name", ["index.html", "00-start-here.html", "summary.json"])
def test_a_folder_in_the_way_is_told_before_anything_runs(clone: Path, name: str) -> None:
    _lesson(clone, "import pathlib; pathlib.Path('ran').write_text('')")
    (clone / "out" / name).mkdir(parents=True)
    with pytest.raises(UsageError, match=name):
        tour(["00"], clone / "out", lambda _: None)
    assert not (clone / "notebooks" / "ran").exists()


def test_a_save_that_fails_leaves_the_notebook_whole(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _lesson(clone, "1")
    before = path.read_bytes()

    def half(notebook: object, place: Path) -> None:
        Path(place).write_text("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(nbformat, "write", half)
    with pytest.raises(UsageError, match="No space left"):
        tour_._save(nbformat.read(path, as_version=4), path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_saved_output_names_a_cell_or_package_and_no_place_of_the_machine(clone: Path) -> None:
    path = _lesson(clone, "1")
    notebook = nbformat.read(path, as_version=4)
    file = "/tmp/ipykernel_12474/3362099126.py"
    fetch = "/home/me/.venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py"
    said = {
        "lines": [{"file": file, "line": 3}],
        "workers": fetch,
        "first": f"train ({file}, line 3)",
    }
    notebook.cells[-1].outputs = [
        new_output("display_data", {RESULT_MIME: said, "text/plain": f"{file}:3"}),
        new_output("stream", name="stderr", text=f"{file}:4: UserWarning: so\n"),
    ]
    tour_._save(notebook, path)
    shown, warned = nbformat.read(path, as_version=4).cells[-1].outputs
    cell = "cell-3362099126.py"
    assert shown.data[RESULT_MIME]["lines"] == [{"file": cell, "line": 3}]
    assert shown.data[RESULT_MIME]["first"] == f"train ({cell}, line 3)"
    assert shown.data[RESULT_MIME]["workers"] == "torch/utils/data/_utils/fetch.py"
    assert shown.data["text/plain"] == f"{cell}:3"
    assert warned.text == f"{cell}:4: UserWarning: so\n"
    assert "ipykernel_" not in path.read_text(encoding="utf-8")


@pytest.mark.timeout(60)
def test_a_large_picture_is_saved_without_looking_for_files_from_each_letter(clone: Path) -> None:
    """From each letter to the end of 2 MB are 2e12 steps: it did not end within hours."""
    path = _lesson(clone, "1")
    notebook = nbformat.read(path, as_version=4)
    letters = "iVBORw0KGgo" * 200_000
    notebook.cells[-1].outputs = [new_output("display_data", {"text/html": f"<img {letters}>"})]
    tour_._save(notebook, path)
    (saved,) = nbformat.read(path, as_version=4).cells[-1].outputs
    assert letters in saved.data["text/html"]


class _Addresses(HTMLParser):
    """Every address in a page, by the tag that has it, and every id."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src", "srcset", "poster") and value is not None:
                self.found.append((tag, value))
            if name == "id" and value:
                self.ids.add(value)


def _read(page: Path) -> _Addresses:
    parser = _Addresses()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def _check_links(out: Path) -> set[str]:
    """Every address of every page holds within the site; returns the links to the outside."""
    outside = set()
    for page in out.rglob("*.html"):
        for tag, address in _read(page).found:
            parts = urlsplit(address)
            if parts.scheme in ("http", "https", "mailto"):
                assert tag == "a", f"{page.name} would ask {address}"
                outside.add(address)
            elif parts.scheme == "data":
                assert tag != "a"
            else:
                assert parts.scheme == ""
                target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
                assert target.is_relative_to(out.resolve()), f"{page.name}: {address}"
                assert target.is_file(), f"{page.name}: {address}"
                if parts.fragment and target.suffix == ".html":
                    assert unquote(parts.fragment) in _read(target).ids, f"{page.name}: {address}"
    return outside


LINKS = """# One

[next](01-two.ipynb), [a part of it](01-two.ipynb#A-heading), [not run](02-three.ipynb),
[solution](solutions/00-start-here.ipynb), [map](README.md), [up](../README.md), [here](#One),
[outside](https://pytorch.org/docs), [script](javascript:alert(1)), <img src="http://x/y.png">,
<a title="a > b" href='01-two.ipynb'>quoted</a>, <link rel=stylesheet href=http://x/y.css>,
`<a href="code.ipynb">`
"""


def test_every_link_of_the_site_holds_within_it(clone: Path, played: None) -> None:
    for name, text in (("00-start-here", LINKS), ("01-two", "# Two\n\n## A heading")):
        notebook = new_notebook(cells=[new_markdown_cell(text), new_code_cell("1")])
        nbformat.write(notebook, clone / "notebooks" / f"{name}.ipynb")
    _lesson(clone, "1", name="02-three")
    (clone / "notebooks" / "solutions").mkdir()
    solution = new_notebook(
        cells=[new_markdown_cell("[back](../00-start-here.ipynb) [x](y.ipynb)")]
    )
    nbformat.write(solution, clone / "notebooks" / "solutions" / "00-start-here.ipynb")
    (clone / "notebooks" / "solutions" / "01-two.ipynb").write_text("no notebook")

    tour(["00", "01"], clone / "out", lambda _: None)
    assert _check_links(clone / "out") == {"https://pytorch.org/docs"}
    page = (clone / "out" / "00-start-here.html").read_text()
    for kept in ('href="01-two.html"', 'href="01-two.html#A-heading"', 'title="a &gt; b"'):
        assert kept in page
    assert 'href="solutions/00-start-here.html"' in page
    assert ">not run</a>" in page
    assert "&lt;a href=&quot;code.ipynb&quot;&gt;" in page or '&lt;a href="code.ipynb"&gt;' in page
    assert "javascript:" not in page
    back = _read(clone / "out" / "solutions" / "00-start-here.html").found
    assert ("a", "../00-start-here.html") in back
    assert "cannot be read" in (clone / "out" / "solutions" / "01-two.html").read_text()
    linked = {address for _, address in _read(clone / "out" / "index.html").found}
    assert {"00-start-here.html", "01-two.html", "solutions/00-start-here.html"} <= linked
    index = (clone / "out" / "index.html").read_text()
    assert "<script" not in index
    assert "default-src 'none'" in index


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("<a title='a > b' href='01.ipynb'>", "<a title='a > b' href=\"01.html\">"),
        ("<a href=01.ipynb#x>", '<a href="01.html#x">'),
        ('<A HREF="./a/../01.ipynb">', '<A HREF="01.html">'),
        ('<a href="a&amp;b%20c.ipynb">', '<a href="a%26b%20c.html">'),
        ('<a href=" javascript:x">', "<a>"),
        ('<a href="//host/x">', "<a>"),
        ('<a href="http://[x">', "<a>"),
        ('<a href="https://a/?b=1&amp;c">', '<a href="https://a/?b=1&amp;c">'),
        ('<img src="data:image/png;base64,AA==" alt="x">', None),
        ('<img alt="x" src="a.png">', '<img alt="x">'),
        ('<use href="#id"/>', None),
        ('<p data-href="x">a < b > c</p>', None),
    ],
)
def test_addresses(tag: str, expected: str | None) -> None:
    pages = {"01.ipynb": "01.html", "a&b c.ipynb": "a&b c.html"}
    assert relink(tag, "00.ipynb", "00.html", pages) == (tag if expected is None else expected)


def test_a_later_tour_links_what_is_new(clone: Path, played: None) -> None:
    _lesson(clone, "1")
    tour(["00"], clone / "out", lambda _: None)
    _lesson(clone, "1", name="01-two")
    tour([], clone / "out", lambda _: None)
    pages = {path.name for path in (clone / "out").iterdir()}
    assert pages == {
        "00-start-here.html",
        "01-two.html",
        "claims.html",
        "index.html",
        "summary.json",
    }
    assert 'href="claims.html"' in (clone / "out" / "index.html").read_text(encoding="utf-8")
    assert ("a", "01-two.html") in _read(clone / "out" / "00-start-here.html").found


def test_the_ledger_of_the_lessons_that_ran_is_printed(clone: Path, played: None) -> None:
    _lesson(clone, "1")
    said: list[str] = []
    tour(["00"], clone / "out", said.append)
    few = "\n".join(said)
    assert "C2 " in few  # the claim of lesson 00
    assert "B12 " not in few  # of lesson 16
    assert 'id="claim-C2"' in (clone / "out" / "index.html").read_text()
    said.clear()
    tour([], clone / "out", said.append)
    assert "B12 " in "\n".join(said)


def test_the_time_is_told_before_and_learnt(clone: Path, played: None) -> None:
    _lesson(clone, "1")
    _lesson(clone, "1", name="01-two")
    said: list[str] = []
    tour([], clone / "out", said.append)
    assert said[0] == "2 lessons, about 2 minutes on two cores\n"
    said.clear()
    tour([], clone / "out", said.append)
    assert said[0] == "2 lessons, about 1 minute as last time\n"


def test_two_notebooks_cannot_share_a_page(clone: Path) -> None:
    path = _lesson(clone, "1")
    other = clone / "other"
    other.mkdir()
    (other / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UsageError, match="page of its own"):
        tour(["00", str(other / path.name)], clone / "out", lambda _: None)


def test_a_lesson_without_comparison_has_no_ratio(clone: Path) -> None:
    run = tour_.LessonRun("00-start-here", 1.0, (), (), "")
    assert run.to_dict()["ratio"] is None
    assert run.to_dict()["interval"] is None


def test_an_unknown_lesson_is_told_with_those_there_are(clone: Path) -> None:
    _lesson(clone, "1")
    with pytest.raises(MissingError, match=r"'99'.*00-start-here"):
        tour(["99"], clone / "out", lambda _: None)
    assert not (clone / "out").exists()


def test_outputs_are_saved_when_asked_for_without_widgets_and_folded_below_a_guess(
    clone: Path,
) -> None:
    view = "'application/vnd.jupyter.widget-view+json': {}"
    widget = f"display({{{view}, 'text/plain': 'w'}}, raw=True)"
    asked = (
        "from perfkit.course.kit.predict import Predict; Predict('Which?', {'a': '1', 'b': '2'})"
    )
    path = _lesson(clone, "from IPython.display import display", widget, "6 * 7", asked, "40 + 2")
    tour([str(path)], clone / "out", lambda _: None, save=True)
    saved = nbformat.read(path, as_version=4)
    assert saved.cells[2].outputs[0].data == {"text/plain": "w"}
    assert saved.cells[3].outputs[0].data == {"text/plain": "42"}
    assert saved.metadata["language_info"] == {"name": "python"}
    assert [cell.metadata.get("collapsed") for cell in saved.cells[4:]] == [None, True]
