"""The lines of a training step that would make a GPU wait: as a list, and as a test that fails."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ContextDecorator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfkit.base.arguments import check_function, check_instance
from perfkit.base.display import Shown
from perfkit.base.errors import SyncFoundError
from perfkit.base.machine import Provenance, stamp
from perfkit.base.source import statement
from perfkit.base.torch_compat import WAS_LOST
from perfkit.base.user_code import package_path, where
from perfkit.base.words import most_often
from perfkit.synclint.catalogue import CATALOGUE, COPIES, EXPLICIT, OF_A_SAMPLE, OF_THE_CALL, Entry
from perfkit.synclint.sites import runs_only_without_gpu, spelled

if TYPE_CHECKING:
    import torch

    from perfkit.synclint.watch import NotedWait, SyncWatch

_ITS_BACKWARD = "its backward"

# a line's outcome on a GPU
AS_PREDICTED, NOT_PREDICTED, NOT_SEEN = "as predicted", "not predicted", "predicted but not seen"


@dataclass(frozen=True)
class SyncLine(Shown):
    """One line that makes the host wait for the GPU.

    Attributes:
        op: what on that line waits, as it was written; several are separated by commas.
        count: how often it happened while the code was watched.
        place: the line as a person names it: ``train.py:12``, ``cell [3], line 5``.
        inside: the line of a library that asked for the value (``file:line``), the one that did
            most often and how many others, if there is one; else empty.
        waited_ms: host time in the runtime calls that waited, all ``count`` together, in ms, as a
            trace of this run has it; None where there is none, as in a prediction.
        kind: ``"value"`` where the host waits for something that the GPU computes, ``"copy"``
            where it waits for a copy to the GPU.
        below: where ``file`` is a library's: the user's line that called it, the one that did most
            often and how many others; else empty.
        example: short code that does without, with other names; empty where none fits.
        outcome: ``"as predicted"``, ``"not predicted"`` or ``"predicted but not seen"``, if a GPU
            was asked; else empty.
    """

    file: str
    line: int
    op: str
    why: str
    instead: str
    count: int
    code: str
    place: str
    inside: str = ""
    waited_ms: float | None = None
    kind: str = "value"
    below: str = ""
    example: str = ""
    outcome: str = ""

    @property
    def at(self) -> tuple[str, int]:
        return self.file, self.line


class SyncLines(list[SyncLine], Shown):
    """A list of :class:`SyncLine`, by file and line, that shows itself as a report.

    Attributes:
        provenance: predicted, or measured on a GPU, and on which machine.
        seen: which part of the program was watched, where that is not all that was run.
        ended_by: name of the exception that ended the code, after which no line was seen; else
            empty.
    """

    def __init__(
        self,
        syncs: Iterable[SyncLine] = (),
        *,
        provenance: Provenance | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        super().__init__(syncs)
        self.seen = self.ended_by = ""
        self.provenance = provenance or stamp("predicted")
        self.warnings = warnings

    def __str__(self) -> str:
        return Shown.__str__(self)

    @property
    def is_measured(self) -> bool:
        """Whether a GPU was asked which of the lines wait."""
        return self.provenance.kind != "predicted"

    def of(self, outcome: str) -> list[SyncLine]:
        """The lines with this outcome."""
        return [sync for sync in self if sync.outcome == outcome]

    def to_dict(self) -> dict[str, Any]:
        """The list under the key ``"syncs"``, as plain JSON types."""
        return {
            "syncs": [sync.to_dict() for sync in self],
            "warnings": list(self.warnings),
            "seen": self.seen,
            "ended_by": self.ended_by,
            "provenance": self.provenance.to_dict(),
        }


def find_syncs(step: Callable[[], object], model: torch.nn.Module | None = None) -> SyncLines:
    """Run ``step()`` once and list the lines that would make the host wait for a GPU.

    The step really runs, on CPU tensors: it trains as usual, but takes a few times as long. Only
    values that depend on the model's parameters, buffers or inputs count. The data loader's work,
    and everything before ``.to(device)``, does not, but for what a data set puts on the device
    (without workers, which are processes of their own).

    With a step that uses a GPU, this is still a prediction; ``%synclint`` compares it with what
    really happened.

    Args:
        step: one training step, without arguments: forward, backward, optimizer.
        model: the model whose tensors would be on the device. By default all modules that run,
            and all tensors that have a gradient.

    Returns:
        A list of :class:`SyncLine`: each a line with what waits, why, and how to avoid it. Print it
        for the report.

    Raises:
        UsageError: ``step`` cannot be called, ``model`` is not a module, or it is called within
            another ``find_syncs`` or ``no_syncs``.
        Exception: whatever ``step`` raises, unchanged.

    Example::

        >>> model = torch.nn.Linear(8, 1)
        >>> print(perfkit.find_syncs(lambda: model(torch.rand(4, 8)).sum().item()))
    """
    from perfkit.synclint.watch import SyncWatch

    check_function("step", step)
    watch = SyncWatch(model)
    with watch:
        step()
    return syncs_of(watch)


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

        self._watch = SyncWatch(self._model).__enter__()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        __tracebackhide__ = True  # pytest shows the user's block, not this function
        watch, self._watch = self._watch, None
        watch.__exit__(kind, *error)
        if kind is not None:
            return
        syncs = syncs_of(watch)
        if not self._copies:
            syncs[:] = [sync for sync in syncs if sync.kind != "copy"]
        if syncs:
            raise SyncFoundError(syncs.to_text(), syncs)


def syncs_of(watch: SyncWatch) -> SyncLines:
    """One :class:`SyncLine` a line, from what a watch has noted, after its block."""
    lines: dict[tuple[str, int], list[tuple[NotedWait, int]]] = {}
    for one, count in watch.noted_waits():
        lines.setdefault((one.site.file, one.site.line), []).append((one, count))
    warnings: tuple[str, ...] = ()
    if (failure := watch.instrument.failure) is not None:
        warnings = (failure.sentence(),)
    elif not watch.links.any_on_device:
        warnings = (
            "no module with parameters ran and no gradient was seen, so nothing counted as being "
            "on the device; run the whole step, or pass model=",
        )
    if watch.ops.was_lost:
        warnings += (WAS_LOST,)
    elsewhere = sorted(at for at in lines if runs_only_without_gpu(*at))
    if elsewhere:
        named = ", ".join(where(*at) for at in elsewhere)
        warnings += (
            f"left out, because only a machine without a GPU runs it: {named}; what a GPU would "
            "run in its place was not seen",
        )
    syncs = [_sync(*at, hits) for at, hits in sorted(lines.items()) if at not in elsewhere]
    return SyncLines(syncs, warnings=warnings)


def _sync(file: str, line: int, hits: list[tuple[NotedWait, int]]) -> SyncLine:
    ops, whys, fixes, examples = (dict[str, None]() for _ in range(4))  # in their order
    asking, callers = Counter[str](), Counter[str]()
    for one, count in sorted(hits, key=lambda hit: hit[0].backward):  # forward first
        entry = CATALOGUE[_entry_of(one)]
        op = _spelled(one, entry)
        if one.backward and ops and op.startswith(_ITS_BACKWARD):
            op = _ITS_BACKWARD
        else:
            whys[entry.why] = None
        if not (one.backward and fixes):  # it goes away with what is written forward
            instead, example = _suggested_fix(one)
            fixes[instead] = None
            examples |= {example: None} if example else {}
        ops[op] = None
        if one.inside is not None:
            file_there = package_path(one.inside.file) or one.inside.file
            asking[f"{file_there}:{one.inside.line}"] += count
        if one.site.below is not None:
            callers[where(*one.site.below)] += count
    return SyncLine(
        kind="copy" if all(one.entry in COPIES for one, _ in hits) else "value",
        below=most_often(callers, "line") if callers else "",
        file=file,
        line=line,
        op=", ".join(ops),
        why="; ".join(whys),
        instead="; ".join(fixes),
        example="\n".join(examples),
        count=sum(count for _, count in hits),
        code=statement(file, line),
        place=where(file, line),
        inside=most_often(asking, "line") if asking else "",
    )


# `total += loss.item() * n` and `losses.append(loss.item())`
_ADDED_UP = re.compile(r"[\w.]+ \+= ([^()]|\([^()]*\))+\.item\(\)( \* [\w.]+)?")
_COLLECTED = re.compile(r"[\w.]+\.append\(\w+\.item\(\)\)")


def _suggested_fix(noted: NotedWait) -> tuple[str, str]:
    """Return what helps, and an example; none where no rewrite of the line is known."""
    name = _entry_of(noted)
    entry = CATALOGUE[name]
    if noted.of_sample:
        return OF_A_SAMPLE, ""
    if noted.inside is not None and name not in OF_THE_CALL:
        return "call what asks for it less often, or look for an option of it", ""
    if noted.site.below is not None:
        return f"look for an option of what you call; in the library's source, {entry.instead}", ""
    code = statement(noted.site.file, noted.site.line).partition("  #")[0]
    if name == "item" and (_ADDED_UP.fullmatch(code) or _COLLECTED.fullmatch(code)):
        return entry.instead, code.replace(".item()", ".detach()")
    return entry.instead, entry.example


def _spelled(noted: NotedWait, entry: Entry) -> str:
    """The operation in the reader's words: ``torch.tensor(…)``, ``its backward (x[mask])``."""
    op = entry.op
    if entry is CATALOGUE["tensor_to_device"] and noted.inside is None:
        name = spelled(noted.site)
        op = f"{name}(…)" if name else op
    elif noted.entry in (*EXPLICIT, "other") and noted.api:
        op = noted.api
    if not noted.backward or entry is CATALOGUE["prod"]:
        return op
    code = statement(noted.site.file, noted.site.line)
    if "backward(" in code or "autograd.grad(" in code:
        return f"{op}, somewhere in this backward pass"
    return f"{_ITS_BACKWARD} ({op})"


