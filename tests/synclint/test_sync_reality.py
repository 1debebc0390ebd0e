"""The comparison over all rules and programs, on a played GPU."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from catalogue_code import WAITS

from perfkit.synclint.catalogue import CATALOGUE

SCRIPT = Path(__file__).parents[1] / "bench" / "sync_reality.py"
FEW = ("item", "prod")


@pytest.fixture
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("sync_reality", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_rule_and_program_is_compared_and_written(
    gpu: Any,
    bench: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = "Memcpy DtoH (Device -> Pageable)"
    gpu.traces = {"aten::_local_scalar_dense": copy, "aten::prod": ""}
    out = tmp_path / "out.json"
    monkeypatch.setattr(bench, "CATALOGUE", {name: CATALOGUE[name] for name in FEW})
    monkeypatch.setattr(
        bench, "programs", lambda device: [{"program": "broken", "error": "OSError: no"}]
    )
    assert bench.main(str(out), device="cpu") == 0
    result = json.loads(out.read_text())
    *few, broken = result["rows"]
    rows = {(row["rule"], row["form"]): row for row in few}
    assert set(rows) == {(name, form) for name in FEW for form in ("waits", "example", "alike")}
    assert broken["error"] == "OSError: no"
    assert not [row for row in few if row.get("error")]
    # what waits agrees, no example does
    code = WAITS["item"]
    assert [line for _, line, _ in rows["item", "waits"]["agreed"]] == [code]
    assert len(rows["prod", "waits"]["agreed"]) == 1
    clean = [row for (_, form), row in rows.items() if form != "waits"]
    assert not any(row.get("agreed") or row.get("only_predicted") for row in clean)
    said = capsys.readouterr().out
    assert f"{len(result['rows'])} pieces of code" in said
    assert f"{result['n_different']} pieces differ" in said


def test_every_program_is_run(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "check_syncs", lambda step: 1 / 0)
    rows = bench.programs("cpu")
    assert len(rows) == 20
    assert {row["error"] for row in rows} == {"ZeroDivisionError: division by zero"}


def test_an_error_of_the_device_loses_no_other_row(gpu: Any, bench: Any) -> None:
    def step() -> None:
        raise RuntimeError("CUDA error: device-side assert\nmore")

    row = bench.outcome(lambda: step)
    assert row == {"error": "RuntimeError: CUDA error: device-side assert"}


def test_without_a_gpu_it_says_so(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    out = tmp_path / "out.json"
    assert bench.main(str(out)) == 0
    assert "needs a CUDA device" in capsys.readouterr().out
    assert json.loads(out.read_text()) == {"needs": "a CUDA device"}
