"""The cure of a line speaks of that line's own variables, and it runs."""

from __future__ import annotations

import ast
import io
import linecache
import math
import re
import sys
import textwrap
import tokenize
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from snippets import compiled, namespace

from perfkit.synclint.catalogue import CATALOGUE
from perfkit.synclint.cures import _DECIDES, _INDEX, LineWait, cures
from perfkit.synclint.find import Syncs, syncs_of
from perfkit.synclint.sites import Site
from perfkit.synclint.watch import Watch

_LIKE_THIS = "# no rewrite of this very line is known; with other names, for example:"
# 0.01 s each alone, 0.3 s after the tests of other rooms; why is not known
pytestmark = pytest.mark.slow

# names of the catalogue's snippets -> what a stranger calls them
RENAMED = {
    "label_lengths": "n_chars",
    "labels": "chars",
    "lengths": "n_frames",
    "loss": "err_g",
    "many": "wanted",
    "mask": "valid",
    "n": "longest",
    "paths": "log_probs",
    "repeats": "times",
    "square": "gram",
    "target": "label",
    "total": "running",
    "weight": "kernel",
    "x": "pred",
    "x0": "before",
}
# an answer that is the same for every line has no names to take over
NAMELESS = {"get_scale"}


def _strange(code: str) -> str:
    """The code with other names, keywords and attributes left as they are."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = RENAMED.get(node.id, node.id)
    return ast.unparse(tree)


def _strange_names() -> dict[str, Any]:
    return {RENAMED.get(name, name): value for name, value in namespace().items()} | {"step": 1}


def _names(code: str) -> set[str]:
    """Names in code, without attributes, keywords of calls, and what the code itself assigns."""
    tree = ast.parse(code)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    made = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    return used - made


def _found(code: str, before: str = "", **more: Any) -> Syncs:
    program = compiled(code)
    with Watch() as watch:
        names = _strange_names() | more  # made in the watch, so that it knows where they are
        exec(before, names)
        exec(program, names)
    return Syncs(s for s in syncs_of(watch) if s.file == program.co_filename)


@pytest.mark.parametrize("entry", [n for n, e in CATALOGUE.items() if e.slow and n not in NAMELESS])
def test_a_cure_has_the_names_of_the_line_and_does_not_wait(entry: str) -> None:
    slow = _strange(CATALOGUE[entry].slow)
    (sync,) = _found(slow)
    assert not _names(sync.instead) & RENAMED.keys(), sync.instead
    set_up = "\n".join(slow.splitlines()[: sync.line - 1])  # what the line itself builds on
    before, _, in_loop = sync.instead.partition("# in the loop:\n")
    if in_loop:
        assert "# once, before the loop:" in before
        set_up += f"\n{before}"
    assert _found(in_loop or before, set_up) == [], sync.instead


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ("running += err_g.item() * len(pred)", "running += err_g.detach() * len(pred)"),
        ("history['g'] = err_g.item()", "history['g'] = err_g.detach()"),
        (
            "history.setdefault('g', []).append(float(err_g.detach()))",
            "history.setdefault('g', []).append(err_g.detach())",
        ),
        ("both = err_g.item() + running.item()", "both = err_g.detach() + running.detach()"),
        ("kept = err_g.item(); step += 1", "kept = err_g.detach()"),
        (
            "print('G', err_g.item())",
            "if step % 100 == 0:  # not in every step\n    print('G', err_g.item())",
        ),
        (
            "hits = (pred.argmax(1) == label).sum().item()",
            "hits = (pred.argmax(1) == label).sum().detach()",
        ),
        ("kept = pred.detach().cpu()", "kept = pred.detach()"),
        # .numpy() raises for what has stayed on the device
        ("kept = pred.detach().cpu().numpy()", "kept = pred.detach()"),
        (
            "kept, more = pred.detach().cpu().numpy(), err_g.detach().cpu().numpy()",
            "kept, more = pred.detach(), err_g.detach()",
        ),
        (
            "best = max(err_g, 0) if False else max(pred[0])",
            "best = max(err_g, 0) if False else pred[0].max()",
        ),
        (
            "if err_g > 1:\n    err_g = err_g / 2",
            "err_g = torch.where(err_g > 1, err_g / 2, err_g)",
        ),
        ("if torch.isnan(err_g):\n    raise ValueError('nan')", "failed = torch.isnan(err_g)"),
        ("assert torch.isfinite(err_g).all()", "good = torch.isfinite(err_g).all()"),
        (
            "pred = fresh.to('meta' if False else pred.device)",
            "pred = fresh.to('meta' if False else pred.device, non_blocking=True)",
        ),
        (
            "pred = fresh.to('meta' if False else pred.device, non_blocking=bool(0))",
            "pred = fresh.to('meta' if False else pred.device, non_blocking=True)",
        ),
    ],
)
def test_the_line_itself_is_rewritten(line: str, cure: str) -> None:
    (sync,) = _found(line, history={}, fresh=torch.ones(4, 5))
    assert cure in sync.instead


@pytest.mark.parametrize(
    "line",
    ["i = torch.randperm(4); kept = pred[i]", "kept = fresh.to(pred.device)"],
)
def test_a_copy_that_does_not_block_is_said_to_need_pinned_memory(line: str) -> None:
    (sync,) = _found(line, fresh=torch.ones(4, 5))
    note, _, code = sync.instead.rpartition("\n")
    assert "non_blocking=True" in code
    assert "from pinned memory only" in note


@pytest.mark.parametrize(
    ("line", "taker"),
    [
        ("world.step(pred.detach().cpu().numpy())", "world.step"),
        ("world.step(pred.detach().numpy() * 2)", "world.step"),
        ("kept = math.exp(err_g.item())", "math.exp"),
        ("kept = pred.argmax(1).cpu().numpy()\nmore = 1\nworld.step(kept)", "world.step"),
        ("kept = pred.detach().cpu()\nmore = np.isin([1], kept.numpy())", "np.isin"),
    ],
)
def test_what_takes_an_array_or_a_number_is_given_no_tensor(line: str, taker: str) -> None:
    class World:
        def step(self, actions: Any) -> None:
            assert type(actions).__module__ == "numpy"

    found = _found(line, world=World(), math=math, np=np)[:1]  # and what follows it
    (sync,) = {s.instead: s for s in found}.values()
    assert f"# {taker}() takes it on the host" in sync.instead
    assert "detach()" not in sync.instead


@pytest.mark.parametrize(
    "line",
    [
        "kept = pred.cpu()\nmore = len(kept)",
        "kept = pred.cpu()\nkept = []\nworld(kept)",
        "world(1)\nkept = pred.cpu()",
        "def other(kept):\n    world(kept)\nkept = pred.cpu()",
    ],
)
def test_what_nothing_else_takes_stays_on_the_device(line: str) -> None:
    (sync,) = _found(line, world=bool)
    assert "kept = pred.detach()" in sync.instead


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        # a loop's own positions are shown apart, what is computed anew is not written twice
        ("for one in pred[[1, 0]]:\n    kept = one", "y = pred[positions]"),
        ("kept = pred.relu()[range(2)]", "y = pred.relu()[positions]"),
        # one of two that cannot be rewritten leaves both
        ("kept = pred.relu()[[0, 1], np.arange(2)]", CATALOGUE["index_list"].instead),
    ],
)
def test_positions_are_only_rewritten_in_place_where_that_is_the_same(line: str, cure: str) -> None:
    (sync,) = _found(line, "pred = pred.detach()", np=np)
    assert sync.instead.endswith(f"\n{cure}")


def test_positions_that_change_are_copied_once_for_all_that_they_choose() -> None:
    (sync,) = _found("picked = np.random.permutation(4)\nkept = pred[picked]", np=np)
    assert "positions = torch.as_tensor(picked, device=pred.device)" in sync.instead
    assert sync.instead.endswith("\nkept = pred[positions]")
    assert "before the loop" not in sync.instead


def test_what_the_same_positions_choose_from_shares_one_copy() -> None:
    """There were two, and neither was the line's own."""
    code = "picked = np.random.permutation(4)\nkept = pred[picked].sum() + before[:, picked].sum()"
    (sync,) = _found(code, np=np)
    assert sync.instead.splitlines()[-2:] == [
        "positions = torch.as_tensor(picked, device=pred.device)",
        "kept = pred[positions].sum() + before[:, positions].sum()",
    ]


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ("kept = pred[:, [1, 0]]", "kept = pred[:, positions]"),
        ("kept = pred[[1, longest_]]", "kept = pred[positions]"),
        ("kept = pred[(1, 0), ...]", "kept = pred[positions, ...]"),
        ("kept = pred[..., None, [1, 0]]", "kept = pred[..., None, positions]"),
        ("kept = pred[[0, 1], [2, 0]]", "kept = pred[positions, positions_2]"),
        ("kept = pred[[0, 1], label]", "kept = pred[positions, label]"),
        ("kept = pred[label, kinds]", "kept = pred[label, positions]"),
        ("pred[[0, 1], [2, 0]] = before[0, :2]", "pred[positions, positions_2] = before[0, :2]"),
        ("kept = pred[range(2), label]", "kept = pred[torch.arange(2, device=pred.device), label]"),
        (
            "kept = pred[np.arange(0, 2), label]",
            "kept = pred[torch.arange(0, 2, device=pred.device), label]",
        ),
        ("kept = pred[np.arange(2, dtype=np.int32), label]", "kept = pred[positions, label]"),
        (
            "from numpy import arange as upto\nkept = pred[upto(2), label]",
            "kept = pred[torch.arange(2, device=pred.device), label]",
        ),
    ],
)
def test_what_an_index_has_of_lists_is_put_on_the_device(line: str, cure: str) -> None:
    """Two lists, or one beside anything but colons and dots, got a general example."""
    before = "label = torch.tensor([1, 0], device=pred.device)\npred = pred.detach()"
    names = {"longest_": 2, "np": np, "kinds": [0, 2]}
    (sync,) = _found(line, before, **names)
    *_, last = sync.instead.splitlines()
    assert last == cure
    wanted, same = _strange_names() | names, _strange_names() | names
    for code, into in ((line, wanted), (sync.instead, same)):
        exec(before, into)
        exec(code, into)
    for name in ("kept", "pred"):
        assert name not in wanted or torch.equal(wanted[name], same[name])
    assert not _found(last, f"{before}\n{sync.instead}", **names)


