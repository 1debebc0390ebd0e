"""Which lines waited, from a trace of the watched run, with played runtime calls."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perfkit.base import torch_compat
from perfkit.base.device import of
from perfkit.base.errors import ProfilerBusyError
from perfkit.base.words import fmt_ms
from perfkit.course.kit.real_waits import check_syncs
from perfkit.synclint.find import AS_PREDICTED, NOT_PREDICTED, NOT_SEEN, SyncLines
from perfkit.synclint.reality import lint
from perfkit.synclint.script import run_script
from perfkit.synclint.watch import SyncWatch

_TO_HOST = "Memcpy DtoH (Device -> Pageable)"
_TO_DEVICE = "Memcpy HtoD (Pageable -> Device)"


@pytest.fixture
def net() -> nn.Module:
    return nn.Linear(3, 2)


def _check(found: SyncLines) -> SyncLines:
    assert found.is_measured
    return found


def _codes(syncs: Any) -> list[str]:
    return [sync.code for sync in syncs]


def test_a_wait_in_the_trace_is_a_wait_of_its_line_with_its_time(gpu: Any, net: nn.Module) -> None:
    gpu.traces = {"aten::_local_scalar_dense": _TO_HOST}

    def step() -> None:
        loss = net(torch.randn(4, 3)).sum()
        for _ in range(3):
            loss.item()

    check = _check(check_syncs(step))
    assert check.warnings == ()
    (sync,) = check.of(AS_PREDICTED)
    assert (sync.code, sync.count) == ("loss.item()", 3)
    assert sync.waited_ms is not None
    assert sync.waited_ms > 0
    assert check.of(NOT_SEEN) == check.of(NOT_PREDICTED) == []
    assert f"3 times, {fmt_ms(sync.waited_ms)} in all" in str(check)
    assert json.loads(json.dumps(check.to_dict()))["syncs"][0]["waited_ms"] == sync.waited_ms


@pytest.mark.parametrize("show", [print, str, "{}".format, repr])
def test_what_printing_waits_for_belongs_to_the_line_that_prints(
    gpu: Any, net: nn.Module, show: Any
) -> None:
    """torch's formatting switches the modes off under which operators have their line."""
    gpu.traces = {"aten::masked_select": "", "aten::_local_scalar_dense": _TO_HOST}

    def step() -> None:
        y = net(torch.randn(4, 3)).detach()
        show(y)

    check = _check(check_syncs(step))
    assert _codes(check.of(AS_PREDICTED)) == ["show(y)"]
    assert check.warnings == ()
    assert check.of(NOT_PREDICTED) == check.of(NOT_SEEN) == []


def test_what_the_trace_does_not_show_did_not_happen(gpu: Any, net: nn.Module) -> None:
    gpu.traces = {"aten::nonzero": ""}

    def step() -> None:
        y = net(torch.randn(4, 3))
        y.sum().item()
        y.nonzero()

    check = _check(check_syncs(step))
    assert _codes(check.of(AS_PREDICTED)) == ["y.nonzero()"]
    assert _codes(check.of(NOT_SEEN)) == ["y.sum().item()"]


def test_a_wait_of_the_backward_pass_belongs_to_its_line_of_the_forward_pass(
    gpu: Any, net: nn.Module
) -> None:
    # of a boolean index the GPU waits on the way back, too; there is no nonzero forward here
    gpu.traces = {"aten::_index_put_impl_": ""}

    def step() -> None:
        y = net(torch.randn(4, 3))
        chosen = y[y > 0]
        loss = chosen.sum()
        loss.backward()

    check = _check(check_syncs(step))
    assert _codes(check) == ["chosen = y[y > 0]"]
    assert check.of(NOT_PREDICTED) == check.of(NOT_SEEN) == []


def test_a_copy_to_the_device_is_told_as_one(gpu: Any, net: nn.Module) -> None:
    gpu.traces = {"aten::clone": _TO_DEVICE}

    def step() -> None:
        net(torch.randn(4, 3).clone())

    (sync,) = check_syncs(step).of(NOT_PREDICTED)
    assert "pinned memory" in sync.why
    assert sync.op == "torch.randn(4, 3).clone"


def test_a_wait_outside_of_all_operators_is_told(gpu: Any, net: nn.Module) -> None:
    gpu.traces = {"library": ""}

    def step() -> None:
        net(torch.randn(4, 3))
        with torch_compat.profiler_label("library"):
            pass
        torch.ones(3)

    check = _check(check_syncs(step))
    assert check == []
    assert "1 more wait (cudaStreamSynchronize" in " ".join(check.warnings)


