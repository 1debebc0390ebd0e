"""FLOPs from recorded shapes, against formulas worked out by hand and against torch's counter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulated_traces import Simulated, cpu_training

from perfkit.trace import flops, load
from perfkit.trace.ask.flops import _count


def _flops(name: str, dims: Any, inputs: Any = ()) -> float | None:
    return _count(name, json.dumps(dims), json.dumps(list(inputs)))


def test_formulas_by_hand() -> None:
    assert _flops("aten::mm", [[2, 3], [3, 5]]) == 2 * 2 * 3 * 5
    assert _flops("aten::addmm", [[5], [2, 3], [3, 5], [], []]) == 60
    assert _flops("aten::bmm", [[7, 2, 3], [7, 3, 5]]) == 7 * 60
    assert _flops("aten::baddbmm", [[7, 2, 5], [7, 2, 3], [7, 3, 5]]) == 7 * 60
    conv = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    dims = [[4, 3, 8, 8], [16, 3, 3, 3], [16], [], [], [], [], [], []]
    assert _flops("aten::convolution", dims, conv) == 2 * 4 * (4 * 4) * (16 * 3 * 9)
    grouped = [[4, 16, 8, 8], [16, 1, 3, 3], []]
    same = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "16"]
    assert _flops("aten::convolution", grouped, same) == 2 * 4 * 64 * 16 * 9
    q = [2, 8, 128, 64]
    attention = 2 * 2 * 8 * 128 * 128 * (64 + 64)
    assert _flops("aten::_scaled_dot_product_flash_attention", [q, q, q, []]) == attention
    backward = _flops("aten::_scaled_dot_product_flash_attention_backward", [q, q, q, q])
    assert backward == 2.5 * attention


def test_shapes_that_do_not_tell_are_not_counted() -> None:
    assert _flops("aten::mm", [[2, 3]]) is None
    assert _flops("aten::mm", [[2, 3], [4, 5]]) is None
    assert _flops("aten::convolution", [[4, 3, 8, 8], [16, 3, 3, 3]]) is None
    assert _flops("aten::mm", [["a", 3], [3, 5]]) is None
    assert _count("aten::mm", "nonsense", "") is None


def test_a_conv_backward_counts_what_it_was_asked_for() -> None:
    dims = [[4, 16, 4, 4], [4, 3, 8, 8], [16, 3, 3, 3], [], [], [], [], [], [], [], []]
    once = 2 * 4 * 16 * (16 * 3 * 9)
    args = ["", "", "", "[16]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    both = _flops("aten::convolution_backward", dims, [*args, "[True, True, False]"])
    one = _flops("aten::convolution_backward", dims, [*args, "[False, True, False]"])
    assert (both, one) == (2 * once, once)


def test_rates_are_over_the_kernels_and_over_the_step() -> None:
    sim = Simulated()
    for i in range(2):
        at = i * 1_000
        sim.step(i, at, 1_000)
        shapes = {"Input Dims": [[1_000, 1_000], [1_000, 1_000]]}
        external = sim.host("aten::matmul", at, 50)
        external = sim.host("aten::mm", at + 5, 40, **shapes)
        sim.device("gemm", at + 100, 100, sim.call("cudaLaunchKernel", at + 10, 5, external))
        sim.device("reduce", at + 200, 100, sim.call("cudaLaunchKernel", at + 20, 5, external))
    sim.device("stray", 1_700, 100, -1)  # of nobody
    sim.host("aten::relu", 1_900, 50)
    found = flops(load(sim.json()))
    (op,) = found.ops
    assert (op.op, op.count, op.flops, op.busy_us) == ("aten::mm", 2, 4e9, 400)
    assert op.tflop_per_s == pytest.approx(10)
    assert found.warnings == ()
    assert found.per_step == 2e9
    assert found.achieved_tflop_per_s == pytest.approx(2)
    assert found.busy_tflop_per_s == pytest.approx(10)


def test_an_op_inside_a_counted_op_is_not_counted_twice() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    args = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    sim.host(
        "aten::convolution", 10, 100,
        **{"Input Dims": [[1, 2, 4, 4], [8, 2, 1, 1], []], "Concrete Inputs": args},
    )  # fmt: skip
    sim.host("aten::mm", 20, 50, **{"Input Dims": [[16, 2], [2, 8]]})
    found = flops(load(sim.json()))
    assert [o.op for o in found.ops] == ["aten::convolution"]
    assert found.per_step == 2 * 16 * 16
    assert not found.on_device
    assert found.ops[0].busy_us == 100
    sim.host("aten::mm", 200, 50, **{"Input Dims": [[16, 2], [3, 8]]})
    sim.host("aten::mm", 300, 50)
    found = flops(load(sim.json()))
    assert (found.n_counted, found.n_unknown) == (1, 2)
    assert found.warnings == ("not counted: 2 calls whose shapes do not show the FLOPs",)


def test_without_shapes_there_is_no_answer() -> None:
    found = flops(load(cpu_training(2).json()))
    assert found.ops == ()
    assert any("record_shapes" in w for w in found.warnings)
    assert "not recorded" in str(found)


def test_a_real_step_counts_what_torch_counts(tmp_path: Path) -> None:
    # No groups: torch's counter takes the gradient of a grouped weight for that of a full one.
    import torch
    from torch import nn
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 8, 3),
        nn.Flatten(), nn.Linear(8 * 10 * 10, 10),
    )  # fmt: skip
    x = torch.randn(4, 3, 16, 16)
    net(x).sum().backward()
    counter = FlopCounterMode(display=False)
    with counter:
        net(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        net(x).sum().backward()
    path = tmp_path / "trace.json"
    recorded.export_chrome_trace(str(path))
    found = flops(load(path))
    assert sum(o.flops for o in found.ops) == counter.get_total_flops()
    assert found.n_unknown == 0
