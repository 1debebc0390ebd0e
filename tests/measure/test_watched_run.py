from __future__ import annotations

import gc
import sys
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from perfkit.base.errors import UsageError
from perfkit.base.machine.cpu_contention import CpuContention
from perfkit.measure.memory_looks import Footprint, footprint
from perfkit.measure.meter import MOST_POINTS, StepMeter
from perfkit.measure.run import WatchedRun
from perfkit.measure.tracker import Update
from perfkit.measure.verdict import RunSummary

MIB = 2**20


class Recorder:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.updates: list[Update] = []
        self.ended: list[RunSummary] = []

    def begin(self, run: WatchedRun) -> None:
        self.begun.append(run.epochs)

    def update(self, update: Update) -> None:
        self.updates.append(update)

    def end(self, summary: RunSummary) -> None:
        self.ended.append(summary)


class Loader:
    """Returns n batches of 4, and takes some time for each."""

    def __init__(self, clock, n: int, wait_ms: float = 0.0, start_ms: float = 0.0) -> None:
        self.clock, self.n, self.wait_ms, self.start_ms = clock, n, wait_ms, start_ms

    def __len__(self) -> int:
        return self.n

    def __iter__(self):
        self.clock.advance_ms(self.start_ms)
        for _ in range(self.n):
            self.clock.advance_ms(self.wait_ms)
            yield [torch.zeros(4, 2), torch.zeros(4)]


class Quiet:
    """Nothing else runs on the machine."""

    def until_now(self) -> CpuContention:
        return CpuContention(10.0, 2, 10.0)


def watched(clock, loader, **options) -> WatchedRun:
    options.setdefault("mark", Quiet)
    options.setdefault("read_memory", lambda: Footprint(100 * MIB, "resident"))
    return WatchedRun(loader, now=clock.now, **options)


def loop(clock, run, work_ms: float = 10.0) -> None:
    for _ in run:
        clock.advance_ms(work_ms)


def test_steps_are_split_and_the_verdict_says_so(clock) -> None:
    run = watched(clock, Loader(clock, 100, wait_ms=30, start_ms=70))
    loop(clock, run)
    s = run.summary
    assert s.ended == "finished"
    assert (s.n_steps, s.n_epochs) == (100, 1)
    assert s.step is not None
    assert (s.step.median, s.step.n) == (40, 97)  # without the first and two of warm-up
    assert s.wait_share == pytest.approx(0.75)
    assert (s.wait_low, s.wait_high) == pytest.approx((0.75, 0.75))
    assert s.starts_ms == (100,)
    assert s.batch_size == 4
    assert s.samples_per_s == pytest.approx(4 * 100 / 4.07)
    assert s.sentence.startswith("Data-bound: 75 % [75 %, 75 %] of each step waits for the loader")
    assert "median step 40.0 ms [40.0 ms, 40.0 ms], n=97" in s.sentence
    assert "at most 4.0×" in s.sentence


@pytest.mark.parametrize(
    ("wait_ms", "said"), [(3, "Partly data-bound: 23 %"), (0.1, "Not data-bound: 1.0 %")]
)
def test_verdict_follows_the_share(clock, wait_ms: float, said: str) -> None:
    run = watched(clock, Loader(clock, 50, wait_ms=wait_ms))
    loop(clock, run)
    assert run.summary.sentence.startswith(said)


@pytest.mark.parametrize(
    ("n_batches", "said"),
    [
        (2, "Only 1 step could be timed, too few for a verdict."),
        (3, "Only 2 steps could be timed, too few for a verdict."),
        (4, "Data-bound: 97 % of each step"),
    ],
)
def test_two_steps_are_no_verdict(clock, n_batches: int, said: str) -> None:
    run = watched(clock, Loader(clock, n_batches, wait_ms=300))
    loop(clock, run)
    assert run.summary.sentence.startswith(said)
    assert ("as fast" in run.summary.sentence) == said.startswith("Data-bound")


def test_slower_steps_and_bursts_and_starts_are_told(clock) -> None:
    run = watched(clock, Loader(clock, 300))
    for i, _ in enumerate(run):
        clock.advance_ms(10 + i * 4 / 300)
    assert run.summary.drift is not None
    said = run.summary.sentence
    assert "Steps got 39 % slower over the run: 13.3 µs more with each step" in said
    assert "no memory grows as clearly" in said
    assert said.endswith("perfkit.find_leaks(step) shows what grows.")

    def bursts():
        for i in range(200):
            clock.advance_ms(400 if i % 4 == 0 else 0)
            yield i

    run = watched(clock, bursts())
    loop(clock, run)
    assert (
        "steps are uneven: 410 ms in every 4th step (steps 5, 9 … 197), together 93 % of "
        "the time; in these the loop waits for the loader"
    ) in run.summary.sentence
    assert run.summary.wait_share == pytest.approx(0.91, abs=0.01)

    run = watched(clock, Loader(clock, 20, start_ms=800))
    for _ in range(3):
        loop(clock, run)
    assert run.summary.starts_ms == (800, 800, 800)
    assert "the first batch took 800 ms in each of 3 epochs (80 % of the run)" in (
        run.summary.sentence
    )


