"""The settings of an experiment, from declarations and from the values given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfkit.base.arguments import brief
from perfkit.base.errors import SettingError
from perfkit.experiment.settings import CATALOGUE, Setting, resolve, setting
from perfkit.experiment.settings._rules import is_equal


def declared(settings: Sequence[str | Setting], *arms: Mapping[str, Any]) -> tuple[Setting, ...]:
    """The given settings, catalogue settings named by an arm, and the user's own.

    An undeclared name that is not in the catalogue becomes a setting of the user's own, with the
    values that the arms give it; every arm must then give one.

    Raises:
        SettingError: an arm is not a mapping of values, or omits a setting without a default.
    """
    known = {one.name: one for one in resolve(settings)}
    for arm in arms:
        if not isinstance(arm, Mapping) or not all(isinstance(name, str) for name in arm):
            raise SettingError(
                f"an arm is a mapping from settings to values, not {brief(arm)}: "
                "try {'num_workers': 2}"
            )
    for name in dict.fromkeys(name for arm in arms for name in arm):
        if name in known:
            continue
        if name in CATALOGUE:
            known[name] = CATALOGUE[name]
            continue
        if any(name not in arm for arm in arms):
            raise SettingError(
                f"{brief(name)} is in one arm only and has no default: give it in both, or "
                f"declare it: settings=[setting({brief(name)}, [values])]"
            )
        known[name] = setting(name, _distinct([arm[name] for arm in arms]))
    return tuple(known.values())


def _distinct(values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if not any(type(value) is type(one) and is_equal(value, one) for one in found):
            found.append(value)
    return found


def words(values: Mapping[str, Any]) -> str:
    """Values in words: ``num_workers 2, uint8 on``."""
    said = ", ".join(f"{name} {_word(value)}" for name, value in values.items())
    return said or "no settings"


def _word(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
