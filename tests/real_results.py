"""A real instance of every type of result: each is made once, by a small run, when asked for."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from simulated_traces import Simulated, gpu_training, product_on_gpu

import perfkit
from perfkit.base.display import Shown
from perfkit.limit import measured
from perfkit.trace import limit, load
from perfkit.trace.ask import Answer

# Not modules of the package: a server's configuration, a program, files of another installation;
# and callbacks, whose trainers are not installed everywhere.
_NOT_IMPORTED = (
    *("__main__", "lab_config", "kit.front"),
    *("integrations.hugging_face", "integrations.lightning"),
)


def modules() -> list[Any]:
    """Every module of the package, imported."""
    found = pkgutil.walk_packages(perfkit.__path__, "perfkit.")
    names = (m.name for m in found if not any(part in m.name for part in _NOT_IMPORTED))
    return [importlib.import_module(name) for name in names]


def result_types() -> list[type]:
    """Every class of perfkit that displays itself as a document."""
    modules()

    def below(cls: type) -> Iterator[type]:
        for one in cls.__subclasses__():
            yield one
            yield from below(one)

    ours = {cls for cls in below(Shown) if cls.__module__.startswith("perfkit.")}
    ours.discard(Answer)  # the base of the answers that somebody adds
    return sorted(ours, key=lambda cls: f"{cls.__module__}.{cls.__qualname__}")


_MAKERS: dict[str, Callable[[], Any]] = {}


def _makes(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register what makes the result of that type; with its module where two have its name."""

    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        _MAKERS[name] = functools.cache(make)
        return _MAKERS[name]

    return register


@functools.cache
def result(cls: type) -> Any:
    """The instance of a type of result.

    Raises:
        LookupError: nobody has said here how one is made.
    """
    make = _MAKERS.get(f"{cls.__module__}.{cls.__name__}") or _MAKERS.get(cls.__name__)
    if make is None:
        raise LookupError(f"say in {__name__} how a {cls.__name__} is made by a small real run")
    made = make()
    assert type(made) is cls, (type(made), cls)
    return made


# ---- this machine ------------------------------------------------------------------------


@_makes("Machine")
def _machine() -> Any:
    return perfkit.doctor()


@_makes("Provenance")
def _provenance() -> Any:
    from perfkit.base.machine import stamp

    return stamp()


# ---- time --------------------------------------------------------------------------------


@_makes("Comparison")
def _comparison() -> Any:
    return perfkit.compare(
        lambda: sum(range(2000)), lambda: sum(range(200)), budget_s=0.2, max_blocks=6
    )


@_makes("Summary")
def _summary() -> Any:
    return _comparison().a


@_makes("RunSummary")
def _run_summary() -> Any:
    watched = perfkit.watch(range(12), live=False)
    for _ in watched:
        sum(range(500))
    return watched.summary


@_makes("RankedRun")
def _ranked_run() -> Any:
    """Two ranks that this process is, one after the other."""
    from perfkit.script.options import Options
    from perfkit.script.ranks.heartbeat import Heartbeat
    from perfkit.script.ranks.joint import joint
    from perfkit.script.ranks.record import keep
    from perfkit.script.run_watch import RunWatch

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank in range(2):
            step = _step()
            watch = RunWatch("train.py", Options(steps=2, warmup=1))
            watch.start()
            for _ in range(12):
                step()
            watch.stop()
            keep(folder, rank, watch.result("finished", rank=rank), watch.seen, trace=False)
            Heartbeat(folder, rank, watch.snapshot).ends("finished", is_told=True)
        return joint(folder, range(2), 2)


@_makes("LaunchedRun")
def _launched_run() -> Any:
    from perfkit.script.ranks.launch import LaunchedRun

    return LaunchedRun(**vars(_ranked_run()), values=(1, 2))


@_makes("WholeRun")
def _whole_run() -> Any:
    from perfkit.script.options import Options
    from perfkit.script.run_watch import RunWatch

    step = _step()
    watch = RunWatch("train.py", Options(steps=2, warmup=1, memory=True, synclint=True))
    watch.start()
    for _ in range(12):
        step()
    watch.stop()
    return watch.result("finished")


# ---- memory ------------------------------------------------------------------------------


def _step(n: int = 8) -> Callable[[], Any]:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(n, 32), torch.randint(0, 4, (n,))

    def step() -> None:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@_makes("MemoryAccount")
def _memory_account() -> Any:
    return perfkit.account(_step())


@_makes("MemoryNow")
def _memory_now() -> Any:
    import torch

    from perfkit.memory.live import now

    held = torch.ones(1000)
    return now({"held": held})


