"""How tests are dealt out, and what is run again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tiers import ByFunction, Tiers, longest_first


def test_what_shares_a_kernel_or_a_fixture_stays_together(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("@pytest.fixture\ndef made(): ...\n")
    (tmp_path / "test_y.py").write_text('@pytest.fixture(scope="module")\ndef made(): ...\n')
    (tmp_path / "test_z.py").write_text("from real_results import result\n")
    deal = ByFunction.__new__(ByFunction)
    deal.config = SimpleNamespace(rootpath=tmp_path)  # type: ignore[assignment]
    names = {
        "notebooks/a.ipynb::Cell 0": "notebooks/a.ipynb",
        "notebooks/a.ipynb::Cell 12": "notebooks/a.ipynb",
        "test_x.py::test_one": "test_x.py::test_one",
        "test_x.py::test_two[a[b]::c]": "test_x.py::test_two",
        "test_x.py::TestIt::test_three[1]": "test_x.py::TestIt::test_three",
        "test_x.py::test_run[00-a.ipynb]": "test_x.py::test_run[00-a.ipynb]",
        "test_y.py::test_one": "test_y.py",
        "test_y.py::test_two[1]": "test_y.py",
        "test_z.py::test_one[Profile]": "test_z.py",
    }
    assert {name: deal._split_scope(name) for name in names} == names


def _after(items: list[Any], left: list[Any], last_failed: bool) -> list[Any]:
    config: Any = SimpleNamespace(getoption=lambda name, default: last_failed)
    seen = list(items)
    hook = Tiers().pytest_collection_modifyitems(config, seen)
    next(hook)
    seen[:] = left  # what pytest deselects meanwhile
    with pytest.raises(StopIteration):
        next(hook)
    return seen


class Item:
    def __init__(self, path: str) -> None:
        self.path = Path(path)


def test_a_cell_is_run_again_with_the_other_cells_of_its_notebook() -> None:
    items = [Item(path) for path in ("test_a.py", "test_a.py", "a.ipynb", "a.ipynb", "b.ipynb")]
    left = [items[1], items[3]]
    assert _after(items, left, last_failed=True) == items[1:4]
    assert _after(items, left, last_failed=False) == left


class Notebook(pytest.File):
    def collect(self) -> Any:
        return iter(["Cell 0", "Cell 1"])


@pytest.mark.parametrize(("last_failed", "left"), [(True, 2), (False, 1)])
def test_pytest_leaves_out_no_cell_of_a_notebook_that_failed(
    request: pytest.FixtureRequest, tmp_path: Path, last_failed: bool, left: int
) -> None:
    (tmp_path / "a.ipynb").touch()
    notebook = Notebook.from_parent(request.session, path=tmp_path / "a.ipynb")
    notebook.config = SimpleNamespace(getoption=lambda name, default: last_failed)  # type: ignore[assignment]
    hook = Tiers().pytest_make_collect_report(notebook)
    next(hook)
    with pytest.raises(StopIteration) as end:
        hook.send(SimpleNamespace(result=["Cell 1"]))
    assert len(end.value.value.result) == left


class Timed:
    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid, self.path, self.marks = nodeid, Path(nodeid.partition("::")[0]), marks

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def test_what_takes_longest_begins_first_and_what_belongs_together_stays_so(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_a.py").write_text("")
    (tmp_path / "test_b.py").write_text('@pytest.fixture(scope="module")\ndef made(): ...\n')
    items = [
        Timed("notebooks/solutions/a.ipynb::Cell 0"),
        Timed("test_a.py::test_quick"),
        Timed("test_a.py::test_some[1]"),
        Timed("test_a.py::test_some[2]", "slow"),
        Timed("test_b.py::test_quick"),
        Timed("test_b.py::test_slow", "slow"),
        Timed("notebooks/a.ipynb::Cell 0"),
        Timed("notebooks/a.ipynb::Cell 1"),
        Timed("notebooks/b.ipynb::Cell 0"),
    ]
    order = [items.index(one) for one in longest_first(items, tmp_path)]
    assert order == [6, 7, 0, 2, 3, 8, 4, 5, 1]  # the second lesson between two slow ones


class Kernel:
    """In place of a kernel: it remembers what it ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.is_stopped = False

    def is_alive(self) -> bool:
        return not self.is_stopped

    def execute_cell_input(self, source: str, allow_stdin: bool) -> str:
        self.ran.append(source)
        return "message"

    def await_reply(self, message: str, timeout: float) -> None: ...

    def await_idle(self, message: str, timeout: float) -> None: ...

    def stop(self) -> None:
        self.is_stopped = True


