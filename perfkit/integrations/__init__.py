"""Callbacks for trainers that own the loop: what bounds their steps, and where all the time goes.

======================  =======================================================
``LightningWatch``      a callback for ``lightning.pytorch.Trainer``
``TrainerWatch``        a callback for ``transformers.Trainer``
``AccelerateWatch``     a context manager around a loop that uses ``accelerate``
======================  =======================================================

In a notebook they draw the plot of :func:`perfkit.watch`, and at the end they say the same
sentence. ``log=`` takes any function of one dict; see :class:`~perfkit.integrations.TrainerRun`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.base import extras

if TYPE_CHECKING:
    from perfkit.integrations.accelerate import AccelerateWatch
    from perfkit.integrations.hugging_face import TrainerWatch
    from perfkit.integrations.lightning import LightningWatch
    from perfkit.integrations.trainer_run import TrainerRun

__all__ = ["AccelerateWatch", "LightningWatch", "TrainerRun", "TrainerWatch"]

_HOMES = {
    "AccelerateWatch": "perfkit.integrations.accelerate",
    "LightningWatch": "perfkit.integrations.lightning",
    "TrainerRun": "perfkit.integrations.trainer_run",
    "TrainerWatch": "perfkit.integrations.hugging_face",
}


if not TYPE_CHECKING:  # there, a misspelt name is an error
    __getattr__ = extras.found_when_asked(globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
