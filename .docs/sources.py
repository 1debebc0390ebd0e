"""Gather what the site is built from: ``python .docs/sources.py FOLDER``.

The folder mirrors the repository, so that links between lessons, READMEs and the ledger stay as
they are. What Sphinx cannot read is rewritten here, and pages that come from the program itself
are written: the ledger, the commands and the magics.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import importlib
import io
import os
import re
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat

from perfkit import cli, show
from perfkit.base.machine import facts
from perfkit.course.kit._recorded import lesson_hashes, taught_claims
from perfkit.course.kit.folding import folded_cells
from perfkit.course.ledger.ledger import ledger
from perfkit.course.ledger.records import read_records
from perfkit.magics import _MAGICS as MAGICS

ROOT = Path(__file__).parents[1]
PAGES = Path(__file__).parent / "pages"

_ASKED = (
    '<label class="pk-asked"><input type="checkbox" id="guess"> '
    "<span>I have made my guess: show what was measured.</span></label>"
)
# best first; without a kernel a widget is blank, and every result also has HTML or a picture
_FORMS = ("text/html", "image/svg+xml", "image/png", "image/jpeg", "text/markdown", "text/plain")
_NOWHERE = "no machine"
_PICTURE = re.compile(r"<picture>.*?</picture>", re.S)


def gather(folder: Path) -> None:
    """Write all sources into ``folder``, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    lessons = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    for path in [*lessons, *sorted((ROOT / "notebooks" / "solutions").glob("*.ipynb"))]:
        write_notebook(path, folder / path.relative_to(ROOT))
    write_readme(folder)
    write_course(folder / "notebooks", [path.stem for path in lessons])
    shutil.copytree(ROOT / "data" / "pictures", folder / "data" / "pictures")
    for page in ("CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / page, folder)
    shutil.copytree(PAGES, folder, dirs_exist_ok=True)
    write_ledger(folder / "ledger.md")
    write_commands(folder / "commands.md")


def write_notebook(path: Path, target: Path) -> None:
    """A notebook for Sphinx: pictures as files; outputs that wait for the guess are marked."""
    notebook = nbformat.read(path, as_version=4)
    cells = notebook["cells"]
    target.parent.mkdir(parents=True, exist_ok=True)
    for number in folded_cells(notebook):
        cells[number]["metadata"].setdefault("tags", []).append("pk-waits")
    for cell in cells:
        for name, forms in cell.pop("attachments", {}).items():
            ((kind, data),) = forms.items()
            file = target.with_name(f"{path.stem}-{name}")
            file.write_bytes(base64.b64decode(data))
            cell["source"] = cell["source"].replace(f"attachment:{name}", file.name)
            assert kind.startswith("image/"), f"{path.name}: an attachment of type {kind}"
        if cell["cell_type"] == "code":
            cell["outputs"] = [*_shown(cell["outputs"])]
            cell["metadata"].pop("collapsed", None)
            cell["metadata"].pop("jupyter", None)
    waits = [n for n, cell in enumerate(cells) if "pk-waits" in cell["metadata"].get("tags", ())]
    if waits:
        asking = max(n for n in range(waits[0]) if cells[n]["cell_type"] == "code")
        cells.insert(asking + 1, nbformat.v4.new_markdown_cell(_ASKED))
    nbformat.write(notebook, target)


def _shown(outputs: list[Any]) -> Iterator[Any]:
    """Each output in its best form; no text that stands for a widget whose picture follows it."""
    for output, after in zip_longest(outputs, outputs[1:], fillvalue={}):
        if "pk-static-" in str(after.get("data", {}).get("text/html", "")):
            continue
        if output.get("data") == {}:  # folds what was printed
            continue
        if "data" in output:
            best = next(kind for kind in _FORMS if kind in output["data"])
            output["data"] = {best: output["data"][best]}
        yield output


def write_readme(folder: Path) -> None:
    """README.md as the first page, with the site's parts in its table of contents."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace(".docs/pages/", "")
    parts = ["notebooks/README", "guide", "api", "commands", "ledger", "CONTRIBUTING", "CHANGELOG"]
    text = _themed(text) + _toctree(parts, ":hidden:")
    (folder / "index.md").write_text(text, encoding="utf-8")


def _themed(text: str) -> str:
    """Each <picture> of a light and a dark file as two pictures, of which the theme shows one."""

    def pictures(found: re.Match[str]) -> str:
        light = re.search(r'<img[^>]*\bsrc="([^"]+)"', found[0])
        dark = re.search(r'<source[^>]*\bsrcset="([^"]+)"', found[0])
        alt = re.search(r'<img[^>]*\balt="([^"]+)"', found[0])
        assert light and dark and alt, f"not light, dark and alt text: {found[0][:80]}"  # noqa: PT018
        return "\n".join(
            f"![{alt[1]}]({file[1]}){{.only-{theme}}}"
            for theme, file in (("light", light), ("dark", dark))
        )

    return _PICTURE.sub(pictures, text)


def write_course(folder: Path, lessons: list[str]) -> None:
    """The map of the course, and the notes for teachers."""
    text = (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8")
    text = text.replace("[solutions/](solutions/)", "[solutions](solutions.md)")
    titles = [f"{_title(folder / f'{stem}.ipynb')} <{stem}>" for stem in lessons]
    text += _toctree([*titles, "instructor-notes", "solutions"], ":hidden:")
    (folder / "README.md").write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "notebooks" / "instructor-notes.md", folder)
    solved = [f"{stem[:2]} <solutions/{stem}>" for stem in lessons]
    (folder / "solutions.md").write_text("# Solutions\n" + _toctree(solved), encoding="utf-8")


def _title(path: Path) -> str:
    """The number of a lesson and its question, as plain text."""
    first = nbformat.read(path, as_version=4)["cells"][0]["source"].splitlines()[0]
    return f"{path.stem[:2]} {first.lstrip('# ').replace('`', '')}"


def _toctree(pages: list[str], *options: str) -> str:
    return "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


def write_ledger(path: Path) -> None:
    """Every claim, and what the records say about it."""
    # the reader's machine is not the one that builds the site: nothing was measured "here"
    nowhere = replace(facts(), cpu=_NOWHERE, gpus=())
    with ExitStack() as patched:
        for module in ("ledger", "records"):
            patched.enter_context(patch(f"perfkit.course.ledger.{module}.facts", lambda: nowhere))
        records = read_records([ROOT / "data" / "recorded"])
        found = show.html(ledger(records, taught_claims(), lesson_hashes()))
    found = found.replace(f"Here: {_NOWHERE}. ", "")
    path.write_text(f"# Claims\n\n`````{{raw}} html\n{found}\n`````\n", encoding="utf-8")


def write_commands(path: Path) -> None:
    """What each command and each magic says about itself."""
    os.environ["COLUMNS"] = "88"
    parts = ["# Commands and magics", "## In a notebook"]
    for name in ("torchprof", "gpumem", "synclint"):
        module, kind = MAGICS[name]
        said = getattr(getattr(importlib.import_module(module), kind), name).__doc__
        parts += [f"### %{name}", _block(textwrap.dedent(said).strip().removeprefix("::\n\n"))]
    parts += ["## In a shell", _block(_help())]
    parts += [part for name in commands() for part in (f"### perfkit {name}", _block(_help(name)))]
    path.write_text("\n\n".join(parts), encoding="utf-8")


def commands() -> list[str]:
    """The names of all commands, as ``perfkit --help`` lists them."""
    return re.findall(r"^    ([a-z-]+)", _help().split("COMMAND\n")[1], re.M)


def _help(*command: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        cli.main([*command, "--help"])
    return said.getvalue().rstrip()


def _block(text: str) -> str:
    return f"```text\n{text}\n```"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    gather(parser.parse_args().folder)
