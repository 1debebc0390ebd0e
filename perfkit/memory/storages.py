"""Which storages stand behind a tensor.

Views share a storage, a sparse tensor has two or three, a wrapper subclass has those of its
inner tensors, and meta and fake tensors have none that holds memory.
"""

from __future__ import annotations

from torch import Tensor, UntypedStorage

from perfkit.base import torch_compat


def shown_bytes(tensor: Tensor) -> int:
    """The size of a tensor's values; of a sparse one as if it were dense.

    ``.nbytes`` of a sparse tensor raises.
    """
    return tensor.numel() * tensor.element_size()


def storages_of(tensor: Tensor) -> tuple[UntypedStorage, ...] | None:
    """The storages that hold this tensor's values, or None where nothing can be known.

    None is given for tensors without a storage that Python can see (MKL-DNN layouts, lazily
    initialised parameters); empty for meta and fake tensors, which hold no memory.
    """
    if torch_compat.is_fake(tensor) or tensor.device.type == "meta":
        return ()
    try:
        inner = torch_compat.inner_tensors(tensor)
        if inner is None:
            return (tensor.untyped_storage(),)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return None
    found: list[UntypedStorage] = []
    for part in inner:
        storages = storages_of(part) if isinstance(part, Tensor) else None
        found.extend(storages or ())
    return tuple(found)
