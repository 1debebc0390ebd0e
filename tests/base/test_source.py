"""A line of a statement that goes over several is shown so that it says something."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import ModuleType

import pytest

from perfkit.base.source import call_with, first_line_with, statement

_SOURCE = '''\
def train(self, x):
    if (
        self.args.filter_nan  # a ) in a comment
        and not torch.isfinite(x)
    ):
        x = x * 0
    loss, outputs = self.compute_loss(
        model, inputs, kind="a ( b",
        n=3,
    )
    return self.accelerator.backward(
        self.scaler.scale(
            loss
        ),
    )
    x = y + 1
    total = a + \\
        b
    message = """(
    """
'''


@pytest.fixture
def file(request: pytest.FixtureRequest) -> str:
    name = f"<ipython-input-{request.node.name}>"
    linecache.cache[name] = (len(_SOURCE), None, _SOURCE.splitlines(keepends=True), name)
    return name


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (2, "if (self.args.filter_nan and not torch.isfinite(x)):"),
        (3, "self.args.filter_nan  # a ) in a comment"),
        (4, "and not torch.isfinite(x)"),
        (5, "if (self.args.filter_nan and not torch.isfinite(x)):"),
        (7, 'loss, outputs = self.compute_loss(model, inputs, kind="a ( b", n=3)'),
        (9, "n=3,"),
        (11, "return self.accelerator.backward(self.scaler.scale(loss))"),
        (12, "self.scaler.scale(loss)"),
        (14, "return self.accelerator.backward(self.scaler.scale(loss))"),
        (16, "x = y + 1"),
        (99, ""),
    ],
)
def test_what_runs_on_a_line(file: str, line: int, said: str) -> None:
    assert statement(file, line) == said


def test_it_is_short_and_printable(file: str) -> None:
    assert statement(file, 2, longest=20) == "if (self.args.filte…"
    linecache.cache[file] = (1, None, ["call(\x07'<img>',\n", "   2)\n"], file)
    assert statement(file, 1) == "call(\N{REPLACEMENT CHARACTER}'<img>', 2)"


def test_no_python_is_shown_as_it_stands(file: str) -> None:
    linecache.cache[file] = (1, None, ["%%torchprof (\n", "x = 'open\n", "foo(\n"], file)
    assert statement(file, 2) == "x = 'open"
    assert statement(file, 3) == "foo("


def test_of_several_modules_with_such_a_line_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fact named the line of whichever module was imported first, also of one that never ran."""
    monkeypatch.setattr("perfkit.base.source._MOST_FILES", sys.maxsize)  # tests import many
    line = "with_this_alone = "
    said = []
    for name in ("trains_here", "evaluates_here"):
        module = ModuleType(name)
        module.__file__ = str(tmp_path / f"{name}.py")
        Path(module.__file__).write_text(f"{line}1\n{line}2\n")
        monkeypatch.setitem(sys.modules, name, module)
        said.append(first_line_with(rf"^{line}"))
    monkeypatch.setattr(sys.modules["__main__"], "__file__", module.__file__, raising=False)
    said.append(first_line_with(rf"^{line}"))
    assert said == [
        "trains_here.py:1: with_this_alone = 1",
        None,
        "evaluates_here.py:1: with_this_alone = 1",
    ]


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ("self.opt = optim.Kept(net.parameters(),\n  lr=0.1,  # slow\n)\n", "self.opt = optim.Kept("
         "net.parameters(), lr=0.1, fused=True)"),
        ("opt = Kept(two(x), fused=quick, **more)\n", "opt = Kept(two(x), **more, fused=True)"),
        ("with Kept(x) as opt:\n", ""),
        (f"opt = Kept({'x, ' * 80})\n", ""),
    ],
)  # fmt: skip
def test_a_call_with_one_more_argument(
    made: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it can be pasted; no code of what it cannot write: the line alone is told."""
    file = tmp_path / "own.py"
    file.write_text(f"from there import Kept  # Kept(\n{made}opt = Kept(later)\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(file), raising=False)
    line, said = call_with("fused=True", "Kept")
    assert line is not None
    assert line.startswith("own.py:2: ")
    assert said == code
    assert call_with("fused=True", "NotThere") == (None, "")