def test_epochs_go_on_counting(clock) -> None:
    seen = Recorder()
    run = watched(clock, Loader(clock, 10), observer=seen, hz=10)
    for _ in range(3):
        loop(clock, run, work_ms=50)
    assert seen.begun == [1, 2, 3]
    assert [s.n_steps for s in seen.ended] == [10, 20, 30]
    numbers = np.concatenate([u.numbers for u in seen.updates])
    # the first step of each epoch starts the loader and is left out of the curve
    assert numbers.tolist() == [n for n in range(1, 31) if n not in (1, 11, 21)]
    assert [u.done for u in seen.updates if u.epoch == 2][-1] == 10
    assert {u.total for u in seen.updates} == {10}


def test_updates_come_at_their_rate_and_bound_their_own_cost(clock) -> None:
    class Slow(Recorder):
        def update(self, update: Update) -> None:
            super().update(update)
            clock.advance_ms(20)  # ten times what a push takes

    seen = Recorder()
    run = watched(clock, Loader(clock, 3000), observer=seen, hz=2)
    loop(clock, run)
    assert len(seen.updates) == pytest.approx(10 + (30 - 1) * 2, abs=2)

    slow = Slow()
    run = watched(clock, Loader(clock, 3000), observer=slow, hz=10)
    loop(clock, run)
    assert len(slow.updates) <= 30 / (400 * 0.02) + 3  # the first one is not held against the next
    assert len(slow.updates) >= 4

    run = watched(clock, Loader(clock, 20_000), observer=(later := Slow()), hz=10)
    loop(clock, run)
    # after the ten early ones each takes 0.02 % of the loop
    assert len(later.updates) == pytest.approx(10 + (200 - 10 * 400 * 0.02) / (4500 * 0.02), abs=2)
    assert 0 < run.summary.update_share <= 0.005
    assert run.summary.step is not None
    assert run.summary.step.maximum == 10  # what an update took belongs to no step


class Lengthless:
    """Three batches, and an invalid length."""

    def __init__(self, length) -> None:
        self.length = length

    def __len__(self) -> int:
        if isinstance(self.length, Exception):
            raise self.length
        return self.length

    def __iter__(self):
        return iter([1, 2, 3])


@pytest.mark.parametrize("length", [RuntimeError("not yet"), OSError(), -1, 10**30, "three"])
def test_a_length_that_is_none_is_unknown(clock, length) -> None:
    seen = Recorder()
    run = watched(clock, Lengthless(length), observer=seen)
    assert [batch for batch in run] == [1, 2, 3]  # noqa: C416 - list() asks for the length
    assert run.total is None
    assert run.summary.ended == "finished"


class Trap:
    @property
    def shape(self):
        raise RuntimeError("shape is not known yet")


def test_a_batch_that_raises_when_looked_at_reaches_the_loop(clock) -> None:
    run = watched(clock, [Trap() for _ in range(5)])
    loop(clock, run)
    assert (run.summary.ended, run.summary.n_steps) == ("finished", 5)
    assert run.summary.batch_size is None


def test_looking_at_a_batch_belongs_to_no_step(clock) -> None:
    class Lazy(dict[str, torch.Tensor]):
        def __getitem__(self, key: str) -> torch.Tensor:
            clock.advance_ms(7)
            return torch.zeros(4)

    def batches():
        for _ in range(40):
            clock.advance_ms(5)
            yield Lazy(x=None)

    run = watched(clock, batches())
    loop(clock, run)
    s = run.summary
    assert s.step is not None
    assert (s.step.minimum, s.step.maximum) == (15, 15)
    assert s.wait_share == pytest.approx(1 / 3)
    assert s.batch_size == 4
    assert s.update_share > 0.2


def test_batches_without_a_size_are_looked_at_once(clock) -> None:
    looked = 0

    class Sizeless:
        @property
        def shape(self):
            nonlocal looked
            looked += 1
            return None

    run = watched(clock, [Sizeless() for _ in range(50)])
    loop(clock, run)
    assert looked == 1
    assert run.summary.samples_per_s is None


