"""``perfkit.profile``: a function or a ``with`` block, also where there is no notebook."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perfkit
from perfkit.advice import Profile
from perfkit.base.errors import MeasurementError, ProfilerBusyError, UsageError
from perfkit.trace.read.load import load

_MODEL = nn.Linear(16, 16)
_OPTIMIZER = torch.optim.SGD(_MODEL.parameters(), lr=0.1)


class _Step:
    def __init__(self) -> None:
        self.n_calls = 0

    def __call__(self) -> None:
        self.n_calls += 1
        _OPTIMIZER.zero_grad()
        _MODEL(torch.rand(8, 16)).sum().backward()
        _OPTIMIZER.step()


def test_a_step_is_called_for_warm_up_profile_and_cost() -> None:
    step = _Step()
    found = perfkit.profile(step, steps=4, warmup=1)
    assert isinstance(found, Profile)
    assert found.n_steps == 4
    assert step.n_calls == 1 + 4 + 3
    assert found.cost is not None
    assert found.cost.n_unprofiled == 3
    assert found.warnings[0].startswith("the step ran 8 times")


def test_a_loop_is_called_once_and_a_step_as_often_as_repeat_says() -> None:
    step = _Step()
    assert perfkit.profile(lambda: [step() for _ in range(9)], steps=3).n_steps == 3
    assert step.n_calls == 9
    step = _Step()
    perfkit.profile(step, repeat=5, steps=2)
    assert step.n_calls == 5


class _Called:
    """A step that takes so long by a made clock, and makes so many optimizer steps a call."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0, n_steps: int = 0, **known: bool
    ) -> None:
        self.now_s, self.seconds, self.n_steps = 0.0, seconds, n_steps
        self.n_steps_seen, self.gave_way = 0, known.get("gave_way", False)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        self.profiling = perfkit.profile(steps=4, warmup=2)
        vars(self.profiling)["_recorder"] = self

    def __call__(self) -> None:
        self.now_s += self.seconds
        self.n_steps_seen += self.n_steps

    def step(self) -> None:
        """As the recorder's: a call is a step."""
        self.n_steps_seen += 1


@pytest.mark.parametrize(
    ("known", "repeat", "n_calls"),
    [
        ({}, None, 9),  # 2 to warm up, 4 profiled, 3 to see what profiling cost
        ({"seconds": 9.9}, None, 3),  # for at most 20 s
        ({"seconds": 10.1}, None, 2),
        ({"seconds": 10.1}, 12, 12),
        ({"n_steps": 1}, None, 9),
        ({"n_steps": 2}, None, 1),  # a training loop
        ({"n_steps": 2}, 3, 3),
        ({"gave_way": True}, None, 1),
        ({"gave_way": True}, 2, 2),
        ({}, 1, 1),
    ],
)
def test_how_often_a_step_is_called(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, Any], repeat: int | None, n_calls: int
) -> None:
    step = _Called(monkeypatch, **known)
    step.profiling.call(step, repeat)
    assert step.profiling.n_calls == n_calls


def test_how_the_step_ran_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def remark(repeat: int | None, error: str = "") -> str:
        step = _Called(monkeypatch)
        step.profiling.call(step, repeat)
        step.profiling._error = error
        return step.profiling._remark()

    assert remark(1) == ""
    assert remark(4) == "the step ran 4 times"
    assert remark(None).startswith("the step ran 9 times: warm-up, profiled, then unprofiled; `-r")
    raised = "the code raised ValueError; what was recorded until then is shown"
    assert remark(1, "ValueError") == raised
    assert remark(4, "ValueError") == f"the step ran 4 times; {raised}"


_ONLY = ", the only one that is recorded: nothing to profile."


@pytest.mark.parametrize(
    ("known", "error", "said"),
    [
        ({}, "", f"No torch operators ran in this thread{_ONLY}"),
        ({}, "E", f"No torch operators ran in this thread before it failed{_ONLY}"),
        ({"gave_way": True}, "", "No torch operators were recorded: nothing to profile."),
    ],
)
def test_why_there_is_nothing_to_profile(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, bool], error: str, said: str
) -> None:
    step = _Called(monkeypatch, **known)
    step.profiling._error = error
    assert step.profiling._nothing() == said


@pytest.mark.parametrize(("name", "most"), [("steps", 1000), ("warmup", 1000), ("repeat", 10_000)])
def test_the_most_is_as_documented(name: str, most: int) -> None:
    assert f"to {most}" in (perfkit.profile.__doc__ or "")
    with pytest.raises(UsageError, match=f"{name} is {most + 1}; .* to {most}"):
        perfkit.profile(_never, **{name: most + 1})  # type: ignore[call-overload]
    if name != "repeat":
        assert perfkit.profile(**{name: most}).n_calls == 0  # type: ignore[call-overload]


