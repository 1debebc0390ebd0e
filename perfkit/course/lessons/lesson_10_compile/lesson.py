"""Lesson 10: batches of many lengths, three puzzles, and the exercise in one graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.kit.puzzle import Answer, number, puzzle, tensor

if TYPE_CHECKING:
    import torch

#: Lengths of ten batches.
LENGTHS = (40, 56, 33, 61, 48, 70, 39, 52, 66, 45)

# where the errors come from that torch.compile raises for a graph that it cannot make
_OF_COMPILING = ("torch._dynamo", "torch.fx")


# ---- compiled without a compiler ---------------------------------------------------------


def _compiled(answer: Answer) -> tuple[Answer, list[int]]:
    """The answer in one graph, whose backend compiles nothing, and a count of its graphs."""
    import torch

    graphs: list[int] = []

    def look(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    torch.compiler.reset()
    return torch.compile(answer, fullgraph=True, backend=look), graphs


def _run(answer: Answer, *given: Any) -> Any:
    """Call a compiled answer; an end of its graph is told with torch's reason."""
    try:
        return answer(*given)
    except Exception as error:
        if not type(error).__module__.startswith(_OF_COMPILING):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise NotYet(f"a line ends the graph: {reason}") from None


# ---- three puzzles of one line -----------------------------------------------------------


def _check_steps(answer: Answer) -> list[str]:
    for compile_s, before_ms, after_ms in (
        (40.0, 10.0, 8.0),
        (12.0, 20.0, 8.0),
        (0.5, 3.0, 1.0),
        (2.0, 7.0, 4.0),  # no whole number of steps: rounded down it has not paid
        (90.0, 5.0, 4.9),
    ):
        wanted = compile_s / ((before_ms - after_ms) / 1e3)
        given = number(answer(compile_s, before_ms, after_ms))
        # rounded up or not
        if not (math.isclose(given, wanted, rel_tol=1e-6) or 0 <= given - wanted <= 1):
            raise NotYet(
                f"{compile_s:g} s of compiling, and {before_ms:g} ms a step become {after_ms:g}: "
                f"after {given:,.6g} steps "
                + ("it has not paid" if given < wanted else "it has paid for long")
            )
    return ["the step at which both have taken as long, in five cases"]


def _check_large(answer: Answer) -> list[str]:
    import torch

    run, graphs = _compiled(answer)
    try:
        for largest in (1.0, 9_999.0, 10_001.0, -20_000.0, 1e6):
            x = torch.tensor([[0.5, largest], [-3.0, 2.0]])
            given = tensor(_run(run, x))
            if given.shape != x.shape:
                raise NotYet("return a tensor of the shape of x")
            if not torch.allclose(given, x / 10 if abs(largest) > 1e4 else x):
                raise NotYet(
                    f"with a largest value of {largest:,.0f} it is "
                    + ("all of x, divided by 10" if abs(largest) > 1e4 else "x as it is")
                )
        if len(graphs) != 1:
            raise NotYet(f"{len(graphs)} graphs for five inputs: one is enough")
        waiting = _waiting_lines(answer, torch.ones(2, 2))
        if waiting:
            raise NotYet(f"one graph, and the line reads a number: {waiting[0]}")
    finally:
        torch.compiler.reset()
    return ["the same values, for five inputs", "one graph, and no line ends it"]


def _check_length(answer: Answer) -> list[str]:
    for length in (1, 2, 63, 64, 65, 128, 129, 1000):
        given = number(answer(length))
        wanted = (length + 63) // 64 * 64
        if given != wanted:
            fits = given >= length and given % 64 == 0
            why = "more than it needs" if fits else "not the next multiple of 64"
            raise NotYet(f"a length of {length} becomes {given}: {why}")
    return ["the next multiple of 64, in eight cases"]


