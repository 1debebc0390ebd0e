"""Each rule's code behaves as it says: the line is reported, its example and its twin are not."""

from __future__ import annotations

import pytest
from catalogue_code import ALIKE, WAITS
from snippets import compiled, namespace

from perfkit.synclint.catalogue import CATALOGUE
from perfkit.synclint.find import SyncLines, find_syncs, syncs_of
from perfkit.synclint.find import _entry_of as entry_of
from perfkit.synclint.watch import SyncWatch

# 0.01 s each alone, 0.3 s after the tests of other rooms; why is not known
pytestmark = pytest.mark.slow


def _run(code: str) -> tuple[SyncLines, set[str]]:
    program = compiled(code)
    with SyncWatch() as watch:
        exec(program, namespace())
    # the names are made in the watch, and some are copied to the device
    mine = program.co_filename
    syncs = SyncLines(sync for sync in syncs_of(watch) if sync.file == mine)
    return syncs, {entry_of(one) for one, _ in watch.noted_waits() if one.site.file == mine}


@pytest.mark.parametrize(("name", "code"), WAITS.items(), ids=WAITS)
def test_what_waits_is_reported_under_its_rule(name: str, code: str) -> None:
    entry = CATALOGUE[name]
    syncs, entries = _run(code)
    assert len(syncs) == 1, syncs
    assert entries >= {name}
    assert syncs[0].code == code.splitlines()[syncs[0].line - 1].strip()
    assert entry.why in syncs[0].why
    assert entry.instead in syncs[0].instead


@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if entry.example])
def test_the_example_is_not_reported(name: str) -> None:
    assert _run(CATALOGUE[name].example)[0] == []


@pytest.mark.parametrize("code", ALIKE.values(), ids=ALIKE)
def test_what_looks_alike_is_not_reported(code: str) -> None:
    assert _run(code)[0] == []


@pytest.mark.parametrize(
    ("line", "example"),
    [
        ("total += loss.item()", "total += loss.detach()"),
        ("total += loss.item() * len(x)  # of all", ""),
        ("total += x.abs().mean().item() * 4", "total += x.abs().mean().detach() * 4"),
        ("total += (x.argmax(1) == target).sum().item()", ""),
        ("total += (mask == True).sum().item()", "total += (mask == True).sum().detach()"),
        ("kept.append(loss.item())", "kept.append(loss.detach())"),
        ("kept.append(round(loss.item(), 3))", ""),
        ("kept[int(n.item())] = 1", ""),
        ("first = loss.item()", ""),
    ],
)
def test_a_line_that_only_collects_a_value_is_shown_without_the_wait(
    line: str, example: str
) -> None:
    program = compiled(line)
    with SyncWatch() as watch:
        names = namespace() | {"kept": [0] * 9}
        exec(program, names)
    (sync,) = (s for s in syncs_of(watch) if s.file == program.co_filename)
    assert sync.example == (example or CATALOGUE["item"].example)
    assert _run(sync.example.replace("kept", "[]"))[0] == []


def test_the_names_of_the_snippets_are_themselves_clean() -> None:
    assert {sync.kind for sync in find_syncs(namespace)} == {"copy"}
