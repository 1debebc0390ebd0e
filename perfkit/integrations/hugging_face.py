"""``TrainerWatch``: a callback for ``transformers.Trainer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from perfkit.base.words import plural
from perfkit.integrations.trainer_run import Log, TrainerRun

if TYPE_CHECKING:
    from perfkit.advice.profile import Profile
    from perfkit.measure.verdict import RunSummary


class TrainerWatch(TrainerCallback):
    """Watch a Hugging Face trainer; ``.summary`` has the verdict when ``train`` is over.

    A step is an optimizer step, with gradient accumulation of several batches. Evaluation and
    checkpoints are told apart. The trainer does not tell a callback of an exception: then the run
    ends with the notebook's cell, with the next run, or with the program.

    Args:
        log: called with a dict of metrics; see :class:`~perfkit.integrations.TrainerRun`.
        live: False shows nothing, True requires the plot of a notebook.
        profile: also record a few steps with torch's profiler, and explain them at the end.

    Raises:
        UsageError: ``log`` cannot be called, or ``live=True`` outside a Jupyter kernel.

    Example::

        >>> watch = TrainerWatch(log=lambda metrics: print(metrics["step_ms"]))
        >>> transformers.Trainer(model, arguments, train_dataset=data, callbacks=[watch]).train()
        >>> watch.summary.sentence
    """

    def __init__(
        self, *, log: Log | None = None, live: bool | None = None, profile: bool = False
    ) -> None:
        super().__init__()
        self.run = TrainerRun(log=log, live=live, profile=profile)

    @property
    def summary(self) -> RunSummary:
        """The verdict with its figures; see :class:`~perfkit.measure.verdict.RunSummary`."""
        return self.run.summary

    @property
    def profile(self) -> Profile:
        """The recorded steps, explained."""
        return self.run.profile

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs.get("model")
        name = "training" if model is None else type(model).__name__
        self.run.begin(name, shown=state.is_world_process_zero)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.run.step()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.run.was_evaluation()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        early = state.global_step < state.max_steps
        self.run.end(
            f"was stopped after {plural(self.run.n_steps, 'step')}" if early else "finished"
        )
