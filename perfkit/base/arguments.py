"""Checks of a public function's arguments: each error names the argument and what to give."""

from __future__ import annotations

import contextlib
import math
from numbers import Integral, Real
from typing import Any

from perfkit.base.errors import UsageError

_LONGEST = 60


def shown(value: object) -> str:
    """The value as the caller wrote it if that is short, else its type."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return f"a {type(value).__name__}"


def brief(value: object, longest: int = 80) -> str:
    """The value's ``repr`` on one line, cut; its type where it has none that can be had."""
    try:
        text = repr(value)
    except Exception:  # half-made objects, and classes that count on what they do not have
        text = f"a {type(value).__name__}"
    return " ".join(text[: 2 * longest].split())[:longest]


def check_function(name: str, value: object) -> None:
    """Refuse what cannot be called.

    Raises:
        UsageError: ``value`` is not callable.
    """
    if not callable(value):
        raise UsageError(f"{name} is {shown(value)}; give a function without arguments")


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False; numbers count, and None as False.

    Raises:
        UsageError: ``value`` is of another type.
    """
    is_numpys = type(value).__name__ in ("bool", "bool_")
    if value is not None and not isinstance(value, int) and not is_numpys:
        raise UsageError(f"{name} is {shown(value)}; give True or False")


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Refuse what is not a whole number from ``least`` to ``most``.

    Raises:
        UsageError: ``value`` is of another type or out of range.
    """
    good = isinstance(value, Integral) and not isinstance(value, bool)
    if not good or int(value) < least or (most is not None and int(value) > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{name} is {shown(value)}; give a whole number {span}")


def check_seconds(name: str, value: Any) -> None:
    """Refuse what is not a positive, finite time.

    Raises:
        UsageError: ``value`` is no number, not positive, infinite or NaN.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    seconds = math.inf
    if is_number:
        with contextlib.suppress(OverflowError):  # a whole number beyond all floats
            seconds = float(value)
    if not 0 < seconds < math.inf:
        raise UsageError(f"{name} is {shown(value)}; give a positive number of seconds")


def check_text(name: str, value: object) -> None:
    """Refuse what is not a string, None excepted.

    Raises:
        UsageError: ``value`` is of another type.
    """
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name} is {shown(value)}; give a string")


def check_instance(name: str, value: object, kind: type, what: str) -> None:
    """Refuse what is not an instance of ``kind``, None excepted.

    Raises:
        UsageError: ``value`` is of another type; ``what`` says what to give.
    """
    if value is not None and not isinstance(value, kind):
        raise UsageError(f"{name} is {shown(value)}; give {what}")
