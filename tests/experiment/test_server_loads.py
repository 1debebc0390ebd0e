"""What the prepared process imports before it forks."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

import pytest

if sys.platform != "linux":
    pytest.skip("the prepared process is Linux's", allow_module_level=True)

from perfkit.experiment import Session
from perfkit.experiment.process import _process, _server


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


@pytest.mark.usefixtures("programs_are_forked")
def test_what_a_run_could_not_wait_for_is_imported_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each run of a sweep imported torch._dynamo by itself, which takes a second of a core."""

    def workload(s: object) -> Iterator[int]:
        import sys

        print("mailcap" in sys.modules, "mailbox" in sys.modules)
        yield 1

    workload.__module__ = "__main__"
    monkeypatch.setattr(_process, "shared", _process._Shared())
    stages = (_process._NEEDED, ("mailcap",), ("mailbox",))
    monkeypatch.setattr(_process.Server.__init__, "__defaults__", (None, stages))
    with Session(workload, seconds=0.1, warmup=0) as session:
        said = [session.run().output.split() for _ in range(3)]
    assert said[1:] == [["True", "True"]] * 2, said
