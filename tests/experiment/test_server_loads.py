"""What the prepared process imports before it forks."""

from __future__ import annotations

import gc
import os
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("the prepared process is Linux's", allow_module_level=True)

from perfkit.experiment.process import _server


def test_nothing_is_collected_while_it_imports_and_again_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, bool]] = []

    def load(name: str) -> None:
        seen.append((name, gc.isenabled()))
        if name == "missing":
            raise ImportError(name)

    monkeypatch.setattr(_server.importlib, "import_module", load)
    monkeypatch.setattr(_server.gc, "freeze", lambda: None)
    kernel = _server.Alive(os.getpid())
    try:
        _server._load(["missing", "there"], kernel)
    finally:
        kernel.close()
    assert seen == [("missing", False), ("there", False)]
    assert gc.isenabled()
