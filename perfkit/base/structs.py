"""What a file must hold is declared as a struct; this names the field that does not fit it."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def as_struct(content: Any, kind: type[T]) -> T:
    """Check plain content, as from JSON, against a struct or dataclass, and make it one.

    Fields that it does not declare are ignored: a newer perfkit may have written them.

    Raises:
        ValueError: a field is missing or does not fit; the message names it.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise ValueError(misfit(error)) from None


def misfit(error: msgspec.DecodeError) -> str:
    """What does not fit, its field first: ``summary.n: expected `int`, got `str```."""
    what, _, place = str(error).partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    if what[1:2].islower():  # a sentence, and not JSON
        what = what[:1].lower() + what[1:]
    return f"{field}: {what}" if field else what
