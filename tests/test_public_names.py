"""The public surface: short, sorted, resolvable, and a misspelt name is an error."""

from __future__ import annotations

import pytest

import perfkit


def test_all_is_sorted_and_every_name_resolves() -> None:
    assert perfkit.__all__ == sorted(perfkit.__all__)
    for name in perfkit.__all__:
        assert getattr(perfkit, name) is not None


def test_lazy_names_are_those_of_all() -> None:
    assert set(perfkit._HOMES) <= set(perfkit.__all__)


def test_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="comparee"):
        perfkit.comparee  # noqa: B018