#: The first puzzle: when compiling has paid.
steps_until_it_pays = puzzle(
    "from which step on it pays",
    hints=(
        "Each compiled step saves before_ms - after_ms. How many of these are compile_s?",
        "compile_s is in seconds, the others in ms.",
        "compile_s * 1000 / (before_ms - after_ms)",
    ),
    check=_check_steps,
)
#: The second puzzle: a choice without a branch.
none_too_large = puzzle(
    "a choice without a branch",
    hints=(
        "torch.where(condition, one, other) chooses on the device, and nobody reads the condition.",
        "The condition is a tensor with one bool: x.abs().max() > 1e4",
    ),
    check=_check_large,
)
#: The third puzzle: fewer lengths.
next_length = puzzle(
    "the next multiple of 64",
    hints=(
        "How many whole times 64 fit below, and one more unless it fits exactly.",
        "(length + 63) // 64 counts them.",
    ),
    check=_check_length,
)


# ---- the exercise ------------------------------------------------------------------------


def _reference(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """As in the lesson: three lines that end a graph, and a number of rows that changes."""
    import torch

    out = torch.zeros_like(x)
    kept = x[mask]
    if len(kept):
        kept = kept - kept.mean(0)
        longest = kept.norm(dim=1).max().item()
        if longest > 1:
            kept = kept / longest
        out[mask] = kept
    return out


def _cases() -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    import torch

    random = torch.Generator().manual_seed(0)
    for name, n, size, kept in (
        ("some rows", 9, 3.0, 0.6),
        ("short rows, which stay as long as they are", 6, 0.01, 0.7),
        ("all rows", 14, 2.0, 1.1),
        ("no row", 5, 1.0, -1.0),
        ("many rows", 40, 5.0, 0.5),
        ("a single row", 7, 1.0, 0.0),
    ):
        x = size * torch.randn(n, 4, generator=random) + 1
        mask = torch.rand(n, generator=random) < kept
        if kept == 0.0:
            mask[2] = True
        yield name, x, mask


def _value_and_slope(answer: Answer, x: torch.Tensor, mask: torch.Tensor) -> tuple[Any, Any]:
    import torch

    x = x.clone().requires_grad_()
    given = tensor(_run(answer, x, mask))
    if given.shape != x.shape:
        raise NotYet(f"return the shape of x, {tuple(x.shape)}, not {tuple(given.shape)}")
    if given.dtype != x.dtype:
        raise NotYet(f"return {x.dtype}, as x is, not {given.dtype}")
    if not given.requires_grad:
        # no row is kept: the reference has no gradient either
        return given.detach(), torch.zeros_like(x)
    weights = torch.linspace(-1, 2, x.numel()).view_as(x)
    (slope,) = torch.autograd.grad((given * weights).sum(), x, allow_unused=True)
    return given.detach(), torch.zeros_like(x) if slope is None else slope


def _waiting_lines(answer: Answer, x: torch.Tensor, mask: torch.Tensor | None = None) -> list[str]:
    """Lines that would wait for a GPU; ``fullgraph=True`` takes a plain ``.item()`` along.

    The answer runs without a graph here, and so a tensor of Python numbers, as
    ``x.new_tensor(1.0)``, is copied to the GPU. In a graph it is a constant: such lines are left
    out.
    """
    from torch import nn

    from perfkit.synclint.find import find_syncs

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Parameter(x.clone())

        def forward(self) -> tuple[torch.Tensor, ...]:
            if mask is None:
                return (self.rows * 1,)
            # a mask that the device has computed
            return self.rows * 1, self.rows.detach().isfinite().all(dim=1) & mask

    model: nn.Module = Rows()

    def step() -> None:
        answer(*model()).square().sum().backward()

    return [
        f"{line.place}: {line.op}"
        for line in find_syncs(step, model)
        if line.kind != "copy" or not all(op.endswith("tensor(…)") for op in line.op.split(", "))
    ]


def _how_values_differ(given: torch.Tensor, wanted: torch.Tensor, mask: torch.Tensor) -> str:
    if bool((given[~mask] != 0).any()):
        return "a row that does not count is not 0"
    kept = given[mask]
    if len(kept) and float(kept.mean(0).abs().max()) > 1e-3 * float(kept.abs().max()):
        return "the rows that count do not add up to 0: one mean, and one divisor, for all of them?"
    lengths = [float(rows.norm(dim=1).max()) for rows in (given, wanted)]
    if abs(lengths[0] - lengths[1]) > 1e-3 * lengths[1]:
        return f"the longest row is {lengths[0]:.3g} long, not {lengths[1]:.3g}"
    return f"values differ by up to {float((given - wanted).abs().max()):.3g}"


def _show(answer: Answer) -> Message:
    name, x, mask = next(_cases())
    given, _ = _value_and_slope(answer, x, mask)
    wanted, _ = _value_and_slope(_reference, x, mask)
    return Message(
        f"{len(x)} rows, {int(mask.sum())} of them kept ({name}), not compiled",
        items=(
            f"longest row {float(given.norm(dim=1).max()):.3f}; in the careless version "
            f"{float(wanted.norm(dim=1).max()):.3f}",
            f"at most {float((given - wanted).abs().max()):.2g} apart",
        ),
    )


def _check(answer: Answer) -> list[str]:
    import torch

    run, graphs = _compiled(answer)
    try:
        for name, x, mask in _cases():
            given, slope = _value_and_slope(run, x, mask)
            wanted, its_slope = _value_and_slope(_reference, x, mask)
            if not bool(given.isfinite().all()):
                raise NotYet(f"{name}: a value is not finite")
            if not torch.allclose(given, wanted, rtol=1e-4, atol=1e-5):
                raise NotYet(f"{name}: {_how_values_differ(given, wanted, mask)}")
            if not bool(slope.isfinite().all()):
                raise NotYet(
                    f"{name}: the values are right, and a gradient is not finite: what divides by "
                    "0, although nobody asks for the result?"
                )
            if not torch.allclose(slope, its_slope, rtol=1e-3, atol=1e-5):
                raise NotYet(
                    f"{name}: the values are right, and the gradient is not: none flows through "
                    "the divisor, which .item() made a number, and all of it through the mean"
                )
        if len(graphs) > 2:
            raise NotYet(
                f"{len(graphs)} graphs for six lengths: two are enough, one for the first length "
                "and one for all"
            )
        _, x, mask = next(_cases())
        waiting = _waiting_lines(answer, x, mask)
        if waiting:
            raise NotYet(f"one graph, and the host would wait for a GPU at {waiting[0]}")
    finally:
        torch.compiler.reset()
    return [
        "fullgraph=True: no line ends the graph, and none waits",
        f"{len(graphs)} graphs for six lengths",
        "values and gradients of the careless version, in six cases, also without a row",
    ]


in_one_graph = Exercise(
    "in one graph",
    spec=(
        "centred(x, mask) takes rows, float32 (n, 4), and which of them count, bool (n,).",
        "Rows that count: minus their mean, then divided by the longest of them if it is longer "
        "than 1. Through that divisor flows no gradient. All other rows are 0; so are all if none "
        "counts.",
        "torch.compile(centred, fullgraph=True) accepts it, for six different n it is compiled at "
        "most twice, and no line waits for a GPU.",
    ),
    hints=(
        "Keep the shape: x[mask] has a different one for each mask. Multiply by the mask instead.",
        "keep = mask[:, None].float(), and the mean is (x * keep).sum(0) / keep.sum(). What if "
        "nothing counts? .clamp(min=1).",
        "`if longest > 1` reads a number. Dividing by longest.clamp(min=1) does not.",
        ".item() cut the gradient: .detach() does, too, and nobody waits. Detach before the norm: "
        "the gradient of the norm of a row of zeros is not the point here.",
    ),
    show=_show,
    check=_check,
)
