"""What a recorder must not leave behind."""

from __future__ import annotations

import threading

from perfkit.base import torch_compat


def assert_nothing_runs() -> None:
    """No profiler, no global optimizer hook and no sampler is left running."""
    assert not torch_compat.profiler_is_on()
    assert torch_compat.n_optimizer_step_hooks() == 0
    assert [t.name for t in threading.enumerate() if t.name.startswith("perfkit-lines")] == []
