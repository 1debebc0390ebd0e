"""Each value of each setting in a child process on this machine: its effect, or the refusal."""

from __future__ import annotations

import json
import os
import re

import pytest

from perfkit.base.errors import SettingError
from perfkit.base.machine import facts
from perfkit.experiment import CATALOGUE
from perfkit.experiment.settings import check_values, resolve

HERE = facts()
ON_A_GPU = bool(HERE.gpus)
# where there is a GPU they are among the tests that need one
pytestmark = [pytest.mark.slow, *([pytest.mark.gpu] if ON_A_GPU else [])]

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


def observed(s):
    """Train for a few batches with all helpers, then print what was seen."""
    import json
    import os
    import time
    from pathlib import Path

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Data(Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, i):
            # the first batch is the slow one: out of order, others pass it
            if i < 4 and "in_order" in s:
                time.sleep(0.3)
            image = torch.full((3, 8, 8), 10 * i % 256, dtype=torch.uint8)
            where = torch.tensor([os.getpid(), *sorted(os.sched_getaffinity(0))])
            return s.as_sent(image), i, where[:2], where.numel() - 1

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
            self.head = nn.Linear(144, 24)
            self.calls = 0

        def forward(self, x):
            seen["input"] = [str(x.dtype), x.stride()[1] == 1]
            return self.head(self.body(x))

    seen = {}
    calls, asynchronous, replays = [], [], []
    on_a_gpu = s.device.type == "cuda"
    if on_a_gpu:  # what is sent, and what is replayed; this process ends with the run
        send, replay = torch.Tensor.to, torch.cuda.CUDAGraph.replay

        def to(tensor, *args, **kwargs):
            if "non_blocking" in kwargs:
                asynchronous.append(kwargs["non_blocking"])
            return send(tensor, *args, **kwargs)

        def replayed(graph):
            replays.append(1)
            replay(graph)

    net = Net()
    net.body[0].register_forward_pre_hook(lambda *_: calls.append(1))
    if "compile" in s:
        net = nn.Sequential(nn.Flatten(), nn.Linear(192, 24))
    model = s.prepare(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, **s.optimizer_kwargs())
    outputs, updates = [], []
    optimizer.register_step_post_hook(lambda *_: updates.append(1))

    def loss(out, target):
        outputs.append(out)
        return nn.functional.cross_entropy(out, target)

    step = s.training_step(model, optimizer, loss)
    options = {"batch_size": 4, "num_workers": 0} | s.loader_kwargs()
    loader = DataLoader(Data(), **options)
    if on_a_gpu:
        torch.Tensor.to, torch.cuda.CUDAGraph.replay = to, replayed
    sent, order, cores, pids, pinned = [], [], set(), set(), set()
    losses = []
    for images, labels, where, n_cores in loader:
        sent.append(str(images.dtype))
        pinned.add(images.is_pinned())
        order += labels.tolist()
        pids |= set(where[:, 0].tolist())
        cores |= set(zip(where[:, 1].tolist(), n_cores.tolist(), strict=True))
        losses.append(step(images, labels).item())
        yield len(labels)
    if "persistent_workers" in s:  # a second epoch
        pids |= {pid for batch in loader for pid in batch[2][:, 0].tolist()}
    weight = next(net.parameters())
    print("SEEN", json.dumps(seen | {
        "values": dict(s),
        "batches": len(losses),
        "losses": losses,
        "sent": sent[0],
        "order": order,
        "loader_pids": sorted(pids - {os.getpid()}),
        "own_pid_loads": os.getpid() in pids,
        "loader_cores": sorted(cores),
        "prefetch": loader.prefetch_factor,
        "batch_size": loader.batch_size,
        "updates": len(updates),
        "body_calls": len(calls),
        "grad": "none" if weight.grad is None else str(weight.grad.abs().sum().item()),
        "out_dtype": str(outputs[0].dtype),
        "channels_last": weight.dim() == 4
        and weight.is_contiguous(memory_format=torch.channels_last),
        "compiled": type(model).__name__,
        "fused": optimizer.defaults["fused"],
        "foreach": optimizer.defaults["foreach"],
        "threads": torch.get_num_threads(),
        "cores": sorted(os.sched_getaffinity(0)),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": [torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic],
        "conf": os.environ.get("PYTORCH_ALLOC_CONF"),
        "maps": [one for one in ("jemalloc", "tcmalloc")
                 if f"lib{one}" in Path("/proc/self/maps").read_text()],
        "keeps": os.environ.get("MALLOC_MMAP_MAX_") == "0",
        "ddp": s.ddp_kwargs(),
        "device": weight.device.type,
        "pinned": sorted(pinned),
        "asynchronous": sorted(set(asynchronous)),
        "replays": len(replays),
        "tf32": torch.backends.cudnn.allow_tf32,
        "allocator": torch.cuda.get_allocator_backend() if on_a_gpu else None,
    }))  # fmt: skip


