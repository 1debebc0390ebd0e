"""Whether tensors, arrays, numbers and texts are what they were, without keeping them."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch

from perfkit.base import torch_compat

Checksum = tuple[int, int, frozenset[tuple[int, int]]]
_MOST_BYTES, _MOST_PARTS = 2**22, 4096


def checksum(item: Any, *, most_bytes: int = _MOST_BYTES) -> Checksum | None:
    """A checksum of an item, its bytes, and of what its tensors are views: address and bytes.

    None where it is no numbers or texts, or a tensor is larger or on a device.
    """
    if isinstance(item, torch.Tensor | np.ndarray):
        try:
            if item.nbytes > most_bytes:
                return None
            n_bytes, wholes = item.nbytes, frozenset[tuple[int, int]]()
            with torch_compat.without_modes():
                if isinstance(item, torch.Tensor):
                    whole = item.untyped_storage()
                    wholes = frozenset(((whole.data_ptr(), whole.nbytes()),))
                    item = item.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            item = np.ascontiguousarray(item).reshape(-1).view(np.uint8)
            return zlib.crc32(item.data), n_bytes, wholes
        except (RuntimeError, TypeError, ValueError):  # on a device, sparse, of objects …
            return None
    if isinstance(item, dict):
        item = [part for pair in item.items() for part in pair]
    if isinstance(item, list | tuple) and len(item) <= _MOST_PARTS:
        prints = [checksum(part, most_bytes=most_bytes) for part in item]
        known = [one for one in prints if one is not None]
        sum_of = zlib.crc32(repr([one[0] for one in known]).encode())
        wholes = frozenset(one for *_, some in known for one in some)
        n_bytes = sum(one[1] for one in known)
        return (sum_of, n_bytes, wholes) if len(known) == len(prints) else None
    if isinstance(item, int | float | complex | str | bytes | np.generic | None):
        text = repr(item).encode()
        return zlib.crc32(text), len(text), frozenset()
    return None


def is_plain(value: Any) -> bool:
    """Whether a tensor or array is the same number all over, or empty."""
    with torch_compat.without_modes():
        flat = value.detach().reshape(-1) if isinstance(value, torch.Tensor) else value.reshape(-1)
        return not len(flat) or not bool((flat != flat[0]).any())
