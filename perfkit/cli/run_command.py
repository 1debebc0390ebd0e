"""``perfkit run train.py ARGS…``: the script unchanged, watched, and a report at its end."""

from __future__ import annotations

import argparse
import builtins
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from perfkit.base.errors import PerfkitError, UsageError
from perfkit.base.program import NoProgramError, Program, show_error_as_its_own
from perfkit.base.unseen_end import before_unseen_end
from perfkit.cli.output import add_command
from perfkit.cli.run_files import file_of, save, text_of, write
from perfkit.cli.run_spawned import FirstSpawned
from perfkit.script.options import MEMORY_STEPS, STEPS, WARMUP, Options
from perfkit.script.ranks.job import job_of
from perfkit.script.ranks.meeting import Meeting
from perfkit.script.run_watch import RunWatch

if TYPE_CHECKING:
    from perfkit.measure.tracker import Update
    from perfkit.script.ranks.joint import RankedRun
    from perfkit.script.whole_run import WholeRun

# A main thread that has not come to handle SIGTERM by then hangs in a call of C. Launchers wait
# 10 s (Docker) to 30 s (torchrun, Slurm, Kubernetes) before they kill.
_GRACE_S = 5.0
_IN_A_CALL = "in a call that did not return to Python"

_DEEPEST = 1000  # Python's own limit of calls within calls

# As they were before the program, which may replace them.
_THIS = sys.modules[__name__]
_BUILTINS = dict(vars(builtins))

_EPILOG = """\
perfkit's options come before the script; all that follows it is the script's. The script runs in
this process as `python train.py` would run it: its output, exit code, signals and child processes
are its own. perfkit writes to standard error only: a line while it runs, the report at its end,
also after an exception, Ctrl-C, SIGTERM or os._exit. Where the script's exit code is 0 and a file
that you asked for is not there at the end, it is 2; but not for a rank that torchrun started, which
would end the others.

A step ends when an optimizer has stepped in the main thread; in a program that makes no torch
optimizer, with each backward pass. A few steps are recorded after the warm-up; the rest runs
without the profiler. Of processes that torch.multiprocessing.spawn starts, the first is watched.
Steps in other child processes are not seen: put `with perfkit.profile() as prof:` around their
loop, and `print(prof)` after it.

Of several processes (torchrun sets RANK and WORLD_SIZE) each is watched, only rank 0 shows the
line, and the last one to end prints a report on all ranks (who waits for whom, whose data wait
makes all late, who died or hung) and then rank 0's own, which comes first where no rank is late.
Files get that report under their own name and each rank's with its rank:
  torchrun --nproc-per-node 2 -m perfkit run --html run.html train.py
writes run.html, run.rank0.html and run.rank1.html. On one machine,
  perfkit run --nproc-per-node 2 --html run.html train.py
does the same: it calls torchrun, and reports also where every rank was killed.

--json writes one object (keys are only ever added; times in s, unless a key ends in _ms or _us):
  program, ended, sentence  what ran, how it ended, what bounds its steps
  rank                      of this process, or null
  wall_s, n_steps           of the whole run
  parts[]                   what, seconds, where: where the time went; they add up to wall_s
  steps                     step (ms: median, low, high, n …), mean_step_ms, steps_per_s,
                            samples_per_s, drift, memory, and with a DataLoader wait_share,
                            wait_low, wait_high; null without a step
  profile                   the recorded steps (see `perfkit.profile`); null if none was recorded
  findings[]                what the run's objects have shown; profile has them, too
  lines, worker_lines, process_lines  sampled source lines: of this process, of the DataLoader's
                            workers, of other processes that it started
  grown, n_workers          memory that grew from step to step, null where none did; its workers
  memory, synclint          with --memory, --synclint; else null
  warnings[], provenance    what is doubtful; where and when it was measured
"""


