"""`perfkit synclint script.py`: the script runs normally and is stopped after some steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from perfkit.base.errors import UsageError
from perfkit.cli import main
from perfkit.synclint.script import run_script

SCRIPT = """\
import sys
import torch
import helper

if __name__ == "__main__":
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    print("size", sum(p.norm().item() for p in net.parameters()))
    try:
        for step in range(int(sys.argv[1])):
            loss = net(helper.batch()).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print("loss", loss.item())
    except Exception:
        print("never")
    finally:
        print("closed after", step)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text("import torch\ndef batch():\n    return torch.rand(4, 3)\n")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(autouse=True)
def forget_helper() -> object:
    yield
    sys.modules.pop("helper", None)


def test_set_up_is_left_out_and_the_script_is_stopped(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = list(sys.argv), list(sys.path)
    syncs = run_script(script, ["1000"])
    assert (sys.argv, sys.path) == before
    assert [(Path(s.file).name, s.line, s.count) for s in syncs] == [("train.py", 15, 2)]
    said = capsys.readouterr().out
    assert "closed after 2" in said
    assert "never" not in said
    assert syncs.seen.startswith("Seen: from the first forward pass, without the set")
    assert "to the end of optimizer step 2;" in syncs.seen
    assert "was not run" in " ".join(syncs.to_text().split())


def test_a_short_script_runs_to_its_end(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    syncs = run_script(script, ["3"], steps=100)
    (sync,) = syncs
    assert sync.count == 3
    assert "to the script's end, 3 optimizer steps" in syncs.seen
    assert "closed after 2" in capsys.readouterr().out


@pytest.mark.parametrize("steps", [2, 9])
def test_a_script_that_calls_forward_itself_is_watched_from_its_start(
    tmp_path: Path, steps: int
) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "net = torch.nn.Linear(3, 2)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for step in range(3):\n"
        "    loss = net.forward(torch.rand(4, 3)).sum()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    print(loss.item())\n"
        "net(torch.rand(4, 3))\n"
    )
    syncs = run_script(tmp_path / "train.py", steps=steps)
    assert [(sync.line, sync.count) for sync in syncs] == [(8, min(steps, 3))]
    assert syncs.seen.startswith("Seen: from the script's start, and so with its set-up, to ")
    assert ("the end of optimizer step 2;" in syncs.seen) == (steps == 2)
    assert ("the script's end, 3 optimizer steps" in syncs.seen) == (steps == 9)


def test_a_closure_that_calls_the_module_in_the_step_begins_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "net = torch.nn.Linear(3, 2)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "print(net.weight.norm().item())\n"
        "def closure():\n"
        "    loss = net(torch.rand(4, 3)).sum()\n"
        "    loss.backward()\n"
        "    return loss\n"
        "for step in range(2):\n"
        "    optimizer.step(closure).item()\n"
    )
    syncs = run_script(tmp_path / "train.py")
    assert [(sync.line, sync.count) for sync in syncs] == [(10, 2)]
    assert syncs.seen.startswith("Seen: from the first forward pass, without")


def test_json_on_standard_output_is_json_alone(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["synclint", "--json", str(script), "--", "5"]) == 0
    shown = capsys.readouterr()
    (sync,) = json.loads(shown.out)["syncs"]
    assert sync["line"] == 15
    assert sync["code"] == 'print("loss", loss.item())'
    assert {"file", "line", "op", "why", "instead", "example"} <= sync.keys()
    assert "closed after" in shown.err


def test_the_command_says_it_in_words_and_by_its_exit_code(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["synclint", "--strict", str(script), "5"]) == 1
    said = capsys.readouterr().out
    assert "1 line would make the host wait for a GPU, 2 times in what was seen." in said
    assert "train.py:15" in said


def test_what_the_script_raises_comes_through(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import torch\nraise KeyError('mine')\n")
    with pytest.raises(KeyError, match="mine"):
        run_script(path)
    path.write_text("raise SystemExit(3)\n")
    with pytest.raises(SystemExit):
        run_script(path)
    path.write_text("import sys\nsys.exit()\n")
    assert run_script(path) == []


def test_what_cannot_be_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="no such script"):
        run_script(tmp_path / "none.py")
    assert main(["synclint", str(tmp_path / "none.py")]) == 2
    assert "no such script" in capsys.readouterr().err
    path = tmp_path / "one.py"
    path.write_text("")
    with pytest.raises(UsageError, match="at least one"):
        run_script(path, steps=0)


def test_a_hook_that_fails_does_not_reach_the_script(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> str:
        raise RuntimeError("put in by this test")

    monkeypatch.setattr("perfkit.synclint.watch.SyncWatch.start_anew", fails)
    syncs = run_script(script, ["1000"])
    said = capsys.readouterr().out
    assert "never" not in said  # the script's own `except Exception`
    assert "closed after 2" in said
    assert any("put in by this test" in warning for warning in syncs.warnings)
    assert (15, 2) in [(s.line, s.count) for s in syncs]
