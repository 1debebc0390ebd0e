"""Memory tests start without the garbage of earlier tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def survey_only_what_is_new() -> Iterator[None]:
    # A survey looks at every object that the collector tracks; torch's own half a million, put
    # out of its sight, make these tests some times faster. For one file, not longer: files of
    # other rooms that run in between thaw what they froze themselves, and this with it.
    assert torch.__version__
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def no_garbage() -> None:
    gc.collect()
