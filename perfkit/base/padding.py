"""Padding of a batch of sequences, and code that cuts it off."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from perfkit.base.source import call_with, only_line_with


@dataclass(frozen=True)
class Padding:
    """Its size, the padded share of it, the longest row, what the others are padded with.

    Attributes:
        at_end: on which side.
        path: code from the batch to the part that is padded: empty, ``[0]`` or ``['ids']``.
    """

    rows: int
    length: int
    share: float
    longest: int
    value: float
    at_end: bool = True
    path: str = ""

    def cut(self, collate_fn: Any) -> str:
        """A function that collates and cuts to the longest row, and the loader that gets it."""
        is_one = only_line_with(r"\bDataLoader\(") is not None
        given = call_with("collate_fn=cut", "DataLoader")[1] if is_one else ""
        by_trainer = "transformers.trainer" in sys.modules and not is_one
        whole = "trainer = Trainer(..., data_collator=cut)" if by_trainer else ""
        given = given or whole or "loader = DataLoader(..., collate_fn=cut)"
        if self.path.count("[") > 1 or "." in self.path:
            return "length = max(map(len, rows))  # where rows are padded"
        name = getattr(collate_fn, "__name__", "")
        if name == "default_collate":
            name = "torch.utils.data.default_collate"
        elif not name.isidentifier():
            name = "collate"
        part, n = ("x[:, :n]", "max()) + 1") if self.at_end else ("x[:, n:]", "min())")
        each = f'{part} if getattr(x, "shape", ())[1:2] == ({self.length},) else x'
        result = f"[{each} for x in batch]" if self.path else part.replace("x", "batch", 1)
        if "'" in self.path:
            result = f"{{k: {each} for k, x in batch.items()}}"
        return (
            "def cut(rows):  # to the longest of the batch\n"
            f"    batch = {name}(rows)\n"
            f"    n = int((batch{self.path} != {self.value:g}).nonzero()[:, 1].{n}\n"
            f"    return {result}\n{given}"
        )
