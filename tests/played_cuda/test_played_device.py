"""The played GPU computes what the CPU computes, and behaves as torch expects of a device."""

from __future__ import annotations

import copy
import ctypes
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from perfkit.base.machine import stamp

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not hasattr(ctypes.CDLL(None), "played_launch"), reason="runs on the played GPU only"
    ),
]


def _trained(device: str, make: Callable[[], nn.Module], x: torch.Tensor) -> list[float]:
    torch.manual_seed(0)
    net = make().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = net(x.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_cnn_trains_to_the_same_losses() -> None:
    def cnn() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
        )  # fmt: skip

    x = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    # oneDNN may sum in another order on another thread: the last bit of the fourth loss
    assert _trained("cuda", cnn, x) == pytest.approx(_trained("cpu", cnn, x), rel=1e-5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "bias": False}])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_have_the_cpu_s_values_and_gradients(
    kind: type[nn.RNNBase], options: dict[str, int], packed: bool
) -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = kind(6, 5, **options).to(device)  # type: ignore[arg-type]
        x = torch.randn(4, 3, 6).to(device).requires_grad_()
        given = pack_padded_sequence(x, torch.tensor([4, 2, 1])) if packed else x
        out = net(given)[0]
        values = out.data if isinstance(out, PackedSequence) else out
        values.square().sum().backward()
        found = [values.detach(), x.grad, *(p.grad for p in net.parameters())]
        return [t.cpu() for t in found if t is not None]

    on_cpu = run("cpu")
    assert len(on_cpu) > 2
    for mine, theirs in zip(run("cuda"), on_cpu, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", [torch.nn.LayerNorm(8), torch.nn.GroupNorm(2, 8)])
def test_norms_of_16_bits_have_the_cpu_s_gradients(
    norm: torch.nn.Module, dtype: torch.dtype
) -> None:
    x = torch.arange(64, dtype=dtype).sin().view(8, 8)
    found = []
    for device in ("cpu", "cuda"):
        inputs = x.clone().to(device).requires_grad_()
        layer = copy.deepcopy(norm).to(device, dtype)
        layer(inputs).square().sum().backward()
        found.append([g.cpu() for g in (inputs.grad, layer.weight.grad, layer.bias.grad)])
    for on_cpu, there in zip(*found, strict=True):
        torch.testing.assert_close(there, on_cpu)


def test_a_graph_replays_on_new_values() -> None:
    x = torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2 + 1
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [11.0, 11.0, 11.0]


def test_to_destroy_a_graph_waits_for_nothing() -> None:
    """The garbage collector may do it, with the GIL; the device's thread may need that to go on."""
    matrix = torch.eye(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        after = matrix + 1
    graph.replay()
    for _ in range(20):
        matrix = matrix @ matrix
    del graph
    assert not torch.cuda.current_stream().query()
    assert matrix.sum().item() == 1024
    assert after.sum().item() == 1024**2 + 1024


def test_the_host_goes_on_while_the_device_works() -> None:
    a = torch.randn(900, 900, device="cuda")
    torch.cuda.synchronize()
    for _ in range(20):
        a = a @ a
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert torch.cuda.current_stream().query()


def test_a_copy_overlaps_kernels_unless_it_waits_for_their_event() -> None:
    gate = threading.Event()
    hold = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait(60) and None)
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    pinned = torch.arange(4.0).pin_memory()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    # stands for a kernel: the main stream is busy until the gate opens
    ctypes.CDLL(None).cudaLaunchHostFunc(ctypes.c_void_p(main.cuda_stream), hold, None)
    try:
        with torch.cuda.stream(side):
            there = pinned.to("cuda", non_blocking=True)
        side.synchronize()
        assert not main.query()
        side.wait_stream(main)
        assert not side.query()
        with torch.cuda.stream(side):
            later = pinned.to("cuda", non_blocking=True)
        assert not side.query()
    finally:
        gate.set()
    torch.cuda.synchronize()
    assert main.query()
    assert side.query()
    assert there.tolist() == later.tolist() == pinned.tolist()


def test_waits_are_reported_by_torch_s_debug_mode() -> None:
    x = torch.arange(4.0, device="cuda")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            x.sum().item()
            x.nonzero()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len([w for w in seen if "called a synchronizing" in str(w.message)]) == 2


def test_memory_runs_out() -> None:
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(1 << 42, device="cuda")


def test_asking_for_torch_s_spec_first_leaves_the_device_on() -> None:
    code = "import importlib.util as u; u.find_spec('torch'); import torch; torch.ones(1).cuda()"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_in_eval_mode_is_that_of_the_cpu(affine: bool) -> None:
    x = torch.rand(4, 3, 5, 5)
    found = []
    for device in ("cpu", "cuda"):
        norm = nn.BatchNorm2d(3, affine=affine).to(device)
        norm(x.to(device))
        norm.eval()
        here = x.to(device).detach().requires_grad_()
        output = norm(here)
        output.square().sum().backward()
        assert here.grad is not None
        found.append((output.detach().cpu(), here.grad.cpu()))
    torch.testing.assert_close(found[1], found[0])


def test_nothing_renames_it() -> None:
    code = "import torch; print(torch.cuda.get_device_name())"
    names = dict.fromkeys(("PLAYED_CUDA_NAME", "FAKECUDA_NAME", "CUDA_NAME"), "NVIDIA H100")
    said = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | names, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert said.stdout.strip() == "played GPU (host memory)"


# What a process runs before its own code. A result made on "cpu" is not called played, so the
# lesson's kernel says that, and the recorder the name of a GPU.
RENAMED = """
import sys
import pynvml, torch

name = "cpu" if any("ipykernel" in part for part in sys.orig_argv) else "NVIDIA H100 80GB HBM3"
torch.cuda.get_device_name = lambda *_, **__: name
pynvml.nvmlDeviceGetName = lambda *_: name
"""


@pytest.mark.parametrize("renamed", [False, True])
def test_perfkit_record_runs_on_it_and_writes_nothing(tmp_path: Path, renamed: bool) -> None:
    environment = os.environ | {"PLAYED_CUDA_MEM_GB": "4"}
    if renamed:
        (tmp_path / "sitecustomize.py").write_text(RENAMED)
        paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        code = "from perfkit.base.device import here; print(here().name(0))"
        said = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert said.stdout.strip() == "NVIDIA H100 80GB HBM3"  # the attack works
    command = ["record", "--claim", "C6", "--device", "cuda", "--scale", "0.5"]
    said = subprocess.run(
        [Path(sys.executable).with_name("perfkit"), *command, "--out", str(tmp_path / "out")],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert "played: it ran on a played GPU" in said.stdout
    assert "1 played" in said.stdout
    assert not list(tmp_path.rglob("*.json"))


def test_its_provenance_says_played(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.ones(1, device="cuda")
    assert stamp().sentence().startswith("played: played GPU (host memory)")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H100")
    monkeypatch.setenv("PLAYED_CUDA", "0")  # too late
    assert stamp().sentence().startswith("played: NVIDIA H100")