def test_a_memory_reading_that_fails_does_not_end_the_run(clock) -> None:
    def gone() -> Footprint:
        raise OSError("/proc is not mounted")

    run = watched(clock, Loader(clock, 100), read_memory=gone)
    loop(clock, run)
    assert run.summary.ended == "finished"
    assert sum("/proc is not mounted" in w for w in run.summary.warnings) == 1


def test_steps_in_which_the_loop_was_left_are_told(clock) -> None:
    run = watched(clock, Loader(clock, 100))
    for _ in range(2):
        for i, _ in enumerate(run):
            clock.advance_ms(10)
            if i == 12:
                break
    assert (run.summary.n_steps, run.summary.n_unfinished) == (24, 2)
    assert "24 steps in 2 epochs" in run.summary.to_text()
    assert "(2 last ones not timed: no further batch was asked for)" in " ".join(
        run.summary.to_text().split()
    )
    loop(clock, run := watched(clock, Loader(clock, 5)))
    assert run.summary.n_unfinished == 0
    assert "unfinished" not in run.summary.to_text()


@pytest.mark.parametrize(
    ("wait_ms", "said"),
    [(30, "at most 4.0×"), (890, "at most 90×"), (990, "at most 100×"), (30_000, "more than 100×")],
)
def test_what_a_faster_loader_would_give_is_a_plain_number(clock, wait_ms, said: str) -> None:
    run = watched(clock, Loader(clock, 50, wait_ms=wait_ms))
    loop(clock, run)
    assert f"a loader without waits would make it {said}" in run.summary.sentence


def test_fast_loops_send_few_points(clock) -> None:
    seen = Recorder()
    run = watched(clock, range(20_000), observer=seen)
    loop(clock, run, work_ms=0.1)
    assert max(len(u.numbers) for u in seen.updates) <= MOST_POINTS
    for update in seen.updates:
        np.testing.assert_allclose(update.step_ms, 0.1)


@pytest.mark.parametrize("how", ["break", "error", "interrupt"])
def test_every_way_out_of_the_loop_is_clean(clock, how: str) -> None:
    seen = Recorder()
    run = watched(clock, Loader(clock, 100), observer=seen)
    error = {"error": ValueError("mine"), "interrupt": KeyboardInterrupt()}.get(how)

    def use() -> None:
        for i, _ in enumerate(run):
            clock.advance_ms(10)
            if i == 20:
                if error is None:
                    break
                raise error

    if error is None:
        use()
    else:
        with pytest.raises(type(error)) as caught:
            use()
        assert caught.value is error
    gc.collect()  # the traceback that pytest holds does not hold the loop's iterator
    assert not run.running
    assert [s.ended for s in seen.ended] == ["ended after 21 of 100 batches"]
    assert run.summary is seen.ended[0]
    assert run.summary.n_steps == 20  # the last one was not completed


@pytest.mark.parametrize(
    ("error", "ended"),
    [(OSError("no such file"), "the loader raised OSError"), (KeyboardInterrupt(), "interrupted")],
)
def test_what_the_loader_raises_comes_through(clock, error: BaseException, ended: str) -> None:
    def breaks():
        yield from range(5)
        raise error

    run = watched(clock, breaks())
    with pytest.raises(type(error)) as caught:
        loop(clock, run)
    assert caught.value is error
    assert run.summary.ended == ended
    assert run.summary.n_steps == 5


def test_a_loader_that_fails_to_start(clock) -> None:
    class Broken:
        def __iter__(self):
            raise RuntimeError("no shared memory")

    run = watched(clock, Broken())
    with pytest.raises(RuntimeError, match="no shared memory"):
        loop(clock, run)
    assert run.summary.sentence == "No step was completed (the loader raised RuntimeError)."
    assert not run.running


def test_batches_are_not_kept_alive(clock) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    alive_at_fetch: list[int] = []

    def batches():
        for _ in range(4):
            alive_at_fetch.append(sum(r() is not None for r in held))
            batch = torch.zeros(3)
            held.append(weakref.ref(batch))
            yield batch
            del batch

    for batch in watched(clock, batches()):
        clock.advance_ms(1)
        del batch
    assert alive_at_fetch == [0, 0, 0, 0]


def test_the_loaders_iterator_ends_with_the_loop(clock) -> None:
    closed = []

    def batches():
        try:
            yield from range(100)
        finally:
            closed.append(True)

    class Fresh:
        def __iter__(self):
            return batches()

    run = watched(clock, Fresh())
    for _ in run:
        break
    assert closed == [True]


