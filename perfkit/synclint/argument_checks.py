"""The argument checks of torch.distributions, as they are where nothing was compiled.

The first ``torch.compile`` in a process switches them off for the whole process
(``set_default_validate_args(False)`` in torch/_dynamo/eval_frame.py). Left at that, what the
lint says of a step would depend on what else has run before: a test that compiles something
would make the next test pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from perfkit.base import torch_compat


@contextmanager
def checks_as_without_compile(on_compiled: Callable[[], None]) -> Iterator[bool]:
    """Within the block the checks run, if ``torch.compile`` is what has switched them off.

    Yields whether that is so. Where compiled code runs in the block they are off in every
    process that runs the same step: from then on they are off again, and ``on_compiled`` is
    called. A program that had switched them off itself *and* compiles is unknown from one
    that only compiles.
    """
    distributions: Any = sys.modules.get("torch.distributions.distribution")
    if (
        distributions is None
        or distributions.Distribution._validate_args
        or not __debug__  # python -O: they are off from the start
        or not torch_compat.compile_has_patched_torch()
    ):
        yield False
        return
    switch = distributions.Distribution.set_default_validate_args

    def compiled() -> None:
        switch(False)
        on_compiled()

    switch(True)
    stop = torch_compat.watch_compiled_calls(compiled)
    try:
        yield True
    finally:
        stop()
        switch(False)
