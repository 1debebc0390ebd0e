"""Lesson 11: its batches, three puzzles, and the exercise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from perfkit.base.words import plural
from perfkit.course.kit.cells import cells
from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.kit.puzzle import Answer, number, puzzle, something, tensor

if TYPE_CHECKING:
    import torch
    from torch import nn

#: Width and height of a picture.
SIDE = 64
_INSTANCES = 16


def batches_of_cells(
    n: int, size: int, device: str = "cpu"
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of pictures of cells, and which pixels belong to one.

    Args:
        n: number of batches.
        size: pictures in each.
        device: where they are.

    Returns:
        Pictures, float32 ``(size, 1, SIDE, SIDE)``, and masks, float32 of the same shape: 1 in a
        cell, 0 outside.
    """
    found = []
    for seed in range(n):
        pictures, instances = cells(size, SIDE, _INSTANCES, seed=seed)
        mask = (instances > 0).float()[:, None]
        found.append((pictures.to(device), mask.to(device)))
    return found


# ---- three puzzles of one line -----------------------------------------------------------


def _optimizers() -> dict[str, torch.optim.Optimizer]:
    """Optimizers that have made a step."""
    import torch

    makers: dict[str, Any] = {
        "AdamW": torch.optim.AdamW,
        "AdamW with amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
        "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "AdamW of bfloat16": torch.optim.AdamW,
        "AdamW with a frozen layer": torch.optim.AdamW,
    }
    found = {}
    for name, make in makers.items():
        layers = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3))
        if name.endswith("bfloat16"):
            layers.bfloat16()
        if name.endswith("frozen layer"):
            layers[0].requires_grad_(requires_grad=False)
        optimizer: torch.optim.Optimizer = make(layers.parameters())
        for parameter in layers.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        found[name] = optimizer
    return found


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    import torch

    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


def _check_states(answer: Answer) -> list[str]:
    import torch

    for name, optimizer in _optimizers().items():
        given = something(answer(optimizer))
        if isinstance(given, torch.Tensor) and given.numel() == 1:
            given = given.item()
        given = number(given)
        wanted = _state_bytes(optimizer)
        if given != wanted:
            raise NotYet(f"{name}: its state takes {wanted:,} B, not {given:,}")
    return [f"right for {len(_optimizers())} optimizers, step counters included"]


def _check_row(answer: Answer) -> list[str]:
    import torch

    weight = torch.ones(3, requires_grad=True)
    outputs = torch.arange(12.0).view(4, 3) * weight
    given = tensor(answer(outputs))
    if given.shape != (3,) or not torch.equal(given.detach(), outputs.detach()[0]):
        raise NotYet("return the first row: shape (3,), the same values")
    if given.requires_grad:
        raise NotYet("it still leads to the graph, which keeps all that the forward pass saved")
    held = given.untyped_storage().nbytes()
    if held > given.nbytes:
        raise NotYet(
            f"it shows {given.nbytes} B and keeps {held} B alive: a view keeps all of its storage"
        )
    return ["the values, without the graph and without the other rows"]


def _check_twice(answer: Answer) -> list[str]:
    import torch
    from torch import nn

    from perfkit.memory.kept import kept_for_backward

    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 8))
    x = torch.randn(32, 8)

    def gradients(through: Answer) -> list[torch.Tensor]:
        torch.manual_seed(1)
        block.zero_grad()
        y = tensor(through(block, x))
        if not y.requires_grad:
            raise NotYet("no gradient flows back to the block's parameters")
        y.square().sum().backward()  # type: ignore[no-untyped-call]
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in block.parameters()]

    wanted = gradients(lambda block, x: block(x))
    given = gradients(answer)
    if not all(map(torch.allclose, given, wanted)):
        raise NotYet("the gradients differ from those of block(x)")
    kept = kept_for_backward(lambda: gradients(answer)).total_bytes
    plain = kept_for_backward(lambda: gradients(lambda block, x: block(x))).total_bytes
    # the output, the loss and its gradient stay
    if kept > 2 * x.nbytes:
        raise NotYet(f"it still keeps {kept:,} B for the backward pass; block(x) keeps {plain:,}")
    return [
        "the gradients of block(x), dropout included",
        f"kept for the backward pass: {kept:,} B instead of {plain:,}",
    ]


#: The first puzzle: bytes of an optimizer's state.
states = puzzle(
    "bytes of an optimizer's state",
    hints=(
        "optimizer.state is a dict: parameter → a dict of tensors. A tensor has .nbytes.",
        "sum(t.nbytes for state in optimizer.state.values() for t in state.values())",
    ),
    check=_check_states,
)
#: The second puzzle: one row, and nothing else.
one_row = puzzle(
    "one row, and nothing else",
    hints=(
        "There are two things to let go of: the graph, and the storage that the row is part of.",
        ".detach() lets go of the graph, .clone() of the storage.",
    ),
    check=_check_row,
)
#: The third puzzle: a block that is computed twice.
twice = puzzle(
    "a block that is computed twice",
    hints=(
        "torch.utils.checkpoint.checkpoint(function, *args) calls the function now, keeps the "
        "args, and calls it again in the backward pass.",
        "Say use_reentrant=False. The other kind gives the block no gradient where its input "
        "needs none.",
    ),
    check=_check_twice,
)

# ---- the exercise ------------------------------------------------------------------------

_BLOCKS, _WIDTH, _ROWS = 16, 64, 2048
_UNIT_BYTES = 4 * _WIDTH * _ROWS
# Kept plainly 36 units at the peak; each block by itself 19.5, one part of all 33.5, two parts
# 18.5. Parts of two to five blocks need 11.5 to 15.5.
_BUDGET_UNITS = 16
_BUDGET_BYTES = _BUDGET_UNITS * _UNIT_BYTES
_CLOSE = 1e-5