@pytest.mark.parametrize(
    "line",
    [
        "kept = pred[both]",  # of it one name is to be seen
        "kept = pred[*both]",
        "kept = pred[*both, None]",
    ],
)
def test_an_index_that_the_line_does_not_show_is_not_rewritten(line: str) -> None:
    """All of it was to be made one tensor, which chooses something else."""
    (sync,) = _found(line, both=([0, 1], 2))
    assert sync.instead.startswith(_LIKE_THIS)


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ("pred[torch.randperm(4)]", "pred[torch.randperm(4, device=pred.device)]"),
        (
            "pred[torch.arange(len(pred)), label]",
            "pred[torch.arange(len(pred), device=pred.device), label]",
        ),
    ],
)
def test_positions_are_made_where_they_are_used(line: str, cure: str) -> None:
    (sync,) = _found(f"kept = {line}", label=torch.zeros(4, dtype=torch.int64))
    assert sync.instead == f"kept = {cure}"


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        (
            "th.tensor(array, device=pred.device)",
            "th.tensor(array).pin_memory().to(pred.device, non_blocking=True)",
        ),
        (
            "th.as_tensor(array, dtype=th.float32, device=pred.device)",
            "th.as_tensor(array, dtype=th.float32).pin_memory().to(pred.device, non_blocking=True)",
        ),
        (
            "th.tensor(len(array), device=pred.device)",
            "th.full((), len(array), device=pred.device)",
        ),
        (
            "th.as_tensor(len(array), device=pred.device)",
            "th.full((), len(array), device=pred.device)",
        ),
        ("th.tensor([1.0], device=pred.device)", "constant.clone()"),
        ("th.tensor((1.0, 2.0), device=pred.device)", "constant.clone()"),
    ],
)
def test_data_that_a_buffer_gives_in_each_step(line: str, cure: str) -> None:
    """A general example, on numbers, where each step brings an array of its own."""
    code = f"import torch as th\ndef sample(array):\n    return {line}\nkept = sample(world)"
    (sync,) = _found(code, world=np.ones(4))
    assert sync.instead.splitlines()[-1] == f"return {cure}"
    assert ("only a copy from pinned memory" in sync.instead) is ("pin" in cure)


