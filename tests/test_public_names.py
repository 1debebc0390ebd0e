"""The public surface: short, sorted, resolvable, documented; a misspelt name is an error."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import perfkit

# A class without arguments, a string, and IPython's hooks.
_PLAIN = {"PerfkitError", "__version__", "load_ipython_extension", "unload_ipython_extension"}
_DOCUMENTED = sorted(set(perfkit.__all__) - _PLAIN)
# Examples that take about a second; the others measure for their budget.
_QUICK = [
    "account",
    "crossings",
    "find_leaks",
    "find_syncs",
    "profile",
    "same_result",
    "setting",
    "watch",
]


def test_all_is_sorted_and_every_name_resolves() -> None:
    assert perfkit.__all__ == sorted(perfkit.__all__)
    for name in perfkit.__all__:
        assert getattr(perfkit, name) is not None


def test_lazy_names_are_those_of_all() -> None:
    assert set(perfkit._HOMES) <= set(perfkit.__all__)


def test_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="comparee"):
        perfkit.comparee  # noqa: B018


@pytest.mark.parametrize("name", _DOCUMENTED)
def test_help_names_every_argument_and_shows_an_example(name: str) -> None:
    public = getattr(perfkit, name)
    text = inspect.getdoc(public) or ""
    for parameter in inspect.signature(public).parameters:
        assert re.search(rf"^ {{4}}(?:\w+, )*{parameter}(?:, \w+)*: ", text, re.M), parameter
    if inspect.isfunction(public):
        assert "\nReturns:\n" in text
    assert ">>> " in text or "::\n\n" in text


@pytest.mark.parametrize("name", _QUICK)
@pytest.mark.slow
def test_the_example_in_its_help_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    names: dict[str, Any] = {"perfkit": perfkit, "torch": torch}
    code = _example(getattr(perfkit, name))
    assert f"perfkit.{name}(" in code
    exec(compile(code, f"<help of {name}>", "exec"), names)


def _example(public: Any) -> str:
    lines = (inspect.getdoc(public) or "").splitlines()
    return "\n".join(line.strip()[4:] for line in lines if line.strip()[:4] in (">>> ", "... "))
