"""User code runs in the user's namespace, and fails as it would without the magic."""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.error import UsageError

from perfkit.magics._cell import compile_user_code

if TYPE_CHECKING:
    from conftest import Notebook


@pytest.fixture
def bare(notebook: Notebook) -> Notebook:
    """The notebook with ``%bare``/``%%bare``: a magic that does nothing but run the code."""

    def bare(line: str, cell: str | None = None) -> None:
        __tracebackhide__ = True
        header = "" if cell is None else "%%bare"
        error = compile_user_code(notebook.shell, cell or line, header=header).run()
        if error is not None:
            raise error

    notebook.shell.register_magic_function(bare, "line_cell", "bare")
    return notebook


def test_variables_stay_in_the_users_namespace(bare: Notebook) -> None:
    bare.run("start = 40")
    bare.run("%%bare\nx = start + 2\ndef f():\n    return x\n")
    assert bare.ns["x"] == 42
    assert bare.run("f()").result.result == 42


def test_the_last_expression_is_the_cells_output(bare: Notebook) -> None:
    shown = bare.run("%%bare\nx = 41\nx + 1")
    assert shown.result.result == 42
    assert bare.ns["_"] == 42
    assert bare.run("%bare 6 * 7").result.result == 42


@pytest.mark.parametrize("cell", ["%%bare\n41 + 1;", "%bare 41 + 1;", "%%bare\n41 + 1; # why"])
def test_a_semicolon_silences_it(bare: Notebook, cell: str) -> None:
    shown = bare.run(cell)
    assert shown.result.result is None
    assert shown.out == ""


@pytest.mark.parametrize(
    ("interactivity", "values"),
    [("all", ["1", "2"]), ("last_expr", ["2"]), ("none", []), ("last_expr_or_assign", ["2"])],
)
def test_the_shells_interactivity_is_respected(
    bare: Notebook, interactivity: str, values: list[str]
) -> None:
    bare.shell.ast_node_interactivity = interactivity
    last = "y = 2" if interactivity == "last_expr_or_assign" else "2"
    out = bare.run(f"%%bare\n1\n{last}").out
    assert [line.split(": ")[1] for line in out.splitlines() if "Out" in line] == values


def test_strings_over_several_lines_are_left_alone(bare: Notebook) -> None:
    bare.run("%%bare\ntext = '''one\n  two\nthree'''")
    assert bare.ns["text"] == "one\n  two\nthree"


def test_ipython_syntax_works_inside(bare: Notebook) -> None:
    shown = bare.run("%%bare\nlines = !echo hello\n%bare z = 3\nlines[0]")
    assert shown.result.result == "hello"
    assert bare.ns["z"] == 3


def test_a_traceback_points_at_the_line_as_the_user_sees_it(bare: Notebook) -> None:
    shown = bare.run("%%bare\nx = 1\n1 / 0")
    assert isinstance(shown.error, ZeroDivisionError)
    frames: Any = shown.error.__traceback__
    while frames.tb_next is not None:
        frames = frames.tb_next
    assert frames.tb_lineno == 3  # `%%bare` is line 1 of the cell
    assert linecache.getline(frames.tb_frame.f_code.co_filename, 3) == "1 / 0\n"
    assert "----> 3 1 / 0" in shown.out
    assert "_cell.py" not in shown.out  # perfkit's own frames are hidden


def test_a_function_of_the_cell_has_its_source(bare: Notebook) -> None:
    import inspect

    bare.run("%%bare\ndef f():\n    return 1\n")
    assert inspect.getsource(bare.ns["f"]) == "def f():\n    return 1\n"


@pytest.mark.parametrize(
    ("cell", "line"), [("%%bare\nok = 1\nx = = 3", 3), ("%%bare\nfor i in x:\nprint(i)", 3)]
)
def test_a_syntax_error_runs_nothing_and_names_the_line(
    bare: Notebook, cell: str, line: int
) -> None:
    shown = bare.run(cell)
    assert isinstance(shown.error, SyntaxError)
    assert shown.error.lineno == line
    assert "ok" not in bare.ns
    assert "SyntaxError" in shown.out or "IndentationError" in shown.out


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "SystemExit", "ValueError", "StopIteration"])
def test_what_the_user_raises_comes_through_as_it_is(bare: Notebook, kind: str) -> None:
    bare.run(f"the_error = {kind}('mine')")
    assert bare.run("%%bare\nraise the_error").error is bare.ns["the_error"]


def test_await_at_top_level_is_refused_in_one_line(bare: Notebook) -> None:
    shown = bare.run("%%bare\nran = True\nawait something()")
    assert type(shown.error) is UsageError
    assert shown.err.startswith("UsageError: top-level `await` cannot run")
    assert len(shown.err.strip().splitlines()) == 1
    assert "ran" not in bare.ns


@pytest.mark.parametrize("cell", ["%%bare\n# nothing", "%%bare\n\n   \n"])
def test_a_cell_of_nothing_runs(bare: Notebook, cell: str) -> None:
    assert bare.run(cell).error is None
    assert compile_user_code(bare.shell, "# nothing").is_empty
    assert not compile_user_code(bare.shell, "1").is_empty


def test_repeats_can_run_without_display(bare: Notebook) -> None:
    code = compile_user_code(bare.shell, "calls = globals().get('calls', 0) + 1\ncalls")
    assert code.run(display=False) is None
    assert code.run(display=False) is None
    assert bare.ns["calls"] == 2
    assert bare.ns["_"] == ""


def test_a_statement_in_a_function_sees_its_locals(bare: Notebook) -> None:
    code = compile_user_code(
        bare.shell, "seen = [i + offset for i in range(2)]", local_ns={"offset": 5}
    )
    assert code.run() is None
    assert "seen" not in bare.ns
