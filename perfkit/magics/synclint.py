"""``%synclint`` and ``%%synclint``: which lines would make a GPU wait?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
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
    from perfkit.synclint.find import SyncLines


@magics_class
class SynclintMagics(Magics):
    """The magic; its docstring below is what ``%synclint?`` shows."""

    @magic_arguments()
    @argument(
        "-m",
        "--model",
        metavar="NAME",
        help="Variable that holds the model whose tensors would be on the GPU. "
        "By default every module that runs, and everything that has a gradient.",
    )
    @_arguments.output_arguments
    @needs_local_scope
    @no_var_expand
    @line_cell_magic
    def synclint(
        self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None
    ) -> None:
        """List the lines that would make the host wait for a GPU; no GPU is needed.

        ``%synclint train_step(batch)`` watches a statement, ``%%synclint`` at the top of a cell the
        whole cell, while it runs for real. One or two training steps are enough; watching makes
        them a few times slower.

        For each line it shows what waits, why, and what helps, with a short example. On a machine
        with a GPU it also shows which lines really waited and for how long, from a trace of the
        same run, and where the prediction was wrong. ``-D`` writes the list (.json).
        """
        __tracebackhide__ = True
        args = _arguments.parse(SynclintMagics.synclint, line)
        _check(args, cell)
        code = compile_user_code(
            self.shell,
            args.statement if cell is None else cell,
            header="" if cell is None else f"%%synclint {line}".rstrip(),
            local_ns=local_ns,
        )
        if code.is_empty:
            if not args.quiet:
                _arguments.show({"text/plain": "Nothing to watch: the cell holds no code."})
            return
        model = self._model(args, local_ns)
        with _arguments.one_line_errors():
            result, error = _watched(code, model)
        try:
            self._tell(result, args)
        finally:
            # even if the report failed, the cell ends with the user's own exception
            if error is not None:
                raise error

    def _model(self, args: argparse.Namespace, local_ns: dict[str, Any] | None) -> Any:
        if args.model is None:
            return None
        names = {**self.shell.user_ns, **(local_ns or {})}
        if args.model not in names:
            raise UsageError(f"-m {args.model}: there is no variable of that name")
        model = names[args.model]
        if not callable(getattr(model, "parameters", None)):
            raise UsageError(f"-m {args.model}: is not a torch module but a {type(model).__name__}")
        return model

    def _tell(self, result: SyncLines, args: argparse.Namespace) -> None:
        """Show, store and write what was found."""
        from perfkit import show

        if args.output is not None:
            self.shell.user_ns[args.output] = result
        if not args.quiet:
            _arguments.show(show.mime_bundle(result))
        if args.text is not None:
            shared = scrub(f"{result}\n")
            write_atomically(args.text, lambda path: path.write_text(shared, encoding="utf-8"))
        if args.data is not None:
            write_atomically(args.data, lambda path: _write_json(result, path))


def _check(args: argparse.Namespace, cell: str | None) -> None:
    """Refuse invalid flags before anything runs."""
    if cell is None and not args.statement:
        raise UsageError(
            "nothing to watch: write a statement after %synclint, or %%synclint on top of a cell"
        )
    if cell is not None and args.statement:
        raise UsageError(
            f"%%synclint takes only flags on its first line, not {args.statement!r}: move it "
            "into the cell"
        )
    _arguments.check_flags(args, data_suffixes=(".json",))


def _watched(code: UserCode, model: Any) -> tuple[SyncLines, BaseException | None]:
    from perfkit.synclint.reality import lint

    __tracebackhide__ = True
    raised: list[BaseException | None] = []
    result = lint(lambda: raised.append(code.run()), model)
    if raised[0] is not None:
        result.ended_by = type(raised[0]).__name__
    return result, raised[0]


def _write_json(result: SyncLines, path: Path) -> None:
    path.write_text(json.dumps(scrub(result.to_dict()), indent=1) + "\n", encoding="utf-8")
