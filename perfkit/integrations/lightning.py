"""``LightningWatch``: a callback for ``lightning.pytorch.Trainer``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from perfkit.base.words import plural
from perfkit.integrations.trainer_run import Log, TrainerRun

if TYPE_CHECKING:
    from perfkit.advice.profile import Profile
    from perfkit.measure.verdict import RunSummary

# the same library under its newer and its older name
if find_spec("lightning") is None and find_spec("pytorch_lightning") is not None:
    from pytorch_lightning.callbacks import Callback
else:
    from lightning.pytorch.callbacks import Callback


class LightningWatch(Callback):
    """Watch a Lightning trainer; ``.summary`` has the verdict when ``fit`` is over.

    A step is what ends when ``trainer.global_step`` has moved at the end of a batch: with gradient
    accumulation several batches, with several optimizers one. Validation and checkpoints are told
    apart.

    Args:
        log: called with a dict of metrics; see :class:`~perfkit.integrations.TrainerRun`.
        live: False shows nothing, True requires the plot of a notebook.
        profile: also record a few steps with torch's profiler, and explain them at the end.

    Raises:
        UsageError: ``log`` cannot be called, or ``live=True`` outside a Jupyter kernel.

    Example::

        >>> watch = LightningWatch(log=lambda metrics: print(metrics["step_ms"]))
        >>> lightning.Trainer(max_epochs=3, callbacks=[watch]).fit(model, loader)
        >>> watch.summary.sentence
    """

    def __init__(
        self, *, log: Log | None = None, live: bool | None = None, profile: bool = False
    ) -> None:
        super().__init__()
        self.run = TrainerRun(log=log, live=live, profile=profile)
        self._steps = 0

    @property
    def summary(self) -> RunSummary:
        """The verdict with its figures; see :class:`~perfkit.measure.verdict.RunSummary`."""
        return self.run.summary

    @property
    def profile(self) -> Profile:
        """The recorded steps, explained."""
        return self.run.profile

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps = trainer.global_step  # not 0 after a resume
        self.run.begin(type(pl_module).__name__, shown=trainer.is_global_zero)

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self.run.step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.run.evaluation_begins()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.run.evaluation_ends()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        stopped = trainer.should_stop and f"was stopped after {plural(self.run.n_steps, 'step')}"
        self.run.end(stopped or "finished")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        interrupted = isinstance(exception, KeyboardInterrupt)
        self.run.end("interrupted" if interrupted else f"raised {type(exception).__name__}")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self.run.end("ended early")