def test_nested_watches_and_one_within_itself(clock) -> None:
    outer, inner = watched(clock, Loader(clock, 3)), watched(clock, Loader(clock, 5))
    for _ in outer:
        loop(clock, inner)
    assert (outer.summary.n_steps, inner.summary.n_steps, inner.epochs) == (3, 15, 3)
    assert outer.summary.step is not None
    assert outer.summary.step.median == 50

    run = watched(clock, Loader(clock, 4))
    batches = []
    for _ in run:
        batches += list(run)
    assert len(batches) == 16  # nothing is lost, the newest loop is measured
    assert not run.running


def test_empty_and_exhausted_loaders_answer_plainly(clock) -> None:
    run = watched(clock, [])
    loop(clock, run)
    assert run.summary.sentence == "No step: the loader gave no batch."
    assert run.summary.step is None
    used = iter([1, 2])
    list(used)
    run = watched(clock, used)
    assert run.summary.sentence == "Nothing watched yet: no loop has asked for a second batch."
    loop(clock, run)
    assert run.summary.sentence == (
        "No step: the loader gave no batch: it is an iterator, which can be looped over only once."
    )


def one_batch():
    yield 1


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (3, r"cannot loop over 3 \(int\)"),
        (None, "cannot loop over None"),
        (DataLoader, "that is a class, pass an instance: DataLoader"),
        (one_batch, r"call it: watch\(one_batch\(\)\)"),
    ],
)
def test_what_cannot_be_looped_over_is_refused_at_once(bad, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        WatchedRun(bad)


@pytest.mark.parametrize(
    "options", [{"total": -1}, {"total": 2.5}, {"hz": 0}, {"hz": 11}, {"hz": "a"}, {"hz": 1e-320}]
)
def test_absurd_numbers_are_refused(options) -> None:
    with pytest.raises(UsageError):
        WatchedRun([1], **options)


def test_what_training_loops_ask_of_a_loader() -> None:
    data = TensorDataset(torch.zeros(10, 2))
    loader = DataLoader(data, batch_size=4)
    run = WatchedRun(loader)
    assert len(run) == run.total == 3
    assert run.loader is loader
    assert run.dataset is data
    assert (run.batch_size, run.num_workers) == (4, 0)
    assert run.sampler is loader.sampler
    assert run.batch_sampler is loader.batch_sampler
    with pytest.raises(AttributeError, match="collate"):
        run.collate  # noqa: B018
    endless = WatchedRun(x for x in range(3))
    assert endless.total is None
    assert WatchedRun(endless, total=7).total == 7
    with pytest.raises(TypeError):
        len(endless)
    assert list(endless) == [0, 1, 2]


def test_batches_come_through_unchanged() -> None:
    batches = [object() for _ in range(10)]
    assert all(a is b for a, b in zip(WatchedRun(batches), batches, strict=True))


def test_a_failing_display_does_not_end_the_run(clock) -> None:
    class Broken(Recorder):
        def update(self, update: Update) -> None:
            raise RuntimeError("comm closed")

    seen = Broken()
    run = watched(clock, Loader(clock, 100), observer=seen)
    loop(clock, run)
    assert run.summary.n_steps == 100
    assert any("RuntimeError: comm closed" in w for w in run.summary.warnings)
    assert seen.ended == []


def test_a_clock_that_goes_backwards(clock) -> None:
    run = watched(clock, range(50))
    for i in run:
        clock.advance_ms(-3 if i in (12, 13, 30) else 10)
    assert run.summary.step is not None
    assert run.summary.step.minimum == 0
    assert run.summary.wait_share == 0


def creeping(clock, per_step_bytes: float, kind="allocated", noise_bytes: float = 0.0, in_use=None):
    random = np.random.default_rng(0)
    run = None

    def read() -> Footprint:
        steps = run.tracker.meter.n if run is not None else 0
        wobble = random.normal(0, noise_bytes) if noise_bytes else 0
        n_bytes = int(500 * MIB + steps * per_step_bytes + wobble)
        return Footprint(n_bytes, kind, n_bytes if in_use is None else int(in_use(steps)))

    run = watched(clock, Loader(clock, 1000), read_memory=read)
    loop(clock, run)
    return run.summary


def test_memory_creep_is_told_in_bytes_per_step(clock) -> None:
    memory = creeping(clock, 4096).memory
    assert memory is not None
    assert memory.creep is not None
    assert memory.creep.per_step == pytest.approx(4096)
    noisy = creeping(clock, 200_000, kind="resident", noise_bytes=3 * MIB)
    assert noisy.memory is not None
    assert noisy.memory.creep is not None
    assert noisy.memory.creep.per_step == pytest.approx(200_000, rel=0.05)
    assert ". Memory in use (malloc) grows by" in noisy.sentence
    assert noisy.sentence.endswith("perfkit.find_leaks(step) shows what grows and what holds it.")


def test_steps_and_memory_that_grow_together_are_one_sentence(clock) -> None:
    run = watched(clock, Loader(clock, 1000))
    run.tracker._read_memory = lambda: Footprint(
        500 * MIB + 4096 * run.tracker.meter.n, "allocated"
    )
    for i, _ in enumerate(run):
        clock.advance_ms(10 + i / 100)
    said = run.summary.sentence
    assert (
        "10.0 µs more with each step [10.0 µs, 10.0 µs] (100 % of it in the code outside of model, "
        "backward pass and optimizer) and allocated memory grows by 4.00 KiB "
        "a step; perfkit.find_leaks(step) shows"
    ) in said


def test_a_slope_is_of_one_step_also_where_not_all_are_kept(clock) -> None:
    run = watched(clock, range(30_000))
    run.tracker.meter = StepMeter(capacity=10_000)
    for i, _ in enumerate(run):
        clock.advance_ms(1 + i / 10_000)
    assert run.tracker.meter.stride > 1
    assert "100 ns more with each step" in run.summary.sentence


def test_a_graph_that_is_kept_is_seen_by_what_malloc_handed_out(clock) -> None:
    """`total = total + loss` of a small network: 6.4 KiB a step."""
    said = creeping(clock, 0, kind="resident", in_use=lambda step: 300 * MIB + 6554 * step).sentence
    assert "Memory in use (malloc) grows by 6.40 KiB a step" in said


def test_what_is_steady_has_no_word_of_growth(clock) -> None:
    steady = creeping(clock, 0, kind="resident", noise_bytes=3 * MIB)
    assert "find_leaks" not in steady.sentence


def test_memory_that_grows_is_told_on_a_busy_machine_too(clock) -> None:
    run = watched(clock, Loader(clock, 1000))
    run.tracker._read_memory = lambda: Footprint(
        500 * MIB + 4096 * run.tracker.meter.n, "allocated"
    )
    loop(clock, run)
    run.tracker.busy = CpuContention(100.0, 2, 10.0, waited_s=80.0, others_s=190.0)
    run._summary = None
    said = run.summary.sentence
    assert "watch it again" in said
    assert "Allocated memory grows by" in said


@pytest.mark.parametrize(
    "in_use",
    [
        lambda steps: 400 * MIB,  # malloc keeps pages that it hands out again later
        lambda steps: 400 * MIB + 200_000 * min(steps, 600),  # a cache that is full by then
        lambda steps: 400 * MIB + 200_000 * max(steps - 400, 0),  # an evaluation's, at the end
    ],
)
def test_a_resident_size_that_rises_is_no_creep_by_itself(clock, in_use) -> None:
    """A Lightning GAN was said to creep by 222 KiB a step; none of it was kept."""
    memory = creeping(clock, 200_000, kind="resident", in_use=in_use).memory
    assert memory is not None
    assert memory.last_bytes > memory.first_bytes
    assert memory.creep is None


def test_where_nobody_counts_memory_in_use_no_creep_is_told(clock) -> None:
    run = watched(clock, Loader(clock, 1000))
    run.tracker._read_memory = lambda: Footprint(
        500 * MIB + 200_000 * run.tracker.meter.n, "resident", None
    )
    loop(clock, run)
    assert run.summary.memory.creep is None


def test_creep_is_seen_where_malloc_is_asked_now_and_then(clock) -> None:
    run = watched(clock, Loader(clock, 4000))
    n_readings = 0

    def read() -> Footprint:
        nonlocal n_readings
        n_readings += 1
        in_use = 300 * MIB + 6554 * run.tracker.meter.n if n_readings % 4 == 0 else None
        return Footprint(500 * MIB, "resident", in_use)

    run.tracker._read_memory = read
    loop(clock, run)
    assert run.summary.memory.creep.per_step == pytest.approx(6554)


@pytest.mark.parametrize(
    ("per_step", "kind", "noise"),
    [(0, "allocated", 0), (10, "allocated", 0), (-4096, "allocated", 0), (0, "resident", 3 * MIB)],
)
def test_no_creep_is_told_where_none_is_clear(clock, per_step, kind, noise) -> None:
    summary = creeping(clock, per_step, kind, noise)
    assert summary.memory is not None
    assert summary.memory.creep is None
    assert "memory grows" not in summary.sentence


def test_readings_begin_anew_when_cuda_comes_up(clock) -> None:
    readings = iter([Footprint(900 * MIB, "resident")] * 3 + [Footprint(MIB, "allocated")] * 1000)
    run = watched(clock, Loader(clock, 500), read_memory=lambda: next(readings))
    loop(clock, run)
    memory = run.summary.memory
    assert memory is not None
    assert (memory.kind, memory.first_bytes, memory.highest_bytes) == ("allocated", MIB, MIB)


def test_on_cuda_allocator_counters_are_read_and_host_times_labelled(clock, monkeypatch) -> None:
    # two of three devices are in use; the work need not be on torch's current one
    held = {0: MIB, 2: 6 * MIB}
    fake = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 3,
        memory_allocated=held.__getitem__,
        current_device=lambda: 0,
        get_device_name=lambda index: "played",
    )
    monkeypatch.setattr(torch, "cuda", fake)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", held.__contains__, raising=False)
    assert footprint() == Footprint(7 * MIB, "allocated")
    run = WatchedRun(Loader(clock, 30), now=clock.now)
    loop(clock, run)
    assert any("times are the host's" in w for w in run.summary.warnings)
    assert run.summary.provenance.device == "played"


