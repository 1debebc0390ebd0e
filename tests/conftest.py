"""How tests run, and a check that each leaves nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import forked_programs
import pytest
from forked_programs import Programs
from hypothesis import settings
from tiers import Tiers

# Without what tests add, such as a mark by which one finds the processes that it left behind.
_AT_FIRST = dict(os.environ)

# the time of an example depends on the machine's load
settings.register_profile("perfkit", deadline=None)
settings.load_profile("perfkit")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores: many tests wait for a kernel, a page or a sleeping child."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Reader data of tests and their lessons goes to a separate folder.

    A shell that starts the tests in the background makes them and their child processes ignore
    Ctrl-C, which tests of Ctrl-C need. A worker of xdist is a ``python -c``, whose ``<string>``
    would count as the user's own code.
    """
    if hasattr(config, "workerinput"):
        sys.argv[:] = config.workerinput["mainargv"]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Tiers())
    home = tempfile.TemporaryDirectory(prefix="perfkit-home-")
    # the second has the list of trusted notebooks
    mine = {"PERFKIT_HOME": home.name, "JUPYTER_DATA_DIR": f"{home.name}/jupyter"}
    before = {name: os.environ[name] for name in mine if name in os.environ}
    os.environ.update(mine)

    def undo() -> None:
        for name in mine:
            os.environ.pop(name, None)
        os.environ.update(before)
        home.cleanup()

    config.add_cleanup(undo)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Torch and the tests themselves stay: to look through them again and again takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """``-m gpu`` imports nothing without such a test: a GPU's machine may have no browser."""
    if config.option.markexpr != "gpu":
        return None
    one = [collection_path] if collection_path.is_file() else collection_path.rglob("test_*.py")
    return None if any("mark.gpu" in file.read_text(encoding="utf-8") for file in one) else True


def pytest_collection_finish() -> None:
    """Put what lives by now out of the garbage collector's sight, to the end.

    With torch and all tests imported these are some 750,000 objects. Whatever asks the collector
    for its objects, or collects, as most of perfkit's instruments do once, would look at each.
    """
    gc.collect()
    gc.freeze()


def _torch_state() -> dict[str, int]:
    """Counts of everything that perfkit may enable in torch and must disable again."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "optim"):
        return {}
    from torch.nn.modules import module
    from torch.optim import optimizer

    return {
        "profiler running": int(torch._C._autograd._profiler_enabled()),
        "global optimizer pre-hooks": len(optimizer._global_optimizer_pre_hooks),
        "global optimizer post-hooks": len(optimizer._global_optimizer_post_hooks),
        "global forward pre-hooks": len(module._global_forward_pre_hooks),
        "global forward hooks": len(module._global_forward_hooks),
        "global backward hooks": len(module._global_backward_hooks),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
    }


def _listeners() -> dict[str, int]:
    """Of perfkit, to functions of torch that are replaced while it listens; and those replaced."""
    compat = sys.modules.get("perfkit.base.torch_compat")
    if compat is None or "torch" not in sys.modules:
        return {}
    from perfkit.base.stand_in import Listeners
    from tests.left_running import replaced

    found = {name: one for name, one in vars(compat).items() if isinstance(one, Listeners)}
    left = {name.strip("_"): len(one._begins) for name, one in found.items() if one._begins}
    return left | {f"{name} replaced": 1 for name in replaced()}


def _threads() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("perfkit")}


@pytest.fixture
def python_handles_ctrl_c() -> Iterator[None]:
    """Ctrl-C raises as in a fresh Python, and does so after the test, too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def _programs() -> Iterator[Programs]:
    found = Programs(lambda _: True, [sys.executable, forked_programs.__file__], _AT_FIRST)
    yield found
    found.end()


@pytest.fixture
def programs_are_forked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Python programs begin with torch loaded: for tests of what a program does, not of its start.

    See :mod:`forked_programs`.
    """
    if sys.platform != "linux":
        yield
        return
    with request.getfixturevalue("_programs").replaced():
        yield


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """No profiler, hook, mode, listener or thread of perfkit outlives the test that started it."""
    threads_before, collects = _threads(), gc.isenabled()
    yield
    left = {name: n for name, n in _torch_state().items() if n}
    if collects and not gc.isenabled():
        gc.enable()
        left["garbage collector off"] = 1
    if _listeners():
        gc.collect()  # an iterator that nobody reads to its end stops with its last reference
        left |= _listeners()
    deadline = time.monotonic() + 2.0  # a thread told to stop may need a moment
    while (threads := _threads() - threads_before) and time.monotonic() < deadline:
        time.sleep(0.02)
    if threads:
        left["threads"] = len(threads)
    assert not left, f"left behind: {left} {sorted(threads)}"
