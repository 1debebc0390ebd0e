"""`import perfkit` and `%load_ext perfkit` stay cheap, and these tests can fail."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "matplotlib", "IPython", "ipywidgets", "jinja2", "numpy", "pandas")

LOAD_EXT = """
from IPython.core.interactiveshell import InteractiveShell
ip = InteractiveShell.instance()
ip.run_line_magic("load_ext", "perfkit")
assert ip.find_line_magic("torchprof") and ip.find_cell_magic("gpumem")
"""


def _loaded_by(code: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after this code."""
    names = f"{set(HEAVY)!r}"
    probe = f"import sys\n{code}\nprint('loaded:', *({names} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("loaded:")
    return set(last.split()[1:])


def test_import_perfkit_loads_nothing_heavy() -> None:
    assert _loaded_by("import perfkit") == set()


def test_load_ext_loads_neither_torch_nor_matplotlib() -> None:
    # IPython itself is there: it is the one that loads the extension
    assert _loaded_by(LOAD_EXT) & {"torch", "matplotlib", "pandas"} == set()


@pytest.mark.parametrize(
    ("code", "package"),
    [
        ("import perfkit, IPython", "IPython"),
        ("import perfkit; perfkit.compare", "numpy"),
        (LOAD_EXT + "\nimport torch", "torch"),
        (LOAD_EXT + "\nimport matplotlib", "matplotlib"),
    ],
)
@pytest.mark.slow
def test_the_tests_above_can_fail(code: str, package: str) -> None:
    assert package in _loaded_by(code)
