"""``%torchprof`` and ``%%torchprof``: why is this training step slow?"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    magics_class,
    needs_local_scope,
    no_var_expand,
)
from IPython.core.magic_arguments import argument, magic_arguments

from perfkit.base.files import write_atomically
from perfkit.base.scrub import scrub
from perfkit.magics import _arguments
from perfkit.magics._cell import UserCode, compile_user_code

if TYPE_CHECKING:
    from perfkit.advice.profile import Profile
    from perfkit.trace.record.record import Recorder

__all__ = ["TorchprofMagics"]

# A trace of more steps shows nothing new and takes minutes to read.
_MOST_STEPS = 1000
_MOST_WARMUP = 1000
_MOST_RUNS = 10_000
# This many runs of a statement follow unprofiled: the difference to the profiled ones is the cost
# of profiling, which the report shows.
_UNPROFILED_RUNS = 3
# A slow statement is not repeated for longer than this.
_REPEAT_FOR_S = 20.0
# Length of a quoted statement; the cell above has all of it.
_LONGEST_STATEMENT = 40


@magics_class
class TorchprofMagics(Magics):
    """The magic; its docstring below is what ``%torchprof?`` shows."""

    @magic_arguments()
    @argument(
        "-n",
        "--steps",
        type=int,
        default=6,
        metavar="N",
        help="Steps to profile, 1 to 1000 (default: 6). After them the code runs unprofiled.",
    )
    @argument(
        "-w",
        "--warmup",
        type=int,
        default=2,
        metavar="N",
        help="Steps to skip first (default: 2), because the first ones are not typical.",
    )
    @argument(
        "-r",
        "--repeat",
        type=int,
        metavar="N",
        help="Line form: run the statement N times. By default a statement with at most one "
        "optimizer step counts as one step and runs often enough for warm-up and profiling, plus "
        "three times without the profiler, for at most 20 s; any other runs once.",
    )
    @argument(
        "--stacks",
        action="store_true",
        help="Record Python stacks. Makes small steps about 50 % slower.",
    )
    @argument(
        "--shapes",
        action="store_true",
        help="Record the shapes of operators' inputs in the trace for -D.",
    )
    @argument(
        "-v",
        "--verbose",
        action="store_true",
        help="Print all tables: operators, source lines, every step.",
    )
    @_arguments.output_arguments
    @needs_local_scope
    @no_var_expand
    @line_cell_magic
    def torchprof(
        self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None
    ) -> None:
        """Profile a few training steps and say in words what bounds them.

        ``%torchprof train_step(batch)`` profiles a statement, ``%%torchprof`` at the top of a cell
        the whole cell. You do not need to mark steps: a step ends when an optimizer has stepped. A
        few steps are profiled after warm-up, and the rest of the cell runs unprofiled. In a cell
        without an optimizer (evaluation) each batch of a DataLoader is a step, and all are
        profiled, for at most 10 s. All variables stay in your namespace.

        It shows what bounds the step, where its time goes, how much of the cell was not in such
        steps, the findings with the largest possible gain, the slowest operators and source lines,
        and the cost of profiling itself. ``-D`` writes the trace (.json or .json.gz) for
        chrome://tracing or Perfetto, without user and host names.
        """
        __tracebackhide__ = True
        args = _arguments.parse(TorchprofMagics.torchprof, line)
        _check(args, cell)
        code = compile_user_code(
            self.shell,
            args.statement if cell is None else cell,
            header="" if cell is None else f"%%torchprof {line}".rstrip(),
            local_ns=local_ns,
        )
        if code.is_empty:
            _say(args, "Nothing to profile: the cell holds no code.")
            return

        with _arguments.one_line_errors():
            recorder = _recorder(args)
            recorder.start()
        try:
            error, n_runs = _run(code, recorder, args, is_line=cell is None)
        finally:
            recorder.stop()
        remark = _remark(args, error, n_runs, is_line=cell is None)
        try:
            with _arguments.one_line_errors():
                self._tell(recorder, args, remark, failed=error is not None)
        finally:
            # even if the report failed, the cell ends with the user's own exception
            if error is not None:
                raise error

    def _tell(
        self, recorder: Recorder, args: argparse.Namespace, remark: str, *, failed: bool
    ) -> None:
        """Show, store and write what was recorded; ``remark`` goes before all its notes."""
        from perfkit import show
        from perfkit.advice.profile import explain

        profile: Profile = explain(recorder.recording)
        if remark:
            profile = replace(profile, warnings=(remark, *profile.warnings))
        if args.output is not None:
            self.shell.user_ns[args.output] = profile
        if not profile.operators:
            until = " before it failed" if failed else ""
            nothing = f"No torch operators ran in this code{until}: nothing to profile."
            if recorder.gave_way or recorder.saw_other_threads:
                nothing = "No torch operators were recorded: nothing to profile."
            doubts = recorder.recording.warnings
            _say(args, "\n".join([nothing, *([f"Note: {'; '.join(doubts)}"] if doubts else [])]))
        elif not args.quiet:
            _arguments.show(show.mime_bundle(profile, verbose=args.verbose))
        if args.text is not None:
            shared = scrub(f"{profile}\n")
            write_atomically(args.text, lambda path: path.write_text(shared, encoding="utf-8"))
        if args.data is not None:
            write_atomically(args.data, profile.save)


def _check(args: argparse.Namespace, cell: str | None) -> None:
    """Refuse invalid flags before anything runs."""
    for flag, value, least, most in (
        ("-n", args.steps, 1, _MOST_STEPS),
        ("-w", args.warmup, 0, _MOST_WARMUP),
        ("-r", args.repeat, 1, _MOST_RUNS),
    ):
        if value is not None and not least <= value <= most:
            raise UsageError(f"{flag} {value}: must be from {least} to {most}")
    if cell is None and not args.statement:
        raise UsageError(
            "nothing to profile: write a statement after %torchprof, or %%torchprof on top of a "
            "cell"
        )
    if cell is not None and args.statement:
        raise UsageError(
            f"%%torchprof takes only flags on its first line, not {args.statement!r}: move it "
            "into the cell"
        )
    if cell is not None and args.repeat is not None:
        raise UsageError("-r: a cell runs once; repeats are for %torchprof with a statement")
    _arguments.check_flags(args, data_suffixes=(".json", ".json.gz"))


def _recorder(args: argparse.Namespace) -> Recorder:
    from perfkit.trace.record.record import Recorder

    return Recorder(
        active_steps=args.steps,
        warmup_steps=args.warmup,
        stacks=args.stacks,
        shapes=args.shapes,
    )


def _run(
    code: UserCode, recorder: Recorder, args: argparse.Namespace, *, is_line: bool
) -> tuple[BaseException | None, int]:
    """Run the code; a statement that is one step runs several times.

    Returns:
        The exception that it raised, or None, and how often it ran.
    """
    __tracebackhide__ = True
    began_s = time.monotonic()
    error = code.run()
    if error is not None or not is_line or args.repeat == 1:
        return error, 1
    if args.repeat is None and (recorder.n_steps_seen > 1 or recorder.gave_way):
        return None, 1
    _end_step(recorder, n_before=0)
    runs = args.repeat or args.warmup + args.steps + _UNPROFILED_RUNS
    for n_runs in range(1, runs):
        if args.repeat is None and time.monotonic() - began_s > _REPEAT_FOR_S:
            return None, n_runs
        n_before = recorder.n_steps_seen
        error = code.run(display=False)
        if error is not None:
            return error, n_runs + 1
        _end_step(recorder, n_before=n_before)
    return None, runs


def _remark(
    args: argparse.Namespace, error: BaseException | None, n_runs: int, *, is_line: bool
) -> str:
    """How the code ran, in words; empty if it ran once and ended well."""
    ran = f"ran `{_shortened(args.statement)}` {n_runs} times" if n_runs > 1 else ""
    if error is not None:
        code = "the statement" if is_line else "the cell"
        ran = f"{ran}; " if ran else ""
        return f"{ran}{code} raised {type(error).__name__}; what was recorded until then is shown"
    if ran and args.repeat is None:
        return f"{ran}: warm-up, profiled, then unprofiled; `-r 1` runs it once"
    return ran


def _shortened(statement: str) -> str:
    words = " ".join(statement.split())
    return words if len(words) <= _LONGEST_STATEMENT else f"{words[:_LONGEST_STATEMENT]}…"


def _end_step(recorder: Recorder, *, n_before: int) -> None:
    """End the step: a run in which no optimizer stepped is itself the step."""
    if recorder.n_steps_seen == n_before:
        recorder.step()


def _say(args: argparse.Namespace, sentence: str) -> None:
    if not args.quiet:
        _arguments.show({"text/plain": sentence})
