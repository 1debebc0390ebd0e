"""What a lesson writes below a figure that it measured: on a played GPU nothing is *measured*."""

from __future__ import annotations

from perfkit.base.machine.played import is_played

MEASURED = "measured here"


def origin(said: str = MEASURED) -> str:
    """The text below a figure, with "played" in place of "measured here" on a played GPU.

    Args:
        said: the text, as it is on every other machine.

    Returns:
        ``said`` itself, unless the process's GPU is played. There all measurements are called
        played, those of the CPU too.
    """
    return said.replace(MEASURED, "played") if is_played() else said