# a library that asks for the value -> the entry that says what to do about it
_ASKED_BY = {
    "torch/amp/grad_scaler.py": "grad_scaler",
    "torch/distributions/": "distribution",
    "torch/nn/utils/clip_grad.py": "clip_grad",
}
_READS = frozenset({"bool", "float", "int", "item", "number"})
_LARGEST = re.compile(r"\bint\([^()]*(\.|\b)a?max\(")
_ANY_OR_ALL = re.compile(r"\b(any|all)\(")


def _entry_of(noted: NotedWait) -> str:
    """The entry of the catalogue, by what was called and who asked for the value."""
    if noted.inside is not None and noted.entry in _READS:
        file = noted.inside.file.replace("\\", "/")
        for part, entry in _ASKED_BY.items():
            if part in file:
                asks = entry == "grad_scaler" and noted.inside.code.co_name == "get_scale"
                return "get_scale" if asks else entry
    text = statement(noted.site.file, noted.site.line)
    if noted.entry in {"int", "item"} and _LARGEST.search(text) and "shape" not in text:
        return "largest"
    if noted.entry == "number":
        return "slice" if noted.api in {"__getitem__", "__setitem__"} else "number"
    if noted.entry == "nonzero" and noted.api == "where":
        return "where"
    if noted.entry == "bool" and spelled(noted.site) in {"max", "min", "sorted"}:
        return "builtin"
    if noted.entry == "bool" and _ANY_OR_ALL.search(text):
        return "any"
    return noted.entry
