"""Global switches of torch that make every step slower."""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.advice.findings import Finding, fact
from perfkit.advice.places import first_line_with, only_line_with
from perfkit.advice.state.state import state
from perfkit.measure.live import Live

# cuDNN searches anew for each shape that it has not seen; from so many on it is no start-up.
_MANY_SHAPES = 8
_MODEL = ("forward", "backward")


@state
def anomaly_mode(live: Live) -> Iterator[Finding]:
    """Anomaly detection is on: each operator keeps its stack, each gradient is looked through."""
    if not live.flags.get("anomaly"):
        return
    yield fact(
        "anomaly-mode",
        "Anomaly detection is on, in every step",
        (
            "torch formats a Python stack for each operator of the forward pass and looks through "
            "every gradient for NaN",
        ),
        "torch.autograd.set_detect_anomaly(False)  # on only while you look for a NaN",
        line=first_line_with(r"\b(set_)?detect_anomaly\b"),
        acts_on=_MODEL,
    )


@state
def filled_memory(live: Live) -> Iterator[Finding]:
    """Deterministic mode also fills every new tensor."""
    if not (live.flags.get("deterministic") and live.flags.get("fills")):
        return
    yield fact(
        "deterministic-fill",
        "Deterministic mode fills every new tensor with NaN before it is used",
        (
            "torch.use_deterministic_algorithms(True) turns on "
            "torch.utils.deterministic.fill_uninitialized_memory: one more kernel for each tensor "
            "that torch makes empty",
        ),
        "torch.utils.deterministic.fill_uninitialized_memory = False  # stays deterministic\n"
        "# as long as no code reads memory that it has not written",
        line=first_line_with(r"\buse_deterministic_algorithms\b"),
        acts_on=(*_MODEL, "optimizer"),
    )


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
