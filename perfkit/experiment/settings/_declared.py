"""The settings of an experiment, from declarations and from the values given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

from perfkit.base.arguments import brief
from perfkit.base.errors import SettingError
from perfkit.experiment.settings import CATALOGUE, Setting, resolve, setting
from perfkit.experiment.settings._given import nearest
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
            alike = nearest(name, CATALOGUE)
            hint = f" (did you mean {alike!r}?)" if alike else ""
            raise SettingError(
                f"{brief(name)} is in one arm only and has no default{hint}: give it in both, or "
                f"declare it: settings=[setting({brief(name)}, [values])]"
            )
        known[name] = setting(name, _distinct([arm[name] for arm in arms]))
    return tuple(known.values())


def check_names(
    workload: Callable[..., Any], settings: Sequence[str | Setting], *arms: Mapping[str, Any]
) -> None:
    """Refuse a name that is written like a setting, or like one that the workload reads.

    A name that nobody declares is the user's own setting; that its workload does not read it, but
    one that is written alike, shows a slip.

    Raises:
        SettingError: there is such a name.
    """
    read = _names_in(workload)
    known = {*CATALOGUE, *(one if isinstance(one, str) else one.name for one in settings)}
    for name in dict.fromkeys(name for arm in arms for name in arm):
        if not read or not isinstance(name, str) or name in read or name in known:
            continue
        if alike := nearest(name, sorted(known)) or nearest(name, sorted(read)):
            raise SettingError(
                f"the workload reads no setting called {brief(name)}; did you mean {alike!r}? If "
                f"not, declare it: settings=[setting({brief(name)}, [values])]"
            )


def _names_in(function: Any) -> set[str]:
    """All that a function, and those of its module that it calls, may call a setting."""
    found: set[str] = set()
    left, seen = [function], set()
    while left:
        one = left.pop()
        code = one if isinstance(one, CodeType) else getattr(one, "__code__", None)
        if not isinstance(code, CodeType) or id(code) in seen:
            continue
        seen.add(id(code))
        names = getattr(one, "__globals__", {})
        found |= {*code.co_names, *(text for text in code.co_consts if isinstance(text, str))}
        inner = [part for part in code.co_consts if isinstance(part, CodeType)]
        called = {name for part in (code, *inner) for name in part.co_names}
        left += [*inner, *(names[name] for name in called if name in names)]
    return found


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
