"""Lesson 00's experiments give an outcome, whatever this machine's clock says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfkit.course.experiments import discover, start_here
from perfkit.course.ledger.recording import Context, Outcome, registered


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(budget_s=0.5, device="cpu", seed=0, folder=tmp_path)


def test_each_claim_of_the_lesson_has_one() -> None:
    assert "perfkit.course.experiments.start_here" in discover()
    found = registered(lessons=["00"])
    assert [one.claim for one in found] == ["A1", "A5", "C2"]
    assert all(one.needs == () for one in found)


@pytest.mark.parametrize(
    ("run", "names"),
    [
        (start_here.verdicts, {"named_right", "data_wait_percent",
                               "data_wait_percent_of_compute_bound"}),
        (start_here.few_steps, {"tools_that_agree", "line_share_percent", "steps_profiled",
                                "steps_of_the_run", "cprofile_seconds"}),
        (start_here.bottleneck_first, {"data_bound_told_change", "data_bound_other_change",
                                       "compute_bound_told_change", "compute_bound_other_change"}),
    ],
)  # fmt: skip
def test_it_gives_an_outcome_and_leaves_torch_as_it_was(
    context: Context, run: Callable[[Context], Outcome], names: set[str]
) -> None:
    import torch

    threads = torch.get_num_threads()
    found = run(context)
    assert isinstance(found, Outcome)
    assert set(found.figures) == names
    assert torch.get_num_threads() == threads


def test_the_host_profilers_find_the_line_that_was_made_hot(tmp_path: Path) -> None:
    module, file = start_here._script(tmp_path, 4)
    function, seconds = start_here._hottest_function(module.train, file)
    assert function == "median"
    assert seconds > 0
    line = start_here._hottest_line(module, function)
    assert line is not None
    assert file.read_text().splitlines()[line - 1].strip() == start_here._HOT_LINE


def test_the_filter_is_a_median() -> None:
    import numpy as np

    picture = np.random.default_rng(0).random((3, 9, 9), dtype=np.float32)
    found = start_here.median_filter(picture)
    assert found.shape == picture.shape
    assert found.dtype == np.float32
    assert found[1, 4, 4] == np.median(picture[1, 2:7, 2:7])
