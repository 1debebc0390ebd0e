"""Memory tests start without the garbage of earlier tests."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def survey_only_what_is_new() -> None:
    # A survey looks at every object that the collector tracks, those of earlier tests, too.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_garbage() -> None:
    gc.collect()
