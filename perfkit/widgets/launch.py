"""``perfkit.launch``: a workload on several ranks, from a notebook or a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perfkit.base.arguments import brief, check_flag, check_seconds, check_whole
from perfkit.base.errors import UsageError
from perfkit.base.progress import Progress
from perfkit.experiment.process.portable import check_workload
from perfkit.script.options import STEPS, WARMUP, Options
from perfkit.script.ranks.launch import LaunchedRun, run_workload

_MOST_RANKS = 64
_MOST_RESTARTS = 100
_BACKENDS = ("auto", "gloo", "nccl", "")


def launch(
    workload: Callable[..., Any],
    ranks: int = 2,
    *,
    settings: Mapping[str, Any] | None = None,
    backend: str = "auto",
    steps: int = STEPS,
    warmup: int = WARMUP,
    hang_s: float = 120.0,
    hosts: int = 1,
    restarts: int = 0,
    live: bool = True,
) -> LaunchedRun:
    """Run a workload on several ranks of this machine, and say who waits for whom.

    torchrun starts the ranks, each a process of its own in which the workload is called, and each
    is watched as by ``perfkit run``. Classes and functions of the notebook travel with it. When
    this returns or raises, none of its processes is left.

    Args:
        workload: a function of one argument, the settings, as for ``perfkit.Lab``: a generator
            function, or one that trains and returns something. Its optimizer's steps are the steps.
            A function runs to its end; a generator, which may have none, is closed when all ranks
            have recorded their steps and made as many again without the profiler.
        ranks: how many processes, from 2 to 64; they share the cores, unless you have set
            ``OMP_NUM_THREADS``.
        settings: values that it reads from its argument; ``world_size`` is set for you.
        backend: of the process group that exists when the workload begins: ``"gloo"``, ``"nccl"``;
            ``"auto"`` for nccl where each rank has a GPU, else gloo; ``""`` for none.
        steps: how many steps each rank records.
        warmup: how many it lets pass before.
        hang_s: the job is ended after this many seconds in which no rank made a step.
        hosts: how many torchruns share the ranks, as on that many machines: they meet by torchrun's
            rendezvous, here on this machine. It divides ``ranks``.
        restarts: how often torchrun restarts all ranks when one has failed
            (``--max-restarts``); the workload is called again, and must itself keep what it
            resumes from. Not with several hosts.
        live: show what the ranks print and, in a notebook or a terminal, a line on all of them,
            while it runs.

    Returns:
        The report: who comes late and why, how much of the collectives is skew and how much
        transfer (ms a step), memory and batches of each rank; ``.values`` holds what the workload
        returned, by rank (None where it was closed), and ``.failures`` who ended each attempt that
        was restarted.

    Raises:
        UsageError: an argument is invalid.
        WorkloadError: it cannot travel, or a rank failed, died or hung; names the rank.
        MissingError: this torch has no ``torch.distributed``.

    Example::

        def workload(settings):
            model = torch.nn.parallel.DistributedDataParallel(Net())
            ...
            for images, labels in loader:
                yield step(images, labels)

        perfkit.launch(workload, ranks=2)
    """
    check_workload(workload)
    check_whole("ranks", ranks, 2, _MOST_RANKS)
    values = {"world_size": ranks, **_checked(settings)}
    if values["world_size"] != ranks:
        raise UsageError(
            f"settings have world_size {brief(values['world_size'])}, and there are {ranks} ranks: "
            "leave it out"
        )
    if not isinstance(backend, str) or backend not in _BACKENDS:
        raise UsageError(f"backend is {brief(backend)}; it is one of: {', '.join(_BACKENDS[:3])}")
    check_flag("live", live)
    check_seconds("hang_s", hang_s)
    check_whole("hosts", hosts, 1, ranks)
    if ranks % hosts:
        raise UsageError(f"{ranks} ranks cannot be shared by {hosts} hosts: hosts divides ranks")
    check_whole("restarts", restarts, 0, _MOST_RESTARTS)
    if restarts and hosts > 1:
        # each torchrun counts its own restarts, so the ranks would not agree on the attempt
        raise UsageError("restarts are counted for each host: with restarts, leave hosts at 1")
    options = Options(steps=steps, warmup=warmup)
    with Progress("perfkit", None if live else False) as progress:

        def output(text: str) -> None:
            if live:
                progress.hide()
                print(text)  # noqa: T201 - the workload's own output

        return run_workload(
            workload,
            values,
            ranks=ranks,
            backend=_backend(ranks) if backend == "auto" else backend,
            options=options,
            hang_s=hang_s,
            hosts=hosts,
            restarts=restarts,
            on_output=output,
            on_live=lambda text, left_s: progress.line(text, left_s=left_s),
        )


def _checked(settings: Any) -> dict[str, Any]:
    if settings is None:
        return {}
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise UsageError(f"settings must be a mapping of names to values, not {brief(settings)}")
    return dict(settings)


def _backend(ranks: int) -> str:
    import torch

    return "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= ranks else "gloo"
