"""The settings: their values, when they take effect, and what they need.

:data:`CATALOGUE` holds the settings that perfkit knows, :func:`setting` declares your own, and
:class:`Settings` is the argument of a workload.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfkit.base.arguments import brief, check_text, shown
from perfkit.base.errors import SettingError
from perfkit.experiment.settings import _clashes, _rules
from perfkit.experiment.settings._given import Settings, near
from perfkit.experiment.settings._setting import Control, Setting
from perfkit.experiment.settings.catalogue import CATALOGUE

if TYPE_CHECKING:
    from perfkit.base.machine import Machine

__all__ = [
    "CATALOGUE",
    "Setting",
    "Settings",
    "check_listed",
    "check_mapping",
    "check_values",
    "clash",
    "conflicts",
    "resolve",
    "setting",
]


def setting(
    name: str,
    values: Sequence[Any],
    *,
    default: Any = None,
    label: str | None = None,
    help: str = "",  # noqa: A002 - the name of the attribute that it becomes
) -> Setting:
    """Declare a setting of your own: ``setting("augment", [False, True])``.

    The workload reads it as ``settings.augment``. The name of a catalogue setting gives that
    setting with these values: ``setting("batch_size", [32, 96])``.

    Args:
        name: its name in the workload, a valid variable name.
        values: its values, without duplicates: strings, numbers, flags or None.
        default: the value for the first run; by default the first of ``values``.
        label: its name in the Lab; by default ``name`` with spaces for underscores.
        help: one sentence about it.

    Returns:
        A :class:`~perfkit.experiment.settings._setting.Setting` for
        ``ab``, ``sweep``, ``tune`` or ``Lab``.

    Raises:
        SettingError: the name cannot be an attribute, or there are no values, duplicates, or
            values of another type.

    Example::

        >>> perfkit.setting("augment", [False, True], label="augment images")
    """
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise SettingError(
            f"a setting cannot be called {brief(name)}: take a name that could be a variable's"
        )
    if name.startswith("_") or (name not in CATALOGUE and hasattr(Settings, name)):
        raise SettingError(
            f"a setting cannot be called {name!r}: settings.{name} means something else; rename it"
        )
    check_text("label", label)
    check_text("help", help)
    offered = _offered(name, values)
    known = CATALOGUE.get(name)
    if known is not None:
        known = replace(known, values=offered)  # without a rule it takes exactly these
        offered = tuple(known.check(v) for v in offered)
        chosen = offered[0] if default is None else known.check(default)
        return replace(
            known,
            values=_off_first(offered),
            default=chosen,
            label=known.label if label is None else label,
            help=help or known.help,
        )
    made = Setting(
        name,
        name.replace("_", " ") if label is None else label,
        _off_first(offered),
        offered[0],
        _control(offered),
        "rebuild",
        help,
    )
    return made if default is None else replace(made, default=made.check(default))


def _offered(name: str, values: Any) -> tuple[Any, ...]:
    try:
        listed = None if isinstance(values, str | bytes | Mapping) else iter(values)
    except TypeError:  # a number, also one of torch's or numpy's, or a class
        listed = None
    if listed is None:
        raise SettingError(f"the values of {name!r} must be a list, not {shown(values)}")
    offered: list[Any] = []
    for value in listed:
        plain = value
        if type(value).__module__ == "numpy" and getattr(value, "ndim", 0) == 0:
            plain = value.item()
        if not isinstance(plain, str | int | float | bool | None):
            raise SettingError(
                f"{name}: {brief(plain)} cannot be a value; take strings, numbers, True, False "
                "or None and let the workload look up the rest"
            )
        if isinstance(plain, float) and not math.isfinite(plain):
            raise SettingError(
                f"{name}: {plain} cannot be a value, because a store of runs cannot hold it; take "
                "None and let the workload look up the rest"
            )
        if any(plain == o and _rules.is_flag(plain) == _rules.is_flag(o) for o in offered):
            raise SettingError(f"{name}: {plain!r} appears twice among its values")
        offered.append(plain)
        if len(offered) > 1000:
            raise SettingError(f"{name}: more than 1000 values; sample them")
    if not offered:
        raise SettingError(f"{name}: no values are given; a setting needs at least one")
    return tuple(offered)


def _off_first(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values with "off" first: a ticked checkbox means the second value, whatever the default."""
    return (False, True) if _control(values) == "checkbox" else values


