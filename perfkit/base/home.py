"""The one folder of the user in which perfkit keeps anything."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from perfkit.base.errors import UsageError


def folder() -> Path:
    """``$PERFKIT_HOME``, else ``perfkit`` in the user's data folder; it may not exist yet.

    Raises:
        UsageError: this user has no home folder and ``PERFKIT_HOME`` is not set, or it begins with
            an unknown ``~user``.
    """
    told = os.environ.get("PERFKIT_HOME")
    if told:
        try:
            return Path(told).expanduser().absolute()
        except RuntimeError:
            raise UsageError(
                f"PERFKIT_HOME={told!r:.80} begins with an unknown user: name a folder"
            ) from None
    try:
        home = Path.home()
    except RuntimeError:
        raise UsageError("this user has no home folder: set PERFKIT_HOME") from None
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "perfkit"
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_DATA_HOME"
    default = home / "AppData" / "Local" if sys.platform == "win32" else home / ".local" / "share"
    data = Path(os.environ.get(variable) or default)
    # the XDG specification says to ignore a relative path
    return (data if data.is_absolute() else default) / "perfkit"
