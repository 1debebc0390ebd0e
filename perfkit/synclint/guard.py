"""``with no_syncs():`` fails a test that would make a GPU wait, and needs no GPU for it."""

from __future__ import annotations

from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from perfkit.base.arguments import check_instance
from perfkit.base.errors import SyncFoundError

if TYPE_CHECKING:
    import torch


class no_syncs(ContextDecorator):  # noqa: N801 - read as a statement: `with no_syncs():`
    """Fail if the code in the block, run on CPU tensors, would make the host wait for a GPU.

    ::

        def test_the_step_never_waits():
            with perfkit.no_syncs():
                train_step(model, batch)

    It is also a decorator. :func:`perfkit.find_syncs` describes what counts.

    Args:
        model: the model whose tensors would be on the device; found automatically if not given.
        copies: whether blocking copies to the device count. With False only waits for the GPU's
            computations count, for a block that also moves its batch.

    Raises:
        SyncFoundError: at the end of the block; an ``AssertionError`` with the lines and what
            helps. If the block itself raises, only that is raised.
        UsageError: an argument has the wrong type, or it is used within another ``no_syncs`` or
            ``find_syncs``.
    """

    def __init__(self, model: torch.nn.Module | None = None, *, copies: bool = True) -> None:
        check_instance("copies", copies, bool, "True or False")
        self._model = model
        self._copies = copies
        self._watch: Any = None

    def __enter__(self) -> None:
        from perfkit.synclint.watch import SyncWatch

        watch = SyncWatch(self._model)
        watch.__enter__()
        self._watch = watch

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        __tracebackhide__ = True  # pytest shows the user's block, not this function
        from perfkit.synclint.find import syncs_of

        watch, self._watch = self._watch, None
        watch.__exit__(kind, error, traceback)
        if error is not None:
            return
        syncs = syncs_of(watch)
        if not self._copies:
            syncs[:] = [sync for sync in syncs if sync.kind != "copy"]
        if syncs:
            raise SyncFoundError(_message(syncs), syncs)


def _message(syncs: Any) -> str:
    n = len(syncs)
    lines = [f"{n} line{'s' * (n > 1)} would make the host wait for the GPU:"]
    for sync in syncs:
        below = f" (called from {sync.below})" if sync.below else ""
        lines.append(f"{sync.place}{below}: {sync.code or sync.op}")
        lines.append(f"    {sync.op}: {sync.why}")
        lines.append(f"    instead: {sync.instead}")
        lines += [f"        {line}" for line in sync.example.splitlines()]
    lines += [f"note: {warning}" for warning in syncs.warnings]
    return "\n".join(lines)