@pytest.mark.parametrize(
    ("names", "line", "cure"),
    [
        ("import torch as th", "th.tensor(4, device=d)", "th.full((), 4, device=d)"),
        ("from torch import tensor", "tensor(4, device=d)", "torch.full((), 4, device=d)"),
        ("from torch import tensor as t", "t([4], device=d)", "constant.clone()"),
    ],
)
def test_a_call_is_known_by_what_its_name_stands_for(names: str, line: str, cure: str) -> None:
    (sync,) = _found(f"{names}\nd = pred.device\nkept = {line}")
    assert sync.instead.splitlines()[-1] == f"kept = {cure}"


def test_a_notebooks_names_are_known_from_its_other_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """``import torch as th`` is in the first cell, and the cures of the others said ``torch.``"""
    line = "kept = th.tensor(4, device=pred.device)"
    cell = compiled(line).co_filename
    main = ModuleType("__main__")
    vars(main).update(th=torch, relu=torch.nn.functional.relu)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr("perfkit.synclint.names.cell_names", lambda: {cell: 2})
    (sync,) = _found(line, th=torch)
    assert sync.instead == "kept = th.full((), 4, device=pred.device)"


def test_no_memory_is_pinned_for_what_is_read_first() -> None:
    (sync,) = _found("kept = torch.tensor([err_g.detach(), 1.0], device=pred.device)")
    assert "pin_memory" not in sync.instead