def _chain() -> tuple[nn.ModuleList, torch.Tensor]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Dropout(0.1), nn.Tanh()) for _ in range(_BLOCKS)
    )
    return blocks, torch.randn(_ROWS, _WIDTH)


def _plainly(blocks: Sequence[nn.Module], x: torch.Tensor) -> torch.Tensor:
    """The slow version: slow in nothing, but it keeps all."""
    for block in blocks:
        x = block(x)
    return x


class _Run:
    """One forward and backward pass of an answer through the chain."""

    def __init__(self, answer: Answer) -> None:
        self.blocks, self.x = _chain()
        self._answer = answer
        self.calls = [0] * _BLOCKS
        for index, block in enumerate(self.blocks):
            block.register_forward_pre_hook(self._counting(index))

    def _counting(self, number: int) -> Callable[..., None]:
        def count(*_: Any) -> None:
            self.calls[number] += 1

        return count

    def step(self) -> None:
        """Forward and backward pass, always with the same random numbers."""
        import torch
        import torch.utils.checkpoint

        torch.manual_seed(1)
        self.blocks.zero_grad()
        y = self._answer(self.blocks, self.x)
        if y is None:
            raise NotYet("your function returns nothing yet: return a tensor")
        if not isinstance(y, torch.Tensor):
            raise NotYet(f"return one tensor, got {type(y).__name__}")
        if y.shape != self.x.shape or y.dtype != self.x.dtype:
            raise NotYet(
                f"return {self.x.dtype} of the shape {tuple(self.x.shape)}, not {y.dtype} of "
                f"{tuple(y.shape)}"
            )
        if not y.requires_grad:
            raise NotYet("nothing flows back to the blocks: the result has no gradient")
        self.value = y.detach().square().mean().item()
        try:
            y.square().mean().backward()  # type: ignore[no-untyped-call]
        except torch.utils.checkpoint.CheckpointError as error:
            raise NotYet(
                "the second run of a part is not its first run again: torch found other tensors in "
                "it. Has your function changed something in between?"
            ) from error

    def peak_bytes(self) -> int:
        """The rise above what was there before: the step once more, counted."""
        from perfkit.course.kit.rise import rise_bytes

        return rise_bytes(self.step)

    def gradients(self) -> list[torch.Tensor]:
        import torch

        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self.blocks.parameters()]


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:.1f} MB"


def _show(answer: Answer) -> Message:
    run = _Run(answer)
    run.step()
    calls = sum(run.calls)
    return Message(
        f"At its peak the step holds {_mb(run.peak_bytes())} more than before it",
        items=(f"blocks run: {calls}, of which {max(calls - _BLOCKS, 0)} a second time",),
    )


def _check(answer: Answer) -> list[str]:
    import torch

    plain, run = _Run(_plainly), _Run(answer)
    plain.step()
    run.step()
    if abs(run.value - plain.value) > _CLOSE * abs(plain.value):
        raise NotYet("the result differs from that of the loop; are all 16 blocks in it, in order?")
    for given, wanted in zip(run.gradients(), plain.gradients(), strict=True):
        if not torch.allclose(given, wanted, rtol=1e-4, atol=1e-8):
            if min(run.calls) == 1 and max(run.calls) > 2:
                raise NotYet(
                    "the result is right, but the gradients are not: one block runs again "
                    f"{plural(max(run.calls) - 1, 'time')} and another never. Is a lambda in it? "
                    "If it was made in a loop, it looks its names up only when it runs, and by "
                    "then they are another part's"
                )
            raise NotYet(
                "the result is right, but the gradients are not: the second run must draw the "
                "same dropout as the first, and every block must get its gradient"
            )
    if min(run.calls) < 1 or max(run.calls) > 2:
        raise NotYet(f"a block ran {max(run.calls)} times; at most twice is asked for")
    peak = run.peak_bytes()
    if peak > _BUDGET_BYTES:
        raise NotYet(
            f"the gradients are right, but at its peak the step holds {_mb(peak)} more than "
            f"before it; the budget is {_mb(_BUDGET_BYTES)}"
        )
    before = plain.peak_bytes()
    return [
        "result and gradients of the loop, dropout included",
        f"{_mb(peak)} at the peak instead of {_mb(before)}",
        "no block runs more than twice",
    ]


in_the_budget = Exercise(
    "sixteen blocks in 8.4 MB",
    spec=(
        f"forward(blocks, x) takes {_BLOCKS} blocks (linear layer, dropout, tanh) and x, float32 "
        f"({_ROWS}, {_WIDTH}): {_mb(_UNIT_BYTES)}.",
        "It returns the same as: for block in blocks: x = block(x). All gradients are the same, "
        "dropout included.",
        f"Forward and backward pass together hold at most {_mb(_BUDGET_BYTES)} more than before "
        f"them, {_BUDGET_UNITS} times x.",
        "No block runs more than twice.",
    ),
    hints=(
        "Try the loop with your line from the third puzzle, and .show() it. What is kept now? The "
        "input of every block; that is still 16 times x.",
        "Fewer inputs are kept if a part of several blocks is computed twice as one. But while a "
        "part is computed the second time, all of it is there. What is best between 1 and 16?",
        "nn.Sequential(*blocks[i : i + 4]) is a part. torch.utils.checkpoint.checkpoint_sequential "
        "does it for you, except for the last part.",
        "for i in range(0, len(blocks), 4): x = checkpoint(nn.Sequential(*blocks[i : i + 4]), x, "
        "use_reentrant=False)",
    ),
    show=_show,
    check=_check,
)
