"""What a run reports after it ran out of memory: a real child under a limit, and a fake GPU."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch

from perfkit.base.device import in_use
from perfkit.base.device.cuda import Cuda
from perfkit.experiment.process import _alive, _failure, worker

pytestmark = pytest.mark.slow

MIB = 2**20


@pytest.fixture(scope="module")
def result():
    from perfkit.experiment.process.session import Session

    def workload(s):
        import resource

        import psutil
        import torch

        model = torch.nn.Linear(512, 1024)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(4, 512)).sum().backward()
        optimizer.step()
        yield 4
        now = psutil.Process().memory_info().vms
        limit = now + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        held = [torch.ones(72 << 20)]
        while True:
            held.append(torch.ones(64 << 20))

    with Session(workload, [], seconds=5.0) as session:
        yield session.run()


def test_the_message_says_what_was_alive(result):
    assert result.state == "out of memory"
    assert result.message.startswith("out of memory: ")
    assert "\n" not in result.message
    assert "of tensors were still alive after the error, " in result.message
    assert "the biggest held[0] (288 MiB)" in result.message
    assert result.n_steps == 1


def test_the_text_has_the_traceback_first_and_then_the_stock(result):
    trace, stock = result.traceback_text.split("When memory ran out", 1)
    assert trace.startswith("Traceback (most recent call last)")
    assert "held.append(torch.ones(64 << 20))" in trace
    assert "in workload (test_alive.py): held.append(torch.ones(64 << 20))" in stock
    assert "288 MiB  held[0]  75497472 float32  other; made at line " in stock
    # weight and bias: (512 * 1024 + 1024) * 4 bytes, to what three digits show
    assert "parameters 2.00 MiB" in stock
    assert "gradients 2.00 MiB" in stock
    assert "2.00 MiB  model.weight  1024x512 float32  parameters" in stock
    assert "What would help:" in stock
    assert "free what the step does not need" in stock


def test_the_lines_that_made_the_tensors_are_named(result):
    # `held = […]` is two lines above the `held.append(…)` that failed
    failed = int(re.search(r"at line (\d+) in workload", result.traceback_text)[1])
    words = f"held[0]  75497472 float32  other; made at line {failed - 2} or {failed} of workload"
    assert f"{words} (test_alive.py)" in result.traceback_text
    # a parameter is the model's: no line of the step made it
    (row,) = [x for x in result.traceback_text.splitlines() if "model.weight  1024x512" in x]
    assert row.endswith("parameters")


def test_the_report_shows_it(result):
    from perfkit import show

    words, page = show.text(result), show.html(result).replace("\xa0", " ")
    assert "the biggest held[0] (288 MiB)" in " ".join(words.split())
    assert "the biggest held[0] (288 MiB)" in page
    assert "model.weight" in page


class _Stream:
    def __init__(self):
        self.said = []

    def say(self, kind, **content):
        self.said.append((kind, content))


def _told(error):
    stream = _Stream()
    try:
        raise error
    except BaseException as caught:
        worker.tell_failure(stream, caught, frozenset())
    return [content for _, content in stream.said]


def test_a_stock_that_cannot_be_taken_hides_nothing(monkeypatch):
    def none_left(*_, **__):
        raise MemoryError

    monkeypatch.setattr(_alive, "alive", none_left)
    (only,) = _told(MemoryError("no room"))
    assert only["state"] == "out of memory"
    assert only["message"].startswith("out of memory: MemoryError: no room")


def test_another_failure_takes_no_stock(monkeypatch):
    monkeypatch.setattr(_alive, "alive", lambda *_, **__: pytest.fail("asked"))
    (only,) = _told(ValueError("something else"))
    assert only["state"] == "failed"


class _FakeCuda(Cuda):
    peak = 20 * MIB

    def devices(self):
        return (0,)

    def name(self, device):
        return "simulated"

    def stats(self, device):
        return {
            "allocated_bytes.all.current": 15 * MIB,
            "allocated_bytes.all.peak": self.peak,
            "reserved_bytes.all.current": 100 * MIB,
            "reserved_bytes.all.peak": 160 * MIB,
        }

    def synchronize(self, device):
        pytest.fail("a device that failed must not be waited for")

    def reset_peaks(self, device):
        pytest.fail("the peaks are the run's")


def _failed_on_gpu(monkeypatch, asked="30.00 MiB", gpu=None):
    from perfkit.memory import storages

    # the same tensors, said to be on a GPU
    class _Storage:
        def __init__(self, storage):
            self.storage, self.device = storage, "cuda:0"

        def nbytes(self):
            return self.storage.nbytes()

    made = {}

    def moved(tensor):
        found = storages_of(tensor)
        return found and tuple(made.setdefault(id(s), _Storage(s)) for s in found)

    storages_of = storages.storages_of
    monkeypatch.setattr(storages, "storages_of", moved)
    monkeypatch.setattr("perfkit.memory.names.storages_of", moved)
    kept = torch.zeros(3 * MIB)
    try:
        assert kept.numel()
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of "
            "1.50 GiB of which 1 MiB is free. (simulated)"
        )
    except torch.OutOfMemoryError as error:
        return _alive.alive(error, gpu=gpu or _FakeCuda())


def test_on_cuda_the_allocators_counters_join(monkeypatch):
    found = _failed_on_gpu(monkeypatch)
    assert "(measured in the run's process; cuda:0)" in found.text
    assert (
        "simulated (cuda:0): allocated 15.0 MiB, reserved 100 MiB; peaks 20.0 MiB and 160 MiB"
        in found.text
    )
    assert "requested and refused: 30.0 MiB" in found.text
    assert "12.0 MiB  kept  3145728 float32  other" in found.text
    assert "expandable_segments:True: 140 MiB were reserved" in found.text


def test_a_failure_on_a_gpu_says_so_before_the_first_step(monkeypatch):
    """Else the run's provenance was "measured here", on the CPU."""
    (only,) = _told(ValueError("in the set-up"))
    assert only["on_gpu"] is not in_use().is_cpu
    monkeypatch.setattr(worker, "in_use", _FakeCuda)
    (only,) = _told(ValueError("in the set-up"))
    assert only["on_gpu"] is True


