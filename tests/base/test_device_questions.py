"""Nothing outside perfkit/base/device asks "is it CUDA?": it asks the device protocol."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import perfkit

PACKAGE = Path(perfkit.__file__).parent

#: What may name torch.cuda or compare with "cuda", and why.
ALLOWED = {
    "base/torch_compat.py": "torch's private names: allocator history, contexts, captures",
    "experiment/process/rank.py": "NCCL is CUDA's: a rank takes the GPU of its local number",
    "script/ranks/child.py": "NCCL is CUDA's: a rank takes the GPU of its local number",
    "widgets/launch.py": "NCCL is CUDA's, and needs a GPU a rank",
    "course/lessons": "what one lesson measures or teaches about CUDA, for a reader's own program",
}
_TYPES = ("cuda", "mps", "xpu", "hip")


def questions(source: str) -> Iterator[tuple[int, str]]:
    """Lines that call torch.cuda or ask for a type of device by its name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if node.attr in _TYPES and name.lstrip("_") == "torch":
                yield node.lineno, f"torch.{node.attr}"
            if node.attr in ("is_cuda", "is_mps", "is_xpu"):
                yield node.lineno, f".{node.attr}"
        elif isinstance(node, ast.Compare):
            if any(_names_a_type(part) for part in (node.left, *node.comparators)):
                yield node.lineno, "a comparison"
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            function = node.func.id if isinstance(node.func, ast.Name) else ""
            asks = called in ("startswith", "endswith") or function == "getattr"
            if asks and any(_names_a_type(argument) for argument in node.args):
                yield node.lineno, called or function
            if called == "device" and any(_names_a_type(argument) for argument in node.args):
                yield node.lineno, "torch.device"
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id == "Literal"
            and _names_a_type(node.slice)
        ):
            yield node.lineno, "Literal"


def _names_a_type(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(_names_a_type, node.elts))
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.partition(":")[0] in _TYPES
    )


def _is_allowed(path: str) -> bool:
    return path.startswith("base/device/") or any(
        path == one or path.startswith(f"{one}/") for one in ALLOWED
    )


def test_only_the_device_protocol_knows_types_of_devices() -> None:
    found = [
        f"{path}:{line}: {what}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if not _is_allowed(path := file.relative_to(PACKAGE).as_posix())
        for line, what in questions(file.read_text())
    ]
    assert found == [], "ask perfkit.base.device instead"


def test_everything_that_is_allowed_still_asks() -> None:
    """An entry whose reason is gone goes, too."""
    for one in ALLOWED:
        place = PACKAGE / one
        files = [place] if place.is_file() else sorted(place.rglob("*.py"))
        if files:
            assert any(True for file in files for _ in questions(file.read_text())), one


@pytest.mark.parametrize(
    "line",
    [
        "torch.cuda.synchronize()",
        "self._torch.cuda.current_stream()",
        "x.device.type == 'cuda'",
        "kind in ('cpu', 'cuda')",
        "place.startswith('cuda:')",
        "getattr(torch, 'cuda', None)",
        "tensor.is_cuda",
        "device: Literal['cpu', 'cuda']",
        "torch.device('cuda')",
        "x.device.type == 'mps'",
    ],
)
def test_what_asks_is_found(line: str) -> None:
    assert list(questions(line))


@pytest.mark.parametrize(
    "line", ["torch.version.cuda", "words = 'cuda'", "build.cuda", "f(cuda=1)", "x == 'cpu'"]
)
def test_what_does_not_ask_is_not(line: str) -> None:
    assert not list(questions(line))