@_makes("Crossings")
def _crossings() -> Any:
    import torch

    device = torch.device("meta")
    return perfkit.crossings(lambda: torch.ones(64, 8).to(device).sum().item())


@_makes("Crossing")
def _crossing() -> Any:
    return _crossings().lines[0]


@_makes("FormatCount")
def _format_count() -> Any:
    import torch
    from torch import nn

    from perfkit.course.kit.formats import count_formats

    layer = nn.Linear(8, 2)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = layer(torch.ones(4, 8)).square().sum()
        loss.backward()

    return count_formats(step)


@_makes("CompileReport")
def _compile_report() -> Any:
    import torch

    from perfkit.course.kit.compiled import watch_compile

    def careless(x: Any) -> Any:
        return x + 1 if x.sum().item() > 0 else x

    run = torch.compile(careless, backend="eager")
    run(torch.ones(4))
    return watch_compile(lambda: run(torch.ones(5)))


@_makes("GraphBreak")
def _graph_break() -> Any:
    return _compile_report().breaks[0]


@_makes("Recompilation")
def _recompilation() -> Any:
    return _compile_report().recompilations[0]


@_makes("Fit")
def _fit() -> Any:
    import torch
    from torch import nn

    return perfkit.will_it_fit(
        nn.Linear(16, 4),
        lambda n: (torch.randn(n, 16), torch.zeros(n, dtype=torch.long)),
        batch=8,
        loss=nn.functional.cross_entropy,
        gpus_gb=(8,),
    )


@_makes("LeakReport")
def _leak_report() -> Any:
    import torch

    kept: list[Any] = []
    return perfkit.find_leaks(lambda: kept.append(torch.ones(1000)), steps=8)


@_makes("AllocatorHistory")
def _allocator_history() -> Any:
    from perfkit.base.machine import stamp
    from perfkit.memory.history import history_of

    mib = 2**20

    def entry(action: str, size: int) -> dict[str, Any]:
        return {"action": action, "addr": 0, "size": size, "stream": 0, "frames": []}

    blocks = [
        {"size": 12 * mib, "requested_size": 12 * mib, "state": "active_allocated"},
        {"size": 8 * mib, "requested_size": 0, "state": "inactive"},
    ]
    segment = {"device": 0, "total_size": 20 * mib, "allocated_size": 12 * mib}
    segment |= {"segment_type": "large", "active_size": 12 * mib, "blocks": blocks}
    trace = [entry("segment_alloc", 20 * mib), entry("alloc", 6 * mib), entry("alloc", 6 * mib)]
    return history_of(
        {"segments": [segment], "device_traces": [trace]},
        n_retries=1,
        provenance=stamp("simulated", device="NVIDIA <Test>"),
    )


@_makes("Replayed")
def _replayed() -> Any:
    from perfkit.memory.replay import replay
    from perfkit.memory.requests import Request, Requests

    mib = 2**20
    sizes = (30, 40, 90)
    entries = [
        entry
        for n, size in enumerate(sizes)
        for entry in (Request("alloc", n, size * mib), Request("free", n), Request("mark", n))
    ]
    return replay(Requests(tuple(entries), "cuda:0", "operators"), limit_bytes=60 * mib)


# ---- waits for a GPU ---------------------------------------------------------------------


@_makes("SyncLines")
def _syncs() -> Any:
    import torch
    from torch import nn

    model = nn.Linear(4, 1)
    return perfkit.find_syncs(lambda: model(torch.ones(2, 4)).sum().item(), model)


@_makes("SyncLine")
def _sync() -> Any:
    return _syncs()[0]


# ---- traces ------------------------------------------------------------------------------


@functools.cache
def _trace() -> Any:
    from perfkit.trace import load

    kind = "HtoD (Pageable -> Device)"
    return load(gpu_training(wait=300, copy=kind, copy_call=200, item=True).json())


@_makes("Profile")
def _profile() -> Any:
    from perfkit.advice import explain

    return explain(_trace())


@functools.cache
def _recorded() -> Any:
    """A real one: on the CPU, with shapes, memory and stacks."""
    from torch.profiler import ProfilerActivity, profile

    from perfkit.trace import load

    step = _step()
    step()
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True
    ) as recording:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "trace.json")
        recording.export_chrome_trace(path)
        return load(path)


def _small_kernels() -> Any:
    from perfkit.trace import load

    sim = Simulated()
    for i in range(2):
        sim.step(i, i * 1_000, 1_000)
        for k in range(9):
            name = ("elementwise_kernel<add>", "elementwise_kernel<mul>", "nvjet_gemm")[k % 3]
            sim.device(name, i * 1_000 + 10 + k * 12, 10, len(sim.events) + 1)
    return load(sim.json())


