"""``perfkit.waterfall``: from the length of a step down to its lower bound, cause by cause."""

from __future__ import annotations

import os
from typing import overload

from perfkit.advice.open_trace import OpenTrace, open_trace
from perfkit.advice.profile import Profile
from perfkit.advice.profiling import Profiling
from perfkit.base.arguments import check_text, shown
from perfkit.base.errors import UsageError
from perfkit.trace.ask.waterfall import Waterfall, WaterfallChange, change
from perfkit.trace.read.columns import Trace

_Steps = Profile | Profiling | OpenTrace | Trace | str | os.PathLike[str]


@overload
def waterfall(profile: _Steps, after: None = None, *, device: str | None = None) -> Waterfall: ...


@overload
def waterfall(profile: _Steps, after: _Steps, *, device: str | None = None) -> WaterfallChange: ...


def waterfall(
    profile: _Steps, after: _Steps | None = None, *, device: str | None = None
) -> Waterfall | WaterfallChange:
    """Split a step into what could be removed and the lower bound on the device.

    Waiting for data, waits of host and device for each other, launches, copies, Python, operators
    above their lower bound: each in milliseconds of the mean step, and what its removal would
    gain at most. Gains do not multiply: one that is removed may uncover another. So each is
    given in two orders (from the wait for data inwards, and from the kernels outwards), in which
    the gains add up to the step exactly, and alone.

    It ends at the lower bound where shapes were recorded (``perfkit.profile(step, shapes=True)``)
    and the device's rates are known (``perfkit doctor --peaks``, or a data sheet); elsewhere at
    the operators as recorded.

    Args:
        profile: what ``perfkit.profile`` or ``perfkit.open_trace`` returned, or a trace's file.
        after: a second one of the same step, changed: both are shown on one scale.
        device: ``"here"`` to take this machine's measured peaks for a trace from a file. By
            default those for what was recorded in this process, else the data sheet of the device
            that the trace names.

    Returns:
        A :class:`~perfkit.trace.ask.waterfall.Waterfall`: ``step_ms``, ``parts``, ``least_ms``.
        With ``after``, a :class:`~perfkit.trace.ask.waterfall.WaterfallChange`: ``before``,
        ``after``, ``ratio``, ``changes_ms``. Print it, display it, ``figure()`` or ``save`` it.

    Raises:
        UsageError: ``profile`` or ``after`` is something else, or has not ended; or ``device`` is
            not the recorded one.
        TraceError: a file cannot be read or is not a trace.

    Example::

        >>> slow = perfkit.profile(step, shapes=True)
        >>> print(perfkit.waterfall(slow))
        >>> fast = perfkit.profile(changed_step, shapes=True)
        >>> perfkit.waterfall(slow, fast).save("waterfall.html")
    """
    check_text("device", device)
    first = _of("profile", profile, device)
    return first if after is None else change(first, _of("after", after, device))


def _of(name: str, source: object, device: str | None) -> Waterfall:
    if isinstance(source, Profiling):
        source = source.result
    if isinstance(source, Profile):
        return source.waterfall_on(device)
    if isinstance(source, OpenTrace | Trace | str | bytes | os.PathLike):
        opened: Waterfall = open_trace(source).ask("waterfall", device=device)
        return opened
    raise UsageError(
        f"{name} is {shown(source)}; give a profile, an opened trace, or a trace's file"
    )
