"""Did the GPU itself run slowly: power limit, heat, clocks, a narrow PCIe link?

NVML (package ``nvidia-ml-py``) counts for how long each limit held the clocks down
(``nvmlDeviceGetViolationStatus``), so that two readings say what happened between them. Clocks,
power and the PCIe link are those of the moment. Only the GPUs on which this process has a context
are read. What a GPU does not report stays None: a MIG instance and many consumer GPUs report
little, and other makers' GPUs nothing.

Sources: NVML API reference, "Clocks Event Reasons", ``nvmlPerfPolicyType_t``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfkit.base.device import in_use
from perfkit.base.words import fmt_number, fmt_share, plural

# A limit that holds the clocks down for less time than this changes little. Power is the usual
# limit of large GPUs under full load, so more of it is needed to explain anything.
_POWER_FROM = 0.1
_HEAT_FROM = 0.02
# Without counters only the reason at the end is known: it explains something if the clock is below
# this share of the highest.
_SLOW_CLOCK = 0.9
# A slow link explains something if copies are a tenth of the step.
_COPIES_FROM = 0.1
# Other processes explain something if the GPU idles with work queued for a tenth of the step.
_QUEUED_FROM = 0.1
# A step that computes for less than this share of its time does not bring a GPU to its limit alone.
_ALONE_FROM = 0.5
# In lower states (P3 and on) the GPU has little to do, and saves power on its link too.
_WORKS_UNTIL_STATE = 2
_MOST_GPUS = 16

# nvmlPerfPolicyType_t
_POLICIES = {"power": 0, "heat": 1, "board": 3, "reliability": 5}
_LIMITS = {
    "power": "by its power limit",
    "heat": "for heat",
    "board": "by a limit of its board",
    "reliability": "by a limit on its voltage",
    "brake": "by the power brake of the server",
    "set clocks": "by application clocks that were set for it",
}
# bits of nvmlDeviceGetCurrentClocksEventReasons, worst first
_REASONS = (
    (0x0080, "brake"),  # HW power brake slowdown
    (0x0040, "heat"),  # HW thermal slowdown
    (0x0020, "heat"),  # SW thermal slowdown
    (0x0008, "brake"),  # HW slowdown, where nothing says of which kind
    (0x0004, "power"),  # SW power cap
    (0x0002, "set clocks"),  # application clocks setting
)
_ADVICE = {
    "power": "that is the GPU at its limit, and lower clocks under full load are normal",
    "heat": "it needs better cooling",
    "board": "",
    "reliability": "",
    "brake": "the server cuts the power of its GPUs",
    "set clocks": "`nvidia-smi -rac` resets them",
}


@dataclass(frozen=True)
class GpuReading:
    """One GPU at one moment; None for what it does not report.

    Attributes:
        index: torch's index of it.
        held_s: limit → time in s for which it has held the clocks down, as the driver counts.
        reasons: bits of what holds the clocks down now.
        clock_mhz, max_clock_mhz: clock of its multiprocessors, and the highest one.
        watts, limit_watts: power, and its limit.
        state: performance state; 0 is the fastest.
        link, max_link: PCIe generation and width, e.g. ``(4, 16)``.
        n_processes: processes that have a context on it, this one included.
    """

    index: int
    name: str
    held_s: Mapping[str, float] = field(default_factory=dict)
    reasons: int | None = None
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    watts: float | None = None
    limit_watts: float | None = None
    celsius: int | None = None
    state: int | None = None
    link: tuple[int, int] | None = None
    max_link: tuple[int, int] | None = None
    n_processes: int | None = None


@dataclass(frozen=True)
class GpuThrottling:
    """What held one GPU back during a measurement.

    Attributes:
        held: limit → share of the time for which it held the clocks down.
        at_end: the GPU at the end of the measurement.
    """

    held: Mapping[str, float]
    at_end: GpuReading

    @classmethod
    def between(cls, before: GpuReading | None, now: GpuReading, wall_s: float) -> GpuThrottling:
        """The difference of two readings of one GPU; without a first one only the end counts."""
        held = {}
        for name, seconds in now.held_s.items():
            if before is not None and name in before.held_s:
                spent = max(seconds - before.held_s[name], 0.0)
                held[name] = min(spent / max(wall_s, 1e-9), 1.0)
        return cls(held, now)

    def sentences(
        self,
        copies: float | None = None,
        computing: float | None = None,
        queued: float | None = None,
    ) -> tuple[str, ...]:
        """What explains lost time, in words; empty if nothing does.

        Args:
            copies: share of the step in copies between host and GPU; None if unknown, which says
                nothing of the link.
            computing: share of the step in which the GPU computes for it; None if unknown.
            queued: share of the step in which the GPU runs nothing of it although work is queued;
                None if unknown, which says nothing of other processes.
        """
        said = self._clock(computing), self._link(copies), self._others(queued)
        return tuple(filter(None, said))

    def _others(self, queued: float | None) -> str:
        others = (self.at_end.n_processes or 1) - 1
        if queued is None or queued < _QUEUED_FROM or others < 1:
            return ""
        return (
            f"{plural(others, 'other process', 'other processes')} had a context on GPU "
            f"{self.at_end.index} when this ended. Processes take turns: while another one "
            "computes, your work waits in its queue."
        )

    def _clock(self, computing: float | None) -> str:
        worst = max(self.held, key=lambda name: self.held[name], default="")
        share = self.held.get(worst, 0.0)
        if self.held.get("heat", 0.0) >= _HEAT_FROM:
            worst, share = "heat", self.held["heat"]
        if share >= (_HEAT_FROM if worst == "heat" else _POWER_FROM):
            return self._say(worst, f"for {fmt_share(share)} of the time", computing)
        end = self.at_end
        if not end.clock_mhz or not end.max_clock_mhz or not end.reasons:
            return ""
        if end.clock_mhz >= _SLOW_CLOCK * end.max_clock_mhz or not self._worked:
            return ""
        # what was counted and found small was not it
        for bit, name in _REASONS:
            if end.reasons & bit and name not in self.held:
                return self._say(name, "when this ended", computing)
        return ""

    @property
    def _worked(self) -> bool:
        state = self.at_end.state
        return state is not None and state <= _WORKS_UNTIL_STATE

    def _say(self, limit: str, when: str, computing: float | None) -> str:
        end = self.at_end
        facts = []
        if end.clock_mhz and end.max_clock_mhz:
            facts.append(f"its clock was {end.clock_mhz} of {end.max_clock_mhz} MHz at the end")
        if limit == "power" and end.watts is not None and end.limit_watts is not None:
            facts.append(f"power {fmt_number(end.watts)} of {fmt_number(end.limit_watts)} W")
        if limit == "heat" and end.celsius is not None:
            facts.append(f"temperature {end.celsius} °C")
        shown = f" ({', '.join(facts)})" if facts else ""
        advice = f": {_ADVICE[limit]}" if _ADVICE[limit] else ""
        if limit == "power" and computing is not None and computing < _ALONE_FROM:
            advice = (
                f": it computes for your steps for {fmt_share(computing)} of their time, so what "
                "else runs on it may draw most of that power"
            )
        return f"GPU {end.index} was held back {_LIMITS[limit]} {when}{shown}{advice}."

    def _link(self, copies: float | None) -> str:
        end = self.at_end
        if copies is None or copies < _COPIES_FROM or not self._worked:
            return ""
        if end.link is None or end.max_link is None or end.link == end.max_link:
            return ""
        (generation, width), (most_generation, most_width) = end.link, end.max_link
        # each generation doubles the rate of a lane
        part = 2.0 ** (generation - most_generation) * width / most_width
        if part >= 1:
            return ""
        return (
            f"GPU {end.index} runs on PCIe {generation}.0 ×{width} instead of "
            f"{most_generation}.0 ×{most_width}: copies between host and GPU, "
            f"{fmt_share(copies)} of the step, get {fmt_share(part)} of the bandwidth. Look at its "
            "slot, riser and BIOS."
        )


def read_gpus() -> tuple[GpuReading, ...]:
    """The NVIDIA GPUs on which this process has a context; empty without NVML. Never raises."""
    try:
        device = in_use()
        if device.is_cpu or (nvml := _nvml()) is None:
            return ()
        indices = device.devices()[:_MOST_GPUS]
        found = (_read(nvml, index, device.uuid(index)) for index in indices)
        return tuple(reading for reading in found if reading is not None)
    except Exception:  # a driver that fails says nothing; what is measured goes on
        return ()


@functools.cache
def _nvml() -> Any:
    """NVML, initialised once for this process; None without its package or library."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # no package, no driver
        return None
    return nvml


