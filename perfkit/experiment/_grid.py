"""The points of a grid: which there are, and which are skipped, with the reason."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.errors import SettingError
from perfkit.experiment._declared import declared, words
from perfkit.experiment.settings import CATALOGUE, Setting, check_values, conflicts, setting
from perfkit.machine import Machine

# Beyond this nobody waits for one run of each.
_MOST_POINTS = 2000


@dataclass(frozen=True)
class Skipped:
    """A point that is not run.

    Attributes:
        values: of the grid's settings.
        reason: why.
    """

    values: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Grid:
    """What a sweep runs.

    Attributes:
        settings: all that the workload is called with.
        names: of the settings that the grid varies, in its order.
        points: the value of every setting, for each point, in the grid's order.
        skipped: the other points of the grid.
    """

    settings: tuple[Setting, ...]
    names: tuple[str, ...]
    points: tuple[dict[str, Any], ...]
    skipped: tuple[Skipped, ...]

    def varied(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Of these values those that the grid varies."""
        return {name: values[name] for name in self.names}


def grid_of(
    values: Mapping[str, Sequence[Any]],
    settings: Sequence[str | Setting],
    base: Mapping[str, Any],
    machine: Machine,
) -> Grid:
    """All combinations of the values; ``base`` are those of settings that the grid leaves alone.

    Raises:
        SettingError: no mapping of lists, a value that cannot be, a setting in ``base`` and in
            the grid, or more points than anybody waits for.
    """
    if not isinstance(values, Mapping) or not values:
        raise SettingError(
            f"a grid is a mapping of lists by setting, not {values!r:.80}: "
            "take {'num_workers': [0, 1, 2]}"
        )
    varied = [setting(name, offered) for name, offered in values.items()]
    names = tuple(one.name for one in varied)
    both = [name for name in base if name in names]
    if both:
        raise SettingError(f"{both[0]!r} is in the grid and in base: leave it out of one")
    others = [one for one in settings if (one if isinstance(one, str) else one.name) not in names]
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
    """A text that is the same for the same values, also after a way through JSON."""
    return json.dumps(dict(values), sort_keys=True)


def _without_effect(notes: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Settings that do nothing beside the others, and the note that says so."""
    found = {}
    for note in notes:
        matched = re.match(r"(\w+)\b.* has no effect", note)
        if matched and matched[1] in names and matched[1] in CATALOGUE:
            found[matched[1]] = note
    return found
