"""Under which path a user knows a module: ``model.layer3.0.conv1``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import nn


def module_paths(
    modules: Iterable[nn.Module], names: Mapping[int, str]
) -> Iterator[tuple[nn.Module, str]]:
    """Each module below the outermost of ``modules``, with its path.

    Args:
        modules: in any order; who is the child of another is found here.
        names: ``id`` of a module → the user's name for it. Others are called by their class,
            a second one of the same class ``ResNet#2``.
    """
    ready = [module for module in modules if "_modules" in vars(module)]
    children = {id(c) for module in ready for c in module._modules.values() if c is not None}
    # what the user has a name for comes first, and the whole before its parts
    roots = [m for m in ready if id(m) not in children]
    roots.sort(key=lambda m: id(m) not in names)
    counts: dict[str, int] = {}
    for root in roots:
        name = names.get(id(root))
        if name is None:
            kind = type(root).__name__
            counts[kind] = counts.get(kind, 0) + 1
            name = kind if counts[kind] == 1 else f"{kind}#{counts[kind]}"
        for path, module in root.named_modules():
            yield module, f"{name}.{path}" if path else name
