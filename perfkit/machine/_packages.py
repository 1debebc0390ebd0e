"""Which of the packages that matter to perfkit are installed, and in which version."""

from __future__ import annotations

from importlib import metadata

_PACKAGES = (
    "anywidget",
    "ipykernel",
    "ipython",
    "ipywidgets",
    "jupyterlab",
    "line_profiler",
    "matplotlib",
    "memory_profiler",
    "nbclient",
    "nbconvert",
    "notebook",
    "numpy",
    "nvidia-ml-py",
    "pillow",
    "torchvision",
    "triton",
)


def installed() -> dict[str, str]:
    """Version by name, of those that are there."""
    found = {name: version(name) for name in _PACKAGES}
    return {name: version for name, version in found.items() if version is not None}


def version(package: str) -> str | None:
    """The installed version, or ``None``."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, int]:
    """Major and minor number; (0, 0) for a version that does not start with numbers."""
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return 0, 0
    return int(parts[0]), int(parts[1])
