"""Which packages relevant to perfkit are installed, and in which version."""

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


# Other distribution names of the same packages: torch's nightly builds, and Windows.
_ALSO_CALLED = {"triton": ("pytorch-triton", "triton-windows")}


def installed() -> dict[str, str]:
    """Name → version of the installed ones."""
    found = {}
    for name in _PACKAGES:
        for called in (name, *_ALSO_CALLED.get(name, ())):
            seen = version(called)
            if seen is not None:
                found[name] = seen
                break
    return found


def version(package: str) -> str | None:
    """The installed version of a package, or ``None``."""
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
