"""The settings that perfkit knows: one object each, in the order of a training step.

To add one: put a :class:`~perfkit.experiment.settings.Setting` in the file of its kind, its effect
in ``_given.py`` (a helper) or ``_apply.py`` (applied by perfkit), and its conflicts in
``_clashes.py``. ``tests/experiment/`` then requires a test of its effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from perfkit.experiment.settings import _loader_settings, _model_settings, _process_settings
from perfkit.experiment.settings._setting import Setting

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
