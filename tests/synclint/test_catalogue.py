"""Each entry's code behaves as it says: the line is reported, its cure and its twin are not."""

from __future__ import annotations

from typing import Any

import pytest
from snippets import compiled, namespace

from perfkit.synclint.catalogue import CATALOGUE, Entry
from perfkit.synclint.entry import entry_of
from perfkit.synclint.find import Syncs, find_syncs, syncs_of
from perfkit.synclint.watch import Watch

# 0.01 s each alone, 0.3 s after the tests of other rooms; why is not known
pytestmark = pytest.mark.slow


def _run(code: str) -> tuple[Syncs, set[str]]:
    program = compiled(code)
    with Watch() as watch:
        exec(program, namespace())
    # the names are made in the watch, and some are copied to the device
    mine = program.co_filename
    syncs = Syncs(sync for sync in syncs_of(watch) if sync.file == mine)
    return syncs, {entry_of(one) for one, _ in watch.found() if one.site.file == mine}


def _entries(field: str) -> list[Any]:
    return [pytest.param(n, e, id=n) for n, e in CATALOGUE.items() if getattr(e, field)]


@pytest.mark.parametrize(("name", "entry"), _entries("slow"))
def test_what_waits_is_reported_under_its_entry(name: str, entry: Entry) -> None:
    syncs, entries = _run(entry.slow)
    assert len(syncs) == 1, syncs
    assert entries >= {name}
    assert syncs[0].code == entry.slow.splitlines()[syncs[0].line - 1].strip()
    assert entry.why in syncs[0].why
    assert syncs[0].instead


@pytest.mark.parametrize(("name", "entry"), _entries("instead"))
def test_the_cure_is_not_reported(name: str, entry: Entry) -> None:
    assert _run(entry.instead)[0] == []


@pytest.mark.parametrize(("name", "entry"), _entries("alike"))
def test_what_looks_alike_is_not_reported(name: str, entry: Entry) -> None:
    assert _run(entry.alike)[0] == []


def test_the_names_of_the_snippets_are_themselves_clean() -> None:
    assert {sync.kind for sync in find_syncs(namespace)} == {"copy"}
