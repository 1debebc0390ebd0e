"""``perfkit.open_trace``: one object with every answer, by name and as a method."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from simulated_traces import SINGLE, cpu_training, gpu_training

import perfkit
import perfkit.trace.ask as _question
from perfkit.advice.open_trace import OpenTrace, Questions
from perfkit.base.display import Shown
from perfkit.base.errors import TraceError, UsageError
from perfkit.trace.ask import Answer, question, questions
from perfkit.trace.ask.breakdown import Breakdown
from perfkit.trace.ask.critical_path import CriticalPath

_NAMES = tuple(questions())


@pytest.fixture
def gpu() -> OpenTrace:
    return perfkit.open_trace(gpu_training(4, wait=50, item=True).json())


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_every_answer_is_a_method_with_help_and_all_outputs(name: str, device: str) -> None:
    sim = cpu_training(4, loader=SINGLE) if device == "cpu" else gpu_training(4, wait=50, item=True)
    opened = perfkit.open_trace(sim.json())
    method = getattr(opened, name.replace("-", "_"))
    answer = method()
    assert isinstance(answer, Shown)
    assert answer is opened.ask(name)
    assert str(answer).strip()
    assert json.loads(answer.to_json())
    assert answer.to_markdown().strip()
    assert "pk-" in answer._repr_html_()
    assert method.__name__ in dir(opened)
    # what is filled in is not for the caller
    assert not {"trace", "steps", "within"} & set(inspect.signature(method).parameters)
    assert method.__doc__
    assert "trace:" not in method.__doc__
    assert "steps:" not in method.__doc__


def test_the_answers_that_used_to_have_no_doorway_are_there() -> None:
    wanted = {"copies", "critical-path", "memory-curve", "modules", "sequences"}
    assert wanted <= set(_NAMES)
    assert {"ranks", *_NAMES} == set(Questions.all().names)


def test_an_option_is_passed_on_and_each_answer_is_kept(gpu: OpenTrace) -> None:
    assert gpu.critical_path(step=2).step == gpu.steps.names[2]
    assert gpu.critical_path(step=2) is gpu.ask("critical-path", step=2)
    assert gpu.critical_path(step=2) is not gpu.critical_path(step=1)
    assert isinstance(gpu.breakdown(), Breakdown)


def test_it_prints_as_the_report_with_its_questions(gpu: OpenTrace) -> None:
    text = gpu.to_text()
    assert gpu.profile.diagnosis.headline.split(":")[0] in text
    assert "More answers" in text
    assert "critical-path" in text
    assert "Which chain of work and waits" in str(gpu.questions)


def test_a_file_a_loaded_trace_and_another_to_compare_with(tmp_path: Path) -> None:
    for name, wait in (("before.json", 900), ("after.json", 10)):
        text = cpu_training(5, wait=wait, loader=SINGLE).json()
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    after = perfkit.open_trace(tmp_path / "after.json")
    assert after.file.endswith("after.json")
    changed = after.diff(tmp_path / "before.json")
    assert changed.before_step_ms > changed.after_step_ms
    assert perfkit.open_trace(after.trace).trace is after.trace
    assert len(after.ranks(tmp_path / "before.json").ranks) == 2


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda t: t.ask("critical-pth"), "no answer 'critical-pth'; ask one of: breakdown, "),
        (lambda t: t.ask(3), "no answer 3; ask one of"),
        (lambda t: t.copies(top=3), "copies has no option 'top'; it has no options"),
        (lambda t: t.sequences(n=3), "sequences has no option 'n'; its options are: top"),
        (lambda t: t.critical_path(step=99), "step is 99; give a whole number from -4 to 3"),
        (lambda t: t.sequences(top=0), "top is 0; give a whole number of at least 1"),
        (lambda t: t.ranks(), "ranks compares files"),
    ],
)
def test_what_cannot_be_asked_is_told(gpu: OpenTrace, call: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        call(gpu)


def test_a_misspelt_method_is_an_attribute_error(gpu: OpenTrace) -> None:
    with pytest.raises(AttributeError, match="no attribute 'critical_pth'"):
        gpu.critical_pth()
    assert not hasattr(gpu, "_repr_png_")


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="source is None; give a trace file's path"):
        perfkit.open_trace(None)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="no-such"):
        perfkit.open_trace(tmp_path / "no-such.json")


@pytest.fixture
def toy() -> Iterator[str]:
    """A new answer, as somebody would add it: one function, one dataclass."""

    @dataclass(frozen=True)
    class Part:
        name: str
        host_us: float
        share: float

    @dataclass(frozen=True)
    class Longest(Answer):
        name: str
        wall_ns: int
        parts: tuple[Part, ...]
        warnings: tuple[str, ...] = ()

    # results are known by the module of their class
    Longest.__module__ = "perfkit.trace.ask.longest"

    @question("longest-step", "Which step is the longest?")
    def longest(trace: Any, steps: Any, *, top: int = 1) -> Longest:
        """The longest step.

        Args:
            trace: the trace.
            steps: its steps.
            top: how many parts.
        """
        walls = (steps.end_ns - steps.start_ns).tolist()
        at = walls.index(max(walls))
        return Longest(steps.names[at], walls[at], (Part("all", walls[at] / 1e3, 1.0),) * top)

    yield "longest-step"
    del _question._KNOWN["longest-step"]


def test_an_answer_is_added_in_one_place(toy: str, gpu: OpenTrace) -> None:
    answer = gpu.longest_step(top=2)
    text = answer.to_text()
    assert answer.name in text
    assert "host us" in text
    assert "100 %" in text
    assert "Which step is the longest?" in str(gpu.questions)
    assert "top: how many parts" in gpu.longest_step.__doc__
    assert json.loads(answer.to_json())["wall_ns"] == answer.wall_ns


def test_the_plain_functions_give_the_same(gpu: OpenTrace) -> None:
    from perfkit.trace import critical_path

    plain: CriticalPath = critical_path(gpu.trace)
    assert plain == gpu.critical_path()
