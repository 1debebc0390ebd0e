"""A program run by us finds itself as it would under ``python``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.base.errors import UsageError
from perfkit.base.program import Program, restored
from perfkit.base.when_imported import when_imported

TELLS = """\
import json, os, pickle, sys
import helper

class Own:
    pass

pickled = type(pickle.loads(pickle.dumps(Own()))) is Own
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__,
    "spec": getattr(__spec__, "name", None), "package": __package__,
    "own": main.__dict__ is globals(), "pickled": pickled,
    "cached": __cached__, "doc": __doc__, "loader": type(__loader__).__name__,
    "builtins": __builtins__ is __import__("builtins"), "helper": helper.__file__,
}))
"""
RUNNER = """\
import sys
from perfkit.base.program import Program, show_error_as_its_own
kind, name, *rest = sys.argv[1:]
try:
    (Program.module if kind == "-m" else Program.script)(name, rest).run()
except BaseException:
    show_error_as_its_own()
    raise
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "package"
    package.mkdir()
    (tmp_path / "helper.py").touch()
    (package / "__init__.py").touch()
    for path in (tmp_path / "tells.py", package / "tells.py", package / "__main__.py"):
        path.write_text(TELLS)
    return tmp_path


def _python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )


def _ours(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kind = arguments if arguments[0] == "-m" else ("script", *arguments)
    return _python(folder, "-c", RUNNER, *kind)


@pytest.mark.parametrize(
    "typed",
    [["tells.py"], ["tells.py", "--lr", "1", "--", "x y"], ["./package/../tells.py"],
     ["-m", "package.tells", "-v"], ["-m", "package"], ["-m", "tells", ""]],
    ids=" ".join,
)  # fmt: skip
def test_a_program_finds_itself_as_under_python(folder: Path, typed: list[str]) -> None:
    plain, ours = _python(folder, *typed), _ours(folder, *typed)
    assert (plain.returncode, ours.returncode) == (0, 0), ours.stderr
    assert json.loads(ours.stdout) == json.loads(plain.stdout)


@pytest.mark.parametrize(
    "body",
    [
        "def f():\n    raise ValueError('one')\ntry:\n    f()\nexcept ValueError as e:\n"
        "    raise KeyError('two') from e\n",
        "import sys\nsys.exit(3)\n",
        "import sys\nsys.exit('in words')\n",
        "raise SystemExit\n",
        "x = (\n",
        "import atexit\natexit.register(lambda: print('at the end', __name__))\n1/0\n",
        "import sys\nsys.excepthook = lambda kind, _, trace: print(kind, trace.tb_lineno)\n1/0\n",
        "raise KeyboardInterrupt\n",
        "import os\nif os.fork() == 0:\n    sys = __import__('sys')\n    sys.exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n",
    ],
)
def test_it_ends_as_under_python(tmp_path: Path, body: str) -> None:
    (tmp_path / "ends.py").write_text(body)
    plain, ours = _python(tmp_path, "ends.py"), _ours(tmp_path, "ends.py")
    assert (ours.returncode, ours.stdout, ours.stderr) == (
        plain.returncode,
        plain.stdout,
        plain.stderr,
    )


def test_an_import_that_fails_in_a_module_is_its_own_error(folder: Path) -> None:
    (folder / "package" / "__init__.py").write_text("import no_such_thing\n")
    done = _ours(folder, "-m", "package.tells")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'no_such_thing'" in done.stderr
    assert "perfkit" not in done.stderr


def test_what_is_no_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.py: there is no such script"):
        Program.script(tmp_path / "absent.py")
    with pytest.raises(UsageError, match="is a folder"):
        Program.script(tmp_path)
    with pytest.raises(UsageError, match=r"train\.py.* without -m"):
        Program.module("train.py")
    with restored(), pytest.raises(UsageError, match="No module named no_such_module"):
        Program.module("no_such_module").run()


def test_restored_puts_everything_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.argv, list(sys.path), sys.modules["__main__"]
    with restored():
        Program.script(folder / "tells.py", ["1"]).run()
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    sys.modules.pop("helper")
    assert json.loads(capsys.readouterr().out)["argv"][1:] == ["1"]


def test_when_a_package_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_package.py").write_text(
        "loader = type(__spec__.loader).__name__\nvalue = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    seen: list[object] = []
    when_imported("some_package", lambda: seen.append(sys.modules["some_package"].value))
    stop = when_imported("absent_package", lambda: seen.append("never"))
    assert seen == []
    import some_package

    assert seen == [1]
    assert some_package.loader == type(some_package.__loader__).__name__ == "SourceFileLoader"
    stop()
    assert sys.meta_path == finders
    when_imported("some_package", lambda: seen.append("at once"))
    assert seen == [1, "at once"]
    del sys.modules["some_package"]