def test_solutions_share_a_kernel_that_has_forgotten_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lesson_cells import Solution  # nbval takes seconds to import

    started: list[Kernel] = []

    def start(self: Any) -> None:
        self.kernel = Kernel()
        started.append(self.kernel)

    monkeypatch.setattr(Solution.__base__, "setup", start)
    monkeypatch.setattr(Solution, "setup_sanitize_files", lambda self: None)
    monkeypatch.setattr(Solution, "shared", None)
    one, two, three = (Solution.__new__(Solution) for _ in range(3))
    for each in (one, two, three):
        each.timed_out = each is two
        each.setup()
        each.teardown()
    assert one.kernel is two.kernel is started[0]
    assert started[0].ran == ["%reset -f"]
    assert started[0].is_stopped, "a cell hung in it"
    assert three.kernel is started[1]
    Solution.end()
    assert started[1].is_stopped
    assert len(started) == 2


def test_the_grammar_of_addresses_is_left_out_before_nbval_comes() -> None:
    assert sys.modules["rfc3987_syntax"] is None


def test_who_runs_no_notebook_does_not_wait_for_nbval() -> None:
    code = "import sys; sys.path.insert(0, 'tests'); import tiers; print('nbval' in sys.modules)"
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


# In a lesson's kernel: what needs an environment of its own is a program of its own.
SERVERS = """
import time
import psutil
from perfkit.experiment.process._process import Server
forked, program = Server(), Server({"MALLOC_ARENA_MAX": "1"})
try:
    lines = []
    for one in (forked, program):
        process = psutil.Process(one.pid)
        while not process.cmdline():  # it is between its fork and its program
            time.sleep(0.01)
        lines.append(process.cmdline()[-1])
    assert [line.endswith("forked_kernels.py") for line in lines] == [True, False], lines
    assert psutil.Process(forked.pid).ppid() == os.getpid()
    assert forked.wait_ready(60), forked.last_words()
finally:
    forked.close(), program.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no pid descriptors")
def test_a_lessons_kernel_is_forked_with_torch_and_ends_with_what_forked_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from forked_kernels import Prepared
    from jupyter_client.manager import start_new_kernel
    from jupyter_client.provisioning import local_provisioner

    prepared = Prepared()
    monkeypatch.setattr(local_provisioner, "launch_kernel", prepared.kernel)
    monkeypatch.setenv("FORKED", "yes")
    manager, client = start_new_kernel(cwd=str(tmp_path))
    try:
        asked = (
            "import os, sys; own = [n for n in sys.modules if n.partition('.')[0] == 'perfkit']\n"
            "assert 'torch' in sys.modules and not own, own\n"
            f"assert (os.environ['FORKED'], os.getcwd()) == ('yes', {str(tmp_path)!r})\n"
            "assert '' in sys.path and len(sys.argv) == 3, (sys.path, sys.argv)"
        )
        for code in (asked, SERVERS):
            reply = client.execute_interactive(code, timeout=120)
            assert reply["content"]["status"] == "ok", reply
        kernel = manager.provisioner.process
        assert psutil.Process(kernel.pid).ppid() != os.getpid()
        assert manager.provisioner.pgid == kernel.pid, "its group may be sent a SIGKILL"
        assert kernel.poll() is None
        waiting = psutil.Process(kernel.pid).children()
        assert waiting, "the next servers"
        prepared.end()
        assert kernel.wait(timeout=30) == 0
        assert psutil.wait_procs(waiting, timeout=30)[1] == []
    finally:
        client.stop_channels()
        prepared.end()
        manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_a_worker_that_crashes_costs_one_test_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import tiers\ndef pytest_configure(config):\n config.pluginmanager.register(tiers.Tiers())"
    )
    crashes = "import os\n" + "".join(
        f"def test_{n}(): {'os._exit(1)' if n in (20, 39) else 'pass'}\n" for n in range(40)
    )
    (tmp_path / "test_crashes.py").write_text(crashes)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n2", "--no-loadscope-reorder", str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "2 failed, 38 passed" in run.stdout
