"""``AccelerateWatch``: around a loop of your own that uses ``accelerate``."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Self

from perfkit.base.errors import UsageError
from perfkit.base.instrument import Instrument
from perfkit.integrations.trainer_run import Log, TrainerRun

if TYPE_CHECKING:
    from perfkit.advice.profile import Profile
    from perfkit.measure.verdict import RunSummary


class AccelerateWatch:
    """Watch a loop that uses an ``Accelerator``; ``.summary`` has the verdict behind the block.

    A step ends when the optimizer that stepped first has stepped again: under
    ``accelerator.accumulate`` the optimizer steps once in several batches. A pass of the model in
    evaluation mode is evaluation, ``torch.save`` and safetensors are checkpoints.

    Args:
        accelerator: yours; its main process shows the run.
        log: called with a dict of metrics, for example ``accelerator.log``; see
            :class:`~perfkit.integrations.TrainerRun`.
        live: False shows nothing, True requires the plot of a notebook.
        profile: also record a few steps with torch's profiler, and explain them at the end.

    Raises:
        UsageError: that is no ``Accelerator``, ``log`` cannot be called, or ``live=True`` outside
            a Jupyter kernel.

    Example::

        >>> with AccelerateWatch(accelerator, log=accelerator.log) as watch:
        ...     train(accelerator, model, optimizer, loader)
        >>> watch.summary.sentence
    """

    def __init__(
        self,
        accelerator: Any,
        *,
        log: Log | None = None,
        live: bool | None = None,
        profile: bool = False,
    ) -> None:
        if not hasattr(accelerator, "is_main_process"):
            raise UsageError(
                f"AccelerateWatch takes an accelerate.Accelerator, got {type(accelerator).__name__}"
            )
        self.run = TrainerRun(log=log, live=live, profile=profile)
        self._accelerator = accelerator
        self._instrument = Instrument("perfkit's look for steps")
        self._hook: Any = None
        self._first: weakref.ref[Any] | None = None

    @property
    def summary(self) -> RunSummary:
        """The verdict with its figures; see :class:`~perfkit.measure.verdict.RunSummary`."""
        return self.run.summary

    @property
    def profile(self) -> Profile:
        """The recorded steps, explained."""
        return self.run.profile

    def __enter__(self) -> Self:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.run.begin("training", shown=self._accelerator.is_main_process)
        self._first = None
        self._hook = register_optimizer_step_post_hook(self._instrument.hook(self._stepped))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()
        self.run.end("finished" if error is None else f"raised {type(error).__name__}")

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        first = None if self._first is None else self._first()
        if first is None:  # none yet, or it is gone
            self._first = weakref.ref(optimizer)
            first = optimizer
        if first is optimizer:
            self.run.step()
