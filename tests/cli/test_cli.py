"""The commands, as typed."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from perfkit import __version__, cli
from perfkit.base.errors import UsageError
from perfkit.cli import doctor
from perfkit.course.kit import server

PERFKIT = [sys.executable, "-m", "perfkit.cli"]


@pytest.mark.slow
def test_doctor_prints_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    assert "What works here" in capsys.readouterr().out


@pytest.mark.slow
def test_doctor_json_is_json_and_every_key_is_documented(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for key in found:
        assert key in doctor._EPILOG, f"{key} is not in `perfkit doctor --help`"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"perfkit {__version__}\n"


@pytest.mark.parametrize("wrong", [[], ["docter"], ["doctor", "--jsn"], ["lab", "--port", "x"]])
def test_wrong_use_ends_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(wrong)
    assert ended.value.code == 2
    assert "usage: perfkit" in capsys.readouterr().err


def test_an_error_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tour", "no-such-lesson"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("perfkit: no lesson 'no-such-lesson'")
    assert said.count("\n") == 1


def test_a_tour_with_a_failed_lesson_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from perfkit.course.kit import tour as lessons

    def fails(*_: object, **__: object) -> None:
        raise lessons.LessonFailedError("2 of 3 lessons failed")

    monkeypatch.setattr(lessons, "tour", fails)
    assert cli.main(["tour", "00"]) == 1
    assert "2 of 3 lessons failed" in capsys.readouterr().err


def test_no_lessons_without_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import perfkit

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(perfkit, "__file__", str(tmp_path / "site" / "perfkit" / "__init__.py"))
    assert cli.main(["lab"]) == 1
    assert "`perfkit tutorial DIR`" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error() -> None:
    shell = f"{sys.executable} -m perfkit.cli doctor --help | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits of a file's size")
# the short one fails when it is flushed, the long one while it is printed
@pytest.mark.parametrize("arguments", [["doctor"], ["claims"]])
def test_output_that_cannot_be_written_is_told(arguments: list[str], tmp_path: Path) -> None:
    program = (
        "import resource, sys; from perfkit import cli; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)); "
        f"sys.exit(cli.main({arguments!r}))"
    )
    with (tmp_path / "out").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", program],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert ran.returncode == 1
    assert ran.stderr == "perfkit: the output could not be written: File too large\n"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("asked", ["--help", "--version"])
def test_help_that_cannot_be_written_is_told(asked: str) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [*PERFKIT, asked], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert ran.returncode == 1
    assert ran.stderr == "perfkit: the output could not be written: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_characters_shows_escapes(encoding: str) -> None:
    ran = subprocess.run(
        [*PERFKIT, "claims"],  # needs no torch
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    said = ran.stdout.decode(encoding)
    assert "A1 " in said
    assert "\\u2" in said


def test_an_error_of_the_command_itself_is_not_taken_for_its_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(arguments: object) -> int:
        raise OSError("of another file")

    monkeypatch.setattr(doctor, "run", broken)
    with pytest.raises(OSError, match="of another file"):
        cli.main(["doctor"])


@pytest.mark.parametrize("out", ["", "/proc/x", "/dev/null", "/dev/null/x", "a-file", "deleted"])
def test_a_tour_that_could_not_write_does_not_begin(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a-file").write_text("")
    monkeypatch.chdir(tmp_path)
    if out == "deleted":
        os.chdir(gone := tempfile.mkdtemp())
        Path(gone).rmdir()
    try:
        code = cli.main(["tour", "--out", out])
    except SystemExit as ended:  # argparse
        code = ended.code
    said = capsys.readouterr()
    assert code == 2
    assert said.err.count("\n") == 1 or "usage:" in said.err
    assert said.out == ""
    assert ("deleted" if out == "deleted" else "--out") in said.err


def test_a_taken_port_is_told_and_a_free_one_found() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} is taken"):
            server._free_port(port)
    port, mark = server._free_port(None)
    assert port >= server._FIRST_PORT
    assert mark is not None
    mark.close()


def test_two_labs_started_in_the_same_moment_choose_two_ports() -> None:
    """Seconds pass until a server listens on its port; the second one ended with an error."""
    (one, mark), (other, second_mark) = server._free_port(None), server._free_port(None)
    assert mark is not None
    assert second_mark is not None
    assert one != other
    mark.close()
    second_mark.close()


def test_a_port_that_a_stranger_takes_meanwhile_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    announced = threading.Event()
    asked: list[str] = []
    said: list[tuple[Any, ...]] = []

    def initialize(argv: list[str]) -> Any:
        asked.extend(one for one in argv if "port_retries" in one)
        return SimpleNamespace(port=8899, start=lambda: announced.wait(10))

    def announce(*about: Any) -> None:
        said.append(about)
        announced.set()

    lab = SimpleNamespace(LabApp=SimpleNamespace(initialize_server=initialize))
    monkeypatch.setitem(sys.modules, "jupyterlab.labapp", lab)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "")
    monkeypatch.setattr(server, "_is_free", lambda port: True)
    monkeypatch.setattr(server, "_announce", announce)
    server.serve(tmp_path / "00.ipynb", port=None, browser=False, say=print)
    ((port, _token, address, *_),) = said
    assert port == 8899
    assert address.startswith("http://127.0.0.1:8899/lab/tree/00.ipynb?token=")
    server.serve(tmp_path / "00.ipynb", port=8888, browser=False, say=print)
    assert asked == ["--ServerApp.port_retries=50", "--ServerApp.port_retries=0"]


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_ports_that_cannot_be(port: int) -> None:
    with pytest.raises(UsageError, match="between 1 and 65535"):
        server._free_port(port)


@pytest.mark.parametrize(
    ("environment", "screen"),
    [
        ({"SSH_CONNECTION": "a b"}, False),
        ({"SSH_CONNECTION": "a b", "DISPLAY": ":10"}, False),
        ({"DISPLAY": ":0"}, True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, True),
        ({}, False),
    ],
)
def test_a_browser_is_opened_where_it_is_seen(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], screen: bool
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("SSH_CONNECTION", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert server._has_screen() is screen


@pytest.mark.parametrize(("user", "allowed"), [(0, True), (1000, False)])
def test_only_root_needs_allow_root(
    monkeypatch: pytest.MonkeyPatch, user: int, allowed: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user, raising=False)
    arguments = server._arguments(Path("/somewhere/00.ipynb"), 8888, "secret", 50)
    assert ("--ServerApp.allow_root=True" in arguments) is allowed


@pytest.mark.parametrize("has_curve", [True, False])
def test_kernels_are_talked_to_encrypted_where_that_can_be(
    monkeypatch: pytest.MonkeyPatch, has_curve: bool
) -> None:
    """Else each of them warns of eavesdropping in the terminal."""
    monkeypatch.setattr("zmq.has", lambda what: has_curve)
    arguments = server._arguments(Path("/somewhere/00.ipynb"), 8888, "secret", 50)
    assert ("--KernelManager.transport_encryption=auto" in arguments) is has_curve


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_lab_prints_an_address_that_answers_and_ends_by_ctrl_c(tmp_path: Path) -> None:
    # a session of its own, with the pipe as its output: no terminal, no screen
    environment = {k: v for k, v in os.environ.items() if not k.endswith("DISPLAY")}
    environment |= {"JUPYTER_CONFIG_DIR": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path)}
    process = subprocess.Popen(
        [*PERFKIT, "lab", "--no-browser", "--in-place"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    try:
        address = _address(process)
        with urllib.request.urlopen(address, timeout=20) as answer:
            assert answer.status == 200
            page = answer.read()
        assert b"JupyterLab" in page
        assert b"apputils-extension:announcements" in page, "it would ask whether to fetch news"
        command = " ".join(psutil.Process(process.pid).cmdline())
        token = address.partition("token=")[2]
        assert token not in command, "the token can be read in the process list"
        assert "/lab/tree/00-start-here.ipynb?" in address
        # a notebook that this user has not signed, as each copy is
        lesson = address.replace("/lab/tree/", "/api/contents/")
        with urllib.request.urlopen(lesson, timeout=20) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert process.stdout is not None
        assert b"is not trusted" not in process.stdout.read()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _address(process: subprocess.Popen[bytes]) -> str:
    """The address that it prints, read without ever waiting for more than there is."""
    assert process.stdout is not None
    said = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        ready, _, _ = select.select([process.stdout], [], [], 0.5)
        if ready:
            said += os.read(process.stdout.fileno(), 65536)
        found = re.search(rb"(http://127\.0\.0\.1:\d+/\S+token=[0-9a-f]+)\s", said)
        if found:
            return found.group(1).decode()
    raise AssertionError(f"no address in: {said.decode(errors='replace')}")
