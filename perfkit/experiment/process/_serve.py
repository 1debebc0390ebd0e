"""The process of a run: one job from the kernel, run here or on several ranks."""

from __future__ import annotations

from perfkit.experiment.process import _ranked, worker
from perfkit.experiment.process._failure import Failure
from perfkit.experiment.process._job import Job


def serve(commands_fd: int, events_fd: int) -> int:
    """Run one job received over a pipe; return the exit code."""
    return run(worker.PipeCommands(commands_fd), worker.Stream(events_fd))


def run(commands: worker.JobCommands, stream: worker.Stream) -> int:
    """Run the next job and report its outcome; return 0 if the workload ended well."""
    job = commands.job()
    if job.world_size == 1:
        return worker.run(job, commands, stream)
    if not isinstance(commands, worker.PipeCommands):
        words = "several processes need a prepared process, which this system does not have"
        worker.say_failure(stream, Failure("failed", f"{words}: set world_size=1"))
        return 1
    return _run_ranks(job, commands, stream)


def _run_ranks(job: Job, commands: worker.PipeCommands, stream: worker.Stream) -> int:
    try:
        found = _ranked.run_ranks(job, commands.fd, stream.fd)
    except Exception as error:
        lead = "torchrun could not start the processes: "
        worker.tell_failure(stream, error, frozenset(), lead)
        return 1
    if isinstance(found, Failure):
        worker.say_failure(stream, found)
        return 1
    stream.say("done", ended=found)
    return 0
