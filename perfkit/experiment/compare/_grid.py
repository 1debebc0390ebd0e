"""The points of a grid, and those that are skipped, with the reason."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.base.arguments import brief
from perfkit.base.errors import SettingError
from perfkit.base.machine import Machine
from perfkit.experiment.settings import (
    CATALOGUE,
    Setting,
    check_listed,
    check_mapping,
    check_values,
    conflicts,
    resolve,
    setting,
)
from perfkit.experiment.settings._declared import declared, words

# Nobody waits for one run each of more points than this.
_MOST_POINTS = 2000


@dataclass(frozen=True)
class Skipped:
    """A point that does not run.

    Attributes:
        values: values of the grid's settings.
        reason: why it does not run.
    """

    values: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Grid:
    """The points that a sweep runs.

    Attributes:
        settings: all settings that the workload gets.
        names: of the varied settings, in the grid's order.
        points: the value of every setting, for each point, in the grid's order.
        skipped: the other points of the grid.
    """

    settings: tuple[Setting, ...]
    names: tuple[str, ...]
    points: tuple[dict[str, Any], ...]
    skipped: tuple[Skipped, ...]

    def varied(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The part of these values that the grid varies."""
        return {name: values[name] for name in self.names}


def grid_of(
    values: Mapping[str, Sequence[Any]],
    settings: Sequence[str | Setting],
    base: Mapping[str, Any],
    machine: Machine,
) -> Grid:
    """All combinations of the values; ``base`` has the values of settings that do not vary.

    Raises:
        SettingError: the grid is not a mapping of lists, a value is invalid, a setting is in both
            ``base`` and the grid, or there are too many points.
    """
    if not isinstance(values, Mapping) or not values:
        raise SettingError(
            f"a grid is a mapping from settings to lists, not {brief(values)}: "
            "try {'num_workers': [0, 1, 2]}"
        )
    check_listed(settings)
    check_mapping("base", base)
    varied = [setting(name, offered) for name, offered in values.items()]
    names = tuple(one.name for one in varied)
    both = [name for name in base if name in names]
    if both:
        raise SettingError(f"{brief(both[0])} is in the grid and in base: leave it out of one")
    others: list[str | Setting] = []
    given: Iterable[Any] = settings
    for one in given:
        if not isinstance(one, str | Setting):
            resolve([one])  # refuses it
        elif (one if isinstance(one, str) else one.name) not in names:
            others.append(one)
    known = (*declared(others, base), *varied)
    n = 1
    for one in varied:
        n *= len(one.values)
    if n > _MOST_POINTS:
        raise SettingError(f"the grid has {n:,} points, more than {_MOST_POINTS:,}: vary less")
    points: list[dict[str, Any]] = []
    skipped: list[Skipped] = []
    kept: dict[str, tuple[dict[str, Any], dict[str, str]]] = {}
    for combination in itertools.product(*(one.values for one in varied)):
        here = dict(zip(names, combination, strict=True))
        try:
            chosen = check_values(known, {**base, **here}, machine)
        except SettingError as error:
            skipped.append(Skipped(here, str(error)))
            continue
        idle = _without_effect(conflicts(known, chosen, machine), names)
        acting = key({**chosen, **{name: CATALOGUE[name].default for name in idle}})
        twin = kept.setdefault(acting, (chosen, idle))
        if twin[0] is not chosen:
            why = "; ".join((idle or twin[1]).values())
            same = words({name: twin[0][name] for name in names})
            skipped.append(Skipped(here, f"{why}: the same as {same}"))
            continue
        points.append(chosen)
    if not points:
        raise SettingError(f"no point of the grid can run here: {skipped[0].reason}")
    return Grid(tuple(known), names, tuple(points), tuple(skipped))


def key(values: Mapping[str, Any]) -> str:
    """A text that is equal for equal values, also after a round trip through JSON."""
    return json.dumps(dict(values), sort_keys=True)


def _without_effect(notes: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Settings without effect beside the others, each with the note that says so."""
    found = {}
    for note in notes:
        matched = re.match(r"(\w+)\b.* has no effect", note)
        if matched and matched[1] in names and matched[1] in CATALOGUE:
            found[matched[1]] = note
    return found
