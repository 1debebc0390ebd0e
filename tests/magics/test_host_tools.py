"""``%lprun``, ``%memit`` and ``%mprun``: passed on to their packages, or a hint what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from IPython.core.error import UsageError

if TYPE_CHECKING:
    from conftest import Notebook

FUNCTION = "def f(n):\n    a = [0] * n\n    return len(a)\n"


@pytest.fixture
def kit(notebook: Notebook) -> Notebook:
    notebook.shell.run_line_magic("load_ext", "perfkit")
    return notebook


def test_lprun_times_the_lines_of_a_notebook_function(kit: Notebook) -> None:
    kit.run(FUNCTION)
    profile = kit.run("%lprun -r -f f f(1000)").result.result
    ((_, _, name),) = profile.get_stats().timings
    assert name == "f"


def test_memit_says_the_peak(kit: Notebook) -> None:
    shown = kit.run("%memit -r 1 [0] * 10**6")
    assert shown.error is None
    assert "peak memory:" in shown.out
    assert "peak memory:" in kit.run("%%memit -r 1\nx = [0] * 10**6").out


@pytest.mark.filterwarnings("ignore:distutils Version classes")
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="memory_profiler needs distutils")
def test_mprun_takes_functions_of_files(
    kit: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_a_file.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(str(tmp_path))
    out = tmp_path / "lines.txt"
    shown = kit.run(f"import of_a_file\n%mprun -T {out} -f of_a_file.f of_a_file.f(1000)")
    assert shown.error is None
    assert "a = [0] * n" in out.read_text()


def test_a_python_without_distutils_gets_advice(
    kit: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.run(FUNCTION)
    for name in [m for m in sys.modules if m.partition(".")[0] == "distutils"]:
        monkeypatch.delitem(sys.modules, name)

    class Gone:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "distutils" or name.startswith("distutils."):
                raise ModuleNotFoundError("No module named 'distutils'", name="distutils")

    monkeypatch.setattr(sys, "meta_path", [Gone(), *sys.meta_path])
    error = kit.run("%mprun -f f f(10)").error
    assert isinstance(error, UsageError)
    assert "setuptools" in str(error)
    assert "%gpumem -f" in str(error)


def test_a_missing_package_is_one_line(kit: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "memory_profiler", None)
    error = kit.run("%memit 1").error
    assert isinstance(error, UsageError)
    assert "pip install '.[notebook]'" in str(error)


def test_they_are_not_imported_before_and_the_users_own_stay(notebook: Notebook) -> None:
    notebook.shell.run_line_magic("load_ext", "line_profiler")
    own = notebook.shell.find_line_magic("lprun")
    notebook.shell.run_line_magic("load_ext", "perfkit")
    assert notebook.shell.find_line_magic("lprun") == own
    notebook.shell.run_line_magic("unload_ext", "perfkit")
    assert notebook.shell.find_line_magic("lprun") == own
    assert notebook.shell.find_line_magic("memit") is None
