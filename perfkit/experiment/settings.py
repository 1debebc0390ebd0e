"""The toggles: what can be set, to which values, when it takes effect, and what it needs.

:data:`CATALOGUE` holds the settings that perfkit knows, :func:`setting` declares one of the
user's own in one line, and :class:`Settings` is what the workload is called with.
"""

from __future__ import annotations

import contextlib
import difflib
import keyword
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from perfkit.errors import SettingError
from perfkit.experiment import _rules

if TYPE_CHECKING:
    import torch

    from perfkit.machine import Machine

__all__ = ["CATALOGUE", "Setting", "Settings", "check_values", "conflicts", "resolve", "setting"]

Control = Literal["checkbox", "menu", "slider"]
TakesEffect = Literal["step", "rebuild", "process"]

# Sizes beyond these are slips of the keyboard, not experiments: torch would try to start 10,000
# processes, or allocate until the machine swaps.
_MOST_WORKERS = 256
_MOST_PREFETCH = 64
_MOST_THREADS = 1024
_MOST_BATCH = 1_048_576


@dataclass(frozen=True)
class Setting:
    """One toggle.

    Attributes:
        name: how the workload asks for it, e.g. ``"num_workers"``.
        label: what stands beside the control.
        values: what the control offers. A catalogue setting also takes other values that its
            rule accepts; one of the user's own takes exactly these.
        default: what a run uses when nothing is said.
        control: ``"checkbox"``, ``"menu"`` or ``"slider"`` (over ``values``).
        takes_effect: ``"step"``: the next step; ``"rebuild"``: model and loader are built anew;
            ``"process"``: a fresh program, which costs a cold start of seconds.
        help: one sentence.
        lesson: the lesson that teaches it, or None.
        environment: variables that a fresh program needs for a value (``"process"`` only).
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
            raise SettingError(f"{self.name}={_brief(value)} cannot be: it takes {error}") from None

    def unavailable(self, value: Any, machine: Machine) -> str | None:
        """Why this machine cannot take the value; None where it can."""
        return self._need(self.check(value), machine)

    def note(self, value: Any, machine: Machine) -> str | None:
        """What to know of a value that works here but may not help; None where there is nothing."""
        return self._hint(self.check(value), machine)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _thread_counts() -> tuple[int, ...]:
    """1, 2, 4 … up to the cores, and the cores themselves."""
    cores = _cores()
    return tuple(sorted({2**i for i in range(cores.bit_length()) if 2**i <= cores} | {cores}))


def _catalogue() -> dict[str, Setting]:
    settings = (
        Setting(
            "num_workers",
            "DataLoader workers",
            (0, 1, 2, 4, 8),
            0,
            "slider",
            "rebuild",
            "Processes that load and decode batches beside the training; 0 loads in the step.",
            "04",
            _accept=_rules.whole_number(0, _MOST_WORKERS),
            _hint=_rules.more_than_cores("workers"),
        ),
        Setting(
            "prefetch_factor",
            "batches ahead, per worker",
            (1, 2, 4, 8),
            2,
            "slider",
            "rebuild",
            "How many batches each worker prepares ahead. Has no effect without workers.",
            "04",
            _accept=_rules.whole_number(1, _MOST_PREFETCH),
        ),
        Setting(
            "persistent_workers",
            "keep workers between epochs",
            (False, True),
            False,
            "checkbox",
            "rebuild",
            "Workers live on after an epoch, instead of being started anew. Needs workers.",
            "04",
            _accept=_rules.flag,
        ),
        Setting(
            "pin_memory",
            "pinned memory",
            (False, True),
            False,
            "checkbox",
            "rebuild",
            "Batches lie in page-locked memory, from where a GPU can copy in the background.",
            "06",
            _accept=_rules.flag,
            _need=_rules.cuda_when_on("pinned memory serves copies to a GPU"),
        ),
        Setting(
            "batch_size",
            "batch size",
            (8, 16, 32, 64, 128, 256),
            32,
            "menu",
            "rebuild",
            "Samples per step. It changes what is learnt per step: compare samples/s.",
            "12",
            _accept=_rules.whole_number(1, _MOST_BATCH),
        ),
        Setting(
            "precision",
            "precision",
            ("fp32", "tf32", "bf16", "fp16"),
            "fp32",
            "menu",
            "rebuild",
            "Number format of the model's arithmetic; fp32 here means without TF32.",
            "09",
            _accept=_rules.one_of(("fp32", "tf32", "bf16", "fp16")),
            _need=_rules.precision_here,
            _hint=_rules.bf16_speed,
        ),
        Setting(
            "compile",
            "torch.compile",
            (False, True),
            False,
            "checkbox",
            "rebuild",
            "The model is compiled at its first steps, which take long.",
            "10",
            _accept=_rules.flag,
            _need=_rules.compile_here,
        ),
        Setting(
            "channels_last",
            "channels last",
            (False, True),
            False,
            "checkbox",
            "rebuild",
            "Images and filters are stored pixel by pixel (NHWC) instead of plane by plane.",
            "10",
            _accept=_rules.flag,
        ),
        Setting(
            "fused",
            "fused optimizer",
            (False, True),
            False,
            "checkbox",
            "rebuild",
            "One kernel updates all parameters (SGD, Adam, AdamW, Adagrad).",
            "10",
            _accept=_rules.flag,
        ),
        Setting(
            "threads",
            "torch threads",
            _thread_counts(),
            _cores(),
            "slider",
            "rebuild",
            "Threads with which torch computes on the CPU, in the training process.",
            "14",
            _accept=_rules.whole_number(1, _MOST_THREADS),
            _hint=_rules.more_than_cores("threads"),
        ),
    )
    return {s.name: s for s in settings}


#: The settings that perfkit knows, by name.
CATALOGUE: Mapping[str, Setting] = MappingProxyType(_catalogue())


def setting(
    name: str,
    values: Sequence[Any],
    *,
    default: Any = None,
    label: str | None = None,
    help: str = "",  # noqa: A002 - the name of the attribute that it becomes
) -> Setting:
    """A setting of the user's own, in one line: ``setting("augment", [False, True])``.

    The workload reads it as ``settings.augment``. With the name of a catalogue setting, that
    one is taken with these values: ``setting("batch_size", [32, 96])``.

    Args:
        values: what it can be: strings, numbers, flags or None; at least one, none twice.
        default: what the first run uses; the first of ``values`` when None.

    Raises:
        SettingError: a name that cannot be an attribute, no values, or values of another kind.
    """
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise SettingError(
            f"a setting cannot be called {name!r}: take a name that could be a variable's"
        )
    if name.startswith("_") or (name not in CATALOGUE and hasattr(Settings, name)):
        raise SettingError(
            f"a setting cannot be called {name!r}: settings.{name} means something else; rename it"
        )
    offered = _offered(name, values)
    known = CATALOGUE.get(name)
    if known is not None:
        offered = tuple(known.check(v) for v in offered)
        chosen = offered[0] if default is None else known.check(default)
        return replace(
            known,
            values=offered,
            default=chosen,
            label=known.label if label is None else label,
            help=help or known.help,
        )
    made = Setting(
        name,
        name.replace("_", " ") if label is None else label,
        offered,
        offered[0],
        _control(offered),
        "rebuild",
        help,
    )
    return made if default is None else replace(made, default=made.check(default))


def _offered(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        raise SettingError(f"the values of {name!r} must be a list, not {values!r}")
    offered: list[Any] = []
    for value in values:
        plain = value
        if type(value).__module__ == "numpy" and getattr(value, "ndim", 0) == 0:
            plain = value.item()
        if not isinstance(plain, str | int | float | bool | None):
            raise SettingError(
                f"{name}: {_brief(plain)} cannot be a value; take strings, numbers, True, False "
                "or None and let the workload look up the rest"
            )
        if any(plain == o and _rules.is_flag(plain) == _rules.is_flag(o) for o in offered):
            raise SettingError(f"{name}: {plain!r} stands twice among its values")
        offered.append(plain)
        if len(offered) > 1000:
            raise SettingError(f"{name}: more than 1000 values; sample them")
    if not offered:
        raise SettingError(f"{name}: no values are given; a setting needs at least one")
    return tuple(offered)


def _brief(value: Any) -> str:
    """A value on one line, however it shows itself."""
    return " ".join(f"{value!r:.200}".split())[:80]


def _control(values: tuple[Any, ...]) -> Control:
    if all(_rules.is_flag(v) for v in values) and len(values) == 2:
        return "checkbox"
    numbers = all(isinstance(v, int | float) and not _rules.is_flag(v) for v in values)
    ascending = numbers and list(values) == sorted(values)
    return "slider" if ascending and len(values) > 2 else "menu"


def resolve(settings: Sequence[str | Setting]) -> tuple[Setting, ...]:
    """Names and settings → settings.

    Raises:
        SettingError: a name that the catalogue lacks (with the nearest one), or one given twice.
    """
    if isinstance(settings, str | Setting):
        raise SettingError(f"settings must be a list: [{settings!r}]")
    if settings is None or not hasattr(settings, "__iter__"):
        raise SettingError(f"settings must be a list of names, not {_brief(settings)}; [] for none")
    found: dict[str, Setting] = {}
    for item in settings:
        if isinstance(item, Setting):
            one = item
        elif isinstance(item, str):
            if item not in CATALOGUE:
                raise SettingError(
                    f"no setting is called {item!r}{_near(item, CATALOGUE)}; "
                    f"declare your own with setting({item!r}, [values])"
                )
            one = CATALOGUE[item]
        else:
            raise SettingError(f"{item!r} is no setting: give a name or setting(name, values)")
        if one.name in found:
            raise SettingError(f"the setting {one.name!r} is given twice")
        found[one.name] = one
    return tuple(found.values())


def check_values(
    settings: Sequence[Setting], values: Mapping[str, Any], machine: Machine
) -> dict[str, Any]:
    """The value of every setting for one run: those given, checked, and defaults for the rest.

    Raises:
        SettingError: an unknown name, a value that cannot be, or one that this machine lacks.
    """
    known = {s.name: s for s in settings}
    for name in values:
        if name not in known:
            elsewhere = " (it is in the catalogue: add it to settings=[…])"
            raise SettingError(
                f"no setting is called {name!r} here{_near(name, known)}"
                f"{elsewhere if name in CATALOGUE else ''}"
            )
    chosen = {}
    for name, one in known.items():
        value = one.check(values.get(name, one.default))
        reason = one.unavailable(value, machine)
        if reason is not None:
            raise SettingError(f"{name}={value!r} is not available on this machine: {reason}")
        chosen[name] = value
    return chosen


def conflicts(
    settings: Sequence[Setting], values: Mapping[str, Any], machine: Machine
) -> tuple[str, ...]:
    """What to know of these values together: settings without effect, and each one's note."""
    told = []
    if values.get("num_workers") == 0:
        if values.get("persistent_workers"):
            told.append("persistent_workers has no effect without workers (num_workers=0)")
        default = CATALOGUE["prefetch_factor"].default
        if values.get("prefetch_factor", default) != default:
            told.append("prefetch_factor has no effect without workers (num_workers=0)")
    notes = (one.note(values[one.name], machine) for one in settings if one.name in values)
    return (*told, *(note for note in notes if note))


