"""The settings that perfkit knows: one object each, in the order of a training step.

To add one: put a :class:`~perfkit.experiment.settings.Setting` in the file of its kind, with what
it needs, what perfkit does for it and what it cannot be combined with, and its name in
``tests/experiment/test_catalogue.py``, which asks for a test of its effect. Only what the workload
does for it is elsewhere: a helper in ``_given.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from perfkit.experiment.settings import _loader_settings, _model_settings, _process_settings
from perfkit.experiment.settings._setting import Setting

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
