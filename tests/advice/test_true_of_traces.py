"""What is said of traces is true: kinds of false statements found on real ones, each made small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import perfkit
from perfkit.advice.open_trace import OpenTrace

TRACES = Path(__file__).parents[1] / "golden" / "traces"


def _open(name: str) -> OpenTrace:
    return perfkit.open_trace(TRACES / f"{name}.json.gz")


def _found(opened: OpenTrace) -> dict[str, Any]:
    """Rule → finding."""
    return {one["rule"]: one for one in opened.to_dict()["findings"]}


@pytest.mark.parametrize(
    "name", ["inductor_bf16", "cutlass_fp8", "deepgemm", "vllm_fp8", "triton_tutorial"]
)
def test_a_name_without_a_word_of_tensor_cores_is_no_proof_of_float32(name: str) -> None:
    opened = _open(f"gemm_{name}")
    assert not {"tf32-off", "tensor-cores-unused", "32-bits"} & _found(opened).keys()
    kernels = opened.ask("kernels")
    assert (kernels.tensor_core_share, kernels.untold_share) == (None, 1.0)
    assert "does not tell its precision" in str(kernels)


def test_names_that_say_float32_still_prove_it() -> None:
    assert "tf32-off" in _found(_open("h200_tf32_off"))


@pytest.mark.parametrize("name", ["final_sync_late", "final_sync_ontime"])
def test_a_region_that_ends_before_its_last_wait_returns_computes(name: str) -> None:
    path = _open(name).ask("critical-path")
    assert path.bound_by == "compute"
    assert path.by_class_us["device: compute"] > 0.99 * path.wall_us