def test_a_loss_of_some_rows_ignores_the_others() -> None:
    before = "few, kinds = pred[:, 0] > 0, label.clamp(max=pred.shape[1] - 1)"
    names = {"F": torch.nn.functional}
    (sync,) = _found("err_g = F.cross_entropy(pred[few], kinds[few])", before, **names)
    *_, cure = sync.instead.splitlines()
    assert cure == (
        "err_g = F.cross_entropy(pred.flatten(0, -2), kinds.masked_fill(~few, -100).flatten())"
    )
    assert not _found(cure, before, **names)
    same = _strange_names() | names
    exec(before, same)
    exec(cure, same)
    picked = same["pred"][same["few"]], same["kinds"][same["few"]]
    torch.testing.assert_close(same["err_g"], torch.nn.functional.cross_entropy(*picked))


def test_what_is_not_in_every_step_anyway_is_not_told_to_be_rarer_by_an_if() -> None:
    rare = "# not in every step as it is"
    train = "    for _ in range(2):\n        (w * w).backward()\n        opt.step()\n"
    w = torch.ones((), requires_grad=True)
    more = {"w": w, "opt": torch.optim.SGD([w], 0.1), "io": io}
    (saved,) = _found(
        f"for _ in range(1):\n{train}    torch.save(pred.detach(), io.BytesIO())", **more
    )
    assert saved.instead.startswith(rare)
    for seldom in ("print(err_g)", "last = err_g.item()"):
        (asked,) = _found(f"for i in range(2):\n    if i % 2 == 0:\n        {seldom}\n", **more)
        assert asked.instead.startswith(rare)
    # with accumulation, such a branch is the step
    (inside,) = _found(
        "for i in range(2):\n    (w * w).backward()\n"
        "    if i % 2 == 0:\n        opt.step()\n        last = err_g.item()",
        **more,
    )
    assert "err_g.detach()" in inside.instead
    (called,) = _found(
        "def step(i):\n    (w * w).backward()\n"
        "    if i % 2 == 0:\n        opt.step()\n        last = err_g.item() + 1\nstep(0)",
        **more,
    )
    assert "err_g.detach()" in called.instead


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ("pred[valid] += 1.0", "torch.where(valid, pred + 1.0, pred)"),
        ("pred[valid] *= before[valid]", "torch.where(valid, pred * before, pred)"),
        (
            "pred[valid] += running",
            "torch.where(valid, pred + running, pred)  # running: a number, or as large as pred",
        ),
    ],
)
def test_what_is_added_to_the_chosen_is_added_everywhere(line: str, cure: str) -> None:
    (sync,) = _found(line, "pred = pred.detach().clone()\nbefore = torch.ones_like(pred)")
    assert sync.instead.endswith(f"\npred = {cure}")