def add(commands: Any) -> None:
    """Add the command to ``perfkit``'s parser."""
    parser = add_command(
        commands,
        "run",
        run,
        help="run a training script unchanged, and say what bounds its steps",
        usage="perfkit run [options] (SCRIPT | -m MODULE) [ARGS ...]",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-n", "--steps", type=int, default=STEPS, metavar="N", help=f"record N steps ({STEPS})"
    )
    parser.add_argument(
        "-w",
        "--warmup",
        type=int,
        default=WARMUP,
        metavar="N",
        help=f"let N steps pass before, at least 1 ({WARMUP})",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="account for the memory of the first steps, even if it runs out in them",
    )
    parser.add_argument(
        "--memory-steps",
        type=int,
        metavar="N",
        help=f"of so many steps ({MEMORY_STEPS}); they take longer",
    )
    parser.add_argument(
        "--synclint",
        action="store_true",
        help="list the lines that would make a GPU wait; two steps take about 4 times as long",
    )
    parser.add_argument(
        "--stacks", action="store_true", help="record Python stacks in the trace; steps take longer"
    )
    parser.add_argument(
        "--shapes",
        action="store_true",
        help="record the shapes of operators' inputs, e.g. for FLOPs; recorded anyway where this "
        "machine's peaks are known (perfkit doctor --peaks): then the report has the lower bound",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as a page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the recorded steps (.json or .json.gz), for Perfetto or `perfkit trace`",
    )
    parser.add_argument(
        "--nproc-per-node",
        metavar="N",
        help="start N processes with torchrun, or as many as there are GPUs: gpu, cpu, auto",
    )
    parser.add_argument(
        "--ranks",
        type=Path,
        metavar="FOLDER",
        help="of several processes: keep the phases and a small trace of each in FOLDER",
    )
    parser.add_argument(
        "--scrub",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="remove private data from the files (default)",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print all tables of the report"
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print neither the line nor the report"
    )
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument(
        "script", nargs="?", metavar="SCRIPT", help="as you would give it to python"
    )
    parser.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="its arguments")
    parser.set_defaults(is_the_program=True)


def run(arguments: argparse.Namespace) -> int:
    """Run the program; what it raises propagates, for the interpreter to show. 2 for bad usage."""
    __tracebackhide__ = True
    try:
        program = _program(arguments)
        if arguments.nproc_per_node is not None:
            from perfkit.cli.run_ranks import run_ranks

            return run_ranks(arguments)
        report = _Report(arguments, program.title)
    except UsageError as error:
        write(f"perfkit run: {error}\n")
        return 2
    return report.around(program.run)


def _watch_rank(
    arguments: argparse.Namespace, title: str, work: Callable[[], object], explained: Path
) -> None:
    __tracebackhide__ = True
    _Report(arguments, f"{title} (rank 0)", explained).around(work)


def _program(arguments: argparse.Namespace) -> Program:
    if arguments.module is not None:
        if not arguments.module:
            raise UsageError("-m needs the name of a module")
        return Program.module(arguments.module[0], arguments.module[1:])
    if arguments.script is None:
        raise UsageError("what to run? perfkit run train.py, or perfkit run -m package.train")
    return Program.script(arguments.script, arguments.args)


