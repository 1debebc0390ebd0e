"""What a setting accepts, and what it needs of the machine: small rules, each told in words.

An acceptor takes any value and gives it back in its plain Python form, or raises
``ValueError`` with words that say what would be accepted. A need takes an accepted value and
the machine, and gives the reason why it cannot be had, or None. A hint does the same for
values that work but may not do what one hopes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfkit.machine import Machine

Acceptor = Callable[[Any], Any]
Need = Callable[[Any, "Machine"], "str | None"]


def is_flag(value: Any) -> bool:
    """Whether it is ``True`` or ``False``, numpy's included."""
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")


def is_true(found: Any) -> bool:
    """Whether a comparison gave one plain yes."""
    return bool(found) if isinstance(found, bool) or is_flag(found) else False


def flag(value: Any) -> bool:
    """``True`` or ``False``; 0 and 1 are refused, they are usually a slip."""
    if not is_flag(value):
        raise ValueError("True or False")
    return bool(value)


def whole_number(low: int, high: int) -> Acceptor:
    """An acceptor of whole numbers from ``low`` to ``high``."""

    def accept(value: Any) -> int:
        words = f"a whole number from {low} to {high:,}"
        if is_flag(value):
            raise ValueError(words)
        try:
            number = operator.index(value)
        except TypeError:
            raise ValueError(words) from None
        if not low <= number <= high:
            raise ValueError(words)
        return number

    return accept


def one_of(values: tuple[Any, ...]) -> Acceptor:
    """An acceptor of exactly these values; ``1`` is not ``True``."""

    def accept(value: Any) -> Any:
        for known in values:
            # an array compares by element, and has no truth
            if is_flag(known) == is_flag(value) and is_true(value == known):
                return known
        raise ValueError(f"one of {', '.join(map(repr, values))}")

    return accept


def nothing(value: Any, machine: Machine) -> str | None:
    """The need of a setting that works everywhere."""
    return None


def cuda_when_on(what: str) -> Need:
    """It needs a CUDA device, unless it is off."""

    def need(value: Any, machine: Machine) -> str | None:
        if not value or machine.gpus:
            return None
        return f"{what}: {machine.capability('gpu').reason}"

    return need


def precision_here(value: Any, machine: Machine) -> str | None:
    """tf32 and fp16 need a GPU; bf16 runs on any CPU; on a GPU its own capability decides."""
    if value == "fp32" or (value == "bf16" and not machine.gpus):
        return None
    if not machine.gpus:
        why = {
            "tf32": "TF32 is a mode of NVIDIA GPUs",
            "fp16": "fp16 training needs a GPU; take bf16 on a CPU",
        }
        return f"{why[value]} ({machine.capability('gpu').reason})"
    capability = machine.capability(value)
    return None if capability.available else capability.reason


def bf16_speed(value: Any, machine: Machine) -> str | None:
    """bf16 on a CPU without the instructions is emulated."""
    if value != "bf16" or machine.gpus or machine.capability("bf16").available:
        return None
    return machine.capability("bf16").reason


def compile_here(value: Any, machine: Machine) -> str | None:
    """torch.compile needs a C++ compiler, and triton on a GPU."""
    if not value:
        return None
    capability = machine.capability("compile")
    if capability.available:
        return None
    return f"{capability.reason}; {capability.remedy}"


def more_than_cores(what: str) -> Need:
    """More of them than cores works, but they take turns."""

    def hint(value: Any, machine: Machine) -> str | None:
        if value <= machine.cores:
            return None
        cores = f"{machine.cores} core{'s' * (machine.cores != 1)}"
        return f"{value} {what} share {cores}: they take turns"

    return hint
