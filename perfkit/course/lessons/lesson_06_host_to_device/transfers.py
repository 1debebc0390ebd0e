"""A simulated GPU that copies and computes in virtual time: who waits for whom, exactly.

It has only four rules of CUDA: work on one stream runs in order; streams run concurrently, except
that copies share one copy engine; a launch returns at once; a copy makes the host wait unless it
comes from pinned memory *and* is non-blocking (CUDA's documentation, "API synchronization
behavior"). One simplification: from pageable memory the host really waits at least until the driver
has staged the bytes, here until they have arrived. All times are sums of given ones, so they are
the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from perfkit.base.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Way = Literal["plain", "non_blocking", "pinned", "pin in the loop", "side stream"]
_LANES = ("host", "copy engine", "compute")
_COLOURS = {"load": "#999999", "pin": "#cc79a7", "wait": "#d55e00", "copy": "#e69f00"}
_COMPUTE = "#0072b2"


@dataclass(frozen=True)
class Rates:
    """How fast the simulated machine copies, in bytes per second: assumptions, not measurements.

    Attributes:
        pinned: over the bus from page-locked memory; the practical part of PCIe 4.0 x16's 31.5
            GB/s.
        pageable: over the bus via the driver's own pinned buffer.
        pinning: into newly pinned memory, by one host thread.
    """

    pinned: float = 25e9
    pageable: float = 8e9
    pinning: float = 5e9


@dataclass(frozen=True)
class Span:
    """An activity in one lane, from ``begin_ms`` to ``end_ms`` of virtual time."""

    lane: str
    what: str
    begin_ms: float
    end_ms: float


class SimulatedTransfers:
    """Host, copy engine and compute units of one machine, in virtual milliseconds."""

    def __init__(self, rates: Rates | None = None) -> None:
        self.rates = rates or Rates()
        self.now_ms = 0.0  # the host's clock
        self.spans: list[Span] = []
        self._stream_free = {"main": 0.0, "side": 0.0}
        self._engine_free_ms = 0.0

    def work(self, ms: float, what: str = "load") -> None:
        """The host is busy."""
        self._add("host", what, self.now_ms, self.now_ms + ms)
        self.now_ms += ms

    def pin(self, nbytes: int) -> None:
        """``tensor.pin_memory()``: a copy by the host."""
        self.work(nbytes / self.rates.pinning * 1e3, "pin")

    def copy(self, nbytes: int, *, pinned: bool, non_blocking: bool, stream: str = "main") -> float:
        """Copy between host and device, in either direction; return when it will be done, in ms."""
        rate = self.rates.pinned if pinned else self.rates.pageable
        begin = max(self.now_ms, self._stream_free[stream], self._engine_free_ms)
        end = begin + nbytes / rate * 1e3
        self._add("copy engine", "copy", begin, end)
        self._stream_free[stream] = self._engine_free_ms = end
        if not (pinned and non_blocking):
            self._wait_until(end)
        return end

    def compute(self, ms: float, *, after_ms: float = 0.0) -> float:
        """Run kernels on the main stream; return when they will be done, in ms.

        Args:
            ms: how long they take.
            after_ms: time of an event on another stream that they wait for.
        """
        begin = max(self.now_ms, self._stream_free["main"], after_ms)
        self._add("compute", "compute", begin, begin + ms)
        self._stream_free["main"] = begin + ms
        return begin + ms

    def synchronize(self) -> None:
        """The host waits for everything."""
        self._wait_until(max(self._stream_free.values()))

    def _wait_until(self, ms: float) -> None:
        if ms > self.now_ms:
            self._add("host", "wait", self.now_ms, ms)
            self.now_ms = ms

    def _add(self, lane: str, what: str, begin_ms: float, end_ms: float) -> None:
        if end_ms > begin_ms:
            self.spans.append(Span(lane, what, begin_ms, end_ms))


def feed(
    way: Way,
    *,
    nbytes: int,
    compute_ms: float,
    load_ms: float = 3.0,
    steps: int = 6,
    rates: Rates | None = None,
) -> tuple[float, SimulatedTransfers]:
    """Train ``steps`` steps, sending each batch in the given way.

    Args:
        way: ``"plain"``: ``x.to(device)``; ``"non_blocking"``: the same with
            ``non_blocking=True``, from pageable memory; ``"pinned"``: non-blocking from memory
            that a loader thread pinned; ``"pin in the loop"``:
            ``x.pin_memory().to(device, non_blocking=True)``; ``"side stream"``: the next batch is
            sent, pinned, on its own stream while this one is computed.
        nbytes: bytes of a batch.
        compute_ms: time of a step's kernels.
        load_ms: host work between two steps.

    Returns:
        Milliseconds per step in the steady state, and the device with its spans.

    Raises:
        UsageError: there are fewer than four steps, or the way is unknown.
    """
    if steps < 4:
        raise UsageError("an even pace needs at least four steps")
    gpu = SimulatedTransfers(rates)
    pinned = way in ("pinned", "pin in the loop", "side stream")
    if way not in ("plain", "non_blocking") and not pinned:
        raise UsageError(f"no way {way!r} to send a batch")
    done: list[float] = []
    ahead = 0.0
    for step in range(steps):
        gpu.work(load_ms)
        if way == "pin in the loop":
            gpu.pin(nbytes)
        if way == "side stream":
            if step == 0:
                ahead = gpu.copy(nbytes, pinned=True, non_blocking=True, stream="side")
            here = ahead
            done.append(gpu.compute(compute_ms, after_ms=here))
            ahead = gpu.copy(nbytes, pinned=True, non_blocking=True, stream="side")
        else:
            gpu.copy(nbytes, pinned=pinned, non_blocking=way != "plain")
            done.append(gpu.compute(compute_ms))
    gpu.synchronize()
    return (done[-1] - done[1]) / (steps - 2), gpu


def late_read(*, nbytes: int, wait: bool) -> str:
    """What the host reads after ``result = x.to("cpu", non_blocking=True)`` into pinned memory.

    Returns:
        ``"old"`` if the copy is still in progress, ``"new"`` if it has arrived.
    """
    gpu = SimulatedTransfers()
    gpu.compute(5.0)
    arrives_ms = gpu.copy(nbytes, pinned=True, non_blocking=True)
    if wait:
        gpu.synchronize()
    return "new" if gpu.now_ms >= arrives_ms else "old"


def refilled(*, nbytes: int, wait: bool) -> str:
    """What arrives if the host refills a pinned buffer after a non-blocking copy from it.

    Returns:
        ``"the next batch"`` if the buffer was refilled before the device fetched it, ``"this
        batch"`` if the host waited.
    """
    gpu = SimulatedTransfers()
    gpu.compute(5.0)
    fetched_ms = gpu.copy(nbytes, pinned=True, non_blocking=True)
    if wait:
        gpu.synchronize()
    return "this batch" if gpu.now_ms >= fetched_ms else "the next batch"


def draw(runs: dict[str, SimulatedTransfers], *, until_ms: float | None = None) -> Figure:
    """One strip per run: host, copy engine and compute units over time."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(7, 0.5 + 1.05 * len(runs)), layout="constrained", facecolor="white")
    axes = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    end = until_ms or max(span.end_ms for gpu in runs.values() for span in gpu.spans)
    for ax, (title, gpu) in zip(axes, runs.items(), strict=True):
        for span in gpu.spans:
            row = len(_LANES) - 1 - _LANES.index(span.lane)
            ax.barh(
                row,
                min(span.end_ms, end) - min(span.begin_ms, end),
                left=span.begin_ms,
                height=0.8,
                color=_COLOURS.get(span.what, _COMPUTE),
                edgecolor="white",
                linewidth=0.6,
            )
        ax.set_yticks(range(len(_LANES)), reversed(_LANES), fontsize=8)
        ax.set_title(title, fontsize=9, loc="left", pad=2)
        ax.set_xlim(0, end)
        ax.tick_params(axis="x", labelsize=8)
        ax.spines[["top", "right", "left"]].set_visible(False)
    axes[-1].set_xlabel("ms (simulated)", fontsize=8)
    names = {"load": "host loads", "pin": "host pins", "wait": "host waits", "copy": "copy"}
    handles = [Patch(color=_COLOURS[key], label=label) for key, label in names.items()]
    handles.append(Patch(color=_COMPUTE, label="kernels"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure
