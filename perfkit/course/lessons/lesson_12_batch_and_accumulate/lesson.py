"""Lesson 12: pictures of stripes, three puzzles, and the exercise on ragged parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.kit.puzzle import Answer, number, puzzle, something

if TYPE_CHECKING:
    import torch
    from torch import nn

#: A target with this number does not count: ``cross_entropy`` ignores it by default.
IGNORED = -100

_STRIPE = 6  # pixels from one light stripe to the next
_NOISE = 1.0


def stripes(n: int, side: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures of stripes in noise, and which of four directions they have.

    Args:
        n: number of pictures.
        side: width and height in pixels.
        seed: seed of the random numbers.

    Returns:
        Pictures, float32 ``(n, 3, side, side)``, and directions, int64 ``(n,)``, 0 to 3.
    """
    import torch

    random = torch.Generator().manual_seed(seed)
    directions = torch.randint(4, (n,), generator=random)
    angle = (directions * (math.pi / 4))[:, None, None]
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    along = (column * angle.cos() + row * angle.sin())[:, None]
    begin = 2 * math.pi * torch.rand((n, 3, 1, 1), generator=random)
    light = torch.sin(along * (2 * math.pi / _STRIPE) + begin)
    noise = torch.randn((n, 3, side, side), generator=random)
    return light + _NOISE * noise, directions


# ---- three puzzles of one line -----------------------------------------------------------


def _check_share(answer: Answer) -> list[str]:
    for part, batch in ((8, 128), (8, 100), (4, 100), (100, 100), (1, 3)):
        share, wanted = number(answer(part, batch)), part / batch
        if not math.isclose(share, wanted, rel_tol=1e-9):
            raise NotYet(
                f"a part of {part} in a batch of {batch}: multiplied by {share:g}, its mean loss "
                "has another weight than its samples have in the mean of the batch"
            )
    last = [number(answer(8, 100))] * 12 + [number(answer(4, 100))]
    return [
        "each sample has the same weight, also in a last part that is smaller",
        f"12 parts of 8 and one of 4 add up to {sum(last):g}",
    ]


def _check_largest(answer: Answer) -> list[str]:
    for room, at_8, at_16 in (
        (1000, 180, 260),  # 100 for the model, 10 a sample
        (1009, 180, 260),
        (1010, 180, 260),
        (10**9, 5 * 10**7 + 8 * 123_456, 5 * 10**7 + 16 * 123_456),
        (80, 80, 160),  # nothing but the batch
    ):
        each = (at_16 - at_8) // 8
        wanted = (room - (at_8 - 8 * each)) // each
        given = number(answer(room, at_8, at_16))
        if given != int(given):
            raise NotYet(f"a batch has a whole number of samples, not {given:g}")
        if given != wanted:
            says = "does not fit" if given > wanted else "is not the largest"
            raise NotYet(
                f"peaks of {at_8:,} B with 8 samples and {at_16:,} B with 16, and room for "
                f"{room:,} B: a batch of {given:,.0f} {says}"
            )
    return ["the largest batch that fits, in five cases, to the sample"]


def _check_exchange(answer: Answer) -> list[str]:
    for parts in (1, 4, 16):
        for at in range(3 * parts):
            given = something(answer(at, parts))
            wanted = at % parts == parts - 1
            if bool(given) is not wanted:
                is_last = "the last" if wanted else "not the last"
                verb = "is not" if wanted else "is"
                raise NotYet(
                    f"{parts} parts an update: batch {at}, counted from 0, is {is_last} of its "
                    f"update, and with your line its gradient {verb} exchanged"
                )
    return ["one exchange for each update, after its last part"]


#: The first puzzle: the weight of a part.
share_of_batch = puzzle(
    "the weight of a part",
    hints=(
        "The mean of a part is its sum divided by `part`. It should be divided by `batch`.",
        "Multiply by part, divide by batch.",
    ),
    check=_check_share,
)
#: The second puzzle: the largest batch from two peaks.
largest_batch = puzzle(
    "the largest batch from two peaks",
    hints=(
        "A straight line: what do 8 more samples cost, and what remains with none?",
        "each = (at_16 - at_8) / 8; without samples it is at_8 - 8 * each, or 2 * at_8 - at_16.",
        "(room - (2 * at_8 - at_16)) * 8 // (at_16 - at_8)",
    ),
    check=_check_largest,
)
#: The third puzzle: when the processes exchange their gradients.
exchange_when = puzzle(
    "one exchange for each update",
    hints=("The remainder number % parts counts 0, 1, … parts - 1 within each update.",),
    check=_check_exchange,
)