def test_resident_size_is_that_of_this_process() -> None:
    import psutil

    ours = footprint()
    assert ours.kind == "resident"
    assert "without loader workers" in ours.label
    assert ours.n_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)


def test_a_running_summary_can_be_asked_for(clock) -> None:
    run = watched(clock, Loader(clock, 50))
    for i, _ in enumerate(run):
        clock.advance_ms(10)
        if i == 30:
            assert run.summary.n_steps == 30
            assert run.summary.ended == "running"


def calls_of(act) -> int:
    """How many functions of Python and C ``act`` calls: what it costs, without a clock."""
    n = 0

    def count(frame, event: str, arg) -> None:
        nonlocal n
        n += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()  # a collection, which comes at any time, calls those that listen to it
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
        gc.enable()
    return n


def test_a_step_and_an_update_cost_no_more_as_the_run_grows(clock) -> None:
    seen = Recorder()
    run = watched(clock, Loader(clock, 40), observer=seen)
    steps: dict[int, list[int]] = {}
    updates: dict[int, list[int]] = {}
    for epoch in range(100):
        iterator = iter(run)
        for n in range(40):
            told = len(seen.updates)
            cost = calls_of(lambda: next(iterator))  # noqa: B023 - called at once
            clock.advance_ms(10)
            if n > 1:  # else it starts the epoch
                (updates if len(seen.updates) > told else steps).setdefault(epoch, []).append(cost)
        list(iterator)
    # the body of a step does nothing but these calls, and those of the loader here are among them
    assert max(steps[1]) == max(steps[99]) <= 60
    # the first one of an epoch, which starts the sampler; the first epoch has more to begin
    first, last = updates[1][0], updates[99][0]
    assert last <= first <= 250


