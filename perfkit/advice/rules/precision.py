"""Number formats and threads: the work itself is done slowly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, found
from perfkit.advice.rules.rule import rule
from perfkit.base.machine._host import COMPUTES_IN, cpu_flags
from perfkit.base.words import fmt_share, plural
from perfkit.trace.read.columns import Category
from perfkit.trace.record.facts import OptimizerFacts

_LEAST_SHARE = 0.15
# Shorter ops are not worth a second thread.
_LONG_OP_US = 100.0


@rule
def float64(case: Case) -> Iterator[Finding]:
    """The model computes in double precision."""
    if case.on_device:
        from perfkit.trace.ask.kernels import computes_in_float64

        kernels = case.trace.is_a(Category.KERNEL) & (
            case.steps.containing(case.trace.start_ns) >= 0
        )
        wide = kernels & case.trace.named(computes_in_float64)
        share = case.span(wide).total_ns / 1e3 / case.wall_us
    elif _are_mostly(case.facts.optimizers, "float64"):
        share = _in_operators(case)
    else:
        return
    if share < _LEAST_SHARE:
        return
    # On a CPU float32 has half the bytes and twice the vector lanes; data-centre GPUs also gain a
    # factor of 2. Other GPUs are 32 to 64 times slower in float64, so there the bound assumes that
    # the time vanishes.
    yield found(
        "float64",
        "The model computes in float64",
        [f"{'kernels' if case.on_device else 'operators'} on it take {fmt_share(share)} of a step"],
        "model = model.float()\n"
        "x = torch.as_tensor(array, dtype=torch.float32)  # NumPy arrays are float64 by default",
        cures=("compute",),
        share=share,
        speedup=None if case.on_device else 2,
    )


def _in_operators(case: Case) -> float:
    return case.shares["forward"] + case.shares["backward"] + case.shares["optimizer"]


def _are_mostly(optimizers: Sequence[OptimizerFacts], dtype: str) -> bool:
    """Whether at least half of the parameters are of this type: a single scalar is no model."""
    of = Counter[str]()
    for one in optimizers:
        of.update(dict(zip(one.dtypes, one.elements or (1,) * len(one.dtypes), strict=True)))
    return of[dtype] > 0 and 2 * of[dtype] >= of.total()


@rule
def emulated_precision(case: Case) -> Iterator[Finding]:
    """16-bit parameters on a CPU without instructions for them."""
    on_cpu = [o for o in case.facts.optimizers if o.devices == ("cpu",)]
    narrow = [d for d in ("bfloat16", "float16") if _are_mostly(on_cpu, d)]
    share = _in_operators(case)
    if case.on_device or not narrow or share < _LEAST_SHARE:
        return
    flags, needs = cpu_flags(), COMPUTES_IN[narrow[0]]
    if not flags or needs & flags:
        return
    yield found(
        "emulated-precision",
        f"This CPU has no instructions for {narrow[0]}: every operation converts",
        [
            f"operators take {fmt_share(share)} of each step; the CPU lists none of "
            f"{', '.join(sorted(needs))}"
        ],
        "model = model.float()  # on this CPU; 16 bits pay on a GPU",
        cures=("compute",),
        share=share,
    )


@rule
def threads(case: Case) -> Iterator[Finding]:
    """Torch uses one thread although cores are free, or more threads than there are cores.

    Every operation ends when the last of its threads does, and that one has to wait for a core. A
    container's CPU quota is the usual reason: torch counts the machine's cores.
    """
    n, cores = case.facts.n_threads, case.facts.n_cores
    if case.on_device or not n or not cores or not (n == 1 < cores or n > cores):
        return
    long = [o for o in case.operators if o.self_us / o.count >= _LONG_OP_US]
    share = min(sum(o.self_us for o in long) / case.wall_us, 1.0)
    if share < (0.5 if n == 1 else _LEAST_SHARE):
        return
    yield found(
        "one-thread" if n == 1 else "too-many-threads",
        f"torch computes with {'one thread' if n == 1 else f'{n} threads'} on "
        f"{plural(cores, 'core')}",
        [f"operators of at least {_LONG_OP_US:g} µs take {fmt_share(share)} of each step"],
        f"torch.set_num_threads({cores})  # or start with OMP_NUM_THREADS={cores}",
        cures=("compute",),
        share=share,
        speedup=cores if n == 1 else None,
    )
