"""One setting: its values, when it takes effect, what it needs, what it does to results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from perfkit.base.arguments import brief
from perfkit.base.errors import SettingError
from perfkit.base.lessons import lesson_of
from perfkit.experiment.settings import _rules

if TYPE_CHECKING:
    from perfkit.base.machine import Machine

Control = Literal["checkbox", "menu", "slider"]
TakesEffect = Literal["step", "rebuild", "process"]
Numerics = Literal["none", "rounding", "changes what is learnt"]


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: how the workload reads it, e.g. ``"num_workers"``.
        label: its name in words.
        values: what the control offers. A catalogue setting also takes other values that its rule
            accepts; a user's setting takes exactly these.
        default: the value that a run uses if none is given.
        control: ``"checkbox"``, ``"menu"`` or ``"slider"`` (over ``values``).
        takes_effect: ``"step"``: at the next step; ``"rebuild"``: when model and loader are
            rebuilt; ``"process"``: in a new program, with a cold start of seconds.
        help: one sentence.
        environment: variables that a new program needs for a value (``"process"`` only); empty for
            a value that needs none.
        numerics: its effect on the result: ``"none"``: the same numbers; ``"rounding"``: the same
            up to rounding; ``"changes what is learnt"``: a different training. None if unknown, as
            for a user's setting.
        numerics_note: that effect in one sentence.
        needs: what the machine needs for it, in words; empty if it works everywhere.
        applied_by: who applies it: ``"perfkit"`` (in the run's process), the name of a
            :class:`~perfkit.experiment.settings.Settings` helper, or ``"workload"``.
    """

    name: str
    label: str
    values: tuple[Any, ...]
    default: Any
    control: Control
    takes_effect: TakesEffect
    help: str = ""
    environment: Callable[[Any], Mapping[str, str]] | None = field(
        default=None, repr=False, compare=False
    )
    numerics: Numerics | None = None
    numerics_note: str = ""
    needs: str = ""
    applied_by: str = "workload"
    _accept: _rules.Acceptor | None = field(default=None, repr=False, compare=False)
    _need: _rules.Need = field(default=_rules.nothing, repr=False, compare=False)
    _hint: _rules.Need = field(default=_rules.nothing, repr=False, compare=False)
    # what perfkit does with the value in the run's process, before the workload starts
    _apply: Callable[[Any], None] | None = field(default=None, repr=False, compare=False)
    # combinations that would make a run meaningless or wrong, or fail at its first step, and why;
    # settings that are not declared are not among the values
    _refused: tuple[tuple[Callable[[Mapping[str, Any]], bool], str], ...] = field(
        default=(), repr=False, compare=False
    )

    def check(self, value: Any) -> Any:
        """The value in its plain Python form.

        Raises:
            SettingError: the value is invalid; the message says what is valid.
        """
        accept = self._accept or _rules.one_of(self.values)
        try:
            return accept(value)
        except ValueError as error:
            # a setting that only the workload reads may take any value that it understands
            own = f"; for others: perfkit.setting({self.name!r}, [...])"
            raise SettingError(
                f"{self.name}={brief(value)} is not valid: it takes {error}"
                f"{own if self.applied_by == 'workload' else ''}"
            ) from None

    def unavailable(self, value: Any, machine: Machine) -> str | None:
        """Why the value is not available on this machine; None if it is."""
        return self._need(self.check(value), machine)

    def note(self, value: Any, machine: Machine) -> str | None:
        """A hint about a value that works here but may not help; None if there is none."""
        return self._hint(self.check(value), machine)

    def apply(self, value: Any) -> None:
        """Do what perfkit does for it in the run's process; nothing for the workload's own."""
        if self._apply is not None:
            self._apply(value)

    def clash(self, values: Mapping[str, Any]) -> str | None:
        """Why it cannot be combined with these values, its own among them; None if it can."""
        return next((words for applies, words in self._refused if applies(values)), None)

    def about(self) -> str:
        """What to know before changing it, in a few sentences."""
        parts = [self.help]
        if self.numerics not in (None, "none"):
            parts.append(f"Results: {self.numerics_note}")
        if self.takes_effect == "process":
            parts.append("Takes effect in a fresh program, which costs a cold start of seconds.")
        lesson = lesson_of("setting", self.name)
        if lesson:
            parts.append(f"Lesson {lesson}.")
        return " ".join(part for part in parts if part)