@pytest.mark.parametrize(
    ("code", "is_rare"),
    [
        ("if i % 2 == 0:\n    print(err_g)", True),
        ("if not i % 2: print(err_g)", True),
        ("if i % 2:\n    pass\nelse:\n    print(err_g)", True),
        ("if i % 2:\n    continue\nprint(err_g)", True),
        ("i % 2 == 0 and print(err_g)", True),
        ("print(err_g) if i % 2 == 0 else None", True),
        ("if i % 2 == 0 and err_g.item() > 9:\n    pass", True),
        ("told = i % 2 == 0\nif told:\n    print(err_g)", True),
        # a scheduler's step in the branch is not the step
        ("if i % 2 == 0:\n    rate.step()\n    print(err_g)", True),
        # all but a few
        ("if i % 100:\n    print(err_g)", False),
        ("if i % 100 != 0:\n    print(err_g)", False),
        ("if 0 < (i + 1) % 100:\n    print(err_g)", False),
        ("if i % 100 not in (0, 7):\n    print(err_g)", False),
        ("if 0 < (i + 1) % 2:\n    continue\nprint(err_g)", True),
        ("if '%d' % i == '1':\n    print(err_g)", False),
        ("if i * 0 == 0:\n    print(err_g)", False),
        ("if i % 2:\n    pass\nprint(err_g)", False),
        ("print(err_g)", False),
    ],
)
def test_what_is_thinned_out_already_is_known_by_its_test(code: str, is_rare: bool) -> None:
    """It was told ``if step % 100 == 0`` although it had such a branch of its own."""
    w = torch.ones((), requires_grad=True)
    opt = torch.optim.SGD([w], 0.1)
    rate = torch.optim.lr_scheduler.ConstantLR(opt)
    loop = textwrap.indent(f"(w * w).backward()\nopt.step()\n{code}", "    ")
    (sync,) = _found(f"for i in range(2):\n{loop}", w=w, opt=opt, rate=rate)
    assert sync.instead.startswith("# not in every step as it is") == is_rare, sync.instead


@pytest.mark.parametrize(
    ("test", "asks"),
    [
        ("not torch.isinf(err_g).any()", "torch.isinf(err_g).any()"),
        ("torch.isfinite(pred).all()", "~torch.isfinite(pred).all()"),
        ("not pred.isnan().any()", "pred.isnan().any()"),
    ],
)
def test_a_step_that_is_skipped_is_not_weighed_with_a_mask(test: str, asks: str) -> None:
    """``if not isinf(x).any(): optimizer.step()``: no sum is to be weighed there."""
    w = torch.ones((), requires_grad=True)
    opt = torch.optim.SGD([w], 0.1)
    (sync,) = _found(f"if {test}:\n    opt.step()\n    opt.zero_grad()", opt=opt)
    assert "mask" not in sync.instead
    assert "fused=True" in sync.instead
    assert f"bad = {asks}  # bad |=" in sync.instead


def test_a_choice_by_what_is_finite_is_one_of_values_only() -> None:
    (sync,) = _found("if torch.isfinite(err_g).all():\n    running = err_g")
    assert "running = torch.where(torch.isfinite(err_g).all(), err_g, running)" in sync.instead
    assert "a gradient that is not finite makes NaN on either side" in sync.instead


def test_a_line_outside_of_the_loop_runs_once_and_is_left_alone() -> None:
    code = (
        "for _ in range(2):\n    running = running + err_g.item()\n"
        "print(err_g)\nif err_g > 0:\n    last = err_g.item()"
    )
    inside, *outside = _found(code)
    assert "err_g.detach()" in inside.instead
    assert [sync.instead for sync in outside] == [
        "# it runs once, outside of the loop: leave it as it is"
    ] * 3
    # a lambda runs as often as the loop calls it
    for above in (
        "read = lambda value: value.item()\nfor _ in range(2):\n    read(err_g)",
        "read = (lambda value:\n        value.item())\nfor _ in range(2):\n    read(err_g)",
    ):
        (sync,) = _found(above)
        assert "runs once" not in sync.instead
    # what has no loop may be the step itself
    (step,) = _found("running = running + err_g.item()")
    assert "err_g.detach()" in step.instead


