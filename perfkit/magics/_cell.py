"""Run a statement or a cell in the user's namespace, as IPython would.

The source goes through IPython's own stages: ``transform_cell`` (so ``!ls`` and ``%magic``
inside it work), its compiler with its cell names (so tracebacks show the user's lines), its
AST transformers and its display hook (so the last expression becomes ``Out[n]``). Source text is
never re-indented or concatenated, which would break multi-line strings and line numbers.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from IPython.core.displayhook import DisplayHook
from IPython.core.error import UsageError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


@dataclass(frozen=True)
class UserCode:
    """Compiled user code, and the namespaces it runs in.

    Attributes:
        filename: the file name of its lines in tracebacks and samplers; registered with
            :mod:`linecache`.
        is_empty: whether there is nothing to run (only blank lines or comments).
    """

    filename: str
    is_empty: bool
    _codes: tuple[CodeType, ...]
    _quiet_codes: tuple[CodeType, ...]
    _globals: dict[str, Any]

    def run(self, *, display: bool = True) -> BaseException | None:
        """Run it once; return the exception it raised (also KeyboardInterrupt, SystemExit) or None.

        The exception is returned, not raised, so that the caller can first show what was measured.
        Afterwards the caller must raise this same object.

        Args:
            display: show the value of the last expression, as the shell would; False for repeats
                of a statement.
        """
        __tracebackhide__ = True
        try:
            for code in self._codes if display else self._quiet_codes:
                exec(code, self._globals)
        except BaseException as error:
            # the caller raises it again: user exceptions are never swallowed
            return error
        return None


def compile_user_code(
    shell: InteractiveShell,
    source: str,
    *,
    header: str = "",
    local_ns: dict[str, Any] | None = None,
) -> UserCode:
    """Compile a cell or statement without running any of it.

    Args:
        shell: the shell in whose namespace it will run.
        source: the text after the magic (the cell's body, or the rest of the line).
        header: the cell's first line (``%%torchprof -n 3``), so that line numbers in tracebacks
            match the cell as the user sees it. Empty for a line magic.
        local_ns: the local variables if a line magic was called inside a function. The code can
            read them but, as in any nested scope, not assign to them.

    Raises:
        SyntaxError: the source is not valid Python; carries the user's text and line.
        UsageError: it has a top-level ``await``, which a synchronous magic cannot run.
    """
    __tracebackhide__ = True
    transformed = shell.transform_cell(source)
    if header:
        # as a comment: IPython parses what it shows in a traceback, and `%%` is not Python
        transformed = f"# {header}\n{transformed}"
    filename = shell.compile.cache(
        transformed,
        shell.displayhook.prompt_count,
        raw_code=f"{header}\n{source}" if header else source,
    )
    tree = shell.compile.ast_parse(transformed, filename=filename)
    tree = shell.transform_ast(tree)
    silent = DisplayHook.semicolon_at_end_of_expression(transformed)
    interactivity = "none" if silent else shell.ast_node_interactivity
    codes = _compile(shell, tree.body, filename, interactivity)
    quiet = codes if silent else _compile(shell, tree.body, filename, "none")
    if any(code.co_flags & inspect.CO_COROUTINE for code in codes):
        raise UsageError(
            "top-level `await` cannot run inside this magic: put it into an `async def` and "
            "run that with `asyncio.run` in a script, or measure the code that it awaits"
        )
    return UserCode(
        filename=filename,
        is_empty=not tree.body,
        _codes=codes,
        _quiet_codes=quiet,
        _globals=_namespace(shell, local_ns),
    )


def _compile(
    shell: InteractiveShell, body: list[ast.stmt], filename: str, interactivity: str
) -> tuple[CodeType, ...]:
    """Code objects in order; those whose value is displayed are compiled as ``single``."""
    if not body:
        return ()
    plain, displayed = _split(body, interactivity)
    codes = []
    # allowed only so that `await` is recognised and refused with our own message
    with shell.compile.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT):
        if plain:
            codes.append(shell.compile(ast.Module(plain, type_ignores=[]), filename, "exec"))
        for node in displayed:
            codes.append(shell.compile(ast.Interactive([node]), filename, "single"))
    return tuple(codes)


def _split(body: list[ast.stmt], interactivity: str) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Split off the statements whose value is shown, by the shell's ``ast_node_interactivity``."""
    last = body[-1]
    if interactivity == "all":
        return [], body
    if interactivity == "last":
        return body[:-1], [last]
    if interactivity == "last_expr_or_assign":
        name = _assigned_name(last)
        if name is not None:
            shown = ast.copy_location(ast.Expr(ast.Name(name, ast.Load())), last)
            return body, [ast.fix_missing_locations(shown)]
        interactivity = "last_expr"
    if interactivity == "last_expr" and isinstance(last, ast.Expr):
        return body[:-1], [last]
    return body, []


def _assigned_name(node: ast.stmt) -> str | None:
    target: ast.expr | None = None
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        target = node.target
    return target.id if isinstance(target, ast.Name) else None


def _namespace(shell: InteractiveShell, local_ns: dict[str, Any] | None) -> dict[str, Any]:
    user_ns: dict[str, Any] = shell.user_global_ns
    if local_ns is None or local_ns is user_ns or local_ns is shell.user_ns:
        return user_ns
    return {**user_ns, **local_ns}
