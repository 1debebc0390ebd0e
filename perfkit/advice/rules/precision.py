"""Number formats and threads: the work itself is done slowly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.rules.rule import rule
from perfkit.base.machine._host import COMPUTES_IN, cpu_flags
from perfkit.base.words import fmt_share
from perfkit.trace.ask.kernels import computes_in_float64
from perfkit.trace.read.columns import Category
from perfkit.trace.record.facts import OptimizerFacts

_LEAST_SHARE = 0.15
# Shorter ops are not worth a second thread.
_LONG_OP_US = 100.0


@rule
def float64(case: Case) -> Iterator[Finding]:
    """The model computes in double precision."""
    trace = case.trace
    inside = case.steps.containing(trace.start_ns) >= 0
    if case.on_device:
        kernels = trace.is_a(Category.KERNEL) & inside
        wide = kernels & trace.named(computes_in_float64)
        share = case.span(wide).total_ns / 1e3 / case.wall_us
        evidence = f"kernels on float64 run for {fmt_share(share)} of each step"
    else:
        if not _are_mostly(case.facts.optimizers, "float64"):
            return
        share = case.shares["forward"] + case.shares["backward"] + case.shares["optimizer"]
        evidence = f"parameters are float64; operators take {fmt_share(share)} of each step"
    if share < _LEAST_SHARE:
        return
    # On a CPU float32 has half the bytes and twice the vector lanes; data-centre GPUs also gain a
    # factor of 2. Other GPUs are 32 to 64 times slower in float64, so there the bound assumes that
    # the time vanishes.
    gain, formula = amdahl(share, speedup=None if case.on_device else 2)
    yield Finding(
        rule="float64",
        cures=("compute",),
        title="The model computes in float64",
        evidence=(evidence,),
        what_to_do=(
            "model = model.float()\n"
            "x = torch.as_tensor(array, dtype=torch.float32)  # NumPy arrays are float64 by default"
        ),
        gain_at_most=gain,
        formula=formula,
    )


def _are_mostly(optimizers: Sequence[OptimizerFacts], dtype: str) -> bool:
    """Whether at least half of the parameters are of this type: a single scalar is no model."""
    of = Counter[str]()
    for one in optimizers:
        of.update(dict(zip(one.dtypes, one.elements or (1,) * len(one.dtypes), strict=True)))
    return of[dtype] > 0 and 2 * of[dtype] >= of.total()


@rule
def emulated_precision(case: Case) -> Iterator[Finding]:
    """16-bit parameters on a CPU without instructions for them."""
    if case.on_device or not case.facts.optimizers:
        return
    on_cpu = [o for o in case.facts.optimizers if o.devices == ("cpu",)]
    narrow = sorted({d for o in on_cpu for d in o.dtypes if d in ("float16", "bfloat16")})
    flags = cpu_flags()
    if not flags:
        return
    slow = [d for d in narrow if _are_mostly(on_cpu, d) and not COMPUTES_IN[d] & flags]
    share = case.shares["forward"] + case.shares["backward"] + case.shares["optimizer"]
    if not slow or share < _LEAST_SHARE:
        return
    gain, formula = amdahl(share)
    yield Finding(
        rule="emulated-precision",
        cures=("compute",),
        title=f"This CPU has no instructions for {slow[0]}: every operation converts",
        evidence=(
            f"parameters are {slow[0]}; operators take {fmt_share(share)} of each step",
            f"the CPU lists none of {', '.join(sorted(COMPUTES_IN[slow[0]]))}",
        ),
        what_to_do="model = model.float()  # on this CPU; 16 bits pay on a GPU",
        gain_at_most=gain,
        formula=formula,
    )


@rule
def one_thread(case: Case) -> Iterator[Finding]:
    """Torch uses one thread although cores are free and the operations are long."""
    threads, cores = case.facts.n_threads, case.facts.n_cores
    if case.on_device or threads != 1 or not cores or cores < 2:
        return
    long = [o for o in case.operators if o.self_us / o.count >= _LONG_OP_US]
    share = min(sum(o.self_us for o in long) / case.wall_us, 1.0)
    if share < 0.5:
        return
    gain, formula = amdahl(share, speedup=cores)
    yield Finding(
        rule="one-thread",
        cures=("compute",),
        title=f"torch computes with one thread on {cores} cores",
        evidence=(
            f"torch.get_num_threads() is 1; operators of at least {_LONG_OP_US:g} µs take "
            f"{fmt_share(share)} of each step",
        ),
        what_to_do=f"torch.set_num_threads({cores})  # or unset OMP_NUM_THREADS",
        gain_at_most=gain,
        formula=formula,
    )


@rule
def too_many_threads(case: Case) -> Iterator[Finding]:
    """Torch uses more threads than there are cores for this process.

    Every operation ends when the last of its threads does, and that one has to wait for a core. A
    container's CPU quota is the usual reason: torch counts the machine's cores.
    """
    threads, cores = case.facts.n_threads, case.facts.n_cores
    if case.on_device or not threads or not cores or threads <= cores:
        return
    long = [o for o in case.operators if o.self_us / o.count >= _LONG_OP_US]
    share = min(sum(o.self_us for o in long) / case.wall_us, 1.0)
    if share < _LEAST_SHARE:
        return
    gain, formula = amdahl(share)
    may_use = "1 core" if cores == 1 else f"{cores} cores"
    yield Finding(
        rule="too-many-threads",
        cures=("compute",),
        title=f"torch computes with {threads} threads on {may_use}",
        evidence=(
            f"torch.get_num_threads() is {threads}; this process may use {may_use} (affinity and "
            "container quota)",
            f"operators of at least {_LONG_OP_US:g} µs, which are split among them, take "
            f"{fmt_share(share)} of each step",
        ),
        what_to_do=f"torch.set_num_threads({cores})  # or start with OMP_NUM_THREADS={cores}",
        gain_at_most=gain,
        formula=formula,
    )