def _never() -> None:
    raise AssertionError("called")


def test_a_loop_in_the_with_block_is_recorded_as_in_a_cell(tmp_path: Path) -> None:
    step = _Step()
    with perfkit.profile(steps=3, warmup=2) as p:
        for _ in range(10):
            step()
    assert p.result.n_steps == 3
    assert p.result.coverage is not None
    assert (p.result.coverage.first_step, p.result.coverage.last_step) == (3, 5)
    # it shows itself as its result does
    assert str(p) == str(p.result)
    assert p.to_dict() == p.result.to_dict()
    assert p._repr_html_() == p.result._repr_html_()
    assert p.to_markdown() == p.result.to_markdown()
    p.save(tmp_path / "trace.json")
    assert "aten::addmm" in load(tmp_path / "trace.json").names
    assert json.loads(p.to_json())["n_steps"] == 3


def test_an_evaluation_loop_has_a_step_a_batch() -> None:
    large = nn.Linear(16, 2048)
    loader = DataLoader(TensorDataset(torch.rand(64, 16)), batch_size=8)
    with torch.no_grad(), perfkit.profile() as p:
        for (x,) in loader:
            for _ in range(20):
                large(x)
    assert p.result.breakdown.how_found == "fetches of the DataLoader"
    assert p.result.n_steps == 8


def test_the_users_error_propagates_and_what_was_recorded_is_kept() -> None:
    mine, step = ValueError("mine"), _Step()
    p = perfkit.profile(steps=3)

    def region() -> None:
        with p:
            for _ in range(6):
                step()
            raise mine

    with pytest.raises(ValueError, match="mine") as raised:
        region()
    assert raised.value is mine
    assert p.result.n_steps == 3
    assert p.result.warnings[0].startswith("the code raised ValueError")


def test_another_profiler_is_refused_and_the_users_own_gets_its_events() -> None:
    step = _Step()
    with perfkit.profile(), pytest.raises(ProfilerBusyError, match="is already active"):
        perfkit.profile(step)
    assert step.n_calls == 0
    with perfkit.profile() as p:
        for _ in range(4):
            step()
        with torch.profiler.profile() as theirs:
            step()
    with pytest.raises(MeasurementError, match="a torch profiler of its own"):
        _ = p.result
    assert any(e.name == "aten::addmm" for e in theirs.events())


def test_code_without_torch_gets_a_plain_answer() -> None:
    found = perfkit.profile(lambda: 3)
    assert str(found).startswith("No torch operators ran in this thread, the only")
    assert str(found).startswith(found.to_dict()["sentence"])


def test_the_result_is_there_after_the_block_and_a_region_is_profiled_once() -> None:
    with perfkit.profile() as p:
        assert str(p).startswith("Recording")
        with pytest.raises(UsageError, match="after the `with` block"):
            _ = p.result
        torch.rand(2) + 1
    with pytest.raises(UsageError, match=r"call perfkit.profile\(\) again"), p:
        pass


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"step": 3}, "step is 3; give a function"),
        ({"step": torch.rand(2)}, "step is a Tensor; give a function"),
        ({"steps": 0}, "steps is 0; give a whole number from 1 to 1000"),
        ({"steps": 2.5}, "steps is 2.5; give a whole number"),
        ({"warmup": -1}, "warmup is -1"),
        ({"repeat": 3}, "repeat is for a step"),
        ({"step": len, "repeat": 0}, "repeat is 0"),
        ({"max_seconds": "9"}, "max_seconds is '9'; give a positive number of seconds"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        perfkit.profile(**arguments)  # type: ignore[call-overload]


@pytest.mark.slow
@pytest.mark.usefixtures("programs_are_forked")
def test_it_needs_no_notebook(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfor name in ('IPython', 'ipywidgets', 'anywidget', 'matplotlib'):\n"
        "    sys.modules[name] = None  # importing it raises\n"
        "import torch\nimport perfkit\n"
        "with perfkit.profile() as p:\n"
        "    for _ in range(4):\n        torch.rand(64, 64) @ torch.rand(64, 64)\n"
        "print(p.to_text())\n"
        "p.save('p.html')\n"
    )
    ran = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=250
    )
    assert ran.returncode == 0, ran.stderr
    assert "aten::mm" in ran.stdout
    assert "aten::mm" in (tmp_path / "p.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_that_cannot_be_written_leaves_the_old_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk emptied the file that was there, with a bare OSError."""
    model = torch.nn.Linear(4, 1)
    found = perfkit.profile(lambda: model(torch.rand(2, 4)).sum().backward(), steps=1, warmup=0)
    path = tmp_path / name
    path.write_bytes(b"old")

    def written(self: Path, data: bytes) -> int:
        self.open("wb").close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", written)
    with pytest.raises(perfkit.PerfkitError, match="No space left on device"):
        found.save(path)
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == [name]