def _control(values: tuple[Any, ...]) -> Control:
    if all(_rules.is_flag(v) for v in values) and len(values) == 2:
        return "checkbox"
    numbers = all(isinstance(v, int | float) and not _rules.is_flag(v) for v in values)
    ascending = numbers and list(values) == sorted(values)
    return "slider" if ascending and len(values) > 2 else "menu"


def check_listed(settings: object) -> None:
    """Refuse what is not a list of settings.

    Raises:
        SettingError: ``settings`` is a single one, or cannot be looped over.
    """
    if isinstance(settings, str | Setting):
        raise SettingError(f"settings must be a list: [{brief(settings)}]")
    if isinstance(settings, Mapping):  # its values would be left out without a word
        raise SettingError(
            f"settings must be a list, not {brief(settings)}; to choose the values: "
            "[perfkit.setting('num_workers', [0, 1, 2])]"
        )
    try:
        iter(settings)  # type: ignore[call-overload]
    except TypeError:  # also an array or a tensor of one number, and a class
        raise SettingError(
            f"settings must be a list of names, not {brief(settings)}; [] for none"
        ) from None


def check_mapping(name: str, values: object) -> None:
    """Refuse what is not a mapping from settings to values.

    Raises:
        SettingError: ``values`` is of another type.
    """
    if not isinstance(values, Mapping):
        raise SettingError(
            f"{name} must be a mapping from settings to values, not {brief(values)}: try "
            "{'num_workers': 2}"
        )


def resolve(settings: Sequence[str | Setting]) -> tuple[Setting, ...]:
    """Names and settings → settings.

    Raises:
        SettingError: a name is not in the catalogue (the message has the nearest one), or is given
            twice.
    """
    check_listed(settings)
    found: dict[str, Setting] = {}
    for item in settings:
        if isinstance(item, Setting):
            one = item
        elif isinstance(item, str):
            if item not in CATALOGUE:
                raise SettingError(
                    f"no setting is called {brief(item)}{near(item, CATALOGUE)}; "
                    f"declare your own with setting({brief(item)}, [values])"
                )
            one = CATALOGUE[item]
        else:
            raise SettingError(
                f"{brief(item)} is not a setting: give a name or setting(name, values)"
            )
        if one.name in found:
            raise SettingError(f"the setting {one.name!r} is given twice")
        found[one.name] = one
    return tuple(found.values())


def check_values(
    settings: Sequence[Setting], values: Mapping[str, Any], machine: Machine
) -> dict[str, Any]:
    """The value of every setting for one run: the given ones, checked, and defaults for the rest.

    Raises:
        SettingError: a name is unknown, a value is invalid or not available on this machine, or two
            values cannot be combined.
    """
    known = {s.name: s for s in settings}
    for name in values:
        if name not in known:
            elsewhere = " (it is in the catalogue: add it to settings=[…])"
            alike = near(name, known) if isinstance(name, str) else ""
            raise SettingError(
                f"no setting is called {brief(name)} here{alike}"
                f"{elsewhere if name in CATALOGUE else ''}"
            )
    chosen = {}
    for name, one in known.items():
        value = one.check(values.get(name, one.default))
        reason = one.unavailable(value, machine)
        if reason is not None:
            raise SettingError(f"{name}={value!r} is not available on this machine: {reason}")
        chosen[name] = value
    reason = clash(settings, chosen)
    if reason is not None:
        raise SettingError(f"these do not go together: {reason}")
    return chosen


def clash(settings: Sequence[Setting], values: Mapping[str, Any]) -> str | None:
    """Why these values cannot be combined; None if they can."""
    known = _of_catalogue(settings, values)
    return next(filter(None, (CATALOGUE[name].clash(known) for name in known)), None)


def conflicts(
    settings: Sequence[Setting], values: Mapping[str, Any], machine: Machine
) -> tuple[str, ...]:
    """Notes on these values: settings without effect, and each value's own note."""
    defaults = {name: one.default for name, one in CATALOGUE.items()}
    told = _clashes.without_effect(_of_catalogue(settings, values), defaults)
    notes = (one.note(values[one.name], machine) for one in settings if one.name in values)
    return (*told, *(note for note in notes if note))


def _of_catalogue(settings: Sequence[Setting], values: Mapping[str, Any]) -> dict[str, Any]:
    return {s.name: values[s.name] for s in settings if s.name in CATALOGUE and s.name in values}
