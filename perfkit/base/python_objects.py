"""Python objects that a container holds: what they take, and arrays in place of them.

A process that was forked shares their pages until it reads one: that writes its reference count.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter, itemgetter
from typing import Any

# Of each container so many are looked at, evenly spread, not all of them even ones.
_SAMPLE = 16
# What reading an object copies at most, however large it is.
_PAGE_BYTES = 4096
# Those up to here there are once in a process.
_SMALL_INTS = range(-5, 257)
# Of so many fields the code is told.
_MOST_FIELDS = 4


def copied_bytes(value: Any, *, depth: int = 3) -> float:
    """About how many bytes a forked process copies that reads all of this."""
    if value is None or (isinstance(value, int) and value in _SMALL_INTS):
        return 0.0
    own = float(min(sys.getsizeof(value), _PAGE_BYTES))
    n, some = _some(value) if depth else (0, [])
    if not some:
        return own
    distinct = {id(one): one for one in some}.values()  # one object may stand in all of them
    return own + n * sum(copied_bytes(one, depth=depth - 1) for one in distinct) / len(some)


def _some(value: Any) -> tuple[int, list[Any]]:
    """How many parts it has, and some of these."""
    held = value if isinstance(value, list | tuple | Mapping) else getattr(value, "__dict__", ())
    parts = held.values() if isinstance(held, Mapping) else held
    return len(held), list(itertools.islice(parts, 0, None, len(held) // _SAMPLE | 1))


def as_arrays(name: str, rows: Any) -> str:
    """Code that keeps the same in arrays, with the names that the rows have.

    Args:
        name: of the container that holds the rows, such as ``self.records``.
    """
    _, some = _some(rows)
    source = f"{name}.values()" if isinstance(rows, Mapping) else name
    owner = "self." if name.startswith("self.") else ""
    code = []
    for field, get, values in itertools.islice(_fields(some), _MOST_FIELDS):
        target = name if not field else f"{owner}{field}"
        each = source if get == "r" else f"[{get} for r in {source}]"
        if all(isinstance(one, str) for one in values):
            code.append(f"{target} = np.array({each})  # each as long as the longest")
        elif all(map(_is_number, values)):
            code.append(f"{target} = torch.tensor({each})")
        elif all(hasattr(one, "detach") and one.shape == values[0].shape for one in values):
            code.append(f"{target} = torch.stack({each})")
        elif all(isinstance(one, list | tuple) and all(map(_is_number, one)) for one in values):
            if len(set(map(len, values))) == 1:
                code.append(f"{target} = torch.tensor({each})")
                continue
            code += [
                f"ends = np.cumsum([len({get}) for r in {source}])  # row i: from ends[i - 1]",
                f"{target} = torch.tensor([x for r in {source} for x in {get}])",
            ]
    return "\n".join(code or ["# numbers in one tensor, and strings in one np.array"])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _fields(rows: list[Any]) -> Iterator[tuple[str, str, list[Any]]]:
    """Of rows that are alike: each field's name, code that gets it from ``r``, and its values."""
    first = rows[0]
    names = getattr(first, "_fields", None) or list(getattr(first, "__dict__", ()))
    fields: list[tuple[str, str, Callable[[Any], Any]]] = [("", "r", lambda row: row)]
    if isinstance(first, Mapping):
        fields = [(str(key), f"r[{key!r}]", itemgetter(key)) for key in first]
    elif names:
        fields = [(key, f"r.{key}", attrgetter(key)) for key in names]
    elif isinstance(first, list | tuple) and not all(map(_is_number, first)):
        fields = [(f"part_{i}", f"r[{i}]", itemgetter(i)) for i in range(len(first))]
    for name, get, value_of in fields:
        try:
            values = [value_of(one) for one in rows]
        except (LookupError, TypeError, AttributeError):  # another kind of row, or without it
            continue
        if not name or name.isidentifier():
            yield name, get, values