@pytest.mark.slow
def test_long_runs_stay_bounded(clock) -> None:
    run = watched(clock, range(300_000))
    for _ in run:
        clock.ns += 50_000_000
    s = run.summary
    assert s.n_steps == 300_000
    assert len(run.tracker.memory) < 2048
    assert len(s.curve.numbers) <= 2000
    assert s.steps_per_s == pytest.approx(20)
    assert sys.getsizeof(run.tracker.meter._rows) < 2**24


def test_to_dict_is_json(clock) -> None:
    import json

    run = watched(clock, Loader(clock, 50))
    loop(clock, run)
    bundle = run.summary._repr_mimebundle_()["application/vnd.perfkit.result+json"]
    assert json.loads(json.dumps(bundle))["type"] == "run"
    assert bundle["memory"]["creep_bytes_per_step"] is None


# --- loops driven by others -------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_trainer_that_calls_next_as_often_as_len_says_has_finished(clock, epochs: int) -> None:
    """HF Trainer and Lightning: ``iter()``, then ``len()`` times ``next()``, not once more."""
    recorder = Recorder()
    run = watched(clock, Loader(clock, 50, wait_ms=1), observer=recorder)
    held = []
    for _ in range(epochs):
        batches = iter(run)
        held.append(batches)  # as trainers do
        for _ in range(len(run)):
            next(batches)
            clock.advance_ms(10)
        clock.advance_ms(5000)  # an evaluation: no part of the loop
    assert run.summary.ended == "finished"
    assert run.summary.n_unfinished == epochs
    assert run.summary.n_steps == 49 * epochs
    assert not run.running
    assert recorder.ended[-1].ended == "finished"
    assert run.summary.wall_s < 1 * epochs
    del held, batches
    gc.collect()
    assert len(recorder.ended) == epochs


