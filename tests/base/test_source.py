"""A line of a statement that goes over several is shown so that it says something."""

from __future__ import annotations

import linecache

import pytest

from perfkit.base.source import statement

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