def test_only_what_makes_a_distribution_takes_validate_args() -> None:
    made, asked = _found(
        "probs = torch.distributions.Normal(pred, 1.0)\nlikely = probs.log_prob(pred).sum()"
    )
    assert "Normal(pred, 1.0, validate_args=False)" in made.instead
    assert "log_prob" not in asked.instead
    assert "validate_args=False" in asked.instead
    assert "Normal" not in asked.instead  # the line makes none: what has made it is elsewhere
    # nor does an object around it
    _, kept = _found(
        "probs = torch.distributions.Normal(pred, 1.0)\n"
        "Kept = dict\n"
        "kept = Kept(likely=probs.log_prob(pred))"
    )
    assert kept.instead == asked.instead


def test_only_the_index_that_is_copied_is_rewritten() -> None:
    (sync,) = _found("pred[range(pred.shape[0]), [0] * pred.shape[0]]")
    assert "shape.device" not in sync.instead
    assert "pred.shape[positions]" not in sync.instead
    (sync,) = _found("pred.detach()[: pred.shape[0]][[0, 1]]")
    assert "[positions]" in sync.instead
    assert "pred.shape[positions]" not in sync.instead


def test_a_statement_over_several_lines_is_shown_whole() -> None:
    (sync,) = _found("kept = float(\n    err_g.detach()\n)")
    assert sync.code == "kept = float(err_g.detach())"


def test_where_both_sides_of_a_question_cannot_be_computed_none_are_proposed() -> None:
    (sync,) = _found("if err_g > 0 and step:\n    err_g = err_g / 2")
    assert sync.instead == _DECIDES


@pytest.mark.parametrize(
    ("entry", "code"),
    [("item", "running = running + err_g.item()"), ("bool", "kept = bool(err_g)")],
)
def test_without_a_source_that_can_be_parsed_the_names_are_general(entry: str, code: str) -> None:
    program = compiled(code)
    broken = f"this is ( no python\n{code}"
    linecache.cache[program.co_filename] = (len(broken), None, broken.splitlines(True), "")
    with Watch() as watch:
        exec(program, _strange_names())
    (sync,) = (s for s in syncs_of(watch) if s.file == program.co_filename)
    assert sync.instead == f"{_LIKE_THIS}\n{CATALOGUE[entry].instead}"
    (parsed,) = _found("kept = bool(err_g)")  # nor does an answer that is kept decide anything
    assert parsed.instead == f"{_LIKE_THIS}\n{CATALOGUE['bool'].instead}"


def test_every_cure_is_python() -> None:
    for entry in CATALOGUE.values():
        list(tokenize.generate_tokens(io.StringIO(entry.instead).readline))


@pytest.mark.parametrize("columns", [slice(None), 0])
def test_the_mean_of_chosen_rows_is_the_same_by_weights(columns: Any) -> None:
    """``(pred * few).sum()`` does not broadcast where few is a mask of rows, or does so wrongly."""
    names = {"columns": columns, "few": torch.tensor([True, False, True, True])}
    before = "few = few & (pred[:, 0] < 1e9); part = pred[:, columns]"
    (sync,) = _found("err_g = part[few].mean()", before, **names)
    assert not _found(sync.instead, before, **names)
    same = _strange_names() | names
    exec(before, same)
    exec(sync.instead, same)
    torch.testing.assert_close(same["mean"], same["part"][same["few"]].mean())
    # what is left out counts for nothing, whatever it is
    same["part"] = same["part"].detach().clone()
    same["part"][~same["few"]] = float("nan")
    exec(sync.instead, same)
    assert torch.isfinite(same["mean"])


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("n_right = (guess[few] == label[few]).sum()", "hits"),
        ("right = (guess[few] == label[few]).float().mean()", "share"),
    ],
)
def test_hits_among_chosen_rows_are_counted_without_choosing(line: str, made: str) -> None:
    before = "guess = pred.argmax(1); few = label > 0"
    (sync,) = _found(line, before)
    assert not _found(sync.instead, before)
    same = _strange_names()
    exec(before, same)
    exec(f"{line}\n{sync.instead}", same)
    assert same[made] == same[line.partition(" =")[0]]


def test_what_a_number_is_put_into_must_take_a_tensor() -> None:
    """``losses[k] = loss.detach()`` copies to the host where losses is a tensor there."""
    (sync,) = _found("losses[0] = err_g.item()", losses=torch.zeros(4))
    assert "losses[0] = err_g.detach()" in sync.instead
    assert "# losses must be a list, a dict, or a tensor on the device" in sync.instead
    (named,) = _found("history['g'] = err_g.item()", history={})
    assert "must be" not in named.instead


