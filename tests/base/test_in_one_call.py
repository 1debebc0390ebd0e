"""Loops that one call would do, and loops like them that no call does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

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
    "index_add(0, y, z)": [
        "for c in range(n):\n    rows = (y == c).nonzero().squeeze(1)\n"
        "    if len(rows) < 2:\n        continue\n    total += z[rows].mean(0)",
        "for c in y.unique():\n    centres.append(z[y == c].mean(dim=0))",
    ],
    "torch.optim.Adam(": [
        "for p, m, v in zip(self.params, self.m, self.v):\n    g = p.grad\n    m.lerp_(g, 0.1)\n"
        "    v.lerp_(g * g, 0.001)\n    p -= lr * m / (v.sqrt() + 1e-8)",
    ],
    "torch.optim.SGD(": ["for w in model.parameters():\n    w.data.add_(w.grad, alpha=-lr)"],
    "get_total_norm(grads)": [
        "for name, p in model.named_parameters():\n    if p.grad is not None:\n"
        "        total += p.grad.detach().norm(2).item() ** 2",
    ],
    "i, j = torch.triu_indices(n, n, 1)": [
        "for i in range(n - 1):\n  for j in range(i + 1, n):\n"
        "    total = total + (v[:, i, f[:, j]] * v[:, j, f[:, i]]).sum(-1)",
    ],
    "outputs = self.out(torch.stack(parts))": [
        "for t in range(n):\n    h = self.step(x[t], h)\n    outputs.append(self.out(h))",
    ],
    "outputs = self.out(torch.stack(parts, 1))": [
        "for t in range(n):\n    h = self.step(x[t], h)\n    outputs[:, t] = self.out(h)",
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
    "for t in range(n):\n    h = self.step(best(y), h)\n    y = self.out(h)",
    "for i in range(n):\n  for j in range(i + 1, n):\n    a[j] += a[i]\n    a[i], a[j] = a[j], 0",
    "for word in text.split():\n    ids.append(index[word])",
    "for x, y in loader:\n    total[0] += 1",
    "for p in model.parameters():\n    n += p.grad.numel()",
]


# how a loop takes rows -> the index in place of it; both run
_PICKS = {
    "torch.stack([data[i:i+n] for i in ix])": "data[ix[:, None] + torch.arange(n)]",
    "torch.stack([data[i+1 : i+n+1] for i in ix]).float()": (
        "data[ix[:, None] + torch.arange(1, n + 1)].float()"
    ),
    "torch.stack([data[i:i + n] for i in ix]), torch.stack([data[i+1:i+1+n] for i in ix])": (
        "(data[ix[:, None] + torch.arange(n)], data[ix[:, None] + torch.arange(1, 1 + n)])"
    ),
    "torch.stack([\n    data[i]  # a row\n    for i in ix.tolist()\n], dim=0)": "data[ix]",
    "torch.stack([data[i] for i in some])": "data[some]",
    "torch.stack([data[i:i+4] for i in some])": (
        "data[torch.as_tensor(some)[:, None] + torch.arange(4)]"
    ),
    "torch.stack([data[i + n] for i in ix])": "data[ix + n]",
    "np.stack([rows[i : i + n] for i in some])": "rows[np.asarray(some)[:, None] + np.arange(n)]",
    "torch.stack([torch.from_numpy((rows[i:i+n]).astype(np.int64)) for i in ix])": (
        "torch.from_numpy(rows[np.asarray(ix)[:, None] + np.arange(n)].astype(np.int64))"
    ),
}
_NO_PICKS = [
    "torch.stack([row[0] for row in rows])",
    "torch.stack([data[i:j] for i, j in pairs])",
    "torch.stack([data[i].flip(0) for i in ix])",
    "torch.stack([data[i:i+n] for i in ix], dim=1)",
    "torch.cat([data[i:i+n] for i in ix])",
    "[data[i] for i in ix]",
]


def _program(folder: Path, line: str, monkeypatch: pytest.MonkeyPatch, ix: str) -> str:
    file = folder / "program.py"
    file.write_text(f"x = {line}\nix = {ix}\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(file), raising=False)
    return str(file)


@pytest.mark.parametrize("line", _PICKS)
def test_rows_picked_one_by_one_are_one_index(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = "torch.randint(90, (5,))"
    found = in_one_call(_program(tmp_path, line, monkeypatch, made), 1 + line.count("\n") // 2)
    assert found is not None
    assert found.code.partition("  #")[0] == f"x = {_PICKS[line]}"
    rows = np.arange(300).reshape(100, 3)
    known = {"torch": torch, "np": np, "rows": rows, "data": torch.from_numpy(rows), "n": 6}
    known |= {"some": [3, 1, 70, 3], "ix": torch.tensor([5, 90, 0])}
    before, after = (eval(code, dict(known)) for code in (line, found.code.removeprefix("x = ")))
    assert repr(before) == repr(after)


def test_inputs_and_targets_are_one_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of two lines is told by itself, with its own part of the gain."""
    two = "torch.stack([data[i:i+8] for i in ix])\ny = torch.stack([data[i+1:i+9] for i in ix])"
    file = _program(tmp_path, two, monkeypatch, "torch.randint(90, (5,))")
    found = in_one_call(file, 1)
    assert found is not None
    assert found == in_one_call(file, 2)
    assert found.code.splitlines() == [
        "x = data[ix[:, None] + torch.arange(8)]",
        "y = data[ix[:, None] + torch.arange(1, 9)]",
    ]


