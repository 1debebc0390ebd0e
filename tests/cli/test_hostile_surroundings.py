"""No standard error, no current folder, what is no file: one clear sentence, nothing in between."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit.base import files
from perfkit.base.errors import MeasurementError, RecordError, UsageError
from perfkit.base.program import Program
from perfkit.cli import main, run_command
from perfkit.cli.run_files import file_of, save
from perfkit.course.kit import images
from perfkit.course.ledger.exchange import read_export
from perfkit.limit.kept import peaks
from perfkit.script.whole_run import WholeRun
from perfkit.trace.record.profiler import raw_trace


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is removed."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    return folder


class _Full:
    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stream", [None, _Full()], ids=["closed", "full"])
def test_an_error_that_cannot_be_told_is_no_answer(
    stream: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a standard error it was printed where the answer goes; a full one raised."""
    monkeypatch.setattr(sys, "stderr", stream)
    assert main(["trace", str(tmp_path / "no.json")]) == 2
    assert main(["compare-runs", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert capsys.readouterr().out == ""


def test_a_script_that_is_no_python_has_none_of_our_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    script = tmp_path / "train.py"
    script.write_bytes(b"import os\0\n")
    with pytest.raises(SyntaxError) as raised:
        main(["synclint", str(script)])
    sys.excepthook(raised.type, raised.value, raised.tb)
    said = capsys.readouterr().err
    assert "null bytes" in said
    assert "perfkit" not in said


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_said_to_be_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    with pytest.raises(UsageError, match="is not a regular file"):
        Program.script(tmp_path / "train.py")


def test_a_folder_that_is_none_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a folder here"):
        peaks("cpu", folder=tmp_path / "nosuch", again=True)


def test_a_script_runs_without_a_current_folder(gone: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(7)")
    with pytest.raises(SystemExit, match="7"):
        Program.script(script).run()


def test_a_report_without_a_current_folder_is_refused(gone: Path) -> None:
    with pytest.raises(UsageError, match=r"--html x\.html: "):
        file_of("html", Path("x.html"), None)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_an_import_from_a_silent_pipe_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for a writer for ever."""
    monkeypatch.setattr(files, "SILENT_PIPE_S", 0.05)
    os.mkfifo(tmp_path / "records.json")
    with pytest.raises(RecordError, match="nothing came through this pipe"):
        read_export(tmp_path / "records.json")


def test_a_trace_that_does_not_fit_on_the_disk_is_told_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The name of a temporary file was told, which nobody had typed."""
    run = object.__new__(WholeRun)
    profile = perfkit.profile(lambda: torch.rand(3).sum(), steps=1, warmup=0)
    object.__setattr__(run, "profile", profile)

    def written(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", written)
    save("trace", tmp_path / "t.json", run, scrub=True)
    said = capfd.readouterr().err
    assert said == f"perfkit: cannot write {tmp_path / 't.json'}: No space left on device\n"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_report_is_a_bug_of_perfkits_only_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "bug in perfkit" in run_command._why(KeyError("x"), "x.py finished")
    assert "bug" not in run_command._why(
        OSError(24, "Too many open files", "x.py"), "x.py finished"
    )
    monkeypatch.delitem(sys.modules, run_command.__name__)
    assert run_command._why(KeyError("x"), "x.py finished").startswith(
        "the program took perfkit out of sys.modules"
    )


def test_a_trace_that_torch_cannot_write_is_told(tmp_path: Path) -> None:
    """It was a FileNotFoundError of a file whose name nobody had typed."""

    class Full:
        def export_chrome_trace(self, path: str) -> None:
            pass  # as Kineto does, which prints a line of its own

    with pytest.raises(MeasurementError, match=r"could not write its trace into .*TMPDIR"):
        raw_trace(Full())


def test_a_disk_that_is_full_while_images_are_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(images, "_write_set", written)
    with pytest.raises(UsageError, match=r"cannot write images to .*No space left .*PERFKIT_DATA"):
        images.make_images(n=2, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