def _of_one_rank() -> Any:
    from perfkit.trace import load

    folder, paths = _files()
    with folder:
        return load(paths[0])


def _asked(question: str, of: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: getattr(importlib.import_module("perfkit.trace"), question)(of())


for _name, (_question, _of) in {
    "Breakdown": ("breakdown", _trace),
    "Communication": ("communication", _of_one_rank),
    "Copies": ("copies", _trace),
    "CriticalPath": ("critical_path", _trace),
    "Flops": ("flops", _recorded),
    "Idle": ("idle", _trace),
    "Kernels": ("kernels", _trace),
    "LaunchQueue": ("launch_queue", _trace),
    "Compiled": ("compiled", _trace),
    "MemoryCurve": ("memory_curve", _recorded),
    "Modules": ("modules", _recorded),
    "Sequences": ("sequences", _small_kernels),
    "SourceLines": ("source_lines", _recorded),
}.items():
    _MAKERS[_name] = functools.cache(_asked(_question, _of))


def _files(n: int = 3) -> tuple[tempfile.TemporaryDirectory[str], list[str]]:
    """Traces of ranks, of which the last computes longer."""
    folder = tempfile.TemporaryDirectory(prefix="perfkit-ranks-")
    paths = []
    for rank in range(n):
        sim = Simulated()
        late = 200 if rank == n - 1 else 0
        for i in range(3):
            at = i * 2_000
            sim.step(i, at, 2_000)
            sim.kernel("aten::mm", at, at + 10, 300 + late)
            sim.kernel(
                "c10d::allreduce_", at + 12, at + 310 + late, 250 - late,
                name="ncclDevKernel_AllReduce_Sum",
            )  # fmt: skip
        said = sim.json().replace(
            b'{"schemaVersion"', b'{"distributedInfo": {"rank": %d}, "schemaVersion"' % rank, 1
        )
        path = Path(folder.name) / f"rank{rank}.json"
        path.write_bytes(said)
        paths.append(str(path))
    return folder, paths


@_makes("Ranks")
def _ranks() -> Any:
    from perfkit.trace import ranks

    folder, paths = _files()
    with folder:
        return ranks(paths)


@_makes("TraceReport")
def _trace_report() -> Any:
    from perfkit.advice.trace_report import trace_report

    folder, paths = _files()
    with folder:
        return trace_report(paths)


@_makes("Limit")
def _limit() -> Any:
    return limit(load(product_on_gpu()))


@_makes("Energy")
def _energy() -> Any:
    """Of counters that are made here: few machines show theirs."""
    from perfkit.base.machine.energy import EnergyReading
    from perfkit.measure import energy

    seen = iter(range(100))

    def made() -> EnergyReading:
        return EnergyReading({"CPU package 0": 3.0 * next(seen)}, {})

    with mock.patch.multiple(energy, _BLOCK_S=0.01, _REST_S=0.0, read_energy=made):
        return energy.energy(lambda: sum(range(1000)), samples_per_step=8, budget_s=0.03)


@_makes("RunCost")
def _run_cost() -> Any:
    recorded = perfkit.open_trace(product_on_gpu())
    return perfkit.cost(
        recorded, before=2.0, price_per_hour=3.0, steps=10_000, work_hours=2, wage_per_hour=50.0,
        on={"H200": 4.0}, currency="EUR",
    )  # fmt: skip


@_makes("Waterfall")
def _waterfall() -> Any:
    return perfkit.waterfall(load(product_on_gpu()))


@_makes("WaterfallChange")
def _waterfall_change() -> Any:
    return perfkit.waterfall(load(product_on_gpu()), load(product_on_gpu(size=2048)))


@_makes("Peaks")
def _peaks() -> Any:
    small = {
        "_CPU_SIZES": (32, 64),
        "_CPU_SETS": (2**16,),
        "_CPU_LARGEST": 2**18,
        "_DISK_BYTES": 2**22,
        "_WARM_S": 0.01,
        "_FEWEST": 2,
        "_MOST": 2,
    }
    with (
        mock.patch.multiple(measured, **small),
        mock.patch.object(measured, "_last_cache_bytes", return_value=0),
        tempfile.TemporaryDirectory() as folder,
    ):
        return measured.measured_peaks("cpu", folder)


@_makes("OpenTrace")
def _open_trace() -> Any:
    return perfkit.open_trace(_trace())


@_makes("Questions")
def _questions() -> Any:
    return _open_trace().questions


@_makes("Operators")
def _operators() -> Any:
    return _open_trace().ask("operators")


@_makes("Syncs")
def _traced_syncs() -> Any:
    return _open_trace().ask("syncs")


@_makes("Profiling")
def _profiling() -> Any:
    with perfkit.profile(steps=2, warmup=1) as recording:
        step = _step()
        for _ in range(5):
            step()
    return recording


@_makes("Diff")
def _diff() -> Any:
    from perfkit.trace import diff, load

    return diff(_trace(), load(gpu_training().json()))


# ---- runs of a workload ------------------------------------------------------------------


def _by_value(function: Any) -> Any:
    """As from a notebook: not to be imported by name in the child."""
    function.__module__ = "__main__"
    return function


@_by_value
def _sleeping(s: Any) -> Any:
    import time

    while True:
        time.sleep(0.02 if s.slow else 0.001)
        yield 2


@_makes("Sweep")
def _sweep() -> Any:
    return perfkit.sweep(_sleeping, {"slow": [True, False]}, rounds=1, seconds=0.1, say=False)


@_makes("RunResult")
def _run_result() -> Any:
    return next(run for run in _sweep().runs if run.step is not None)


@_makes("ABResult")
def _ab_result() -> Any:
    from perfkit.experiment import ratio
    from perfkit.experiment.compare.ab import ABResult as Made
    from perfkit.experiment.compare.ab import Block

    # measuring in blocks takes longer than all other results together: this is of a sweep's runs
    slow, fast = _sweep().runs[:2]
    blocks = tuple(Block(slow.mean_ms, fast.mean_ms + i / 10, "ab") for i in range(3))
    return Made(
        names=("slow", "fast"),
        a=slow.values,
        b=fast.values,
        **ratio(slow, fast)._asdict(),
        confidence=0.95,
        blocks=blocks,
        runs=(slow, fast),
        same=_same_result(),
        sentence="fast is faster.",
        warnings=("few blocks",),
        stopped="time budget",
        duration_s=1.0,
        provenance=slow.provenance,
    )


@_makes("Tuning")
def _tuning() -> Any:
    from perfkit.experiment.compare.tune import Tuning as Made

    return Made(
        start={"slow": True},
        proposed={"slow": False},
        verified=_ab_result(),
        recommended=True,
        sweeps=(_sweep(),),
        sentence="Recommended: slow off.",
        warnings=(),
        duration_s=1.0,
    )


@_makes("LargestBatch")
def _largest_batch() -> Any:
    from dataclasses import replace

    from perfkit.experiment.compare.batch import LargestBatch as Made

    run = _run_result()
    runs = (replace(run, values={"batch_size": 8}), replace(run, values={"batch_size": 16}))
    return Made(8, 16, runs, None, "batch_size")


@_makes("RunsComparison")
def _runs_comparison() -> Any:
    from perfkit.experiment.compare import store
    from perfkit.experiment.compare._identity import identity
    from perfkit.experiment.compare.compare_runs import compare_runs

    runs = [run for run in _sweep().runs if run.step is not None]
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / name) for name in ("before.jsonl", "after.jsonl")]
        for path in paths:
            with store.Store(path, identity(_sleeping)) as into:
                for number, run in enumerate(runs):
                    into.append(run, {"kind": "test", "number": number})
        return compare_runs(*paths)