def test_what_follows_a_loop_that_asked_no_more_is_not_seen_as_its_loading(clock) -> None:
    """Its last look is at its end, but this end is known only when somebody asks for it."""
    looks: list[bool] = []
    for asks_once_more in (True, False):
        run = watched(clock, Loader(clock, 50, wait_ms=1))
        run.tracker.looks = SimpleNamespace(
            look=lambda now=False: looks.append(now),
            result=lambda: None,
            instrument=run._instrument,
        )
        batches = iter(run)
        for _ in range(50):
            next(batches)
            clock.advance_ms(10)
        assert True not in looks
        if asks_once_more:
            assert next(batches, None) is None
            assert looks.pop() is True
        clock.advance_ms(600_000)
        run.settle()
        assert run.summary.ended == "finished"
        assert True not in looks
        assert run._instrument.is_on


def test_a_loop_that_still_runs_does_not_settle(clock) -> None:
    run = watched(clock, Loader(clock, 5))
    for i, _ in enumerate(run):
        clock.advance_ms(10)
        if i == 2:
            run.settle()
            assert run.running
            assert run.summary.ended == "running"
    assert run.summary.n_steps == 5


def test_a_look_at_one_batch_is_no_epoch(clock) -> None:
    recorder = Recorder()
    run = watched(clock, Loader(clock, 50), observer=recorder)
    next(iter(run))
    clock.advance_ms(3000)
    gc.collect()
    assert (run.epochs, run.running, run.summary.n_steps) == (0, False, 0)
    assert run.summary.sentence.startswith("Nothing watched yet")
    for _ in range(2):
        loop(clock, run)
    kept = iter(run)  # as some keep it
    next(kept)
    loop(clock, run)
    s = run.summary
    assert (s.n_steps, s.n_epochs, s.n_unfinished, s.ended) == (150, 3, 0, "finished")
    assert s.wall_s == pytest.approx(1.5)
    del kept


def test_a_loop_that_is_left_says_where_not_why(clock) -> None:
    """A break, a trainer's max_steps and an exception look the same from the loader."""
    run = watched(clock, Loader(clock, 100))
    for epoch in range(2):
        for i, _ in enumerate(run):
            clock.advance_ms(10)
            if epoch and i == 29:
                break
    assert run.summary.ended == "ended after 30 of 100 batches of epoch 2"
    endless = watched(clock, iter(range(10**6)))
    for i in endless:
        clock.advance_ms(10)
        if i == 29:
            break
    assert endless.summary.ended == "ended after 30 batches"


def test_unequal_long_steps_are_told_by_their_range(clock) -> None:
    run = watched(clock, Loader(clock, 40))
    for i, _ in enumerate(run):
        clock.advance_ms({9: 300, 24: 2000}.get(i, 10))
    assert "steps are uneven: 300 ms to 2.00 s in steps 10 and 25" in run.summary.sentence


def test_a_slightly_busy_machine_weakens_the_verdict_and_keeps_it(clock) -> None:
    class Stolen:
        def until_now(self) -> CpuContention:
            return CpuContention(10.0, 2, 10.0, waited_s=0.1, others_s=0.1, stolen_s=1.08)

    run = watched(clock, Loader(clock, 300, wait_ms=30), mark=Stolen)
    loop(clock, run)
    said = run.summary.sentence
    assert said.startswith("The machine was a little busy: the hypervisor took 5.4 % of the cores'")
    assert "times are up to 12 % too long. Data-bound: 75 %" in said


def test_long_steps_at_intervals(clock) -> None:
    run = watched(clock, Loader(clock, 100))
    for i, _ in enumerate(run):
        clock.advance_ms(300 if i % 10 == 9 else 1)
    said = run.summary.sentence
    assert "steps are uneven: 300 ms in every 10th step (steps 10, 20 … 100), together" in said


def test_what_ran_in_the_long_steps_is_named() -> None:
    run = WatchedRun(range(60), mark=Quiet)
    for i in run:
        time.sleep(0.8 if i % 20 == 19 else 0.005)
    said = run.summary.sentence
    assert "steps are uneven" in said
    assert "in these it runs time.sleep(0.8 if i % 20 == 19 else 0.005) (test_watched_run" in said


