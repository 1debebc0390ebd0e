"""What a setting accepts and what it needs from the machine: small rules with messages.

An acceptor takes any value and returns it in plain Python form, or raises ``ValueError`` whose text
says what it accepts. A need takes an accepted value and the machine, and returns the reason why the
value is not available, or None. A hint does the same for values that work but may not help.
"""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from perfkit.experiment.settings import _malloc

if TYPE_CHECKING:
    from perfkit.base.machine import Machine

Acceptor = Callable[[Any], Any]
Need = Callable[[Any, "Machine"], "str | None"]

# name:value, separated by commas; a value may be a list in brackets
_CONF = r"[a-z][\w]*:(\[[^\]\s]*\]|[^,\[\]\s]+)(,[a-z][\w]*:(\[[^\]\s]*\]|[^,\[\]\s]+))*"
_LONGEST_CONF = 1000


def is_flag(value: Any) -> bool:
    """Whether it is ``True`` or ``False``, including numpy's."""
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")


def is_equal(value: Any, known: Any) -> bool:
    """Whether they are equal as wholes; arrays compare by element, and some things not at all."""
    try:
        found = value == known
    except Exception:  # of a sparse tensor, a signalling NaN, somebody's own class
        return False
    return bool(found) if isinstance(found, bool) or is_flag(found) else False


def flag(value: Any) -> bool:
    """Accept ``True`` and ``False``; refuse 0 and 1, which are usually a slip."""
    if not is_flag(value):
        raise ValueError("True or False")
    return bool(value)


def whole_number(low: int, high: int) -> Acceptor:
    """An acceptor for whole numbers from ``low`` to ``high``."""

    def accept(value: Any) -> int:
        words = f"a whole number from {low} to {high:,}"
        if is_flag(value):
            raise ValueError(words)
        try:
            number = operator.index(value)
        except (TypeError, RuntimeError):  # the second is torch's, of a tensor without a value
            raise ValueError(words) from None
        if not low <= number <= high:
            raise ValueError(words)
        return number

    return accept


def one_of(values: tuple[Any, ...]) -> Acceptor:
    """An acceptor for exactly these values; ``1`` is not ``True``."""

    def accept(value: Any) -> Any:
        for known in values:
            if is_flag(known) == is_flag(value) and is_equal(value, known):
                return known
        raise ValueError(f"one of {', '.join(map(repr, values))}")

    return accept


def nothing(value: Any, machine: Machine) -> str | None:
    """The need of a setting that works everywhere."""
    return None


def cuda_when_on(what: str) -> Need:
    """A need: a CUDA device, unless the setting is off."""

    def need(value: Any, machine: Machine) -> str | None:
        if not value or machine.gpus:
            return None
        return f"{what}: {machine.capability('gpu').reason}"

    return need


def precision_here(value: Any, machine: Machine) -> str | None:
    """tf32 and fp16 need a GPU; bf16 runs on any CPU, and on GPUs that support it."""
    if value == "fp32" or (value == "bf16" and not machine.gpus):
        return None
    if not machine.gpus:
        why = {
            "tf32": "TF32 is a mode of NVIDIA GPUs",
            "fp16": "fp16 training needs a GPU; use bf16 on a CPU",
        }
        return f"{why[value]} ({machine.capability('gpu').reason})"
    capability = machine.capability(value)
    return None if capability.available else capability.reason


def bf16_speed(value: Any, machine: Machine) -> str | None:
    """On a CPU without bf16 instructions, bf16 is emulated."""
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
    """More of them than cores works, but those that compute take turns."""

    def hint(value: Any, machine: Machine) -> str | None:
        if value <= machine.cores:
            return None
        cores = f"{machine.cores} core{'s' * (machine.cores != 1)}"
        return f"{value} {what} share {cores}: those that compute take turns"

    return hint


def flag_or(*words: str) -> Acceptor:
    """An acceptor for ``True``, ``False`` and these words."""
    return one_of((False, True, *words))


def compile_mode_here(value: Any, machine: Machine) -> str | None:
    """As :func:`compile_here`; ``reduce-overhead`` is a mode for GPUs."""
    if value == "reduce-overhead" and not machine.gpus:
        return f"reduce-overhead replays CUDA graphs: {machine.capability('gpu').reason}"
    return compile_here(value, machine)


def several_cores_for(unwanted: str, what: str) -> Need:
    """Every value but ``unwanted`` needs pinning; ``what`` needs at least two cores."""

    def need(value: Any, machine: Machine) -> str | None:
        if value == unwanted:
            return None
        if not hasattr(os, "sched_setaffinity"):
            return f"pinning to cores works on Linux; this is {machine.system.split()[0]}"
        if value == what and machine.cores < 2:
            return "it needs at least two cores, and this machine has one"
        return None

    return need


def malloc_here(value: Any, machine: Machine) -> str | None:
    """The library must exist here and work, or for ``"keep"`` be glibc."""
    return _malloc.why_not(value)


def alloc_conf(value: Any) -> str:
    """``"default"``, or options as in ``PYTORCH_ALLOC_CONF``: ``"key:value,key:value"``."""
    words = "'default' or options 'name:value,name:value' as in PYTORCH_ALLOC_CONF"
    if not isinstance(value, str) or len(value) > _LONGEST_CONF or not _is_plain(value):
        raise ValueError(words)
    if value != "default" and not re.fullmatch(_CONF, value):
        raise ValueError(words)
    return value


def _is_plain(text: str) -> bool:
    # what an environment variable can hold on every system
    return text.isascii() and text.isprintable()


def caching_allocator_here(value: Any, machine: Machine) -> str | None:
    """The options need a GPU: they belong to its memory allocator."""
    if value == "default" or machine.gpus:
        return None
    return f"these options are for GPU memory: {machine.capability('gpu').reason}"


def processes_here(value: Any, machine: Machine) -> str | None:
    """Several processes need torch.distributed and, on a machine with GPUs, one GPU each."""
    if value == 1:
        return None
    if sys.platform != "linux":
        return "perfkit starts several processes for a run on Linux only; see perfkit.launch"
    if machine.gpus:
        n = len(machine.gpus)
        if value <= n:
            return None
        return f"{value} processes need {value} GPUs, and this machine has {n}"
    if machine.torch is None:
        return "torch is not installed"
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        return f"torch {machine.torch.version} is built without gloo, which joins CPU processes"
    return None


def processes_share_cores(value: Any, machine: Machine) -> str | None:
    """On a CPU each process should have its own core."""
    return None if machine.gpus else more_than_cores("processes")(value, machine)


def on(values: Mapping[str, Any], name: str) -> bool:
    """Whether a flag is declared and on."""
    return values.get(name) is True
