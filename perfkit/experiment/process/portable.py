"""Send a workload to another process by value, and name what cannot be sent.

cloudpickle pickles functions and classes of a notebook with everything they refer to. If it fails,
it says "cannot pickle '_thread.lock' object" but not where that lock is; the search here finds the
path from the workload to it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import linecache
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from perfkit.base.arguments import brief
from perfkit.base.errors import UsageError, WorkloadNotPortableError

# The search pickles every candidate; it stops after this many.
_MOST_PROBES = 400
_MOST_SOURCE_CHARS = 2_000_000


@dataclass(frozen=True)
class Packed:
    """A workload as it was when packed; can be used wherever a workload can.

    Attributes:
        data: the workload, pickled by cloudpickle.
        sources: lines of notebook cells by file name, for tracebacks.
    """

    data: bytes = field(repr=False)
    sources: Mapping[str, list[str]] = field(repr=False)

    def __call__(self, settings: Any) -> Any:
        """Run it in this process, as the process of a run does."""
        return cloudpickle.loads(self.data)(settings)


def check_workload(workload: Any) -> None:
    """Check that it can be called as ``workload(settings)``.

    Raises:
        UsageError: it is not a function of one argument.
    """
    if inspect.isgenerator(workload):
        name = getattr(workload, "__name__", "workload")
        raise UsageError(f"pass the function {name} itself, not the generator {name}(…)")
    if not callable(workload):
        raise UsageError(
            f"a workload is a generator function that takes the settings, not {brief(workload)}"
        )
    try:
        inspect.signature(workload).bind(object())
    except TypeError as error:
        name = getattr(workload, "__name__", type(workload).__name__)
        raise UsageError(
            f"the workload must be callable as {name}(settings), with one argument: {error}"
        ) from None
    except ValueError:  # a builtin without a signature: the call will raise its own error
        return


def pack(workload: Any, name: str = "") -> bytes:
    """Pickle the workload, or what travels with it, so that another process can load it.

    Args:
        workload: what travels.
        name: what it is called in an error; by default its own name.

    Raises:
        WorkloadNotPortableError: something that it refers to cannot be pickled; names it.
    """
    if isinstance(workload, Packed):
        return workload.data
    try:
        return _dumps(workload)
    except Exception as raised:  # __reduce__ and __getstate__ of user classes raise anything
        error = raised
    path, culprit = _culprit(workload)
    name = name or getattr(workload, "__name__", type(workload).__name__)
    where = " → ".join(path) or "it"
    raise WorkloadNotPortableError(
        f"{name} cannot travel to its own process: {where} ({_kind(culprit)}) cannot be pickled; "
        f"{_remedy(culprit)}"
    ) from error


def sources(workload: Any) -> dict[str, list[str]]:
    """Source lines of notebook cells, so that a traceback from the child shows them.

    Files on disk are left out: the child reads them itself.
    """
    if isinstance(workload, Packed):
        return dict(workload.sources)
    found: dict[str, list[str]] = {}
    budget = _MOST_SOURCE_CHARS
    for filename in _code_files(workload):
        lines = linecache.getlines(filename)
        budget -= sum(map(len, lines))
        if lines and budget > 0 and not Path(filename).exists():
            found[filename] = lines
    return found


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Also sends by name what torch is made of.

    Its operators, such as ``torch.ops.aten.convolution.default``, and modules with a class of
    their own: cloudpickle adds ``torch.classes`` to a method with ``torch`` and ``self.classes``,
    and ``torch.backends`` to one that sets ``torch.backends.cudnn.benchmark``.
    """

    def reducer_override(self, value: Any) -> Any:
        module = _name_of_module(value)
        if module is not None:
            return importlib.import_module, (module,)
        path = _path_of_operator(value)
        return super().reducer_override(value) if path is None else (_operator, (path,))


def _name_of_module(value: Any) -> str | None:
    """The name that a module with a class of its own is imported by, else None."""
    if type(value) is types.ModuleType or not isinstance(value, types.ModuleType):
        return None  # cloudpickle knows how to send an ordinary module
    return next((name for name, one in list(sys.modules.items()) if one is value), None)


