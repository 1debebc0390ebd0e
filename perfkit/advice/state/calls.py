"""Calls in every step that no step needs, and switches of torch that make every step slower."""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.advice.findings import Finding, fact
from perfkit.advice.state import state
from perfkit.base.machine._host import COMPUTES_IN, cpu_flags
from perfkit.base.source import first_line_with, only_line_with, shown_line
from perfkit.base.words import fmt_bytes, fmt_count
from perfkit.measure.live import Live

# In fewer steps than this share of them it is now and then, as it should be.
_MOST_STEPS = 0.5
_LEAST_STEPS = 3
# A scheduled profiler is off at most of them.
_LEAST_LOOKS = 4

# function -> rule, why no step needs it, what to do, the class of a step that it is in
_NEEDLESS = {
    "torch.cuda.empty_cache": (
        "empty-cache",
        "it gives back memory that the next step asks the driver for again; it cannot prevent an "
        "out-of-memory error",
        "# take the call out; against fragmentation, before the start:\n"
        "# PYTORCH_ALLOC_CONF=expandable_segments:True",
        (),
    ),
    "gc.collect": (
        "gc-collect",
        "each looks at every object of the process",
        "if step % 1000 == 0:  # or not at all: tensors are freed without it\n    gc.collect()",
        ("other",),
    ),
    "torch.cuda.synchronize": (
        "synchronize",
        "the host stops, and the device runs dry after it",
        "# take the call out; to time a step, record torch.cuda.Event(enable_timing=True)\n"
        "# and wait once, at the end",
        ("sync",),
    ),
    "torch.nn.Module.state_dict": (
        "weights-copied",
        "the weights are taken by name, with small operators for each tensor",
        "# a moving average: all weights in one call; once, before the loop:\n"
        "averages, weights = list(ema.parameters()), list(model.parameters())\n"
        "with torch.no_grad():  # after optimizer.step(); buffers likewise\n"
        "    torch._foreach_lerp_(averages, weights, 1 - decay)",
        ("forward", "other"),
    ),
}


def _often(live: Live, name: str) -> list[tuple[str, float]]:
    """The user's lines that call a function in most steps, and calls a step, the most first."""
    steps = live.n_steps - 1  # the first one is not counted
    if steps < _LEAST_STEPS:
        return []
    often_first = sorted(live.calls.items(), key=lambda call: -call[1][0])
    return [
        (shown_line(file, line), n / steps)
        for (called, file, line), (n, n_steps, _) in often_first
        if called == name and n_steps >= _MOST_STEPS * steps
    ]


@state
def needless(live: Live) -> Iterator[Finding]:
    """A call that costs time in every step, and is needed in none."""
    for name, (rule, why, what_to_do, acts_on) in _NEEDLESS.items():
        if calls := _often(live, name):
            yield fact(
                rule,
                f"{name}() runs in every step",
                (f"{_times(sum(n for _, n in calls))} a step: {why}",),
                what_to_do,
                line=calls[0][0],
                acts_on=acts_on,
            )


def profiles_all_along(live: Live) -> bool:
    """Whether a profiler of the program's own is on, at every look."""
    return live.n_profiled >= max(_LEAST_LOOKS, len(live.memory) - 1)


@state
def own_profiler(live: Live) -> Iterator[Finding]:
    """The program's own profiler records step after step, and keeps all of it."""
    if not profiles_all_along(live):
        return
    first, last = live.memory[1], live.memory[-1]
    per_step = max(last.own_bytes - first.own_bytes, 0) / (last.step - first.step)
    yield fact(
        "own-profiler",
        "Your own torch profiler records every step and keeps all its events in memory",
        (f"meanwhile this process grew by {fmt_bytes(per_step)} a step, up to step {last.step}",),
        "from torch.profiler import profile, schedule\n"
        "with profile(schedule=schedule(wait=5, warmup=1, active=3, repeat=1)) as watcher:\n"
        "    ...  # and watcher.step() after each step: three of them are recorded",
        line=first_line_with(r"^\s*with\b.*\bprofile\("),
        acts_on=("forward", "backward", "optimizer", "other"),
    )


