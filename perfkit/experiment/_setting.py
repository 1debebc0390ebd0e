"""One setting: what it can be, when it takes effect, what it needs, and what it does to results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from perfkit.errors import SettingError
from perfkit.experiment import _rules

if TYPE_CHECKING:
    from perfkit.machine import Machine

Control = Literal["checkbox", "menu", "slider"]
TakesEffect = Literal["step", "rebuild", "process"]
Numerics = Literal["none", "rounding", "changes what is learnt"]


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: how the workload asks for it, e.g. ``"num_workers"``.
        label: its name in words.
        values: what the control offers. A catalogue setting also takes other values that its
            rule accepts; one of the user's own takes exactly these.
        default: what a run uses when nothing is said.
        control: ``"checkbox"``, ``"menu"`` or ``"slider"`` (over ``values``).
        takes_effect: ``"step"``: the next step; ``"rebuild"``: model and loader are built anew;
            ``"process"``: a fresh program, which costs a cold start of seconds.
        help: one sentence.
        lesson: the lesson that teaches it, or None.
        environment: variables that a fresh program needs for a value (``"process"`` only);
            nothing for a value that any program has.
        numerics: what it does to the result: ``"none"``: the same numbers; ``"rounding"``: the
            same up to rounding; ``"changes what is learnt"``: another training. None where it
            is not known, as for settings of the user's own.
        numerics_note: the same in one sentence.
        needs: what the machine needs for it, in words; empty where it works everywhere.
        applied_by: who puts it into effect: ``"perfkit"`` (the run's process, by itself), the
            name of a :class:`~perfkit.experiment.settings.Settings` helper, or ``"workload"``.
        claims: rows of the claims ledger that it belongs to.
    """

    name: str
    label: str
    values: tuple[Any, ...]
    default: Any
    control: Control
    takes_effect: TakesEffect
    help: str = ""
    lesson: str | None = None
    environment: Callable[[Any], Mapping[str, str]] | None = field(
        default=None, repr=False, compare=False
    )
    numerics: Numerics | None = None
    numerics_note: str = ""
    needs: str = ""
    applied_by: str = "workload"
    claims: tuple[str, ...] = ()
    _accept: _rules.Acceptor | None = field(default=None, repr=False, compare=False)
    _need: _rules.Need = field(default=_rules.nothing, repr=False, compare=False)
    _hint: _rules.Need = field(default=_rules.nothing, repr=False, compare=False)

    def check(self, value: Any) -> Any:
        """The value in its plain Python form.

        Raises:
            SettingError: it cannot be; the message says what can.
        """
        accept = self._accept or _rules.one_of(self.values)
        try:
            return accept(value)
        except ValueError as error:
            # what only the workload reads may take whatever the workload understands
            own = f"; for others: perfkit.setting({self.name!r}, [...])"
            raise SettingError(
                f"{self.name}={brief(value)} is not valid: it takes {error}"
                f"{own if self.applied_by == 'workload' else ''}"
            ) from None

    def unavailable(self, value: Any, machine: Machine) -> str | None:
        """Why this machine cannot take the value; None where it can."""
        return self._need(self.check(value), machine)

    def note(self, value: Any, machine: Machine) -> str | None:
        """What to know of a value that works here but may not help; None where there is nothing."""
        return self._hint(self.check(value), machine)

    def about(self) -> str:
        """What a reader should know before changing it, in a few sentences."""
        parts = [self.help]
        if self.numerics not in (None, "none"):
            parts.append(f"Results: {self.numerics_note}")
        if self.takes_effect == "process":
            parts.append("Takes effect in a fresh program, which costs a cold start of seconds.")
        if self.lesson:
            parts.append(f"Lesson {self.lesson}.")
        return " ".join(part for part in parts if part)


def brief(value: Any) -> str:
    """A value on one line, however it shows itself."""
    return " ".join(f"{value!r:.200}".split())[:80]