# ---- the exercise ------------------------------------------------------------------------

_WORDS = 48
_WIDTH = 16
_CLOSE = 1e-4
# One part's graph and the gradients: a right answer needs 1.0 to 1.3 of it.
_MOST_PARTS = 2.0
_MANY = 8

Part = tuple["torch.Tensor", "torch.Tensor"]


def small_model() -> nn.Module:
    """A model of text in small: tokens ``(n, length)`` → scores ``(n, length, words)``."""
    import torch
    from torch import nn

    random = torch.random.get_rng_state()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(_WORDS, _WIDTH), nn.Linear(_WIDTH, 64), nn.GELU(), nn.Linear(64, _WORDS)
    )
    torch.random.set_rng_state(random)
    return model


def _part(n: int, length: int, counted: Sequence[int], *, seed: int) -> Part:
    """Tokens ``(n, length)``; of each row the first so many targets count."""
    import torch

    random = torch.Generator().manual_seed(seed)
    tokens, targets = torch.randint(_WORDS, (2, n, length), generator=random)
    # rows differ in what they teach, so that their weights show in the gradient
    targets = (targets // 3 + 7 * seed) % _WORDS
    counts = torch.arange(length) < torch.tensor(counted)[:, None]
    return tokens, torch.where(counts, targets, IGNORED)


def _cases() -> dict[str, list[Part]]:
    return {
        "parts of one length": [_part(2, 6, (6, 6), seed=seed) for seed in range(3)],
        "parts of different lengths": [
            _part(2, 12, (12, 9), seed=3),
            _part(2, 3, (3, 1), seed=4),
            _part(1, 30, (30,), seed=5),
        ],
        "a part without targets": [
            _part(2, 7, (7, 2), seed=6),
            _part(2, 4, (0, 0), seed=7),
            _part(3, 5, (1, 5, 5), seed=8),
        ],
        "a single part": [_part(3, 9, (9, 1, 4), seed=9)],
    }


def _at_once(model: nn.Module, parts: Sequence[Part]) -> tuple[float, torch.Tensor]:
    """The loss of one batch that holds all parts, and its gradients, flat."""
    import torch

    scores = torch.cat([model(tokens).flatten(0, 1) for tokens, _ in parts])
    targets = torch.cat([targets.flatten() for _, targets in parts])
    loss = torch.nn.functional.cross_entropy(scores, targets, ignore_index=IGNORED)
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    return float(loss.detach()), torch.cat([slope.flatten() for slope in slopes])


class _Seen:
    """A model that counts how often it is called."""

    def __init__(self) -> None:
        self.model = small_model()
        self.calls = 0
        self.model.register_forward_pre_hook(self._count)

    def _count(self, module: nn.Module, given: Any) -> None:
        self.calls += 1

    def gradients(self) -> torch.Tensor:
        """All gradients, flat."""
        import torch

        found = [p.grad for p in self.model.parameters()]
        if any(slope is None for slope in found):
            raise NotYet("after your function a parameter has no gradient in .grad")
        return torch.cat([slope.flatten() for slope in found if slope is not None])

    def weights(self) -> torch.Tensor:
        """All parameters, flat."""
        import torch

        return torch.cat([p.detach().flatten() for p in self.model.parameters()]).clone()


def _loss(given: Any) -> float:
    import torch

    if given is None:
        raise NotYet("your function returns nothing yet: return the loss")
    if isinstance(given, torch.Tensor):
        if given.numel() != 1:
            raise NotYet(f"return one number, not a tensor of shape {tuple(given.shape)}")
        if given.requires_grad:
            raise NotYet("the loss that you return still holds a graph: detach it")
        return float(given)
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise NotYet(f"return one number, got {type(given).__name__}")
    return float(given)


def _right(name: str, seen: _Seen, loss: float, parts: Sequence[Part]) -> None:
    """Raise at the first thing that is not as for one batch."""
    import torch

    wanted_loss, wanted = _at_once(seen.model, parts)
    found = seen.gradients()
    if not bool(found.isfinite().all()) or not math.isfinite(loss):
        raise NotYet(f"{name}: the loss or its gradient is not finite; which part has no mean?")
    length = float(found.norm() / wanted.norm())
    along = float(torch.dot(found, wanted) / (found.norm() * wanted.norm()).clamp(min=1e-30))
    if along < 1 - _CLOSE:
        raise NotYet(
            f"{name}: the gradient points elsewhere than that of one batch; does each token "
            "of every part have the same weight?"
        )
    if abs(length - 1) > _CLOSE:
        raise NotYet(
            f"{name}: the gradient has the right direction, and is {length:.4g} times as long as "
            "that of one batch"
        )
    if not math.isclose(loss, wanted_loss, rel_tol=_CLOSE):
        raise NotYet(
            f"{name}: the gradients are right, the loss is {wanted_loss:.4f}, not {loss:.4f}"
        )


def _share_of_one(answer: Answer) -> float:
    """The peak of many equal parts, in peaks of one part that is run by itself."""
    parts = [_part(16, 32, (32,) * 16, seed=seed) for seed in range(_MANY)]
    one, all_of_them = small_model(), small_model()

    def alone() -> None:
        tokens, targets = parts[0]
        scores = one(tokens).flatten(0, 1)
        from torch.nn.functional import cross_entropy

        cross_entropy(scores, targets.flatten()).backward()  # type: ignore[no-untyped-call]

    from perfkit.course.kit.rise import rise_bytes

    return rise_bytes(lambda: answer(all_of_them, parts)) / rise_bytes(alone)


def _show(answer: Answer) -> Message:
    parts = _cases()["parts of different lengths"]
    seen = _Seen()
    loss = _loss(answer(seen.model, parts))
    found = seen.gradients()
    wanted_loss, wanted = _at_once(seen.model, parts)
    apart = float((found - wanted).norm() / wanted.norm())
    tokens = ", ".join(str(int((targets != IGNORED).sum())) for _, targets in parts)
    return Message(
        f"Three parts with {tokens} tokens that count",
        items=(
            f"loss {loss:.4f}; of one batch {wanted_loss:.4f}",
            f"length of the gradient {float(found.norm()):.4f}; of one batch "
            f"{float(wanted.norm()):.4f}",
            f"they are {100 * apart:.2g} % of that apart",
        ),
    )


def _check(answer: Answer) -> list[str]:
    import torch

    for name, parts in _cases().items():
        seen = _Seen()
        before = seen.weights()
        loss = _loss(answer(seen.model, parts))
        calls = seen.calls
        if not torch.equal(seen.weights(), before):
            raise NotYet("your function changes the weights: leave the update to the optimizer")
        _right(name, seen, loss, parts)
        if calls > len(parts):  # a part without targets may be left out
            raise NotYet(f"{name}: the model is called {calls} times for {len(parts)} parts")
        answer(seen.model, parts)
        _right(f"{name}, called a second time", seen, loss, parts)
    peak = _share_of_one(answer)
    if peak > _MOST_PARTS:
        raise NotYet(
            f"the gradients are right, but {_MANY} parts take {peak:.1f} times the memory of one: "
            "let go of a part's graph before you run the next"
        )
    return [
        "gradients and loss of one batch, in four cases, also when called again",
        "the model is called at most once for each part",
        f"{_MANY} parts take no more memory than one or two",
    ]


token_correct = Exercise(
    "accumulation that is right to the token",
    spec=(
        "accumulate(model, parts) takes a list of parts, (tokens, targets), each int64 (n, "
        f"length); lengths differ. Targets of {IGNORED} do not count, and a part may have no "
        "others.",
        "It leaves in .grad what one batch of all parts would: the gradient of the mean over all "
        "tokens that count. What was in .grad before is gone.",
        "It returns that mean, without a graph. It updates nothing.",
        "The model is called at most once for each part, and the peak stays that of one part.",
    ),
    hints=(
        "The mean of a part divides by its own number of tokens. Which number should it be?",
        "count = sum((targets != -100).sum() for _, targets in parts), before the first part.",
        'cross_entropy(…, reduction="sum") / count is the part\'s share of the loss; a part '
        "without targets gives 0, not NaN. cross_entropy wants (tokens, words) and (tokens,): "
        "flatten(0, 1) and flatten().",
        "model.zero_grad() first; then for each part: the share, share.backward(), and total = "
        "total + share.detach().",
    ),
    show=_show,
    check=_check,
)