observed.__module__ = "__main__"


# What the run of a value must show. "v" is the value, "o" what was seen.
EFFECT = {
    # the workload reads these
    "storage": lambda v, o: o["values"] == {"storage": v},
    "collate": lambda v, o: o["values"] == {"collate": v},
    "loss": lambda v, o: o["values"] == {"loss": v},
    "bucket_cap_mb": lambda v, o: o["ddp"] == {"bucket_cap_mb": v},
    # the loader
    "num_workers": lambda v, o: (
        len(o["loader_pids"]) == min(v, o["batches"]) and o["own_pid_loads"] == (not v)
    ),
    "prefetch_factor": lambda v, o: o["prefetch"] == v,
    "persistent_workers": lambda v, o: len(o["loader_pids"]) == (1 if v else 2),
    "in_order": lambda v, o: (o["order"] == list(range(24))) is v,
    "uint8": lambda v, o: (
        o["sent"] == ("torch.uint8" if v else "torch.float32") and o["input"][0] == "torch.float32"
    ),
    "batch_size": lambda v, o: o["batch_size"] == v and o["batches"] == -(-24 // v),
    # the step
    "accumulate": lambda v, o: o["updates"] == 6 // v and (o["grad"] == "none") == (6 % v == 0),
    "set_to_none": lambda v, o: o["grad"] == ("none" if v else "0.0"),
    "precision": lambda v, o: (
        o["out_dtype"] == {"fp32": "torch.float32", "bf16": "torch.bfloat16"}[v]
    ),
    "channels_last": lambda v, o: o["channels_last"] is v and o["input"][1] is v,
    "compile": lambda v, o: o["compiled"] == ("OptimizedModule" if v else "Sequential"),
    "fused": lambda v, o: bool(o["fused"]) is v and o["updates"] == 6,
    "foreach": lambda v, o: o["foreach"] is (None if v == "auto" else v),
    "checkpointing": lambda v, o: o["body_calls"] == (12 if v else 6),
    # the process
    "threads": lambda v, o: o["threads"] == v,
    "affinity": lambda v, o: (
        o["cores"] == {"any": CORES, "one": CORES[:1], "apart": CORES[:-1]}[v]
        and o["loader_cores"]
        == {"any": [[CORES[0], 1 if len(CORES) == 1 else len(CORES)]], "one": [[CORES[0], 1]],
            "apart": [[CORES[-1], 1]]}[v]
    ),
    "malloc": lambda v, o: (
        o["maps"] == ([v] if v.endswith("malloc") else []) and o["keeps"] is (v == "keep")
    ),
    "deterministic": lambda v, o: o["deterministic"] is v and o["cudnn"][1] is v,
    "world_size": lambda v, o: o["values"] == {"world_size": v},
    # on a CPU only their default, which leaves torch as it is
    "pin_memory": lambda v, o: v is False and o["batches"] == 6,
    "non_blocking": lambda v, o: v is False and o["batches"] == 6,
    "cuda_graphs": lambda v, o: v is False and o["updates"] == 6,
    "cudnn_benchmark": lambda v, o: v is False and o["cudnn"][0] is False,
    "alloc_conf": lambda v, o: v == "default" and o["conf"] is None,
}  # fmt: skip
# What shows on a GPU alone, or in another way there.
if ON_A_GPU:
    OUT = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
    EFFECT |= {
        "precision": lambda v, o: (
            o["out_dtype"] == OUT.get(v, "torch.float32") and o["tf32"] is (v != "fp32")
        ),
        "pin_memory": lambda v, o: o["pinned"] == [v],
        "non_blocking": lambda v, o: o["asynchronous"] == [v],
        # three steps before the capture, and the other three are replayed
        "cuda_graphs": lambda v, o: o["replays"] == (3 if v else 0),
        "cudnn_benchmark": lambda v, o: o["cudnn"][0] is v,
        "alloc_conf": lambda v, o: (
            o["conf"] == (None if v == "default" else v)
            and o["allocator"] == ("cudaMallocAsync" if "Async" in v else "native")
        ),
    }
# What else is declared, so that a value can have an effect.
BESIDE = {
    "prefetch_factor": {"num_workers": 1},
    "persistent_workers": {"num_workers": 1},
    "in_order": {"num_workers": 2},
    "affinity": {"num_workers": 1},
}
CASES = [
    (name, value)
    for name, one in CATALOGUE.items()
    # four ranks take twelve seconds of a core, and do what two do
    for value in one.values[
        : None if "PERFKIT_TEST_LONG" in os.environ or name != "world_size" else 2
    ]
]
if ON_A_GPU:
    BESIDE["non_blocking"] = {"pin_memory": True}
    # what only the host does, does the same where there is a GPU
    HOST = {
        "storage", "collate", "loss", "bucket_cap_mb", "num_workers", "prefetch_factor",
        "persistent_workers", "in_order", "uint8", "batch_size", "threads", "affinity", "malloc",
    }  # fmt: skip
    CASES = [(name, value) for name, value in CASES if name not in HOST]


def test_no_setting_is_left_out():
    assert set(EFFECT) == set(CATALOGUE)


@pytest.mark.timeout(300)
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="looks at Linux's own files")
@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_value_takes_effect_or_is_refused_with_its_need(session, name, value):
    beside = BESIDE.get(name, {})
    settings = resolve([name, *beside])
    reason = CATALOGUE[name].unavailable(value, HERE)
    if reason is not None:
        assert CATALOGUE[name].needs
        with pytest.raises(SettingError, match=re.escape(reason)):
            check_values(settings, {name: value}, HERE)
        with pytest.raises(SettingError, match=re.escape(reason)):
            session(observed, [name]).run(**{name: value})
        return
    one = session(
        observed, [name, *beside], seconds=60, start_timeout_s=280, step_timeout_s=60, warmup=0
    )
    result = one.run(**{name: value}, **beside)
    assert result.state == "done", f"{result.message}\n{result.output}\n{result.traceback_text}"
    seen = json.loads(result.output.split("SEEN ")[1].splitlines()[0])
    seen["values"] = {k: v for k, v in seen["values"].items() if k not in beside}
    assert seen["device"] == ("cuda" if ON_A_GPU else "cpu")
    assert EFFECT[name](value, seen), seen


