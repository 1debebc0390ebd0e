"""A GPU day: pieces are kept, taken up again and packed. On a GPU: tests/played_cuda."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tarfile
from pathlib import Path

import gpu_day
import pytest
import torch
from gpu_day import Piece


def _piece(name: str, code: str) -> Piece:
    return Piece(name, "a test", ("-c", code, "{here}"))


def test_a_piece_leaves_its_output_and_how_it_ended(tmp_path: Path) -> None:
    code = "import sys, pathlib; print('said'); pathlib.Path(sys.argv[1], 'made').write_text('x')"
    piece = _piece("one", code)
    assert gpu_day.ended(tmp_path, piece) is None
    result = gpu_day.run(piece, tmp_path)
    assert (result["state"], result["exit_code"]) == ("done", 0)
    assert gpu_day.ended(tmp_path, piece) == result
    assert (tmp_path / "one" / "output.txt").read_text() == "said\n"
    assert (tmp_path / "one" / "made").exists()
    assert gpu_day.run(_piece("two", "raise SystemExit(3)"), tmp_path)["state"] == "failed"


@pytest.mark.slow
def test_out_of_time_loses_only_the_rest(tmp_path: Path) -> None:
    code = (
        "import time\nprint('begun', flush=True)\n"
        "try: time.sleep(600)\nexcept KeyboardInterrupt: print('saved')"
    )
    limit_s = 6.0  # a bare Python, which starts within 0.1 s, has started by then
    result = gpu_day.run(_piece("slow", code), tmp_path, limit_s)
    assert result["state"] == "out of time"
    assert (tmp_path / "slow" / "output.txt").read_text() == "begun\nsaved\n"


def test_the_same_command_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [_piece("one", ""), _piece("two", "raise SystemExit(1)")]
    monkeypatch.setattr(gpu_day, "pieces", lambda short: chosen)
    monkeypatch.setattr(gpu_day, "device_slug", lambda: "a-gpu")
    arguments = ["--out", str(tmp_path)]
    assert gpu_day.main([*arguments, "--minutes", "-1"]) == 0
    assert "the time is up" in capsys.readouterr().out
    assert gpu_day.main(arguments) == 1  # one failed
    begun = gpu_day.ended(tmp_path / "a-gpu", chosen[0])
    assert gpu_day.main(arguments) == 1
    assert gpu_day.ended(tmp_path / "a-gpu", chosen[0]) == begun
    capsys.readouterr()
    assert gpu_day.main([*arguments, "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in listed] == [["one", "done"], ["two", "failed"]]
    with tarfile.open(tmp_path / "gpu-day-a-gpu.tar.xz") as tar:
        assert "gpu-day/two/piece.json" in tar.getnames()


def test_the_archive_stays_below_its_size_and_is_scrubbed(tmp_path: Path) -> None:
    day = tmp_path / "day"
    (day / "recorded").mkdir(parents=True)
    (day / "large").write_bytes(random.Random(0).randbytes(9000))
    (day / "log.txt").write_text("by somebody@somewhere.internal\n")
    (day / "recorded" / "C6.json").write_text("as somebody@somewhere.internal wrote it\n")
    path = tmp_path / "day.tar.xz"
    assert gpu_day.archive(day, path) == []
    assert gpu_day.archive(day, path, largest_bytes=2000) == ["large"]
    assert path.stat().st_size < 2000
    with tarfile.open(path) as tar:
        texts = {name: tar.extractfile(name).read().decode() for name in tar.getnames()}
    assert "large" in texts["gpu-day/left_out.txt"]
    assert "somewhere" not in texts["gpu-day/log.txt"]
    assert "somewhere" in texts["gpu-day/recorded/C6.json"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without CUDA is meant")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="needs a CUDA device"):
        gpu_day.main(["--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_every_room_with_tests_of_a_gpu_has_its_piece() -> None:
    tests = [p.name for p in gpu_day.pieces(short=False) if p.name.startswith("tests-")]
    assert {"tests-memory", "tests-synclint", "tests-experiment"} <= set(tests)


def test_every_notebook_that_uses_a_gpu_has_its_piece() -> None:
    names = [piece.name for piece in gpu_day.pieces(short=False)]
    assert len(names) == len(set(names))
    for path in (gpu_day.ROOT / "notebooks").glob("[0-9][0-9]-*.ipynb"):
        if 'device == \\"cuda\\"' in path.read_text(encoding="utf-8"):
            assert f"notebook-{path.name[:2]}" in names


# As pytest-benchmark 5.2 does where it finds xdist; and a machine that has no browser.
PLUGIN = """
import sys, warnings
import pytest

class AnotherWarning(pytest.PytestWarning): ...

def pytest_configure(config):
    warnings.warn(AnotherWarning("benchmarks are disabled"))
    sys.modules["nbval"] = sys.modules["playwright"] = None
"""


@pytest.mark.slow
def test_gpu_tests_are_found_beside_other_plugins_and_without_a_browser(tmp_path: Path) -> None:
    (tmp_path / "pytest_another.py").write_text(PLUGIN)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "pytest_another", "-p", "no:nbval"),
            *("-p", "no:cacheprovider", "-m", "gpu", "--collect-only", "-q", "tests"),
        ],
        cwd=gpu_day.ROOT, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{gpu_day.ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_on_a_gpu.py::test_the_account_of_a_step" in done.stdout
    assert "tests/browser" not in done.stdout
