"""Lesson 02: the parts of a step (D3), idle time and its causes (D4), utilisation (E6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from perfkit.base.words import fmt_deviation, fmt_share
from perfkit.course.kit.simulated_gpu import SimulatedGpu, simulate
from perfkit.course.kit.simulated_traces import ENGINE
from perfkit.course.kit.threads import one_thread
from perfkit.course.ledger.recording import Context, Figure, Outcome, experiment
from perfkit.course.lessons.lesson_02_read_a_trace.lesson import (
    BUSY,
    CASES,
    achievable_tflop_per_s,
    documents,
    pace,
    tokens,
)
from perfkit.trace.ask.breakdown import breakdown
from perfkit.trace.ask.flops import flops
from perfkit.trace.ask.idle import idle
from perfkit.trace.read.columns import Trace
from perfkit.trace.record.record import Recorder

__all__ = ["busy_is_not_used", "idle_has_causes", "three_parts"]

_LESSON = "02-read-a-trace"
_LENGTH, _WIDTH, _PIECES = 16, 64, 16
_STEPS = 4


@experiment("D3", lesson=_LESSON, title="data loading, forward and backward, named in a trace")
def three_parts(context: Context) -> Outcome:
    """The article's three parts, by name, in a simulated GPU trace and in one recorded here."""
    trace = simulate(CASES["data"])
    shares = breakdown(trace).shares()
    nodes = trace.named(lambda name: name.startswith("autograd::engine::evaluate_function"))
    threads = {trace.threads[i].tid for i in trace.thread[nodes]}
    own_thread = threads == {ENGINE}
    here = breakdown(_recorded(context, prepared=False))
    unexplained = sum(abs(sum(s.host_ns.values()) - s.wall_ns) for s in here.steps)
    named = [c for c in ("data wait", "forward", "backward") if here.shares().get(c, 0) > 0]
    simulated = [c for c in ("data wait", "forward", "backward") if shares[c] > 0]
    figures = {
        "parts_named": Figure(len(named), "1", kind="exact"),
        "simulated_parts_named": Figure(len(simulated), "1", kind="simulated"),
        "unexplained_ns": Figure(unexplained, "ns", kind="exact"),
        **{
            f"simulated_{c.replace(' ', '_')}": Figure(100 * shares[c], "%", kind="simulated")
            for c in simulated
        },
    }
    return Outcome(
        holds=len(named) == len(simulated) == 3 and own_thread and not unexplained,
        figures=figures,
        headline="simulated_parts_named",
        sentence=(
            f"Of data loading, forward and backward the breakdown names {len(simulated)} on a "
            f"simulated GPU trace, where backward has a thread of its own, and {len(named)} on a "
            f"trace recorded here on a {context.device.upper()}; {unexplained} ns of the recorded "
            "steps are in no class."
        ),
    )


@experiment("D4", lesson=_LESSON, title="idle time and its causes; the wait for data, and its cure")
def idle_has_causes(context: Context) -> Outcome:
    """Idle time adds up by cause (simulated); a loader that does less waits less (measured)."""
    trace = simulate(CASES["data"])
    found, split = idle(trace), breakdown(trace)
    pairs = zip(found.steps, split.steps, strict=True)
    unexplained = sum(abs(sum(c.values()) - s.device_ns["idle"]) for c, s in pairs)
    before = breakdown(_recorded(context, prepared=False)).shares().get("data wait", 0.0)
    after = breakdown(_recorded(context, prepared=True)).shares().get("data wait", 0.0)
    idle_share = split.device_shares()["idle"]
    return Outcome(
        holds=unexplained == 0 and after < before,
        figures={
            "idle_without_cause_ns": Figure(unexplained, "ns", kind="simulated"),
            "simulated_idle": Figure(100 * idle_share, "%", kind="simulated"),
            "simulated_for_data": Figure(100 * found.shares()["data"], "%", kind="simulated"),
            "data_wait_before": Figure(100 * before, "%"),
            "data_wait_after": Figure(100 * after, "%"),
        },
        headline="simulated_idle",
        sentence=(
            f"A simulated GPU is idle for {fmt_share(idle_share)} of the time: "
            f"{fmt_share(found.shares()['data'])} because it waits for data, and {unexplained} ns "
            f"without a cause. Measured here, on a {context.device.upper()}, data loading went "
            f"from {fmt_share(before)} of a step to "
            f"{fmt_share(after)} when the texts were taken apart once, before training."
        ),
    )


