"""``%gpumem`` and ``%%gpumem``: what uses the memory, with or without a GPU?"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
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
from perfkit.magics._cell import compile_user_code

if TYPE_CHECKING:
    from perfkit.memory.account import MemoryAccount
    from perfkit.memory.history import AllocatorHistory
    from perfkit.memory.live import MemoryNow


@magics_class
class GpumemMagics(Magics):
    """The magics of :mod:`perfkit.memory`."""

    @magic_arguments()
    @argument(
        "-n",
        "--steps",
        type=int,
        metavar="N",
        help="Count only the first N optimizer steps; the rest of the code runs uncounted.",
    )
    @argument(
        "-f",
        "--function",
        metavar="FUNC",
        action="append",
        default=[],
        help="Also show the memory of each line of this function or module (may be repeated).",
    )
    @argument(
        "--history",
        action="store_true",
        help="On CUDA, also show what the caching allocator did: reserved against allocated, "
        "cudaMalloc and cudaFree, the segments. -o NAME then also sets NAME_history.",
    )
    @_arguments.output_arguments
    @no_var_expand
    @needs_local_scope
    @line_cell_magic
    def gpumem(
        self, line: str = "", cell: str | None = None, local_ns: dict[str, Any] | None = None
    ) -> None:
        """Show what uses the memory: on CUDA from the allocator's counters, on a CPU from tensors.

        ``%gpumem`` alone shows the live tensors, by category and name. ``%gpumem train()`` and
        ``%%gpumem`` run code and show its peak by category and what stays allocated afterwards.
        Models and optimizers are found automatically. If memory runs out, it shows what was alive
        and what would help, and the traceback releases its tensors.
        """
        __tracebackhide__ = True
        args = _arguments.parse(self.gpumem, line)
        _arguments.check_flags(args, data_suffixes=(".json",))
        if args.steps is not None and args.steps < 1:
            raise UsageError(f"-n {args.steps}: count at least 1 optimizer step")
        if cell is None and not args.statement:
            if args.steps is not None:
                raise UsageError("-n counts steps of a run: give a statement, or use %%gpumem")
            if args.function:
                raise UsageError("-f watches a run: give a statement, or use %%gpumem")
            if args.history:
                raise UsageError("--history records a run: give a statement, or use %%gpumem")
            self._show_now(args, local_ns)
            return
        if cell is not None and args.statement:
            raise UsageError(
                f"%%gpumem takes flags and a cell, not also the statement {args.statement!r}; "
                "move it into the cell"
            )
        self._count(args, line, cell, local_ns)

    def _show_now(self, args: argparse.Namespace, local_ns: dict[str, Any] | None) -> None:
        __tracebackhide__ = True
        from perfkit.memory.live import now

        with _arguments.one_line_errors():
            state = now({**self.shell.user_ns, **(local_ns or {})})
        self._give(args, state)

    def _count(
        self, args: argparse.Namespace, line: str, cell: str | None, local_ns: dict[str, Any] | None
    ) -> None:
        __tracebackhide__ = True
        from perfkit.memory.account import Accountant
        from perfkit.memory.history import Recorded, record
        from perfkit.memory.out_of_memory import release

        header = "" if cell is None else f"%%gpumem {line}".rstrip()
        source = args.statement if cell is None else cell
        code = compile_user_code(self.shell, source, header=header, local_ns=local_ns)
        command = f"%gpumem {line}" if cell is None else header
        error: BaseException | None = None
        namespace = {**self.shell.user_ns, **(local_ns or {})}
        watch = [self._function(name, namespace) for name in args.function]
        with _arguments.one_line_errors():
            accountant = Accountant(
                max_steps=args.steps, names=_modules(namespace), watch=watch, command=command
            )
        del namespace, watch
        recorded: Recorded | None = None
        try:
            with ExitStack() as recording:
                if args.history:
                    with _arguments.one_line_errors():
                        recorded = recording.enter_context(record())
                with accountant:
                    error = code.run()
                    if error is not None:
                        accountant.failed(error)
        except Exception as failed:
            if error is not None:
                # an unreadable history must not hide an exception of the user's code
                raise error from failed
            raise
        try:
            self._give(args, accountant.result, None if recorded is None else recorded.history)
        finally:
            if error is not None:
                if accountant.result.out_of_memory:
                    # IPython keeps the last traceback, which must not keep the tensors too
                    release(error)
                raise error

    def _function(self, name: str, namespace: dict[str, Any]) -> Any:
        """Resolve ``-f``: a variable and its attributes, without running code."""
        first, *rest = name.split(".")
        if first not in namespace:
            raise UsageError(f"-f {name}: there is no {first!r} here; define it first")
        value = namespace[first]
        for attribute in rest:
            if not hasattr(value, attribute):
                raise UsageError(f"-f {name}: {type(value).__name__} has no {attribute!r}")
            value = getattr(value, attribute)
        return value

    def _give(
        self,
        args: argparse.Namespace,
        result: MemoryAccount | MemoryNow,
        history: AllocatorHistory | None = None,
    ) -> None:
        __tracebackhide__ = True
        from perfkit import show

        if args.output is not None:
            self.shell.user_ns[args.output] = result
            if history is not None:
                self.shell.user_ns[f"{args.output}_history"] = history
        if not args.quiet:
            _arguments.show(show.mime_bundle(result))
            if history is not None:
                _arguments.show(show.mime_bundle(history))
        if args.text is not None:
            words = f"{show.text(result)}\n"
            if history is not None:
                words += f"\n{show.text(history)}\n"
            shared = scrub(words)
            write_atomically(args.text, lambda path: path.write_text(shared, encoding="utf-8"))
        if args.data is not None:
            numbers = result.to_dict()
            if history is not None:
                numbers["allocator_history"] = history.to_dict()
            data = json.dumps(scrub(numbers), indent=1, ensure_ascii=False)
            write_atomically(args.data, lambda path: path.write_text(f"{data}\n", encoding="utf-8"))


def _modules(namespace: dict[str, Any]) -> dict[str, Any]:
    """The user's name → module, without IPython's own names (``_``, ``_3``)."""
    from torch import nn

    return {
        name: value
        for name, value in namespace.items()
        if not name.startswith("_") and isinstance(value, nn.Module)
    }
