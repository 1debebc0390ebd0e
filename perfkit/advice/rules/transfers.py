"""The device waits for the host, or the host for the device; and copies between them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, found
from perfkit.advice.rules import rule
from perfkit.advice.rules.work import ELSEWHERE, update_loop
from perfkit.base.device import in_use
from perfkit.base.words import fmt_bytes, fmt_ms, fmt_share, fmt_us, plural
from perfkit.trace.ask.compiled import graphs_anew
from perfkit.trace.ask.launches import launched_from, made_on_host, tensor_loops
from perfkit.trace.ask.syncs import Sync, times_waited
from perfkit.trace.read.columns import Category
from perfkit.trace.read.intervals import joined, span, union

# Below this share of the step, waits cost nothing that shows.
_LEAST_SYNC = 0.05
# In a healthy step of a few ms, Python between ops takes up to a tenth.
_LEAST_SHARE, _LEAST_SEARCH = 0.15, 0.1

# Python between two operators takes a smaller share of a step.
_LONG_GAP, _MOST, _LEAST_SAMPLES = 0.1, 0.5, 5
_AVERAGE = (
    "averages, weights = list(ema.parameters()), list(model.parameters())  # once\n"
    "torch._foreach_lerp_(averages, weights, 1 - decay)  # all at once"
)
_ALL_AT_ONCE = "torch._foreach_{}(tensors, others)  # all at once, of lists made once"

# operator → the wait that it makes, and what to do
_READS = (
    "a value is read (.item(), float(), an `if`, print)",
    "values.append(value.detach())  # stays on the device; a mean: running += value.detach()\n"
    "values = torch.stack(values).tolist()  # now and then, or after the loop: one sync for all",
)
_COUNTS = (
    "the host must know the number of hits (nonzero, boolean index)",
    "y = torch.where(mask, x, 0.0)  # instead of x[mask]: keeps the shape\n"
    "mean = y.sum() / mask.sum()  # instead of x[mask].mean()",
)
_UNIQUE = (
    "the host must know the number of distinct values",
    "ordered = values.sort().values\nn = 1 + (ordered[1:] != ordered[:-1]).sum()",
)
_INSTEAD = {
    **dict.fromkeys(("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"), _READS),
    **dict.fromkeys(("aten::nonzero", "aten::index", "aten::masked_select"), _COUNTS),
    **dict.fromkeys(("aten::_unique2", "aten::unique_dim"), _UNIQUE),
}
_SENT = (
    "a blocking copy waits for all that was launched before",
    "loader = DataLoader(dataset, ..., pin_memory=True)  # or fill what is pinned once:\n"
    "# x = torch.empty(shape, pin_memory=True)\n"
    "x = x.to(device, non_blocking=True)  # asks for the copy, and goes on",
)
_ASKED = (
    "the code, or a library, asks to wait (torch.{}.synchronize())",
    "# only a clock needs to wait: once, after all of the work\ntorch.{}.synchronize()",
)
_OTHERWISE = (
    "the host waits for a result (.cpu(), .tolist(), synchronize)",
    "result = result.detach()  # keep it on the device until it is needed, outside of the step",
)


@rule
def sync(case: Case) -> Iterator[Finding]:
    """The host waits for the device inside the step, which empties the queue."""
    lost, kinds = case.lost_to("sync"), _waits(case)
    if case.idle["sync"] < _LEAST_SYNC or not kinds:
        return  # nothing waits for what it delays
    waits = [wait for same in kinds.values() for wait in same]
    (what, what_to_do), (worst, *_) = next(iter(kinds.items()))
    place = worst.place
    yield found(
        "sync",
        "The host waits for the device inside the step",
        [
            f"{plural(times_waited(waits) / case.n_steps, 'sync')} per step, most costly in "
            f"{worst.op or worst.call}: {what}",
            f"they take {fmt_us(sum(s.cost_us for s in waits) / case.n_steps)} of the host; the "
            f"device then idles for {fmt_share(case.idle['sync'])} of each step",
        ],
        what_to_do,
        cures=("sync",),
        share=lost,
        line=place and f"{place[0]}:{place[1]} in {place[2]}{' (its def)' * worst.at_def}",
    )


def _waits(case: Case) -> dict[tuple[str, str], list[Sync]]:
    """What the host waits for and what to do → such waits; the costliest first."""
    kinds = defaultdict[tuple[str, str], list[Sync]](list)
    for wait in (s for s in case.syncs if not s.is_transfer):
        known = next((o for o in reversed(wait.ops) if o in _INSTEAD), "")
        kind = _SENT if "HtoD" in wait.copy else _INSTEAD.get(known, _OTHERWISE)
        if not wait.op and "Synchronize" in wait.call and case.trace.is_a(Category.OP).any():
            call = "cuda" if case.is_file or in_use().is_cpu else in_use().type
            kind = _ASKED[0].format(call), _ASKED[1].format(call)
        kinds[kind].append(wait)
    return dict(sorted(kinds.items(), key=lambda kind: -sum(s.cost_us for s in kind[1])))


@rule
def pageable_copy(case: Case) -> Iterator[Finding]:
    """Transfers from pageable memory: the host waits for them, and the device does nothing else."""
    trace = case.trace
    rows = case.activities(Category.MEMCPY, named=re.compile(r"HtoD.*Pageable").search)
    if not len(rows):
        return
    # while it copies and computes nothing, and while it waits for a copy; hidden ones cost nothing
    lost = min(case.device_share(rows), case.device_shares["copy"]) + case.idle["copy"]
    n_bytes = int(trace.n_bytes[rows][trace.n_bytes[rows] > 0].sum())
    yield found(
        "pageable-copy",
        "Batches are copied from pageable memory, and nothing hides it",
        [
            f"{plural(len(rows) / case.n_steps, 'copy', 'copies')} a step, "
            f"{fmt_bytes(n_bytes / case.n_steps)}: for {fmt_share(lost)} of it nothing computes"
        ],
        f"{_SENT[1]}\n# and send pictures in uint8: normalise on the device",
        cures=("copy",),
        share=lost,
    )


@rule
def made_on_the_host(case: Case) -> Iterator[Finding]:
    """A tensor is filled on the host and then copied: ``torch.zeros(n).to(device)``."""
    trace = case.trace
    made, moved = made_on_host(trace, case.steps)
    if not len(made):
        return
    parts = union(trace.start_ns[made], trace.end_ns[moved])
    name = trace.names[trace.name_id[made[0]]].removeprefix("aten::")
    yield found(
        "made-on-host",
        "Tensors are filled on the host and then copied to the device",
        [
            f"{plural(len(made) / case.n_steps, 'time')} per step, first with "
            f"torch.{name}, right before a copy to the device, which meanwhile is idle for "
            f"{fmt_share(case.idle_in(parts))} of each step"
        ],
        "noise = torch.randn(shape, device=device)  # not: torch.randn(shape).to(device)",
        cures=("host", "launch", "sync", "copy"),
        share=case.lost_in(parts),
    )


@rule
def tensor_loop(case: Case) -> Iterator[Finding]:
    """A loop beside the optimizer updates one tensor after the other: a moving average …"""
    loops, called = tensor_loops(case.trace, case.steps)
    if not len(loops):
        return
    often = [name for name, _ in called.most_common(2)]
    n = plural(called.total() / case.n_steps, "operation")
    lines = case.lines_in(loops).by_line()
    yield found(
        "tensor-loop",
        "A loop beside the optimizer updates one tensor after the other",
        [
            f"{n} in place per step, most often {' and '.join(often)}; with what makes the lists, "
            f"they take {fmt_share(case.share_of(loops))} of each step"
        ],
        _AVERAGE if {"lerp_", "mul_"} & {*often} else _ALL_AT_ONCE.format(often[0]),
        cures=("launch", "host"),
        share=case.lost_to_loop(loops),
        of=ELSEWHERE,
        line=lines[0].shown if lines else None,
    )


@rule
def launch_bound(case: Case) -> Iterator[Finding]:
    """The device runs kernels faster than the host launches them."""
    lost = case.idle["launch"]
    if lost < _LEAST_SHARE or not case.joins_launches:
        return
    # loops over tensors have a cure of their own, and what is filled on the host
    looping, has_cure = update_loop(case)
    loops = joined((tensor_loops(case.trace, case.steps)[0], *[looping] * bool(has_cure)))
    filling = span(case.trace, made_on_host(case.trace, case.steps)[0])
    aside = joined((loops, filling, graphs_anew(case.trace, case.steps)))
    words, parts, line = launched_from(case.trace, case.steps, aside)
    # a graph of the step leaves the host nothing to do between kernels; what takes long is not that
    long = case.outside_of_torch.longer_than(int(_LONG_GAP * case.wall_us / case.n_steps * 1e3))
    share = lost + max(case.idle["host"] - case.idle_in(long), 0.0) - case.idle_in(aside)
    share = max(share + case.idle["driver"] + case.idle["kernels"], 0.0)
    told = [f"the device idles for {fmt_share(share)} of each step while the host calls operators"]
    told[0] += ", loops over tensors left out" * bool(len(loops))
    took_us = case.trace.dur_us[case.kernels]
    if len(took_us):
        n = plural(len(took_us) / case.n_steps, "kernel")
        told += [f"{n} per step, half of them shorter than {fmt_us(float(np.median(took_us)))}"]
    if (case.rows(Category.RUNTIME) & case.trace.holds("GraphLaunch")).any():
        what_to_do = "# much is launched outside of the CUDA graph: capture more"
    else:
        what_to_do = 'model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs'
    waits = [
        f"\n#   {plural(times / case.n_steps, 'time')} a step, "
        f"{fmt_us(sum(s.cost_us for s in same) / times)} each: {what}"
        for (what, _), same in _waits(case).items()
        if same[0].op and 2 * (times := times_waited(same)) >= case.n_steps
    ]
    if waits:
        what_to_do += f"\n# no graph holds a wait: read results after the loop{''.join(waits)}"
    seen = (x for x in case.lines_in(parts).by_line() if x.n_samples >= _LEAST_SAMPLES)
    yield found(
        "launch-bound",
        f"The device waits for launches: {words}",
        told,
        f"{what_to_do}\n# or larger batches: the same launches carry more work",
        cures=("launch",),
        share=share,
        line=next((x.shown for x in seen if x.share > _MOST), line),
    )


@rule
def start_up(case: Case) -> Iterator[Finding]:
    """The first steps recorded: contexts, libraries and kernels are being loaded."""
    share = case.share_of(case.set_up.first)
    if share < _LEAST_SHARE:
        return
    calls = ", ".join(f"{name} {fmt_ms(ms)}" for name, ms in case.set_up.longest)
    yield found(
        "start-up",
        "Much of the profiled time is start-up: calls that take long only the first time",
        [f"first calls take {fmt_share(share)} of the profiled time ({calls})"],
        "schedule = torch.profiler.schedule(wait=1, warmup=4, active=3)\n"
        "with torch.profiler.profile(schedule=schedule) as profiler:\n"
        "    for batch in batches:\n"
        "        step(batch)\n"
        "        profiler.step()",
        cures=("host", "launch", "driver"),
        share=share,
        of="without start-up, ",
    )


@rule
def algorithm_search(case: Case) -> Iterator[Finding]:
    """Convolutions that search for their fastest algorithm in each step: ever new shapes."""
    searches, n = case.set_up.searching, case.set_up.n_searches
    lost = case.lost_in(searches)
    if lost < _LEAST_SEARCH:
        return
    yield found(
        "algorithm-search",
        "Convolutions search for their fastest algorithm anew in each step",
        [
            f"{plural(n / case.n_steps, 'convolution')} per step try one algorithm after another "
            f"for {fmt_share(case.share_of(searches))} of each step: cudnn.benchmark does so for "
            "each new shape"
        ],
        "torch.backends.cudnn.benchmark = False\n"
        "# or only a few shapes: pad or crop the inputs to some fixed sizes",
        cures=("host", "launch", "sync"),
        share=lost,
    )


_ONE_SIZE = "graph.replay()  # captured once, before the loop; each batch: static_x.copy_(x)"
_FEW_SIZES = (
    "x = F.pad(x, (0, -x.shape[1] % 64))  # few sizes: a graph for each, used again and again\n"
    "# or none where sizes vary, set before compiling:\n"
    "torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True"
)


@rule
def captures(case: Case) -> Iterator[Finding]:
    """CUDA graphs that are captured for ever new sizes."""
    parts = graphs_anew(case.trace, case.steps)
    n, share = len(set(case.steps.containing(parts.start).tolist())), case.share_of(case.capturing)
    yield found(
        "graphs-anew",
        f"CUDA graphs are made anew in {n} of {plural(case.n_steps, 'step')}",
        [
            f"calls that do so, or run without a graph as they have a new size, take "
            f"{fmt_share(case.share_of(parts))} of all profiled time, capturing {fmt_share(share)}"
        ],
        _FEW_SIZES if case.compiles else _ONE_SIZE,
        cures=("host", "launch", "driver", "sync"),
        share=case.lost_in(parts),
    )