def _path_of_operator(value: Any) -> str | None:
    """``"torch.ops.aten.convolution"`` of what ``torch.ops`` is made of, else None."""
    cls = type(value)
    if cls.__module__ != "torch._ops":
        return None
    if cls.__name__ == "_Ops":
        return "torch.ops"
    if cls.__name__ == "_OpNamespace":
        return str(value.__name__)
    # their text is their name: aten.convolution, aten.convolution.default
    return f"torch.ops.{value}" if cls.__name__ in ("OpOverloadPacket", "OpOverload") else None


def _operator(path: str) -> Any:
    import torch

    return functools.reduce(getattr, path.split(".")[1:], torch)


def _dumps(value: Any) -> bytes:
    out = io.BytesIO()
    _Pickler(out).dump(value)
    return out.getvalue()


def _failure(value: Any) -> Exception | None:
    """Why it cannot be pickled, or None."""
    try:
        _dumps(value)
    except Exception as error:
        return error
    return None


def _culprit(workload: Any) -> tuple[list[str], Any]:
    """The path to the innermost object that cannot be pickled, and that object."""
    path: list[str] = []
    current, seen, probes = workload, {id(workload)}, 0
    while True:
        for label, part in parts(current):
            if id(part) in seen:
                continue
            seen.add(id(part))
            probes += 1
            if probes > _MOST_PROBES:
                return path, current
            if _failure(part) is not None:
                path.append(label)
                current = part
                break
        else:
            return path, current


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Everything that is pickled along with a value, each part with a label."""
    if isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f"closure variable {name!r}", cell.cell_contents
            except ValueError:  # not yet assigned
                continue
        for name in _names(value.__code__):
            if name in value.__globals__:
                yield f"global {name!r}", value.__globals__[name]
        for default in value.__defaults__ or ():
            yield "a default argument", default
        for name, default in (value.__kwdefaults__ or {}).items():
            yield f"default of {name!r}", default
        yield from _attributes(value.__dict__)
    elif isinstance(value, types.MethodType):
        yield "its object", value.__self__
        yield f"method {value.__func__.__name__!r}", value.__func__
    elif isinstance(value, functools.partial):
        yield "the partial's function", value.func
        for given in value.args:
            yield "an argument of the partial", given
        for name, given in value.keywords.items():
            yield f"argument {name!r} of the partial", given
    elif isinstance(value, type):
        yield from _attributes(vars(value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"[{brief(key, 40)}]", item
    elif isinstance(value, list | tuple | set | frozenset):
        for i, item in enumerate(value):
            yield f"item {i}", item
    else:
        if isinstance(value, staticmethod | classmethod):
            yield "its function", value.__func__
        elif isinstance(value, property):
            yield "its function", value.fget
        yield from _attributes(getattr(value, "__dict__", {}))
        if not hasattr(type(value), "__reduce__") or type(value).__module__ != "builtins":
            yield f"class {type(value).__name__!r}", type(value)


def _attributes(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name not in ("__dict__", "__weakref__", "__module__", "__doc__"):
            yield f"attribute {name!r}", value


def _names(code: types.CodeType) -> list[str]:
    """All global names that the code and its inner functions may read."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= dict.fromkeys(_names(constant))
    return list(names)


def _kind(value: Any) -> str:
    cls = type(value)
    name = cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _remedy(value: Any) -> str:
    if isinstance(value, io.IOBase):
        return "open the file inside the workload"
    if isinstance(value, Iterator):
        return "make the generator or iterator inside the workload"
    if any(cls.__module__.startswith("ipywidgets") for cls in type(value).__mro__):
        return "leave the widget out: yield what it should show"
    return "make it inside the workload, which runs in a process of its own"


def _code_files(workload: Any) -> Iterator[str]:
    """File names of code that is sent by value, found via globals, closures and classes."""
    stack, seen = [workload], set[int]()
    while stack and len(seen) < 10_000:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.FunctionType):
            yield value.__code__.co_filename
            stack += [part for _, part in parts(value)]
        elif isinstance(value, type) and value.__module__ == "__main__":
            stack += vars(value).values()
        elif isinstance(value, types.MethodType | functools.partial | staticmethod | classmethod):
            stack += [part for _, part in parts(value)]
        elif type(value).__module__ == "__main__":
            stack.append(type(value))
