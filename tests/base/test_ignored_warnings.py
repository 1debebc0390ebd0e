"""A warning of perfkit's making is ignored for a while; the program's own filters stay."""

from __future__ import annotations

import warnings

import pytest

from perfkit.base.ignored_warnings import ignore_warnings


@pytest.fixture(autouse=True)
def _filters_as_before() -> object:
    with warnings.catch_warnings():
        yield


def test_it_is_ignored_until_stopped_and_the_program_s_own_filter_stays() -> None:
    warnings.filterwarnings("error", message="ours")
    stop = ignore_warnings("ours")
    warnings.warn("ours", stacklevel=1)
    warnings.filterwarnings("error", message="theirs")
    stop()
    stop()
    for message in ("ours", "theirs"):
        with pytest.raises(UserWarning, match=message):
            warnings.warn(message, stacklevel=1)


def test_what_the_program_ignores_itself_stays_ignored() -> None:
    warnings.filterwarnings("error", message="ours")
    warnings.filterwarnings("ignore", message="ours")
    ignore_warnings("ours")()
    warnings.warn("ours", stacklevel=1)