def test_what_the_failing_line_held_is_not_said_to_be_little(monkeypatch):
    """A list that is filled in one expression is gone with its error (14.1 GiB in a Lab)."""
    gpu = _FakeCuda()
    gpu.peak = 1400 * MIB
    found = _failed_on_gpu(monkeypatch, gpu=gpu)
    assert re.fullmatch(
        r"[\d.]+ MiB of tensors were still alive after the error, of a peak of 1\.37 GiB; "
        "try: find what held the peak",
        found.sentence,
    )
    helps = found.text.partition("What would help:\n")[2]
    assert helps.startswith("  - find what held the peak: most of it is gone")
    assert "free what the step does not need" not in helps


@pytest.mark.parametrize(
    ("words", "device"),
    [
        ("CUDA out of memory. Tried to allocate 2 GiB. GPU 1 has a total capacity of …", "cuda:1"),
        ("Allocation on device 1 would exceed allowed memory. (out of memory)", "cuda:1"),
        ("CUDA error: out of memory", "cuda:0"),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cuda:0"),
        ("CUDA out of memory. GPU 7 has a total capacity of …", "cuda:0"),
        ("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes.", "cpu"),
    ],
)
def test_of_two_gpus_the_one_that_ran_out_is_told(words, device):
    held = {"cpu": 900, "cuda:0": 700, "cuda:1": 30}
    state = SimpleNamespace(by_device={name: {"other": n} for name, n in held.items()})
    assert _alive._device(RuntimeError(words), state) == device


def test_the_text_is_bounded():
    class AwkwardError(MemoryError):
        pass

    many = {f"{'x' * 500}{i}": torch.zeros(1000) for i in range(50)}
    try:
        raise AwkwardError("y" * 100_000 + str(len(many)))
    except MemoryError as error:
        found = _alive.alive(error)
    assert len(found.text) <= 6000
    assert len(found.sentence) < 400
    more = _failure.Failure("out of memory", "m", "t").with_more(*found)
    assert more.message.startswith("m; ")
    assert more.traceback_text.startswith("t\n\nWhen memory ran out")


def test_with_no_room_left_at_all_the_failure_is_told():
    from perfkit.experiment.process.session import Session

    def workload(s):
        import resource

        import psutil

        yield 1
        now = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (now + (32 << 20), now + (32 << 20)))
        held = []
        size = 1 << 24
        while True:
            # smaller and smaller pieces, until not even a page can be allocated
            try:
                held.append(bytearray(size))
            except MemoryError:
                size //= 2
                if size < 1024:
                    raise

    with Session(workload, [], seconds=5.0) as session:
        result = session.run()
    assert result.state == "out of memory"
    assert result.message.startswith("out of memory: MemoryError")
    assert result.traceback_text.startswith("Traceback")


def test_more_than_the_gpu_has_is_told_first(monkeypatch):
    found = _failed_on_gpu(monkeypatch, asked="2.50 GiB")
    helps = found.text.partition("What would help:\n")[2]
    assert helps.startswith("  - ask for less at once: this line asks for 2.50 GiB and there are ")
    assert "1.50 GiB in all, so no setting makes room" in helps
    assert "expandable_segments" not in helps


@pytest.mark.parametrize(
    ("factor", "words", "also"),
    [
        (1 << 50, "so no setting makes room", False),
        (1 << 30, "all tensors together hold ", True),
    ],
)
def test_one_absurd_allocation_is_told_before_zero_grad(factor, words, also, monkeypatch):
    # what is alive includes gradients: with as much memory as asked for, they may be in the way
    if also:
        monkeypatch.setattr(_alive, "_capacity", lambda *_: 1 << 40)
    weight = torch.ones(1024, requires_grad=True)
    weight.sum().backward()
    asked = 8 * factor
    error = None
    try:
        raise RuntimeError(
            f"[enforce fail at alloc_cpu.cpp:127] you tried to allocate {asked} bytes."
        )
    except RuntimeError as raised:
        error = raised
    told = _alive.alive(error)
    helps = told.text.partition("What would help:\n")[2]
    assert words in helps
    assert helps.startswith("  - ask for less at once")
    assert (helps.count("  - ") > 1) is also
    assert told.sentence.endswith("try: ask for less at once")
    assert weight.grad is not None
