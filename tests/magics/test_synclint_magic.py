"""`%synclint` in a real shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from IPython.utils.capture import capture_output

SETUP = """
import torch
net = torch.nn.Linear(3, 2)
def train_step():
    loss = net(torch.randn(4, 3)).sum()
    loss.backward()
    return loss
"""


@pytest.fixture
def lab(notebook):
    notebook.run("%load_ext perfkit")
    assert notebook.run(SETUP).error is None
    return notebook


def test_a_cell_is_watched_and_its_lines_are_named(lab) -> None:
    shown = lab.run("%%synclint -o found\nloss = train_step()\nvalue = loss.item()")
    assert shown.error is None
    (sync,) = lab.ns["found"]
    assert sync.line == 3
    assert sync.code == "value = loss.item()"
    assert sync.place.startswith("cell [")
    assert isinstance(lab.ns["value"], float)
    (bundle,) = shown.bundles
    assert "1 line would make the host wait" in bundle["text/plain"]
    assert sync.place in bundle["text/html"]
    assert bundle["application/vnd.perfkit.result+json"]["type"] == "synclint"


def test_a_function_of_another_cell_is_named_by_that_cell(lab) -> None:
    lab.run("def look(loss):\n    return float(loss.detach())")
    lab.run("%synclint -q -o found look(train_step())")
    (sync,) = lab.ns["found"]
    assert sync.line == 2
    assert sync.code == "return float(loss.detach())"


def test_quiet_and_files(lab, tmp_path: Path) -> None:
    text, data = tmp_path / "a.txt", tmp_path / "a.json"
    shown = lab.run(f"%synclint -q -T {text} -D {data} train_step().tolist()")
    assert shown.error is None
    assert shown.bundles == ()
    assert "Tensor.tolist" in text.read_text()
    assert json.loads(data.read_text())["syncs"][0]["op"] == "Tensor.tolist"


def test_the_users_error_comes_through_after_the_report(lab) -> None:
    shown = lab.run("%%synclint\ntrain_step().item()\nraise KeyError('mine')")
    assert isinstance(shown.error, KeyError)
    said = shown.bundles[0]["text/plain"]
    assert said.startswith("Until KeyError: 1 line would make the host wait for a GPU")
    assert lab.run("%synclint -o clean train_step()").error is None
    assert lab.ns["clean"] == []


def test_only_the_named_model_counts(lab) -> None:
    lab.run("other = torch.nn.Linear(3, 2)")
    lab.run("%synclint -q -m other -o found train_step().item()")
    assert lab.ns["found"] == []


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%synclint", "nothing to watch"),
        ("%%synclint train_step()\n1", "takes only flags"),
        ("%synclint -m none train_step()", "no variable of that name"),
        ("%synclint -m torch train_step()", "not a torch module"),
        ("%synclint -D a.csv train_step()", "must end in .json"),
        ("%%synclint\nfind_it = __import__('perfkit').find_syncs(train_step)", "cannot be nested"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(lab, cell: str, words: str) -> None:
    shown = lab.run(cell)
    assert words in str(shown.error)


def test_an_empty_cell_says_so(lab) -> None:
    assert "holds no code" in lab.run("%%synclint\n# nothing").bundles[0]["text/plain"]


def test_a_value_that_the_cell_shows_is_not_the_codes_doing(lab) -> None:
    shown = lab.run("%synclint -q -o found train_step().detach()")
    assert "tensor(" in shown.out
    assert lab.ns["found"] == []
    lab.run("%synclint -q -o found print(train_step().detach())")
    assert len(lab.ns["found"]) == 1


def test_the_line_of_a_cell_leads_to_it_in_its_notebook(
    lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "course/my notes.ipynb")
    look = "def look(loss):\n    return float(loss.detach())"
    lab.shell.run_cell(look, store_history=True, cell_id='a"b')
    (bundle,) = lab.run("%synclint -o found look(train_step())").bundles
    (sync,) = lab.ns["found"]
    href = "my%20notes.ipynb#cell-id=a%22b"
    assert f'<a href="{href}">{sync.place}</a>' in bundle["text/html"]
    assert href not in lab.ns["found"]._repr_html_(), "a page elsewhere has no such notebook"
    assert href not in bundle["text/plain"]
    with capture_output() as shown:
        lab.shell.run_cell("%%synclint\ntrain_step().item()", store_history=True, cell_id="itself")
    (output,) = shown.outputs
    assert '<a href="my%20notes.ipynb#cell-id=itself">cell [' in output.data["text/html"]
