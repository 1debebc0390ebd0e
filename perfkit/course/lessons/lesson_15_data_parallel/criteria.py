"""When the claims of lesson 15 hold: bytes, collectives and equality; of times only on GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfkit.base.words import plural
from perfkit.course.kit.collectives import CollectiveCount
from perfkit.course.ledger.criteria import criterion
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_15_data_parallel.measured import Links

_LESSON = "15-data-parallel"
#: A device that receives this much more than the mean has another load than the others.
_UNEVEN = 1.1


@dataclass(frozen=True)
class Split:
    """What one rank of a way to split a training asks for and holds.

    Attributes:
        collectives: how many it asks for in a step.
        sent_bytes: that it sends in a step, round a ring.
        held_bytes: of the parameters that it keeps.
    """

    collectives: int
    sent_bytes: float
    held_bytes: int


@criterion(
    "A11",
    lesson=_LESSON,
    title="bytes that each device receives in a step of DataParallel",
    holds_if="the first device receives the outputs of all others, and more than any of them",
)
def gathered(whole: Links, outputs_bytes: int) -> Outcome:
    """Judge DataParallel with the loss outside.

    Args:
        whole: what crossed in a step.
        outputs_bytes: of the outputs of the whole batch.
    """
    most = max(whole.received(k) for k in range(1, whole.devices))
    first, away = whole.received(0), outputs_bytes * (whole.devices - 1) / whole.devices
    return Outcome(
        holds=first >= away and first > _UNEVEN * most,
        figures={
            "first_bytes": Figure.exact(first, "B"),
            "other_bytes": Figure.exact(most, "B"),
            "busiest_over_mean": Figure.exact(whole.busiest, "×"),
        },
        headline="busiest_over_mean",
        sentence=f"In a step of DataParallel on {whole.devices} devices the first receives "
        f"{first:,} B, {away:,.0f} B of them outputs, and each other at most {most:,} B.",
    )


@criterion(
    "A12",
    lesson=_LESSON,
    title="bytes that the first device receives, the loss outside and inside of forward",
    holds_if="with the loss inside of forward the first device receives fewer bytes, and the "
    "gradients are the same",
)
def loss_inside(whole: Links, inside: Links, *, same: bool) -> Outcome:
    """Judge a loss that each device computes for its own part.

    Args:
        whole, inside: what crossed in a step.
        same: whether the gradients are equal to rounding.
    """
    before, after = whole.received(0), inside.received(0)
    return Outcome(
        holds=same and after < before,
        figures={
            "bytes_ratio": Figure.exact(before / after, "×"),
            "first_bytes": Figure.exact(after, "B"),
            "busiest_over_mean": Figure.exact(inside.busiest, "×"),
        },
        headline="bytes_ratio",
        sentence=f"The first device receives {after:,} B instead of {before:,} B; the gradients "
        f"are {'the same' if same else 'not the same'}. What is left is gradients.",
    )


@criterion(
    "A18",
    lesson=_LESSON,
    title="what each device does in a step of DataParallel",
    holds_if="with the loss outside of forward, loss and update run on the first device alone",
)
def first_alone(
    outside: Mapping[int, Sequence[str]], inside: Mapping[int, Sequence[str]]
) -> Outcome:
    """Judge which device works on what.

    Args:
        outside, inside: device → what it did, with the loss outside and inside of forward.
    """
    by_loss, by_update = (
        [k for k, did in outside.items() if what in did] for what in ("loss", "update")
    )
    n_inside = sum("loss" in did for did in inside.values())
    return Outcome(
        holds=by_loss == [0] and by_update == [0],
        figures={
            "devices_with_loss": Figure.exact(len(by_loss)),
            "devices_with_update": Figure.exact(len(by_update)),
            "devices_with_loss_inside": Figure.exact(n_inside),
        },
        headline="devices_with_loss",
        sentence=f"Of {len(outside)} devices {len(by_loss)} compute the loss and "
        f"{len(by_update)} the update. That is so with the loss outside of forward: inside, "
        f"{n_inside} compute it, and still one updates.",
    )


@criterion(
    "A13",
    lesson=_LESSON,
    title="bytes that each rank sends in a step of DistributedDataParallel, and of DataParallel",
    holds_if="all ranks of DistributedDataParallel send alike, and devices of DataParallel do not",
)
def even(whole: Links, sent: Sequence[int]) -> Outcome:
    """Judge the balance of DDP. The source's time is tried on several GPUs only.

    Args:
        whole: what crossed in a step of DataParallel.
        sent: bytes that each rank of DDP sends in a step.
    """
    most = max(sent) / (sum(sent) / len(sent))
    return Outcome(
        holds=most < _UNEVEN < whole.busiest,
        figures={
            "busiest_ddp": Figure.exact(most, "×"),
            "busiest_dp": Figure.exact(whole.busiest, "×"),
            "ddp_sent_bytes": Figure.exact(max(sent), "B"),
        },
        headline="busiest_ddp",
        sentence=f"Each of {len(sent)} ranks sends {max(sent):,} B: the busiest "
        f"{most:.2f} times the mean. With DataParallel it is {whole.busiest:.2f} times. The "
        "source's 20 % of the time need several GPUs.",
    )


_EQUAL = "the gradients of all ranks are those of one process to rounding"


@criterion(
    "B10",
    lesson=_LESSON,
    title="gradients of DistributedDataParallel",
    holds_if=f"{_EQUAL}, and a step takes less time than with DataParallel, which is not tried",
)
def as_one(apart: float, close: float) -> Outcome:
    """Judge DDP with a DistributedSampler, as far as one machine without several GPUs can.

    Args:
        apart: largest difference of the gradients, in lengths of the gradient.
        close: what rounding explains of that.
    """
    return Outcome(
        holds=None if apart <= close else False,
        figures={"apart": Figure.exact(apart)},
        headline="apart",
        sentence=f"The gradients are {apart:.1e} of their length apart (rounding explains "
        f"{close:.0e}). Whether it is faster needs several GPUs: ranks of one CPU share its cores.",
    )


@criterion(
    "C11",
    lesson=_LESSON,
    title="DistributedDataParallel: gradients, and collectives of a step",
    holds_if=f"{_EQUAL}, with one all-reduce for each bucket and no more bytes than the gradients "
    "twice",
)
def distributed(apart: float, close: float, plain: CollectiveCount, gradient_bytes: int) -> Outcome:
    """Judge DDP by what it computes and sends.

    Args:
        apart, close: as for B10.
        plain: the collectives of a step of a model without buffers.
        gradient_bytes: of its gradients.
    """
    sent = plain.sent_bytes or 0
    return Outcome(
        holds=apart <= close and set(plain.by_name) == {"c10d::allreduce_"}
        and sent <= 2 * gradient_bytes,
        figures={
            "apart": Figure.exact(apart),
            "all_reduces": Figure.exact(plain.total),
            "sent_bytes": Figure.exact(sent, "B"),
        },
        headline="sent_bytes",
        sentence=f"The gradients are {apart:.1e} of their length apart; a step has "
        f"{plural(plain.total, 'collective')}, and each rank sends {sent:,} B for "
        f"{gradient_bytes:,} B of gradients.",
    )  # fmt: skip


@criterion(
    "B13",
    lesson=_LESSON,
    title="ranks with different seeds under DistributedDataParallel",
    holds_if="ranks that are seeded differently fail, or have different weights after a step",
)
def seeded_alike(
    drawn: Sequence[float], wrapped: Sequence[float], after: Sequence[float]
) -> Outcome:
    """Judge the source's sentence; training went through where this is called.

    Args:
        drawn, wrapped, after: a sum of the weights of each rank: as drawn, when wrapped, and
            after the first updates.
    """
    n = {name: len(set(found)) for name, found in
         (("drawn", drawn), ("wrapped", wrapped), ("after", after))}  # fmt: skip
    return Outcome(
        holds=None if n["drawn"] < 2 else n["after"] > 1,
        figures={f"different_{name}": Figure.exact(k) for name, k in n.items()},
        headline="different_after",
        sentence=f"{len(drawn)} ranks with different seeds draw {n['drawn']} sets of weights; "
        f"wrapped, they have {n['wrapped']}, and after the first updates {n['after']}. Nothing "
        "failed: the model of rank 0 is sent to all.",
    )


@criterion(
    "B14",
    lesson=_LESSON,
    title="collectives of a step, with and without BatchNorm",
    holds_if="a step with BatchNorm asks for all-reduces of gradients and nothing else",
)
def only_gradients(plain: CollectiveCount, with_norm: CollectiveCount) -> Outcome:
    """Judge the source's sentence.

    Args:
        plain, with_norm: the collectives of a step without and with BatchNorm.
    """
    others = {k: v for k, v in with_norm.by_name.items() if "allreduce" not in k}
    said = ", ".join(f"{v} × {k.partition('::')[2].strip('_')}" for k, v in others.items())
    return Outcome(
        holds=not others,
        figures={
            "others": Figure.exact(sum(others.values())),
            "others_without_norm": Figure.exact(
                sum(v for k, v in plain.by_name.items() if "allreduce" not in k)
            ),
        },
        headline="others",
        sentence=f"Without BatchNorm a step asks for {plain.total} all-reduce. With it also for "
        f"{said or 'nothing else'}: the running statistics of rank 0.",
    )


@criterion(
    "A14",
    lesson=_LESSON,
    title="predictions of a sharded run against those of one process",
    holds_if="each sample is predicted once, and as one process does",
)
def sharded_predictions(apart: float, counts: Mapping[str, int], close: float) -> Outcome:
    """Judge inference on several ranks.

    Args:
        apart: largest difference of a prediction.
        counts: ``"samples"``, ``"sharded"`` (predicted without doubles) and ``"sampler"``
            (predicted with a DistributedSampler).
        close: what rounding explains.
    """
    return Outcome(
        holds=apart <= close and counts["sharded"] == counts["samples"],
        figures={
            "apart": Figure.exact(apart),
            "predicted": Figure.exact(counts["sharded"]),
            "predicted_with_sampler": Figure.exact(counts["sampler"]),
        },
        headline="apart",
        sentence=f"{counts['sharded']} predictions of {counts['samples']} samples, at most "
        f"{apart:.1e} from those of one process. A DistributedSampler makes "
        f"{counts['sampler']}: it repeats samples until all ranks have as many.",
    )


@criterion(
    "B8",
    lesson=_LESSON,
    title="what a rank holds and sends when the batch, the model or both are split",
    holds_if="splitting the model leaves each rank fewer parameters than splitting the batch, and "
    "splitting both does so, too",
)
def three_ways(ways: Mapping[str, Split]) -> Outcome:
    """Judge the three ways by what each rank holds.

    Args:
        ways: name → split; ``"DDP"`` splits the batch, ``"tensor parallel"`` and ``"pipeline"``
            the model, ``"both"`` both.
    """
    held = {name: way.held_bytes for name, way in ways.items()}
    figures = {}
    for name, way in ways.items():
        key = name.lower().replace(" ", "_")
        figures[f"{key}_held"] = Figure.exact(way.held_bytes, "B")
        figures[f"{key}_sent"] = Figure.exact(way.sent_bytes, "B")
    said = "; ".join(f"{n}: holds {w.held_bytes:,} B, sends {w.sent_bytes:,.0f} B"
                     for n, w in ways.items())  # fmt: skip
    return Outcome(
        holds=all(held[name] < held["DDP"] for name in ("tensor parallel", "pipeline", "both")),
        figures=figures,
        headline="pipeline_held",
        sentence=f"Of one rank, in a step: {said}.",
    )


@criterion(
    "B9",
    lesson=_LESSON,
    title="bytes between devices under DataParallel: optimizer state, and where the batch begins",
    holds_if="under DataParallel the first device alone has optimizer state; whether the batch "
    "begins there is counted beside it",
)
def between_devices(
    states: Mapping[int, int], first: Links, last: Links, ways: Mapping[str, Split]
) -> Outcome:
    """Judge the source's three sentences on copies between devices.

    Args:
        states: device → bytes of optimizer state under DataParallel.
        first, last: what crosses in a step when the batch begins on the first or the last device.
        ways: as for B8.
    """
    alone = states[0] > 0 and not any(states[k] for k in states if k)
    least = min(ways, key=lambda name: ways[name].sent_bytes)
    return Outcome(
        holds=alone,
        figures={
            "state_first": Figure.exact(states[0], "B"),
            "crossed_from_first": Figure.exact(first.total, "B"),
            "crossed_from_last": Figure.exact(last.total, "B"),
        },
        headline="crossed_from_last",
        sentence=f"The optimizer's {states[0]:,} B of state are "
        f"{'on the first device alone' if alone else 'on several devices'}. In a step "
        f"{first.total:,} B cross when the batch begins on the first device, and "
        f"{'as many' if first.total == last.total else f'{last.total:,} B'} when it begins on the "
        f"last. Of the splits, {least} sends least: what copies cost depends on where the cut is.",
    )