def test_an_index_on_a_device_is_added_to_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "torch.stack([data[i:i+n] for i in ix])"
    file = _program(tmp_path, line, monkeypatch, "torch.randint(90, (5,), device=device)")
    found = in_one_call(file, 1)
    assert found is not None
    assert found.code == "x = data[ix[:, None] + torch.arange(n, device=ix.device)]"


@pytest.mark.parametrize("line", _NO_PICKS)
def test_what_is_no_plain_pick_has_none(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_one_call(_program(tmp_path, line, monkeypatch, "torch.randperm(9)"), 1) is None


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        ("for i in range(9):\n    loss = loss + hinge(scores[i])", "# one call for all"),
        ("while t > state.t1:\n    state = advance(state)", "no one call does all of them"),
    ],
)
def test_a_loop_of_no_known_form_gets_no_code(loop: str, words: str, tmp_path: Path) -> None:
    """The sum of a CRF, and a recurrent layer, were told to whatever loop had many operators."""
    around = loops_around(*_last_line(tmp_path, loop))
    said = rounds_in_one_call(around[0], "", of_layers=False)
    assert words in said
    assert all(line.startswith("#") for line in said.splitlines())


@pytest.mark.parametrize("call", ["flow(x)", "flow.forward(x)", "flows[flow](x)"])
def test_a_loop_over_layers_is_the_model_and_no_loop_of_operators(
    call: str, tmp_path: Path
) -> None:
    loop = f"for flow in flows:\n    x = {call}"
    assert loops_around(*_last_line(tmp_path, loop)) == []


def test_the_best_of_each_row_has_its_form(tmp_path: Path) -> None:
    loop = (
        "for tag in range(n):\n    score = before + table[tag]\n    best.append(score.logsumexp(0))"
    )
    (around,) = loops_around(*_last_line(tmp_path, loop))
    assert "(scores + table).logsumexp(1)" in rounds_in_one_call(around, "", of_layers=False)


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


def test_the_means_of_classes_are_those_of_the_loop(tmp_path: Path) -> None:
    code = "for c in range(k):\n    means.append(z[y == c].mean(0))"
    found = in_one_call(*_last_line(tmp_path, code))
    assert found is not None
    names: dict[str, Any] = {"torch": torch, "k": 4, "means": []}
    names |= {"z": torch.randn(24, 3), "y": torch.arange(24) % 4}
    exec(code, names)
    each = torch.stack(names["means"])
    exec(found.code, names)
    assert torch.allclose(names["means"], each)


def test_a_formula_that_torch_has_as_an_operator_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "0.5 * x * (1 + torch.erf(\n    x / math.sqrt(2)))"
    found = in_one_call(_program(tmp_path, line, monkeypatch, "0"), 1)
    assert found is not None
    assert found.code == "x = torch.nn.functional.gelu(x)"