def test_waits_for_events_and_streams_have_their_lines(
    gpu: Any, net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.traces = {"waiting": ""}

    class Event:
        def synchronize(self) -> None:
            with torch_compat.profiler_label("waiting"):
                pass

    monkeypatch.setattr(torch.cuda, "Event", Event)
    event, original = Event(), Event.synchronize

    def step() -> None:
        net(torch.randn(4, 3))
        event.synchronize()

    check = _check(check_syncs(step))
    assert _codes(check.of(AS_PREDICTED)) == ["event.synchronize()"]
    assert check.of(AS_PREDICTED)[0].waited_ms is not None
    assert Event.synchronize is original


class _OnGpu(Tensor):
    """Says that it is on a GPU."""

    @property
    def is_cuda(self) -> bool:
        return True


def test_a_copy_to_the_host_is_seen_where_no_function_mode_is(net: nn.Module) -> None:
    # as in the threads of the autograd engine on CUDA
    x = torch.zeros(3).as_subclass(_OnGpu)
    copy = torch.ops.aten._to_copy.default
    with SyncWatch(net) as watch:
        watch._is_on_gpu = of("cuda").holds
        for non_blocking in (False, True):
            on_host = torch.zeros(3)
            watch.note_operator(copy, (x,), {"non_blocking": non_blocking}, on_host)
        on_host.sum().item()  # it is not where it came from
        watch.note_operator(copy, (torch.zeros(3),), {}, x)  # the other way there is no wait
    assert [(found.entry, count) for found, count in watch.noted_waits()] == [("cpu", 1)]


def test_a_loaders_own_waits_are_not_the_users_lines(gpu: Any, net: nn.Module) -> None:
    gpu.traces = {"aten::_local_scalar_dense": _TO_HOST}
    data = [torch.tensor(float(i)).item() + torch.zeros(3) for i in range(4)]

    class Reading(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> torch.Tensor:
            return data[i] * torch.ones(()).item()

    def step() -> None:
        for batch in torch.utils.data.DataLoader(Reading(), batch_size=2):
            net(batch)

    check = _check(check_syncs(step))
    assert check == []
    assert "outside of torch's operators" in " ".join(check.warnings)  # seen, but nobody's line


def test_the_set_up_of_a_script_is_not_traced(gpu: Any, tmp_path: Path) -> None:
    gpu.traces = {"aten::_local_scalar_dense": _TO_HOST}
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "net = torch.nn.Linear(3, 2)\n"
        "sum(p.norm().item() for p in net.parameters())\n"
        "for _ in range(2):\n"
        "    loss = net(torch.randn(4, 3)).sum()\n"
        "    loss.item()\n"
    )
    iterate, run = torch.utils.data.DataLoader.__iter__, torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    check = _check(run_script(script))
    assert torch.utils.data.DataLoader.__iter__ is iterate
    assert torch.autograd._engine_run_backward is run  # type: ignore[attr-defined]
    assert [(sync.line, sync.count) for sync in check] == [(6, 2)]
    assert check.of(NOT_PREDICTED) == check.of(NOT_SEEN) == []


def test_beside_a_profiler_that_runs_already_it_does_without(gpu: Any, net: nn.Module) -> None:
    with torch.profiler.profile():
        found = lint(lambda: net(torch.randn(4, 3)).sum().item())
    assert _codes(found) == ["found = lint(lambda: net(torch.randn(4, 3)).sum().item())"]
    assert "a torch profiler is already active" in found.warnings[0]


def test_it_gives_way_to_a_profiler_of_the_code(gpu: Any, net: nn.Module) -> None:
    gpu.traces = {"aten::_local_scalar_dense": _TO_HOST}
    seen: list[int] = []

    def step() -> None:
        net(torch.randn(4, 3)).sum().item()
        with torch.profiler.profile() as theirs:
            net(torch.randn(4, 3)).sum().item()
        seen.append(len(theirs.events()))

    found = lint(step)
    assert seen[0] > 0
    assert len(found) == 2
    assert "a torch profiler of its own" in found.warnings[0]


def test_a_profiler_of_another_thread_is_refused(gpu: Any, net: nn.Module) -> None:
    refused: list[str] = []

    def profiled() -> None:
        try:
            torch.profiler.profile().start()
        except ProfilerBusyError as error:
            refused.append(str(error))

    def step() -> None:
        thread = threading.Thread(target=profiled)
        thread.start()
        thread.join()
        net(torch.randn(4, 3))

    lint(step)
    assert "from another thread" in refused[0]
    assert not torch_compat.profiler_is_on()


@pytest.mark.parametrize("error", [KeyError("mine"), KeyboardInterrupt()])
def test_no_profiler_is_left_whatever_the_code_raises(
    gpu: Any, net: nn.Module, error: BaseException
) -> None:
    def step() -> None:
        net(torch.randn(4, 3))
        raise error

    with pytest.raises(type(error)):
        lint(step)
    assert not torch_compat.profiler_is_on()


def test_a_profiler_that_cannot_start_is_said(
    gpu: Any, net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any) -> None:
        raise RuntimeError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED\nmore")

    monkeypatch.setattr(torch.profiler.profile, "start", refuse)
    check = lint(lambda: net(torch.randn(4, 3)).sum().item())
    assert "(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)" in check.warnings[0]
