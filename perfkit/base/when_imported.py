"""Call something as soon as the running program has imported a package."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, then: Callable[[], None]) -> Callable[[], None]:
    """Call ``then()``, which must not raise, once the package is imported; at once if it is.

    The package sees its own loader: nothing of this stays in its spec.

    Returns:
        How to stop waiting.
    """
    if name in sys.modules:
        then()
        return lambda: None
    finder = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    return finder.stop


class _Finder(MetaPathFinder):
    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then
        self._looking = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._imported)
        return spec

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _imported(self) -> None:
        self.stop()
        self._then()


class _Loader(Loader):
    """Stands in for a package's loader until the package has been executed."""

    def __init__(self, loader: Any, done: Callable[[], None]) -> None:
        self._loader = loader
        self._done = done

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        __tracebackhide__ = True
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._done()
