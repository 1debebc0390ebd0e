"""Who holds an object: the chain of referrers down from a name that the user knows.

``losses[…]``, ``model._forward_hooks[0] → closure of hook, out``. The garbage collector is
asked level by level (one look at all its objects each), from the object upwards.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import (
    BuiltinFunctionType,
    CellType,
    FrameType,
    FunctionType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any

from perfkit.base.user_code import is_user_code

#: Levels of referrers that are looked at.
_LEVELS = 14
#: Referrers of one level, at most: a longer answer would be of no use to a reader.
_WIDEST = 3000
#: Objects that are asked at a time for what they hold: the answers are kept that long.
_AT_ONCE = 10_000

_PERFKIT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120


def holder_of(target: object, ignore: Iterable[object] = ()) -> str | None:
    """The shortest way from a variable to ``target``, in words; None where none is found.

    Args:
        target: what is held.
        ignore: objects whose hold does not count, such as the caller's own lists.
    """
    search = _Search(target, ignore)
    try:
        return search.run()
    finally:
        search.forget()


def held_among(targets: set[int], ignore: Iterable[object] = ()) -> set[int]:
    """Which of these an object or a variable holds.

    One look at all objects, for however many targets.

    Args:
        targets: what may be held, by ``id``.
        ignore: as of :func:`holder_of`.
    """
    if not targets:
        return set()
    ignored = {id(one) for one in ignore}
    found: set[int] = set()
    # asked for directly, as in a search; frames first: what they have let go of is forgotten then
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_code(frame.f_code.co_filename):
            found.update(targets.intersection(id(value) for _, value in _locals(frame)))
        frame = frame.f_back
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            found.update(targets.intersection(map(id, list(vars(module).values()))))
    objects = gc.get_objects()
    for i in range(0, len(objects), _AT_ONCE):
        some = [one for one in objects[i : i + _AT_ONCE] if id(one) not in ignored]
        found.update(targets.intersection(map(id, gc.get_referents(*some))))
    return found


class _Search:
    def __init__(self, target: object, ignore: Iterable[object]) -> None:
        self._target = target
        # objects are kept while the search lasts, so that an id means one object
        self._ignored = {id(obj) for obj in ignore} | {id(self), id(vars(self))}
        self._stack: dict[int, FrameType] = {}
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            self._stack[id(frame)] = frame
            frame = frame.f_back
        self._globals = {
            id(vars(module)): module
            for module in list(sys.modules.values())
            if isinstance(module, ModuleType)
        }
        # asked for directly: the collector does not tell of objects that gc.freeze() put away
        self._variables = {
            id(value): (key, module.__name__)
            for module in self._globals.values()
            if module.__name__ == "__main__" or is_user_code(getattr(module, "__file__", "") or "")
            for key, value in list(vars(module).items())
            if not key.startswith("_")
        }
        self._child: dict[int, object] = {}
        self._seen: dict[int, object] = {id(target): target}
        self._fallback: str | None = None

    def forget(self) -> None:
        self._stack.clear()
        self._child.clear()
        self._seen.clear()
        self._globals.clear()
        self._variables.clear()

    def run(self) -> str | None:
        level: list[object] = [self._target]
        for _ in range(_LEVELS):
            found = gc.get_referrers(*level)
            ours = {id(level), id(found), *self._own()}
            wanted = {id(obj) for obj in level}
            for obj in level:
                if id(obj) in self._variables:
                    return f"{self._variable(id(obj))}{self._path(obj)}"
            following: list[object] = []
            ours.add(id(following))
            for parent in found:
                if id(parent) in self._seen or id(parent) in ours or self._skip(parent):
                    continue
                child = self._held(parent, wanted)
                if child is None:
                    continue
                self._seen[id(parent)] = parent
                self._child[id(parent)] = child
                name = self._name(parent, child)
                if name is not None:
                    path = f"{name}{self._path(child, parent)}"
                    if not name.lstrip("(").startswith("_"):
                        return path
                    self._fallback = self._fallback or path
                elif not self._is_end(parent):
                    following.append(parent)
                if len(following) > _WIDEST:
                    return self._fallback
            # frames that run have no object that the collector knows before they are asked for
            for frame in self._stack.values():
                if id(frame) not in self._seen and self._of_user(frame):
                    for key, value in _locals(frame):
                        if id(value) in wanted and not key.startswith("_"):
                            return f"{key} (in {frame.f_code.co_name}){self._path(value)}"
            del found
            if not following:
                return self._fallback
            level = following
        return self._fallback

    def _variable(self, key: int) -> str:
        name, module = self._variables[key]
        return name if module == "__main__" else f"{name} (of {module.rpartition('.')[2]})"

    def _own(self) -> set[int]:
        return {
            id(self._child),
            id(self._seen),
            id(self._stack),
            id(self._globals),
            id(self._variables),
        }

    def _skip(self, parent: object) -> bool:
        if id(parent) in self._ignored:
            return True
        if isinstance(parent, FrameType):
            return parent.f_code.co_filename.startswith(_PERFKIT)
        return type(parent).__module__.startswith("perfkit.")

    def _held(self, parent: object, wanted: set[int]) -> object | None:
        for child in gc.get_referents(parent):
            if id(child) in wanted:
                held: object = child
                return held
        # the values of an executing frame are not among its referents
        return None

    def _of_user(self, frame: FrameType) -> bool:
        return is_user_code(frame.f_code.co_filename)

    def _is_end(self, parent: object) -> bool:
        # beyond these lies the interpreter, not the user's code
        return id(parent) in self._globals or isinstance(parent, ModuleType)

    def _name(self, parent: object, child: object) -> str | None:
        """The variable or class attribute that ``parent`` is the home of, if it is one."""
        if id(parent) in self._globals:
            key = _key_of(parent, child)
            return None if key is None else f"{key} (of {self._globals[id(parent)].__name__})"
        if id(parent) in self._stack:
            frame = self._stack[id(parent)]
            if not self._of_user(frame):
                return None
            value = _inside(child)
            for key, local in _locals(frame):
                if local is value:
                    return f"{key} (in {frame.f_code.co_name})"
        if isinstance(parent, dict) and "__name__" in parent and "__builtins__" in parent:
            return _key_of(parent, child)  # a namespace such as a notebook's
        if isinstance(parent, type):
            return parent.__qualname__
        return None

    def _path(self, obj: object, above: object = None) -> str:
        """From ``obj``, which ``above`` holds, down to the target."""
        parts = []
        while obj is not self._target and id(obj) in self._child:
            child = self._child[id(obj)]
            parts.append(_edge(obj, child, above, self._child.get(id(child))))
            above, obj = obj, child
        return "".join(parts)


def _edge(parent: object, child: object, above: object, below: object) -> str:
    """How ``parent``, which ``above`` holds, holds ``child``, which holds ``below``, in words."""
    if isinstance(parent, CellType):
        return ""
    if isinstance(parent, (list, tuple)) or type(parent).__name__ in {"deque", "set", "frozenset"}:
        return "" if _is_closure(parent) else "[…]"
    if isinstance(parent, Mapping):
        keys = _keys_of(parent, child)
        if not keys:
            return "[…]"
        return f".{keys[0]}" if _is_of_attributes(parent, above) else f"[{keys[0]!r:.40}]"
    if isinstance(parent, FunctionType):
        if child is parent.__closure__:
            return f" → closure of {parent.__qualname__}{_free_name(parent, below)}"
        is_default = child is parent.__defaults__ or child is parent.__kwdefaults__
        return f" → {'defaults of ' if is_default else ''}{parent.__qualname__}"
    if isinstance(parent, FrameType):
        value = _inside(child)
        names = [key for key, local in _locals(parent) if local is value]
        return f" → frame of {parent.f_code.co_name}{': ' + names[0] if names else ''}"
    if isinstance(parent, TracebackType):
        return ""
    if isinstance(parent, BaseException):
        return " → traceback" if isinstance(child, TracebackType) else " → exception"
    if isinstance(parent, (MethodType, BuiltinFunctionType)):
        return " → bound method"
    wrapped = getattr(type(parent), "cache_info", None) and getattr(parent, "__wrapped__", None)
    if wrapped is not None:
        return f" → cache of {getattr(wrapped, '__qualname__', 'a function')}"
    key = _attribute_of(parent, child)
    if key:
        return f".{key}"
    return "" if isinstance(child, dict) else f" → {type(parent).__name__}"


def _is_closure(obj: object) -> bool:
    return isinstance(obj, tuple) and bool(obj) and all(isinstance(x, CellType) for x in obj)


def _inside(obj: object) -> object:
    if isinstance(obj, CellType):
        try:
            return obj.cell_contents
        except ValueError:
            return None
    return obj


def _locals(frame: FrameType) -> Iterator[tuple[str, Any]]:
    try:
        yield from list(frame.f_locals.items())
    except RuntimeError:  # cleared meanwhile
        return


def _keys_of(mapping: Any, child: object) -> list[Any]:
    try:
        items = list(mapping.items())
    except RuntimeError:
        return []
    return [key for key, value in items if value is child]


def _key_of(mapping: Any, child: object) -> str | None:
    return next(map(str, _keys_of(mapping, child)), None)


def _is_of_attributes(mapping: object, owner: object) -> bool:
    return isinstance(owner, type) or getattr(owner, "__dict__", None) is mapping


def _attribute_of(parent: object, child: object) -> str | None:
    own = getattr(parent, "__dict__", None)
    return _key_of(own, child) if isinstance(own, dict) else None


def _free_name(function: FunctionType, held: object) -> str:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        if cell is held:
            return f", {name}"
    return ""
