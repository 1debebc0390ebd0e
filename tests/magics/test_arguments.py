"""Flags shared by all magics: the statement is unchanged, bad values fail before the run."""

from __future__ import annotations

import argparse
import os
import stat
from pathlib import Path

import pytest
from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, magic_arguments

from perfkit.base.errors import ProfilerBusyError
from perfkit.base.errors import UsageError as PerfkitUsageError
from perfkit.base.files import write_atomically
from perfkit.magics import _arguments


@magic_arguments()
@argument("-n", type=int, default=6, help="steps")
@_arguments.output_arguments
def example(line: str) -> None:
    """A magic."""


def parse(line: str) -> argparse.Namespace:
    return _arguments.parse(example, line)


@pytest.mark.parametrize(
    "statement",
    [
        "f(x)",
        "f( 'a   b',  \"c\" )",
        "x = {'a': -1}; y -n 3",
        "s = 'open",
        "f(x)  # it's",
        "-x",
    ],
)
@pytest.mark.parametrize("flags", ["", "-n 3 ", "-q -o result -n 3   "])
def test_the_statement_is_taken_as_it_stands(flags: str, statement: str) -> None:
    dashes = "-- " if statement.startswith("-") else ""
    args = parse(flags + dashes + statement)
    assert args.statement == statement
    assert args.n == (3 if flags else 6)


def test_flags_alone_leave_no_statement() -> None:
    assert parse("-q").statement == ""
    assert parse("").statement == ""


@pytest.mark.parametrize("line", ["--speed f()", "-z", "-n many f()", "-o"])
def test_unknown_flags_and_values_are_usage_errors(line: str) -> None:
    with pytest.raises(UsageError):
        parse(line)


def check(line: str) -> None:
    _arguments.check_flags(parse(line), data_suffixes=(".json", ".json.gz"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-o 1st f()", "-o 1st: not a variable name"),
        ("-o class f()", "-o class: not a variable name"),
        ("-T {tmp} f()", "is a directory"),
        ("-T {tmp}/no/such.txt f()", "there is no directory"),
        ("-D {tmp}/trace.csv f()", "must end in .json or .json.gz"),
    ],
)
def test_what_could_only_fail_later_fails_first(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(line.format(tmp=tmp_path))


def test_good_flags_pass_and_quotes_around_a_file_name_go(tmp_path: Path) -> None:
    check(f"-o good_name -T {tmp_path}/a.txt -D {tmp_path}/b.json.gz f()")
    assert parse('-T "my report.txt" f()').text == Path("my report.txt")


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "report.txt"
    target.write_text("old")

    def torn(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(PerfkitUsageError, match=r"cannot write .*report.txt: No space left"):
        write_atomically(target, torn)
    assert target.read_text() == "old"
    write_atomically(target, lambda path: path.write_text("new"))
    assert target.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["report.txt"]


def test_what_is_no_ordinary_file_is_left_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(PerfkitUsageError, match="not a regular file"):
        write_atomically(pipe, lambda path: path.write_text("new"))
    assert pipe.is_fifo()


def test_the_temporary_name_keeps_the_ending_and_the_usual_mode(tmp_path: Path) -> None:
    seen: list[str] = []

    def write(path: Path) -> None:
        seen.append(path.name)
        path.write_bytes(b"x")

    write_atomically(tmp_path / "t.json.gz", write)
    assert seen[0].endswith(".json.gz")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "t.json.gz").stat().st_mode) == 0o666 & ~mask


def test_perfkits_own_errors_become_one_line() -> None:
    with pytest.raises(UsageError, match="busy"), _arguments.one_line_errors():
        raise ProfilerBusyError("busy")
    with pytest.raises(KeyError), _arguments.one_line_errors():
        raise KeyError("the user's")


def test_help_shows_no_internals_where_it_has_a_percent_sign() -> None:
    from perfkit.magics.torchprof import TorchprofMagics

    text = " ".join((TorchprofMagics.torchprof.__doc__ or "").split())
    assert "option_strings" not in text
    assert "about 50 % slower" in text
