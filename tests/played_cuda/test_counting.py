"""What `make cuda-coverage` counts, and which of it it calls CUDA's; needs no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

COUNTING = Path(__file__).parent / "counting"

MODULE = '''\
"""Its docstring."""

from __future__ import annotations

import os


def time(device: str) -> str:
    """Another."""
    match device:
        case "cpu":
            kind = "host"
        case _:
            kind = "device"
    if device != "cuda":
        return kind
    if not kind:
        raise ValueError
    return "on a GPU"


def forked() -> None:
    if os.fork() == 0:
        time("meta")
        os._exit(0)
    os.wait()


def elsewhere() -> None:
    print()
'''
BODY = "import kit.parts, sys; [getattr(kit.parts, name)(*args) for name, *args in {calls}]"


@pytest.fixture
def coverage(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(COUNTING))
    import cuda_coverage

    return cuda_coverage


def _package(folder: Path) -> Path:
    package = folder / "kit"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text(MODULE)
    (package / "unused.py").write_text("nobody = 'imports it'\n")
    return package


def _run(package: Path, file: Path, calls: list[tuple[str, ...]]) -> None:
    begin = "from counted_lines import count; from pathlib import Path; count(*map(Path, {}))"
    code = [begin.format([str(file), str(package)]), BODY.format(calls=calls)]
    places = os.pathsep.join([str(COUNTING), str(package.parent)])
    subprocess.run(
        [sys.executable, "-S", "-c", "\n".join(code)], check=True, env={"PYTHONPATH": places}
    )


def test_lines_of_all_processes_are_added_up_also_of_a_fork_that_leaves_at_once(
    tmp_path: Path, coverage: ModuleType
) -> None:
    package, file = _package(tmp_path), tmp_path / "cpu" / "lines"
    _run(package, file, [("forked",)])
    found = coverage.ran(file, package)
    imported, of_the_fork = {5, 8, 22, 29}, {10, 14, 15, 16}
    assert found == {"parts.py": imported | {23, 24, 25, 26} | of_the_fork}
    _run(package, file, [("time", "cpu")])
    assert coverage.ran(file, package) == {"parts.py": found["parts.py"] | {12}}


def test_what_only_a_gpu_reaches_is_cuda_s_also_behind_a_return_and_where_it_ran_nowhere(
    tmp_path: Path, coverage: ModuleType, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    package = _package(tmp_path)
    monkeypatch.setattr(coverage, "PACKAGE", package)
    _run(package, tmp_path / "cpu", [("forked",), ("time", "cpu")])
    _run(package, tmp_path / "played", [("time", "cuda"), ("elsewhere",)])
    coverage.main(tmp_path / "cpu", tmp_path / "played", [])
    table, _, nowhere = capsys.readouterr().out.partition("\nRan nowhere:\n")
    assert "| parts.py | 3 | 2 (67%) | 1 |" in table
    assert nowhere == "parts.py:18: raise ValueError\n"