@_makes("SameResult")
def _same_result() -> Any:
    return perfkit.same_result(lambda: 1.0, lambda: 2.0)


# ---- the course --------------------------------------------------------------------------


@_makes("Ledger")
def _ledger() -> Any:
    from perfkit.course.kit._recorded import recorded_folders, taught_claims
    from perfkit.course.ledger.ledger import ledger
    from perfkit.course.ledger.records import read_records

    return ledger(read_records(recorded_folders()), taught_claims())


@_makes("ProfilerCost")
def _profiler_cost() -> Any:
    from perfkit.course.lessons.lesson_01_measure.cost import profiler_cost

    return profiler_cost(lambda: None, steps=1, budget_s=0.01)


@_makes("LabelCost")
def _label_cost() -> Any:
    from perfkit.course.lessons.lesson_01_measure.cost import label_cost

    return label_cost(rounds=6)


@_makes("StepStrip")
def _step_strip() -> Any:
    from perfkit.course.lessons.lesson_02_read_a_trace.lesson import step_strip

    return step_strip(_trace())


@_makes("LessonClaim")
def _lesson_claim() -> Any:
    from perfkit.course.kit.claim import claim

    return claim("A1")


@_makes("Settled")
def _settled() -> Any:
    return _lesson_claim().settle()  # nothing was measured: it is not decided