def _times(per_step: float) -> str:
    n = round(per_step, 1)
    return "once" if n == 1 else f"{fmt_count(round(n)) if n >= 10 else f'{n:g}'} times"


# cuDNN searches anew for each shape that it has not seen; from so many on it is no start-up.
_MANY_SHAPES = 8
_MODEL = ("forward", "backward")


# Flags → rule, title, why it is slow, what to do, where it is switched on, classes of a step.
_SWITCHES = {
    ("anomaly",): (
        "anomaly-mode",
        "Anomaly detection is on, in every step",
        "torch formats a Python stack for each operator of the forward pass and looks through "
        "every gradient for NaN",
        "torch.autograd.set_detect_anomaly(False)  # on only while you look for a NaN",
        r"\b(set_)?detect_anomaly\b",
        _MODEL,
    ),
    ("deterministic", "fills"): (
        "deterministic-fill",
        "Deterministic mode fills every new tensor with NaN before it is used",
        "torch.use_deterministic_algorithms(True) turns on "
        "torch.utils.deterministic.fill_uninitialized_memory: one more kernel for each tensor that "
        "torch makes empty",
        "torch.utils.deterministic.fill_uninitialized_memory = False  # stays deterministic\n"
        "# as long as no code reads memory that it has not written",
        r"\buse_deterministic_algorithms\b",
        (*_MODEL, "optimizer"),
    ),
}


@state
def switches(live: Live) -> Iterator[Finding]:
    """A switch of torch that is on, and makes every step slower."""
    for flags, (rule, title, why, what_to_do, pattern, acts_on) in _SWITCHES.items():
        if all(live.flags.get(flag) for flag in flags):
            line = first_line_with(pattern)
            yield fact(rule, title, (why,), what_to_do, line=line, acts_on=acts_on)


@state
def benchmark_with_many_shapes(live: Live) -> Iterator[Finding]:
    """``cudnn.benchmark`` searches again for each new shape."""
    if not live.flags.get("cudnn_benchmark"):
        return
    shapes = max((len(use.shapes) for use in live.modules.values()), default=0)
    if shapes < _MANY_SHAPES:
        return
    yield fact(
        "cudnn-benchmark-shapes",
        f"cudnn.benchmark is on, and the inputs had {shapes} different shapes",
        (
            f"cuDNN tries all its algorithms for each shape that it has not seen: {shapes} shapes "
            "in the few steps that were looked at, so there is no end of it",
        ),
        "torch.backends.cudnn.benchmark = False\n"
        "# or pad and crop to a few fixed sizes, and leave it on",
        line=only_line_with(r"\bcudnn\.benchmark\s*="),
        acts_on=_MODEL,
    )


@state
def emulated_format(live: Live) -> Iterator[Finding]:
    """A CPU computes in a number format that it has no instructions for."""
    name = live.flags.get("half_on_cpu")
    if not name:
        return
    # with AVX-512 oneDNN converts bfloat16 on the way, and loses little
    has = COMPUTES_IN[name] | ({"avx512f"} if name == "bfloat16" else set())
    flags = cpu_flags()
    if not flags or flags & has:
        return
    autocast = live.flags["autocast"]
    needs = " or ".join(sorted(COMPUTES_IN[name] & {"amx_bf16", "avx512_bf16", "avx512_fp16"}))
    yield fact(
        "emulated-format",
        f"This CPU has no instructions for {name}: it is emulated, and slower than float32",
        (f"{'autocast' if autocast else 'the model'} computes in {name}, which needs {needs}",),
        "# float32 on this CPU, the same line on a GPU:\n"
        f"with torch.autocast(device.type, torch.{name}, enabled=device.type != 'cpu'):\n"
        "    loss = criterion(model(x), y)"
        if autocast
        else "model = model.float()  # on this CPU",
        line=first_line_with(
            r"^\s*with\b.*\bautocast\(" if autocast else r"\b(bfloat16|half|float16)\b"
        ),
        acts_on=_MODEL,
        changes="products are rounded less, so losses differ a little",
    )