def five_lines(s):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    images = torch.randint(0, 256, (32, 3, 8, 8), dtype=torch.uint8)
    data = TensorDataset(s.as_sent(images), torch.arange(32) % 2)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())

    model = s.prepare(torch.nn.Sequential(net, torch.nn.Linear(144, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), **s.optimizer_kwargs())
    step = s.training_step(model, optimizer, torch.nn.functional.cross_entropy)
    for images, labels in DataLoader(data, shuffle=True, **s.loader_kwargs()):
        yield {"samples": len(labels), "loss": step(images, labels)}


five_lines.__module__ = "__main__"


def test_a_workload_of_five_lines_takes_them_all(session):
    one = session(five_lines, list(CATALOGUE), seconds=60)
    plain = one.run(batch_size=4)
    assert plain.state == "done", plain
    assert (plain.n_steps, len(plain.loss)) == (8, 8)
    turned = {
        "num_workers": 2, "prefetch_factor": 1, "persistent_workers": True, "in_order": False,
        "uint8": True, "batch_size": 8, "accumulate": 2, "set_to_none": False, "precision": "bf16",
        "channels_last": True, "fused": True, "checkpointing": True, "threads": 1,
        "deterministic": True, "storage": "decoded", "loss": "vectorised",
    }  # fmt: skip
    other = one.run(**turned)
    assert other.state == "done", other
    assert other.n_steps == 4
    assert {name: other.values[name] for name in turned} == turned
