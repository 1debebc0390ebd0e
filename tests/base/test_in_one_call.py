"""Loops that one call would do, and loops like them that no call does."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfkit.base.in_one_call import in_one_call, rounds_in_one_call
from perfkit.base.source import loops_around

_ONE_CALL = {
    "torch.bincount(pairs": [
        "for label, guess in zip(labels.tolist(), guesses.tolist()):\n    table[label, guess] += 1",
        "for i in range(len(y)):\n    table[y[i]][y_hat[i]] += 1",
    ],
    "torch.cdist(a, b)": [
        "for i in range(n):\n  for j in range(m):  # all\n    d[i, j] = ((a[i] - b[j]) ** 2).sum()",
        "for i in rows:\n    for j in range(m):\n        d[i][j] = torch.dist(a[i], b[j])",
    ],
    "outputs, _ = self.rnn(x)": [
        "for t in range(x.size(1)):\n    h, c = self.cell(x[:, t], (h, c))\n    out.append(h)",
        "for t in range(len(x)):\n    h = self.cells[0](x[t], h)",
    ],
    "np.random.normal(0, 0.05, image.shape)": [
        "for r in range(h):\n  for c in range(w):\n    if random() < 0.1:\n"
        "      image[r, c] = 0.0\n    else:\n      image[r, c] += gauss(0, 1)",
    ],
    "enumerate(self.vocab)": ["ids = [self.vocab.index(word) for word in text.split()]"],
}
_NO_CALL = [
    # pairs of parts of words, in a dictionary
    "for a, b in zip(word, word[1:]):\n    counts[a, b] += 1",
    # an edit distance: each number needs those beside it
    "for i in range(n):\n  for j in range(m):\n    d[i, j] = min(d[i - 1, j], d[i, j - 1]) + 1",
    # what comes out goes in again
    "for t in range(n):\n    h, c = self.cell(self.embed(token), (h, c))\n    token = best(h)",
    "for i in range(1, n):\n    speed[i] = (x[i] - x[i - 1]) / dt",
    "for word in text.split():\n    ids.append(index[word])",
    "for x, y in loader:\n    total[0] += 1",
]


def _last_line(folder: Path, code: str, more: str = "") -> tuple[str, int]:
    path = folder / "program.py"
    path.write_text(f"{code}\n{more}\n")
    return str(path), code.count("\n") + 1


@pytest.mark.parametrize(("cure", "code"), [(c, x) for c, of in _ONE_CALL.items() for x in of])
def test_a_loop_that_one_call_does_has_it_with_its_own_names(
    cure: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.base.in_one_call.lines_with", lambda pattern: [("", 1)])
    found = in_one_call(*_last_line(tmp_path, code))
    assert found is not None
    assert cure in found.code


@pytest.mark.parametrize("code", _NO_CALL)
def test_a_loop_whose_rounds_need_each_other_has_none(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.base.in_one_call.lines_with", lambda pattern: [("", 1)])
    assert in_one_call(*_last_line(tmp_path, code)) is None


def test_a_loop_around_such_a_loop_is_no_such_loop(tmp_path: Path) -> None:
    """The steps' loop is around all of its lines: none of them is what one loop in it is."""
    inner = "    for a, b in zip(labels, guesses):\n        table[a, b] += 1\n"
    file, last = _last_line(tmp_path, f"for x, y in loader:\n{inner}    loss = f(model(x), y)")
    assert in_one_call(file, last) is None
    assert in_one_call(file, last - 1) is not None


def test_a_cell_of_ones_own_is_no_cell_of_torch(tmp_path: Path) -> None:
    code = "for t in range(x.size(1)):\n    h = self.cell(x[:, t], h)"
    assert in_one_call(*_last_line(tmp_path, code)) is None


def test_a_layer_that_gets_each_row_gets_all_rows(tmp_path: Path) -> None:
    file, line = _last_line(tmp_path, "for row in x:\n    out.append(self.conv(row).relu())")
    (loop,) = loops_around(file, line)
    assert "y = self.conv(x)" in rounds_in_one_call(loop, "", of_layers=True)
