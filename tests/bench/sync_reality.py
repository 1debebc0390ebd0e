"""Predicted waits beside those that a GPU's host really had: every rule and every program.

    python tests/bench/sync_reality.py out.json

Needs a CUDA device, and says so where there is none. Each rule of the sync lint has code that
should wait and code that should not; each program has its lines marked. All run on the device
under the lint, which reads a trace of the same run. What is printed and
written is where prediction and reality differ, and how long the waits took.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from perfkit.base.errors import MissingError
from perfkit.base.machine import stamp
from perfkit.course.kit.real_waits import check_syncs
from perfkit.synclint.catalogue import CATALOGUE
from perfkit.synclint.find import AS_PREDICTED, NOT_PREDICTED, NOT_SEEN

_HERE = Path(__file__).resolve().parent.parent / "synclint"
sys.path.insert(0, str(_HERE))

from catalogue_code import ALIKE, WAITS  # noqa: E402 - beside the tests of the catalogue
from snippets import compiled, namespace  # noqa: E402


def rules(device: str) -> list[dict[str, Any]]:
    """A row for each snippet of the catalogue."""
    rows = []
    for name, entry in CATALOGUE.items():
        forms = {"waits": WAITS.get(name), "example": entry.example, "alike": ALIKE.get(name)}
        for form, code in forms.items():
            if code:
                rows.append({"rule": name, "form": form, **outcome(partial(_step, code, device))})
    return rows


def _step(code: str, device: str) -> Callable[[], object]:
    # each of the two runs has names of its own: a graph serves one backward pass
    program, names = compiled(code), [namespace(device) for _ in range(2)]
    return lambda: exec(program, names.pop())


def programs(device: str = "cuda") -> list[dict[str, Any]]:
    """A row for each of the small programs."""
    rows = []
    for path in sorted((_HERE / "programs").glob("*.py")):
        with contextlib.redirect_stdout(io.StringIO()):
            rows.append({"program": path.stem, **outcome(partial(_step_of, path, device))})
    return rows


def _step_of(path: Path, device: str) -> Callable[[], object]:
    # they name no device: everything they make is made on this one
    with torch.device(device):
        step: Callable[[], object] = runpy.run_path(str(path))["step"]

    def run() -> None:
        with torch.device(device):
            step()

    return run


def outcome(make: Callable[[], Callable[[], object]]) -> dict[str, Any]:
    """Which lines of the step were predicted and which waited; or the error that ended it."""
    try:
        check = check_syncs(make())
    except MissingError:  # the example stays on the host: nothing there waits
        return {"on_the_gpu": False}
    except Exception as error:  # one that a device refuses must not lose the others
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {
        "agreed": _lines(check.of(AS_PREDICTED)),
        "only_predicted": _lines(check.of(NOT_SEEN)),
        "only_seen": _lines(check.of(NOT_PREDICTED)),
        "waited_ms": sum(sync.waited_ms or 0.0 for sync in check),
        "warnings": list(check.warnings),
    }


def _lines(syncs: Any) -> list[list[Any]]:
    return [[sync.line, sync.code, sync.op] for sync in syncs]


def differs(row: dict[str, Any]) -> bool:
    """Whether prediction and reality are not the same."""
    return bool(row.get("error") or row.get("only_predicted") or row.get("only_seen"))


def main(out: str, device: str = "cuda") -> int:
    """Compare, print the differences, write all."""
    if not torch.cuda.is_available():
        print("sync_reality: needs a CUDA device; there is none here")
        Path(out).write_text(json.dumps({"needs": "a CUDA device"}) + "\n", encoding="utf-8")
        return 0
    rows = rules(device) + programs(device)
    different = [row for row in rows if differs(row)]
    agreed = sum(len(row.get("agreed", ())) for row in rows)
    for row in different:
        print(json.dumps(row))
    print(
        f"{len(rows)} pieces of code, {agreed} lines that wait as predicted; "
        f"{len(different)} pieces differ from the prediction"
    )
    result = {"rows": rows, "n_different": len(different), "provenance": stamp().to_dict()}
    Path(out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/bench/sync_reality.py OUT.json")
    sys.exit(main(sys.argv[1]))
