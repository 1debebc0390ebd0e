"""What a notebook's runner raises after Ctrl-C, whichever way nbclient fails over it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfkit.course.ledger.notebook_signals import signals_as_before


class _DeadKernelError(RuntimeError):
    """As nbclient's."""


@pytest.mark.parametrize(
    ("client", "error", "raised"),
    [
        ({"km": None}, AssertionError, KeyboardInterrupt),
        # nbclient saw that the kernel was dead before it had forgotten it
        ({"km": 1, "_async_cleanup_kernel_future": 1}, _DeadKernelError, KeyboardInterrupt),
        ({"km": 1}, _DeadKernelError, _DeadKernelError),
        ({"km": 1}, AssertionError, AssertionError),
        ({"km": None}, KeyError, KeyError),
    ],
)
def test_ctrl_c_is_told_from_a_kernel_that_died(
    client: dict[str, Any], error: type[Exception], raised: type[BaseException]
) -> None:
    """Two of fifteen Ctrl-C said that the machine may be out of memory."""
    with pytest.raises(raised), signals_as_before(SimpleNamespace(**client)):
        raise error
