"""The roofline: the lower bound of some work on some device.

An operator takes at least as long as its arithmetic at the fastest rate of its number format, and
at least as long as moving its bytes (Williams, Waterman and Patterson 2009, "Roofline"); a step
that runs one operator after another takes at least the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfkit.limit.call import Work
from perfkit.limit.roofs import Roofs


@dataclass(frozen=True)
class Least:
    """The lower bound of one call.

    Attributes:
        us: microseconds.
        bound: ``"arithmetic"`` or ``"memory"``, whichever takes longer.
        form: the number format whose rate counted; empty where no product is in it.
        arithmetic_us: time of its FLOPs at the fastest rate; 0 without products.
        is_partial: whether the rate of its format is unknown, so that only bytes count.
    """

    us: float
    bound: str
    form: str
    arithmetic_us: float
    is_partial: bool = False


def least(work: Work, roofs: Roofs, *, tf32: bool = False) -> Least:
    """The lower bound of a call on a device.

    Args:
        work: of one call.
        roofs: of the device.
        tf32: whether its float32 products are computed in TF32.
    """
    rate = roofs.bytes_per_s(work.working_set_bytes, in_place=bool(work.updated_bytes))
    memory_us = work.n_bytes / rate * 1e6
    if not work.flops:
        return Least(memory_us, "memory", "", 0.0)
    form = roofs.format_for(work.dtype, tf32=tf32)
    if form is None:
        return Least(memory_us, "memory", "", 0.0, is_partial=True)
    flop_per_s = roofs.flop_per_s[form]
    needed_us = work.least_flops / flop_per_s * 1e6
    bound = "arithmetic" if needed_us > memory_us else "memory"
    return Least(max(needed_us, memory_us), bound, form, work.flops / flop_per_s * 1e6)
