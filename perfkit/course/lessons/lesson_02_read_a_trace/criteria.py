"""When the claims of lesson 02 hold."""

from __future__ import annotations

from perfkit.base.words import fmt_deviation, fmt_share
from perfkit.course.kit.simulated_gpu import SimulatedGpu
from perfkit.course.kit.simulated_traces import ENGINE
from perfkit.course.ledger.criteria import criterion
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_02_read_a_trace.measured import UsedHere
from perfkit.trace.ask.breakdown import breakdown
from perfkit.trace.ask.flops import flops
from perfkit.trace.ask.idle import idle
from perfkit.trace.read.columns import Trace

_LESSON = "02-read-a-trace"


@criterion(
    "D3",
    lesson=_LESSON,
    title="data loading, forward and backward, named in a trace",
    holds_if="the breakdown names data loading, forward and backward in both traces, backward has "
    "a thread of its own in the simulated one, and no nanosecond of the recorded steps is left "
    "over",
)
def three_parts(trace: Trace, recorded: Trace, device: str) -> Outcome:
    """Judge a simulated trace of a GPU and one recorded here."""
    shares = breakdown(trace).shares()
    nodes = trace.begins("autograd::engine::evaluate_function")
    threads = {trace.threads[i].tid for i in trace.thread[nodes]}
    own_thread = threads == {ENGINE}
    here = breakdown(recorded)
    unexplained = sum(abs(sum(s.host_ns.values()) - s.wall_ns) for s in here.steps)
    named = [c for c in ("data wait", "forward", "backward") if here.shares().get(c, 0) > 0]
    simulated = [c for c in ("data wait", "forward", "backward") if shares[c] > 0]
    figures = {
        "parts_named": Figure.exact(len(named)),
        "simulated_parts_named": Figure(len(simulated), "1", kind="simulated"),
        "unexplained_ns": Figure.exact(unexplained, "ns"),
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
            f"trace recorded here on the {_name(device)}; {unexplained} ns of the recorded "
            "steps are in no class."
        ),
    )


@criterion(
    "D4",
    lesson=_LESSON,
    title="idle time and its causes; the wait for data, and its cure",
    holds_if="the causes add up to the idle time (simulated), and a loader that does less takes a "
    "smaller share of a step (measured)",
)
def idle_has_causes(trace: Trace, slow: Trace, prepared: Trace, device: str) -> Outcome:
    """Judge a simulated trace of a GPU, and two recorded here, with less to load in the second."""
    found, split = idle(trace), breakdown(trace)
    pairs = zip(found.steps, split.steps, strict=True)
    unexplained = sum(abs(sum(c.values()) - s.device_ns["idle"]) for c, s in pairs)
    before = breakdown(slow).shares().get("data wait", 0.0)
    after = breakdown(prepared).shares().get("data wait", 0.0)
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
            f"without a cause. Measured here, on the {_name(device)}, data loading went "
            f"from {fmt_share(before)} of a step to "
            f"{fmt_share(after)} when the texts were taken apart once, before training."
        ),
    )


@criterion(
    "E6",
    lesson=_LESSON,
    title="utilisation beside achieved FLOP/s",
    holds_if="a simulated step shows a utilisation of 90 % or more and uses less than 10 % of the "
    "achievable FLOP/s, and a real one uses less than half of the share for which it is busy",
)
def busy_is_not_used(trace: Trace, ran: UsedHere) -> Outcome:
    """Judge a simulated trace of a GPU, and a step on this machine."""
    gpu, here = SimulatedGpu(), ran.flops_share
    device = breakdown(trace).device_shares()
    utilisation = device["compute"] + device["communication"]
    used = flops(trace).achieved_tflop_per_s / gpu.tflop_per_s
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


def _name(device: str) -> str:
    return "CPU" if device == "cpu" else "GPU"
