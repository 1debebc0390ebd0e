"""``%torchprof`` and ``%%torchprof``: why is this training step slow?"""

from __future__ import annotations

import argparse
from contextlib import suppress
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
from perfkit.base.progress import has_front_end
from perfkit.base.scrub import scrub
from perfkit.magics import _arguments
from perfkit.magics._cell import UserCode, compile_user_code

if TYPE_CHECKING:
    from perfkit.advice.profile import Profile
    from perfkit.advice.profiling import Profiling


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
        help="Record Python stacks. Makes small steps about 50 %% slower.",
    )
    @argument(
        "--shapes",
        action="store_true",
        help="Record the shapes of operators' inputs in the trace for -D. Recorded anyway where "
        "`perfkit doctor --peaks` has measured this machine.",
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
        from perfkit import show
        from perfkit.advice.profiling import profile

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
            profiling = profile(
                steps=args.steps, warmup=args.warmup, stacks=args.stacks, shapes=args.shapes
            )
        shown = _arguments.Shown()
        if not args.quiet and has_front_end():  # a terminal cannot take it back
            profiling.on_recorded = lambda found: shown.show(
                show.mime_bundle(found, verbose=args.verbose)
            )
        try:
            with _arguments.one_line_errors():
                profiling.start()
            error = _run(code, profiling, args, is_line=cell is None)
        finally:
            profiling.stop()
        if error is not None:
            profiling.failed(error)
        try:
            with _arguments.one_line_errors():
                self._tell(profiling.result, args, shown)
        finally:
            # even if the report failed, the cell ends with the user's own exception
            if error is not None:
                raise error

    def _tell(self, result: Profile, args: argparse.Namespace, shown: _arguments.Shown) -> None:
        """Show, store and write what was recorded."""
        from perfkit import show

        if args.output is not None:
            self.shell.user_ns[args.output] = result
        if not args.quiet:
            shown.show(show.mime_bundle(result, verbose=args.verbose))
        if args.text is not None:
            shared = scrub(f"{result}\n")
            write_atomically(args.text, lambda path: path.write_text(shared, encoding="utf-8"))
        if args.data is not None:
            write_atomically(args.data, result.save)


def _check(args: argparse.Namespace, cell: str | None) -> None:
    """Refuse invalid flags before anything runs, and name the flag."""
    from perfkit.advice.profiling import MOST_REPEATS, MOST_STEPS, MOST_WARMUP

    for flag, value, least, most in (
        ("-n", args.steps, 1, MOST_STEPS),
        ("-w", args.warmup, 0, MOST_WARMUP),
        ("-r", args.repeat, 1, MOST_REPEATS),
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


def _run(
    code: UserCode, profiling: Profiling, args: argparse.Namespace, *, is_line: bool
) -> BaseException | None:
    """Run the code, a statement as often as ``profile`` says; return the exception it raised."""
    __tracebackhide__ = True
    if not is_line:
        return code.run()
    errors: list[BaseException] = []

    def step() -> None:
        __tracebackhide__ = True
        error = code.run(display=profiling.n_calls == 1)
        if error is not None:
            errors.append(error)
            raise _Ended

    with suppress(_Ended):
        profiling.call(step, args.repeat)
    return errors[0] if errors else None


class _Ended(BaseException):
    """The statement raised: call it no more."""


def _say(args: argparse.Namespace, sentence: str) -> None:
    if not args.quiet:
        _arguments.show({"text/plain": sentence})
