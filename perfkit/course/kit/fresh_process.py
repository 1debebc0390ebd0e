"""Call a function in a fresh Python process: for what depends on a process's whole history."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from perfkit.base.errors import MeasurementError

# one thread: the networks are so small that a second one would only spin
_CODE = (
    "import importlib, json, sys, torch; torch.set_num_threads(1); "
    "module, name, arguments = sys.argv[1:]; "
    "found = getattr(importlib.import_module(module), name)(*json.loads(arguments)); "
    "print(json.dumps(found))"
)
_SAID_AT_MOST = 500  # characters of what the process complained about


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns there, with one torch thread.

    Args:
        function: of a module, by its name; it returns what JSON has.
        *arguments: what JSON has.

    Raises:
        MeasurementError: the process failed; the message has the end of what it said.
    """
    module, name = function.__module__, function.__qualname__
    command = [sys.executable, "-c", _CODE, module, name, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        said = " / ".join(done.stderr.strip()[-_SAID_AT_MOST:].splitlines()) or "it said nothing"
        raise MeasurementError(f"{name} failed in a process of its own: {said}")
    return json.loads(done.stdout.splitlines()[-1])