def _near(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    names = ", ".join(known)
    return f"; there are: {names}" if names else "; none are declared"


class _UnknownSettingError(SettingError, KeyError, AttributeError):
    """Unknown name: also what ``in``, ``.get()`` and ``hasattr`` expect."""

    def __str__(self) -> str:
        return str(self.args[0])


class Settings(Mapping[str, Any]):
    """What a workload is called with: the value of each declared setting.

    ``settings["num_workers"]`` and ``settings.num_workers`` give a value; the helpers turn
    values into arguments. A helper covers the declared settings only, so that whatever else
    the workload passes itself does not collide.
    """

    __slots__ = ("_values",)

    _values: dict[str, Any]

    def __init__(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        object.__setattr__(self, "_values", {**(values or {}), **more})

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise _unknown(name, self._values) from None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy, pickle and IPython probe for these
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise SettingError(f"settings.{name} = … : settings are fixed for the whole run")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._values})

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{k}={v!r}' for k, v in self._values.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Settings, (self._values,)

    @property
    def device(self) -> torch.device:
        """``cuda`` where torch has one, else ``cpu``."""
        import torch

        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def memory_format(self) -> torch.memory_format:
        """For image batches: ``images.to(s.device, memory_format=s.memory_format)``."""
        import torch

        return torch.channels_last if self.get("channels_last") else torch.contiguous_format

    def loader_kwargs(self) -> dict[str, Any]:
        """Arguments for ``torch.utils.data.DataLoader``: those of its settings that are declared.

        What would have no effect without workers is left out, because torch refuses it.
        """
        names = ["batch_size", "num_workers", "pin_memory"]
        if self.get("num_workers") != 0:
            names += ["prefetch_factor", "persistent_workers"]
        return {name: self[name] for name in names if name in self}

    def optimizer_kwargs(self) -> dict[str, Any]:
        """Arguments for an optimizer: ``fused=True`` where that is on, else nothing.

        Nothing rather than ``fused=False``, which would also switch off torch's own choice of
        the foreach implementation, and which some optimizers do not know.
        """
        return {"fused": True} if self.get("fused") else {}

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """For around forward and loss: autocast to bf16 or fp16, or nothing for fp32 and tf32."""
        import torch

        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.get("precision", "fp32"))
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=dtype)

    def grad_scaler(self) -> torch.amp.GradScaler:
        """A gradient scaler that is active for fp16 and passes everything through otherwise."""
        import torch

        return torch.amp.GradScaler(self.device.type, enabled=self.get("precision") == "fp16")

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model on the device, in channels-last format and compiled where those are on.

        Make the optimizer from what this returns, or after it: the parameters have moved.
        """
        import torch

        model = model.to(self.device)
        if self.get("channels_last"):
            # .to() has no overload for the format alone in torch's stubs
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.get("compile"):
            compiled: torch.nn.Module = torch.compile(model)  # type: ignore[assignment]
            return compiled
        return model


def _unknown(name: Any, values: Mapping[str, Any]) -> _UnknownSettingError:
    if name in CATALOGUE:
        return _UnknownSettingError(
            f"the setting {name!r} is not declared here: add it to settings=[…]"
        )
    return _UnknownSettingError(f"no setting is called {name!r}{_near(str(name), values)}")
