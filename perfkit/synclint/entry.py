"""Which entry of the catalogue an operation belongs to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from perfkit.synclint.sites import source_line, spelled

if TYPE_CHECKING:
    from perfkit.synclint.watch import NotedWait

# a library that asks for the value -> the entry that says what to do about it
_ASKED_BY = {
    "torch/amp/grad_scaler.py": "grad_scaler",
    "torch/distributions/": "distribution",
    "torch/nn/utils/clip_grad.py": "clip_grad",
}
_READS = frozenset({"bool", "float", "int", "item", "number"})
_INDEXING_CALLS = frozenset({"__getitem__", "__setitem__"})
_COMPARING = frozenset({"max", "min", "sorted"})
_LARGEST = re.compile(r"\bint\([^()]*(\.|\b)a?max\(")
_ANY_OR_ALL = re.compile(r"\b(any|all)\(")


def entry_of(noted: NotedWait) -> str:
    """Return the entry of the catalogue, by what was called and who asked for the value."""
    if noted.inside is not None and noted.entry in _READS:
        file = noted.inside.file.replace("\\", "/")
        for part, entry in _ASKED_BY.items():
            if part in file:
                asks = entry == "grad_scaler" and noted.inside.function == "get_scale"
                return "get_scale" if asks else entry
    text = source_line(noted.site.file, noted.site.line)
    if noted.entry in {"int", "item"} and _LARGEST.search(text) and "shape" not in text:
        return "largest"
    if noted.entry == "number":
        return "slice" if noted.api in _INDEXING_CALLS else "number"
    if noted.entry == "nonzero" and noted.api == "where":
        return "where"
    if noted.entry == "bool" and spelled(noted.site) in _COMPARING:
        return "builtin"
    if noted.entry == "bool" and _ANY_OR_ALL.search(text):
        return "any"
    return noted.entry
