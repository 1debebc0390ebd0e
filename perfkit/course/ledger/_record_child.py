"""The process of one experiment: a request on standard input, the answer in a file."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1


def main(request: dict[str, Any]) -> None:
    """Import the module, run the experiment, write its result."""
    _die_with(request["parent"])
    answer = _answer(request)
    target = Path(request["answer"])
    part = target.with_suffix(".part")
    part.write_text(json.dumps(answer), encoding="utf-8")
    part.replace(target)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from perfkit.base.errors import MissingError
    from perfkit.course.ledger.recording import Context, registered

    try:
        importlib.import_module(request["module"])
        (found,) = registered(claims=[request["claim"]], lessons=[request["lesson"]])
        outcome = found.run(
            Context(
                budget_s=request["budget_s"],
                device=request["device"],
                seed=request["seed"],
                folder=Path(request["folder"]),
            )
        )
    except MissingError as error:
        return {"missing": str(error)}
    except Exception as error:
        return {"error": _headline(error), "traceback": traceback.format_exc()}
    return {"outcome": outcome.to_dict()}


def _headline(error: Exception) -> str:
    """``ValueError: bad value (host_to_device.py, line 12)``: the innermost line outside torch."""
    said = f"{type(error).__name__}: {error}".strip().removesuffix(":").splitlines()[0]
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and f.filename != __file__]
    if not own:
        return said
    return f"{said} ({Path(own[-1].filename).name}, line {own[-1].lineno})"


def _die_with(parent: int) -> None:
    """End when the recorder is killed (Linux; elsewhere the time limit has to do)."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had already ended
        os._exit(1)