@pytest.mark.parametrize(
    ("line", "met"),
    [
        ("hits = (pred.argmax(1).cpu() == other).sum().item()", "other"),
        ("hits = pred.argmax(1).cpu().eq(other).sum()", "other"),
        ("hits = torch.eq(pred.argmax(1).cpu(), other)", "other"),
        ("hits = table[pred.argmax(1).cpu()]", "table"),
        ("kept = pred.argmax(1).cpu() * 2 / len(other)", ""),
        ("same = pred.argmax(1).cpu() == pred.argmax(1).cpu()", ""),
        ("kept = pred.argmax(1).cpu().reshape((-1, *other.shape))", ""),
    ],
)
def test_what_the_copy_meets_must_come_to_the_device_with_it(line: str, met: str) -> None:
    """``x.detach() == labels`` raises on a GPU where ``x.cpu() == labels`` did not."""
    host = {"other": torch.zeros(4, dtype=torch.long), "table": torch.arange(9)}
    (sync,) = _found(line, **host)
    assert "pred.argmax(1).detach()" in sync.instead
    told = [one for one in sync.instead.splitlines() if "must then be on the device" in one]
    assert [one.split()[1] for one in told] == ([met] if met else [])


def test_a_wait_inside_of_another_one_is_rewritten_with_it() -> None:
    (sync,) = _found(
        "kept = net(fresh.to(pred.device)).cpu()", net=torch.nn.Flatten(), fresh=torch.ones(4, 5)
    )
    assert "kept = net(fresh.to(pred.device, non_blocking=True)).detach()" in sync.instead


@pytest.mark.parametrize(
    "line", ["bins[int(err_g * 0)] += 1", "kept = pred[: int(label.min() * 0)]"]
)
def test_what_is_an_index_stays_a_number(line: str) -> None:
    """``bins[int(t)]`` became ``bins[t.detach()]``: a tensor is no key of a dict."""
    (sync,) = _found(line, bins={0: 0})
    assert sync.instead == _INDEX


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        (
            "total = torch.zeros((step,)).to(pred.device)",
            "torch.zeros((step,), device=pred.device)",
        ),
        # `total += …` would change a constant from before the loop
        ("total = torch.tensor(-1, device=pred.device)", "torch.full((), -1, device=pred.device)"),
        ("total = torch.tensor([1.0, 2.0], device=pred.device)", "constant.clone()"),
    ],
)
def test_what_is_made_is_made_on_the_device(line: str, cure: str) -> None:
    (sync,) = _found(line)
    assert sync.instead.splitlines()[-1] == f"total = {cure}"


@pytest.mark.parametrize(
    "line",
    [
        "kept = f'{err_g.item():.3f}'",
        "kept = 'loss %.3f' % err_g.item()",
        "kept = 'loss {:.3f}'.format(err_g.item() / 2)",
    ],
)
def test_a_text_is_called_a_text(line: str) -> None:
    (sync,) = _found(line)
    assert sync.instead.startswith("# the digits of a text must be on the host")
    assert "format()" not in sync.instead


def test_no_line_with_strange_names_is_told_as_the_users(tmp_path: Path) -> None:
    (sync,) = _found("if f'{err_g:.3f}':\n    kept = 1")
    assert sync.instead.startswith(_LIKE_THIS)


@pytest.mark.parametrize("made", ["fresh * 2", "fresh[[0, 1]]", "torch.stack([fresh, fresh])"])
def test_what_arithmetic_made_comes_from_no_data_loader(made: str) -> None:
    for line in (f"kept = ({made}).to(pred.device)", f"made = {made}; kept = made.to(pred.device)"):
        (sync,) = _found(line, fresh=torch.ones(4, 5))
        assert "DataLoader" not in sync.instead
        assert "# computed on the host, so no data loader has pinned it" in sync.instead


@pytest.mark.parametrize("view", ["fresh[1:]", "fresh.view(-1)", "fresh.T"])
def test_a_view_of_a_batch_may_come_from_a_data_loader(view: str) -> None:
    (sync,) = _found(f"kept = {view}.to(pred.device)", fresh=torch.ones(4, 5))
    assert "# from pinned memory only: a batch of DataLoader" in sync.instead


