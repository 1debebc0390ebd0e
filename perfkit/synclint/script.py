"""Lint a training script: run it for a few steps, then stop it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.base.errors import UsageError
from perfkit.base.instrument import Instrument
from perfkit.base.program import Program, restored
from perfkit.base.words import plural

if TYPE_CHECKING:
    from perfkit.synclint.find import SyncLines


class _Enough(BaseException):
    """Unwinds the script; no ``except Exception`` of its own stops it."""


def run_script(path: str | Path, argv: Sequence[str] = (), *, steps: int = 2) -> SyncLines:
    """Run a script as ``python path argv…`` would, and list the lines that make a GPU wait.

    What comes before the first module runs is set-up, which waits once, and is not listed, unless
    a second optimizer step has begun (a module's ``forward()`` may be called without the module).
    The script is stopped when its first optimizer is about to step for the ``steps + 1``-th
    time; its ``finally`` blocks run. A script without an optimizer runs to its end. The result's
    ``seen`` says which part of the program that was.

    Raises:
        UsageError: there is no such file, or ``steps`` is less than 1.
        Exception: whatever the script raises, unchanged; ``SystemExit`` only with a code that
            says failure.
    """
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from perfkit.synclint.reality import lint
    from perfkit.synclint.watch import SyncWatch

    program = Program.script(path, argv)
    if steps < 1:
        raise UsageError(f"steps={steps}: watch at least one step")

    first: list[Any] = []
    n_steps = 0
    skipped = stopped = False
    instrument = Instrument("the sync lint of a script")

    def before_step(optimizer: Any, *_: object) -> None:
        nonlocal n_steps, stopped
        first[:] = first or [optimizer]
        if optimizer is first[0]:
            n_steps += 1
            if n_steps > steps:
                stopped = True
                raise _Enough

    def before_module(module: Any, _: object) -> None:
        nonlocal skipped
        # a module may be called by its forward(), which no hook sees; or by a closure, in a step
        if skipped or n_steps > 1:
            return
        with instrument.guard("beginning with the first forward pass"):
            if next(module.parameters(), None) is not None:
                skipped = True
                if SyncWatch._active is not None:
                    SyncWatch._active.start_anew()

    def run() -> None:
        try:
            program.run()
        except _Enough:
            pass
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise

    with ExitStack() as stack:
        stack.enter_context(restored())
        stack.callback(register_optimizer_step_pre_hook(before_step).remove)
        stack.callback(register_module_forward_pre_hook(before_module).remove)
        syncs = lint(run, late=True)
    start = "the script's start, and so with its set-up"
    if skipped:
        start = "the first forward pass, without the set-up before it"
    n = n_steps - stopped
    end = f"the script's end, {plural(n, 'optimizer step')}"
    if stopped:
        end = (
            f"the end of optimizer step {n}; what comes after it, such as a validation or a "
            "checkpoint, was not run"
        )
    syncs.seen = f"Seen: from {start}, to {end}."
    if instrument.failure is not None:
        syncs.warnings += (instrument.failure.sentence(),)
    return syncs
