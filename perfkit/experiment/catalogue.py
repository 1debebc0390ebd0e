"""The settings that perfkit knows: one object each, in the order of a training step.

To add one: a :class:`~perfkit.experiment.settings.Setting` in the file of its kind, what it
does in ``_given.py`` (a helper) or ``_apply.py`` (perfkit by itself), and what it does not go
together with in ``_clashes.py``. ``tests/experiment/`` then asks for its effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from perfkit.experiment import _loader_settings, _model_settings, _process_settings
from perfkit.experiment._setting import Setting

__all__ = ["CATALOGUE"]

#: The settings that perfkit knows, by name.
CATALOGUE: Mapping[str, Setting] = MappingProxyType(
    {
        one.name: one
        for one in (
            *_loader_settings.SETTINGS,
            *_model_settings.SETTINGS,
            *_process_settings.SETTINGS,
        )
    }
)