def test_what_is_made_on_the_host_comes_from_no_data_loader() -> None:
    (sync,) = _found("seen = torch.tensor(world).to(pred.device)", world=np.ones(4))
    assert "DataLoader" not in sync.instead
    assert "# made on the host just before" in sync.instead
    assert "seen = torch.tensor(world).to(pred.device, non_blocking=True)" in sync.instead


def test_a_question_that_decides_what_runs_is_not_put_off() -> None:
    code = "kept = None if known.all() and len(pred) else pred"
    (sync,) = _found(code, "known = pred > -1e9")
    assert sync.instead == _DECIDES


@pytest.mark.parametrize(
    ("code", "cure"),
    [
        ("if known.any():\n    raise ValueError", "bad = known.any()"),
        ("if not known.all():\n    print('bad')", "good = known.all()"),
        ("if known.any():\n    print('bad')", "bad = known.any()"),
        ("if known.any():\n    err_g = err_g / 2", "torch.where(known.any(), err_g / 2, err_g)"),
        ("while known.any():\n    break", _DECIDES),
        ("if not known.any():\n    kept = pred.mean()\n    more = kept", _DECIDES),
        ("if not known.any():\n    print('none')", _DECIDES),
        ("if not torch.isinf(pred).any():\n    step += 1", _DECIDES),
        ("if label.max() == 9:\n    step += 1\n    kept = pred", _DECIDES),
    ],
)
def test_only_a_remark_on_a_bad_value_is_put_off(code: str, cure: str) -> None:
    """``if not valid.any(): return`` was told ``bad = valid.any()``, to be asked after the loop."""
    (sync,) = _found(code, "known = pred < -1e9")
    if cure == _DECIDES:
        assert sync.instead == cure  # was told to weigh a loss with a mask
    else:
        assert cure in sync.instead


def test_a_rollout_between_updates_is_not_left_alone() -> None:
    """It ran 256 times for 64 updates, and the advice was to leave it."""

    class World:
        def step(self, actions: Any) -> None:
            pass

    w = torch.ones((), requires_grad=True)
    more = {"w": w, "opt": torch.optim.SGD([w], 0.1), "world": World()}
    (sync,) = _found(
        "for _ in range(2):\n"
        "    for _ in range(3):\n        world.step(pred.detach().cpu().numpy())\n"
        "    for _ in range(2):\n        (w * w).backward()\n        opt.step()\n",
        **more,
    )
    assert "leave it" not in sync.instead
    assert "# world.step() takes it on the host" in sync.instead


def test_what_an_optimizer_asks_for_is_not_told_as_the_lines_own() -> None:
    net = torch.nn.Linear(3, 1)
    opt = torch.optim.LBFGS(net.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = net(torch.ones(4, 3)).square().sum()
        loss.backward()
        return loss

    (sync,) = _found("opt.step(closure)", opt=opt, closure=closure)
    (said,) = sync.instead.splitlines()
    where = r"torch/optim/lbfgs\.py:\d+ and \d+ other lines"
    assert re.fullmatch(rf"# asked for in {where}: call that less often, .*", said)


def test_a_line_of_a_package_is_not_told_as_the_users(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "lents" / "trainer.py"
    file.parent.mkdir(parents=True)
    file.write_text("def log(loss):\n    kept = loss.item()\n    return kept\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    told = cures([LineWait("item", Site(names["log"].__code__, 0, 2))])
    assert told.startswith("# a line of lents, not of your code")
    assert told.endswith("kept = loss.detach()")


def test_what_other_packages_hang_on_syntax_trees_is_left_alone() -> None:
    """The traceback of one cell made each wait found in later cells cost 1.7 s."""
    nodes = ast.walk(ast.parse("a + b"))
    (shared,) = {id(n.ctx): n.ctx for n in nodes if isinstance(n, ast.Name)}.values()

    class Parent:
        def __deepcopy__(self, memo: object) -> None:
            raise AssertionError("all of another file was copied")

    shared.parent = Parent()  # type: ignore[attr-defined]
    try:
        (sync,) = _found("kept = err_g.item()")
    finally:
        del shared.parent  # type: ignore[attr-defined]
    assert sync.instead.endswith("kept = err_g.detach()")
