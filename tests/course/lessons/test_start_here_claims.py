"""What lesson 00's claims are settled with, whatever this machine's clock says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfkit.course.kit.claim import claim
from perfkit.course.lessons.lesson_00_start_here import trainers
from perfkit.course.lessons.lesson_00_start_here.criteria import bottleneck_first, verdicts


@pytest.mark.slow
def test_three_trainers_are_judged_and_torch_is_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainers, "_wide", lambda device: 16)
    monkeypatch.setattr(trainers, "_SIDE", 16)
    threads = torch.get_num_threads()
    settled = claim("A1").settle(trainers.three_trainers())
    assert settled.outcome is not None, settled.why
    assert set(settled.outcome.figures) == {
        "named_right", "data_wait_percent", "data_wait_percent_of_compute_bound",
    }  # fmt: skip
    assert torch.get_num_threads() == threads


@pytest.mark.slow
def test_a_few_steps_are_judged_against_all_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "_SCRIPT", trainers._SCRIPT.replace("128, 128", "32, 32"))
    settled = claim("A5").settle(trainers.few_steps_and_all(steps=12))
    assert settled.outcome is not None, settled.why
    assert settled.outcome.figures["steps_of_the_run"].value == 12
    assert {"tools_that_agree", "line_share_percent", "cprofile_seconds"} < set(
        settled.outcome.figures
    )


def profile(bound_by: str) -> Any:
    shares = {"data wait": 0.5}
    return SimpleNamespace(
        diagnosis=SimpleNamespace(bound_by=bound_by),
        breakdown=SimpleNamespace(shares=lambda: shares),
    )


@pytest.mark.parametrize(
    ("said", "right"),
    [
        (("data", "host", "compute"), 3),
        (("data", "launch", "compute"), 3),
        (("host", "host", "compute"), 2),
    ],
)
def test_a1_holds_if_each_verdict_is_right(said: tuple[str, ...], right: int) -> None:
    kinds = ("data", "host", "compute")
    found = verdicts({kind: profile(one) for kind, one in zip(kinds, said, strict=True)})
    assert found.figures["named_right"].value == right
    assert found.holds == (right == 3)


def ratio(low: float, high: float) -> Any:
    return SimpleNamespace(ratio=(low + high) / 2, low=low, high=high)


@pytest.mark.parametrize(
    ("told", "other", "holds"),
    [
        ((3.0, 4.0), (1.0, 1.2), True),
        ((1.0, 1.1), (3.0, 4.0), False),
        ((1.0, 4.0), (3.0, 3.5), None),
        ((float("nan"), float("nan")), (1.0, 1.2), None),  # one block gives no interval
    ],
)
def test_c2_is_open_where_the_intervals_overlap(
    told: tuple[float, float], other: tuple[float, float], holds: bool | None
) -> None:
    clear = {"data": ratio(1.0, 1.1), "compute": ratio(2.0, 2.1)}
    asked = {"data": ratio(*told), "compute": ratio(*other)}
    if told[0] != told[0]:
        asked["data"].ratio = 2.0
    found = bottleneck_first({"data": ("data", asked), "compute": ("compute", clear)})
    assert found.holds is holds


def test_the_host_profilers_find_the_line_that_was_made_hot(tmp_path: Path) -> None:
    module, file = trainers._script(tmp_path, 4)
    function, seconds = trainers._hottest_function(module.train, file)
    assert function == "median"
    assert seconds > 0
    line = trainers._hottest_line(module, function)
    assert line is not None
    assert file.read_text().splitlines()[line - 1].strip() == trainers._HOT_LINE


def test_the_filter_is_a_median() -> None:
    import numpy as np

    picture = np.random.default_rng(0).random((3, 9, 9), dtype=np.float32)
    found = trainers.median_filter(picture)
    assert found.shape == picture.shape
    assert found.dtype == np.float32
    assert found[1, 4, 4] == np.median(picture[1, 2:7, 2:7])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gets_as_many_channels_as_its_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "has_gpu_speed", lambda device: True)
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    expected = 4096 if total_bytes > 8e9 else 1024
    assert trainers._wide("cuda") == trainers._wide("cuda:0") == expected