def _read(nvml: Any, index: int, uuid: str | None) -> GpuReading | None:
    if uuid is None:
        return None
    handle = _asked(lambda: nvml.nvmlDeviceGetHandleByUUID(uuid.encode()))
    if handle is None:
        return None

    def ask(name: str, *args: object) -> Any:
        return _asked(lambda: getattr(nvml, name)(handle, *args))

    held_s = {}
    for limit, policy in _POLICIES.items():
        violation = ask("nvmlDeviceGetViolationStatus", policy)
        if violation is not None:
            held_s[limit] = violation.violationTime / 1e9  # counted in ns
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # its older name
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    name = ask("nvmlDeviceGetName")
    watts, limit_watts = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    link = ask("nvmlDeviceGetCurrPcieLinkGeneration"), ask("nvmlDeviceGetCurrPcieLinkWidth")
    most = ask("nvmlDeviceGetMaxPcieLinkGeneration"), ask("nvmlDeviceGetMaxPcieLinkWidth")
    return GpuReading(
        index=index,
        name=name.decode() if isinstance(name, bytes) else str(name or ""),
        held_s=held_s,
        reasons=reasons,
        clock_mhz=ask("nvmlDeviceGetClockInfo", 1),  # NVML_CLOCK_SM
        max_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", 1),
        watts=None if watts is None else watts / 1e3,
        limit_watts=None if limit_watts is None else limit_watts / 1e3,
        celsius=ask("nvmlDeviceGetTemperature", 0),
        state=ask("nvmlDeviceGetPerformanceState"),
        link=link if all(link) else None,
        max_link=most if all(most) else None,
        # within a container the list may be empty, although this process is one of them
        n_processes=len(ask("nvmlDeviceGetComputeRunningProcesses") or ()) or None,
    )


def _asked(question: Callable[[], Any]) -> Any:
    """The answer, or None where this GPU, driver or package has none."""
    try:
        return question()
    except Exception:
        return None