def test_one_long_step_is_told_by_its_number(clock) -> None:
    run = watched(clock, Loader(clock, 40))
    for i, _ in enumerate(run):
        clock.advance_ms(2000 if i == 24 else 10)
    assert "steps are uneven: 2.00 s in step 25, 85 % of the time" in run.summary.sentence


def test_a_busy_machine_is_the_verdict(clock) -> None:
    class Loaded:
        def until_now(self) -> CpuContention:
            return CpuContention(10.0, 2, 8.0, waited_s=4.0, others_s=12.0)

    run = watched(clock, Loader(clock, 60, wait_ms=1), mark=Loaded)
    for i, _ in enumerate(run):
        clock.advance_ms(400 + 50 * (i % 7) ** 2)
    said = run.summary.sentence
    assert said.startswith("The machine was busy: other programs used 1.2 of 2 cores")
    assert "watch it again on a quiet machine" in said
    assert "ata-bound" not in said
    assert run.summary.to_dict()["busy"]["is_busy"]


class Held:
    """Other programs took the cores for all of the loop."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    def until_now(self) -> CpuContention:
        return CpuContention(0.9, 2, 0.5, waited_s=0.4, others_s=1.3)


def test_a_run_of_a_second_says_that_the_machine_is_busy(clock) -> None:
    run = watched(clock, Loader(clock, 60), mark=Held)
    loop(clock, run, work_ms=20)
    assert run.summary.wall_s < 2
    said = run.summary.sentence
    assert said.startswith("The machine was busy: other programs used 1.4 of 2 cores")
    assert "ata-bound" not in said


def test_a_look_that_is_too_short_to_say_anything_is_not_read(clock) -> None:
    class Unread(Held):
        def until_now(self) -> CpuContention:
            raise AssertionError

    Unread.made = 0
    run = watched(clock, Loader(clock, 65), mark=Unread)
    loop(clock, run)
    assert run.summary.busy is None
    assert not run.summary.warnings or not any("perfkit" in w for w in run.summary.warnings)
    assert Unread.made == 1


@pytest.mark.parametrize(("n_steps", "is_asked"), [(45, False), (80, True)])
def test_a_loop_of_half_a_second_is_asked(clock, n_steps: int, is_asked: bool) -> None:
    Held.made = 0
    loop(clock, run := watched(clock, Loader(clock, n_steps), mark=Held))
    assert (run.summary.busy is not None) is bool(Held.made) is is_asked


def test_one_disturbed_epoch_of_many_is_not_the_verdict(clock) -> None:
    class Once:
        left = 1

        def until_now(self) -> CpuContention:
            Once.left -= 1
            if Once.left >= 0:
                return CpuContention(3.0, 2, 2.0, waited_s=1.5, others_s=4.0)
            return CpuContention(3.0, 2, 3.0, waited_s=0.0, others_s=0.0)

    run = watched(clock, Loader(clock, 60), mark=Once)
    for _ in range(8):
        loop(clock, run, work_ms=50)
    assert "So these times say little" not in run.summary.sentence


# --- what watch does itself never reaches the loop --------------------------------------------


@pytest.mark.parametrize(
    "broken",
    [
        "perfkit.measure.run.WatchedRun._open",
        "perfkit.measure.run.WatchedRun._came",
        "perfkit.measure.run.WatchedRun._asked",
        "perfkit.measure.run.WatchedRun._close",
        "perfkit.measure.run.WatchedRun._summarise",
        "perfkit.measure.run.SampleCounter.__call__",
        "perfkit.measure.tracker.StepTracker.start",
        "perfkit.measure.tracker.StepTracker.step_ended",
        "perfkit.measure.tracker.StepTracker.stop",
        "perfkit.measure.meter.StepMeter.add",
        "perfkit.measure.slow_step_sampler.SlowStepSampler.begins",
        "perfkit.measure.slow_step_sampler.SlowStepSampler.learns",
        "perfkit.measure.slow_step_sampler._telling",
    ],
)
def test_a_fault_of_watch_does_not_end_the_loop(clock, monkeypatch, broken: str) -> None:
    recorder = Recorder()
    run = watched(clock, Loader(clock, 30), observer=recorder)

    def fails(*args: object) -> None:
        raise RuntimeError("perfkit's own fault")

    with monkeypatch.context() as patch:
        patch.setattr(broken, fails)
        for _ in range(2):
            seen = 0
            for batch in run:
                assert len(batch) == 2
                clock.advance_ms(20)
                seen += 1
            assert seen == 30
    if broken.endswith(("_came", "_asked", "ended", "add", "__call__", "begins")):
        assert any("perfkit's own fault" in w for w in run.summary.warnings)
