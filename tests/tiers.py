"""What is run when: draws of calibrations, cells of the lessons (nbval), and who runs what."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# Cells measure for this share of their budgets: the tests compare facts, which do not need them.
BUDGET_SCALE = "0.04"


def draws(full: int, few: int) -> int:
    """How many times a calibration draws: ``full`` under ``make test-long``."""
    return full if "PERFKIT_TEST_LONG" in os.environ else few


@functools.cache
def _shares(path: Path) -> bool:
    """Whether tests of this file share a fixture of their module, or one of each result."""
    source = path.read_text(encoding="utf-8")
    return 'pytest.fixture(scope="module"' in source or "from real_results import" in source


def _is_cell(item: pytest.Item) -> bool:
    return item.path.suffix == ".ipynb"


def _scope(nodeid: str, rootpath: Path) -> str:
    """What goes to one worker: a whole notebook, or one test with all its parameters.

    A parameter that is the name of a notebook stands for itself: that test runs the notebook.
    A file whose tests share what is dear to make goes whole, so that it is made once.
    """
    path, _, name = nodeid.partition("::")
    if path.endswith(".ipynb") or _shares(rootpath / path):
        return path
    return nodeid if name.endswith(".ipynb]") else f"{path}::{name.partition('[')[0]}"


def longest_first(items: list[Any], rootpath: Path) -> list[Any]:
    """The lessons among the slow tests, then the rest: all workers end at about the same time.

    A lesson keeps its core busy, while most slow tests wait, for a rank that hangs, say.
    """
    lesson, slow, other = range(3)
    kinds: dict[str, int] = {}
    scopes = [_scope(item.nodeid, rootpath) for item in items]
    for item, scope in zip(items, scopes, strict=True):
        is_slow = _is_cell(item) or item.get_closest_marker("slow") is not None
        kind = lesson if _is_cell(item) and not _is_solution(item.path) else other - is_slow
        kinds[scope] = min(kind, kinds.get(scope, kind))
    places: dict[str, tuple[bool, float, int]] = {}
    for kind in (lesson, slow, other):
        alike = [scope for scope in kinds if kinds[scope] == kind]
        for n, scope in enumerate(alike):
            places[scope] = (kind == other, n / len(alike), kind)
    order = sorted(range(len(items)), key=lambda n: places[scopes[n]])
    return [items[n] for n in order]


class ByFunction(LoadScopeScheduling):
    """A worker gets what :func:`_scope` tells."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid, self.config.rootpath)

    def schedule(self) -> None:
        """A worker begins a test when it knows the next one, or that there is none."""
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Deal out anew what a crashed worker had before it.

        xdist would deal out what it has run, too, and wait for ever for that to be run.
        """
        given = self.assigned_work.pop(node).items()
        left = [(scope, test) for scope, unit in given for test, over in unit.items() if not over]
        if not left:
            return None
        for scope, test in left[1:]:
            self.workqueue.setdefault(scope, {})[test] = False
        for other in self.assigned_work:
            self._reschedule(other)
        return left[0][1]


def _is_solution(path: Path) -> bool:
    return path.parent.name == "solutions"


class Tiers:
    """A plugin: small budgets for cells, and a failed one is run again with those before it."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path, parent: Any) -> Iterator[None]:
        found = yield
        if file_path.suffix != ".ipynb" or not found:
            return found
        # only here: nbval takes seconds to import, and most runs collect no notebook
        from lesson_cells import with_prepared_kernel

        return with_prepared_kernel(found, file_path, parent, is_solution=_is_solution(file_path))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: Any) -> Generator[None, Any, Any]:
        """Pytest has left out what did not fail by then: a notebook is collected once more."""
        report = yield
        is_notebook = isinstance(collector, pytest.File) and collector.path.suffix == ".ipynb"
        if is_notebook and report.result and collector.config.getoption("lf", False):
            report.result = list(collector.collect())
        return report

    def pytest_sessionfinish(self) -> None:
        if (cells := sys.modules.get("lesson_cells")) is not None:
            cells.end()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Iterator[None]:
        found = list(items)
        yield
        if config.getoption("lf", False):  # absent without the cache
            wanted = {item.path for item in items if _is_cell(item)}
            kept = set(items)
            items[:] = [item for item in found if item in kept or item.path in wanted]
        if hasattr(config, "workerinput"):
            items[:] = longest_first(items, config.rootpath)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            if _is_cell(item):
                patch.setenv("PERFKIT_BUDGET_SCALE", BUDGET_SCALE)
            return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> ByFunction:
        return ByFunction(config, log)