class _Report:
    """Watches this process while the program is in it, and tells about it once."""

    def __init__(
        self, arguments: argparse.Namespace, title: str, explained: Path | None = None
    ) -> None:
        self._rank = _rank()
        self._files = {
            flag: file_of(flag, getattr(arguments, flag), self._rank)
            for flag in ("html", "json", "trace")
            if getattr(arguments, flag) is not None
        }
        self._joint_files = {
            flag: file_of(flag, getattr(arguments, flag), None)
            for flag in ("html", "json")
            if getattr(arguments, flag) is not None
        }
        self._quiet = arguments.quiet
        self._shown = not arguments.quiet and not self._rank
        self._verbose = arguments.verbose
        self._scrub = arguments.scrub
        self._line: Any = None
        self._watch = RunWatch(
            title,
            Options(
                steps=arguments.steps,
                warmup=arguments.warmup,
                memory=arguments.memory or arguments.memory_steps is not None,
                memory_steps=(
                    MEMORY_STEPS if arguments.memory_steps is None else arguments.memory_steps
                ),
                synclint=arguments.synclint,
                stacks=arguments.stacks,
                shapes=arguments.shapes,
            ),
            self._update if self._shown else None,
        )
        job = job_of(os.environ, arguments.ranks)
        self._meeting = None if job is None else Meeting(job, self._watch.snapshot)
        is_alone = job is None and explained is None
        self._first = FirstSpawned(partial(_watch_rank, arguments, title)) if is_alone else None
        self._explained = explained
        self._told = self._got_sigterm = self._is_telling = False
        self._was_cut_short = self._misses_a_file = False

    def around(self, work: Callable[[], object]) -> int:
        __tracebackhide__ = True
        self._catch_sigterm()
        self._watch.start()
        if self._first is not None:
            self._first.start()
        if self._meeting is not None:
            self._meeting.begins()
        try:
            with before_unseen_end(self._leaves):
                work()
        except NoProgramError as error:
            if self._meeting is not None:  # the other ranks wait for this one's report
                self._tell(error)
                raise
            self._told = True
            self._watch.stop(error)
            write(f"perfkit run: {error}\n")
            return 1
        except BaseException as error:
            self._tell(error)
            if _ended(error) == "finished" and self._exit_code:
                return self._exit_code
            show_error_as_its_own()
            raise
        self._tell(None)
        return self._exit_code

    @property
    def _exit_code(self) -> int:
        """Where the program's own is 0."""
        if self._was_cut_short:  # a shell's loop over scripts is to end with this Ctrl-C, too
            return 130
        # a launcher ends the other ranks if one fails
        return 2 if self._misses_a_file and self._meeting is None else 0

    def _leaves(self, how: str) -> None:
        if threading.current_thread() is threading.main_thread():
            self._tell(None, how)
        elif self._shown and self._watch.is_here and not self._told:
            write(f"perfkit: no report: {self._watch.name} {how} in a thread beside the main one\n")

    def _update(self, update: Update) -> None:
        if self._line is None:
            from perfkit.show.progress_line import ProgressLine

            self._line = ProgressLine("perfkit", shares_row=True)
        self._line.update(update)

    def _catch_sigterm(self) -> None:
        """Unless the program handles it, SIGTERM ends it as before, only with a report."""
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return  # ignored: so it stays
        signal.signal(signal.SIGTERM, self._terminated)
        if not hasattr(os, "register_at_fork"):
            return
        from perfkit.base.ends_at_once import EndsAtOnce

        hangs = EndsAtOnce(
            signal.SIGTERM, self._is_waiting_for_sigterm, grace_s=_GRACE_S, before=self._hung
        )
        hangs.start()
        os.register_at_fork(after_in_child=self._sigterm_as_before)
        os.register_at_fork(after_in_child=hangs.forget)

    def _is_waiting_for_sigterm(self) -> bool:
        return not self._got_sigterm and signal.getsignal(signal.SIGTERM) == self._terminated

    def _hung(self) -> None:
        if self._meeting is not None and self._watch.seen is not None:
            # what a rank saw until it hung says for whom it had waited before
            self._tell(None, f"was ended by SIGTERM {_IN_A_CALL}", hangs=True)
            return
        write(
            "perfkit: no report: SIGTERM came while the program was in a call that did not return "
            f"to Python within {_GRACE_S:g} s\n"
        )
        if self._meeting is not None:  # it may hang in its import of torch, which a report needs
            self._meeting.ends(f"was ended by SIGTERM {_IN_A_CALL}")
            self._tell_of_all()

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        self._got_sigterm = True
        if self._is_telling:  # what is being told ends this process by itself
            return
        self._tell(None, "was ended by SIGTERM")
        self._sigterm_as_before()
        os.kill(os.getpid(), number)

    def _sigterm_as_before(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    # --- the end ----------------------------------------------------------------------------

    def _tell(self, error: BaseException | None, ended: str = "", *, hangs: bool = False) -> None:
        """Report once, in the process that was started; Ctrl-C meanwhile leaves it out."""
        if self._told or not self._watch.is_here:
            return
        self._told = self._is_telling = True
        self._misses_a_file = bool(self._files)
        theirs = builtins.__dict__.copy()
        builtins.__dict__.update(_BUILTINS)
        ended = ended or _ended(error)
        deepest = sys.getrecursionlimit()
        try:
            # the program may have left less than the report's modules need to be imported
            sys.setrecursionlimit(max(deepest, _DEEPEST))
            if self._meeting is not None:
                self._meeting.ends(ended)
            self._watch.stop(error, hangs=hangs)
            if self._line is not None:
                self._line.end()
            if self._watch.left_torch_half_loaded:
                if self._shown or self._files:
                    write(f"perfkit: no report: {self._watch.name} {ended} as it imported torch\n")
                if self._meeting is not None:
                    self._tell_of_all()
            else:
                _forget_half_loaded()
                self._report(ended)
        except KeyboardInterrupt:
            self._was_cut_short = True
            again = " again" if isinstance(error, KeyboardInterrupt) else ""
            write(f"perfkit: no report: interrupted{again}\n")
        except Exception as failed:  # ours: the program's own end is what counts
            write(f"perfkit: no report: {_why(failed, f'{self._watch.name} {ended}')}\n")
        finally:
            if self._first is not None:
                self._first.stop()
            if self._misses_a_file and self._meeting is not None:
                self._meeting.misses_a_file()
            self._is_telling = False
            sys.setrecursionlimit(deepest)
            builtins.__dict__.update(theirs)
        if self._got_sigterm and not ended.endswith("SIGTERM"):
            self._sigterm_as_before()
            os.kill(os.getpid(), signal.SIGTERM)

    def _report(self, ended: str) -> None:
        has_steps = self._watch.seen is not None and self._watch.seen.recorder.n_steps_seen > 0
        if self._explained is not None and has_steps:
            self._explained.touch()
        is_told_there = self._first is not None and self._first.told
        if not has_steps and (self._explained is not None or is_told_there):
            self._misses_a_file = False
            return
        result = self._watch.result(ended, rank=self._rank)
        text = text_of(result, verbose=self._verbose) if self._shown else ""
        self._misses_a_file = not self._all_saved(self._files, result)
        if self._meeting is None:
            write(text)
        else:
            self._meeting.leaves(result, self._watch.seen, text)
            self._tell_of_all()

    def _tell_of_all(self) -> None:
        """The report on all ranks, in the one that ends last."""
        assert self._meeting is not None
        with self._meeting.report() as found:
            if found is None:
                return
            result, text = found
            if not self._quiet:
                from perfkit.show.ranked_run import by_itself

                # where one comes late, the verdict on the job comes first: a rank takes its wait
                # for another one for an exchange of data, and then its own report is left out
                own = f"\n{by_itself(result, 0)}\n" * bool(text)
                own += text * (not result.mostly_waits(0))
                joint = text_of(result, verbose=self._verbose)
                write(own + joint if result.is_even else joint + own)
            self._misses_a_file |= not self._all_saved(self._joint_files, result)

    def _all_saved(self, files: dict[str, Path], result: WholeRun | RankedRun) -> bool:
        saved = [save(f, path, result, scrub=self._scrub) for f, path in files.items()]
        return all(saved)


def _is_half_loaded(module: object) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _forget_half_loaded() -> None:
    """The report needs perfkit's modules whole, and a signal may come while one is imported.

    What was being imported is not gone on with: this process ends.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("perfkit.") and _is_half_loaded(module):
            del sys.modules[name]


def _why(failed: Exception, ended: str) -> str:
    """Why there is no report, and whose fault that is; ``ended`` says how the program did."""
    said = f"{type(failed).__name__}: {failed}"
    if isinstance(failed, ImportError | AttributeError):
        misses = failed.name if isinstance(failed, ImportError) else None
        misses = misses or getattr(getattr(failed, "obj", None), "__name__", "")
        package = str(misses).partition(".")[0]
        if package != "perfkit" and _is_half_loaded(sys.modules.get(package)):
            return f"{ended} as it imported {package}"
    if sys.modules.get(__name__) is not _THIS:
        return f"the program took perfkit out of sys.modules ({said})"
    if isinstance(failed, OSError | PerfkitError):  # no descriptor, no memory, no disk is left
        return said
    return f"{said}; please report this as a bug in perfkit"


def _ended(error: BaseException | None) -> str:
    """How the program ended, in words that follow its name."""
    if error is None:
        return "finished"
    if isinstance(error, SystemExit):
        code = error.code
        if code is None or code == 0:
            return "finished"
        return f"ended with exit code {code if isinstance(code, int) else 1}"
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted (Ctrl-C)"
    if "torch" in sys.modules:
        from perfkit.memory.out_of_memory import is_out_of_memory

        if is_out_of_memory(error):
            return f"ran out of memory ({type(error).__name__})"
    return f"raised {type(error).__name__}"


def _rank() -> int | None:
    """This process's rank, if a launcher such as torchrun says that there are several."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else None