@experiment("E6", lesson=_LESSON, title="utilisation beside achieved FLOP/s")
def busy_is_not_used(context: Context) -> Outcome:
    """Busy without computing: on a simulated GPU, and on this machine's own processor."""
    gpu, trace = SimulatedGpu(), simulate(BUSY)
    device = breakdown(trace).device_shares()
    utilisation = device["compute"] + device["communication"]
    used = flops(trace).achieved_tflop_per_s / gpu.tflop_per_s

    per_step = flops(_recorded(context, prepared=True, shapes=True)).per_step
    with one_thread():
        best = achievable_tflop_per_s(context.device)
        step = _trainer(context)
        batch = next(iter(_batches(context, prepared=True)))
        ran = pace(lambda: step(*batch))
    here = per_step / ran.seconds / 1e12 / best
    return Outcome(
        holds=utilisation >= 0.9 and used < 0.1 and here < ran.busy / 2,
        figures={
            "simulated_utilisation": Figure(100 * utilisation, "%", kind="simulated"),
            "simulated_flops_share": Figure(100 * used, "%", kind="simulated"),
            "host_busy": Figure(100 * ran.busy, "%"),
            "flops_share": Figure(100 * here, "%"),
        },
        headline="simulated_utilisation",
        sentence=(
            f"A simulated step has a utilisation of {fmt_share(utilisation)} and uses "
            f"{fmt_share(used)} of the achievable FLOP/s; a real one of many small operators "
            f"keeps the host {fmt_share(ran.busy)} busy and uses {fmt_deviation(here)} of what one "
            "large product reaches here."
        ),
    )


def _recorded(context: Context, *, prepared: bool, shapes: bool = False) -> Trace:
    """Record some steps of the small training."""
    step = _trainer(context)
    recorder = Recorder(steps=_STEPS, warmup=2, shapes=shapes, lines=False)
    with one_thread(), recorder:
        for words, labels in _batches(context, prepared=prepared):
            step(words, labels)
            if recorder.is_done:
                break
    return recorder.recording.trace


def _batches(context: Context, *, prepared: bool) -> Iterable[Any]:
    """Batches of eight texts, tokenised on demand or all beforehand."""
    from torch.utils.data import DataLoader

    texts = documents(64, seed=context.seed)
    samples: Any = _Texts(texts)
    if prepared:
        samples = [samples[i] for i in range(len(texts))]
    return DataLoader(samples, batch_size=8)


class _Texts:
    """A dataset that tokenises a text on each access."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch

        return torch.tensor(tokens(self._texts[index], _LENGTH)), index % 4


def _trainer(context: Context) -> Callable[[Any, Any], None]:
    """The training step of a network with many small operations, as a function of a batch."""
    import torch
    from torch import nn

    torch.manual_seed(context.seed)
    size = _WIDTH // _PIECES
    table = nn.Embedding(1000, _WIDTH)
    pieces = nn.ModuleList(nn.Linear(_WIDTH, size) for _ in range(_PIECES))
    head = nn.Linear(_WIDTH, 4)
    model = nn.ModuleList([table, pieces, head]).to(context.device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(words: Any, labels: Any) -> None:
        words, labels = words.to(context.device), labels.to(context.device)
        optimizer.zero_grad()
        x = table(words)
        for _ in range(4):
            x = torch.cat(list(_each(pieces, x)), 2)
        loss = nn.functional.cross_entropy(head(x.mean(1)), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _each(pieces: Any, x: Any) -> Iterator[Any]:
    for piece in pieces:
        yield piece(x).relu()
