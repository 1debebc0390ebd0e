"""Is it the same workload? A name and a digest that are stable across processes.

Pickled bytes would not do: they hold line numbers, names of a notebook's temporary files, and sets
in arbitrary order. The digest covers the source of every function and class sent with the workload,
and the plain values (numbers, strings, …) that these refer to.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from perfkit.base.machine import facts
from perfkit.experiment.process._failure import is_library
from perfkit.experiment.process.portable import parts

_MOST_PARTS = 10_000
_PLAIN = (str, bytes, int, float, complex, bool, type(None), PurePath)


@dataclass(frozen=True)
class Identity:
    """What the runs of a store belong to: one workload, on one machine, with one torch.

    Attributes:
        name: of the workload.
        digest: of its code and plain values.
        machine, gpu, torch: where it runs; ``gpu`` is ``"none"`` without one.
    """

    name: str
    digest: str
    machine: str
    gpu: str
    torch: str

    def to_dict(self) -> dict[str, str]:
        """The identity as in a line of a store."""
        return {
            "workload": self.name,
            "digest": self.digest,
            "machine": self.machine,
            "gpu": self.gpu,
            "torch": self.torch,
        }

    def difference(self, line: Mapping[str, Any]) -> str:
        """Why the run of this line belongs to something else; empty if it does not."""
        mine = self.to_dict()
        if line.get("workload") != mine["workload"]:
            return f"it holds runs of the workload {line.get('workload')!r}, not of {self.name!r}"
        if line.get("digest") != mine["digest"]:
            return (
                f"it holds runs of {self.name!r} as it was before: its code, or a value in it, "
                "has changed"
            )
        for what in ("machine", "gpu", "torch"):
            if line.get(what) != mine[what]:
                return f"its runs were made with {what} {line.get(what)!r}, not {mine[what]!r}"
        return ""


def identity(workload: Any) -> Identity:
    """The identity of this workload here."""
    from perfkit.base.machine import machine_sentence

    digest = hashlib.sha256()
    for piece in _pieces(workload):
        digest.update(piece.encode("utf-8", "surrogatepass") + b"\0")
    machine = facts()
    return Identity(
        name=str(getattr(workload, "__name__", type(workload).__name__)),
        digest=digest.hexdigest()[:16],
        machine=machine_sentence(),
        gpu=machine.gpus[0].name if machine.gpus else "none",
        torch=machine.torch.version if machine.torch else "none",
    )


def _pieces(workload: Any) -> Iterator[str]:
    """Texts that define the workload, in an order that does not depend on the process."""
    stack: list[tuple[str, Any]] = [("workload", workload)]
    seen: set[int] = set()
    kept: list[Any] = []  # made during the search; keeps their ids from being reused
    while stack and len(seen) < _MOST_PARTS:
        label, value = stack.pop()
        if isinstance(value, _PLAIN):
            yield f"{label}={value!r}"
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        if isinstance(value, types.ModuleType):
            yield f"{label}: module {value.__name__}"
        elif isinstance(value, types.FunctionType | type):
            yield f"{label}: {value.__qualname__}"
            if _of_library(value):
                continue
            yield _source(value)
            stack += sorted(_within(value), key=lambda part: part[0], reverse=True)
        elif isinstance(value, set | frozenset):
            yield f"{label}: " + " ".join(sorted(map(repr, value)))
        elif isinstance(
            value, types.MethodType | functools.partial | Mapping | list | tuple
        ) or not _of_library(type(value)):
            yield f"{label}: {type(value).__qualname__}"
            stack += sorted(parts(value), key=lambda part: part[0], reverse=True)
        else:
            yield f"{label}: {type(value).__qualname__}"


def _within(value: types.FunctionType | type) -> Iterator[tuple[str, Any]]:
    if isinstance(value, type):
        for base in value.__bases__:
            yield f"base {base.__qualname__}", base
        for name, member in vars(value).items():
            if isinstance(member, types.FunctionType | staticmethod | classmethod | property):
                yield f"member {name}", member
        return
    yield from parts(value)


def _of_library(value: Any) -> bool:
    """Whether its code is an installed package: versions identify that, not the digest."""
    if isinstance(value, types.FunctionType):
        return is_library(value.__code__.co_filename)
    module = getattr(value, "__module__", None) or ""
    if module in ("builtins", "__main__"):  # in a notebook, __main__ has the launcher's file
        return module == "builtins"
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and is_library(str(file))


def _source(value: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(value))
    except (OSError, TypeError):
        code = getattr(value, "__code__", None)
        return "" if code is None else f"{code.co_code.hex()} {_constants(code)}"


def _constants(code: types.CodeType) -> str:
    said = (
        f"{c.co_code.hex()} {_constants(c)}" if isinstance(c, types.CodeType) else repr(c)
        for c in code.co_consts
    )
    return " ".join(said)
