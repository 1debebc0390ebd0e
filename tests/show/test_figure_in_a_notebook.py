"""A figure shown in a notebook follows the page, as perfkit's static pictures do."""

from __future__ import annotations

import pickle

import pytest
from IPython.core.interactiveshell import InteractiveShell
from simulated_traces import gpu_training

from perfkit.advice import Profile, explain
from perfkit.show._drawn import DRAWN_CLASS
from perfkit.trace import load


@pytest.fixture(scope="module")
def profile() -> Profile:
    return explain(load(gpu_training(4, wait=500).json()))


def test_a_figure_becomes_dark_on_a_dark_page(profile: Profile) -> None:
    figure = profile.figure()
    data, _ = InteractiveShell().display_formatter.format(figure)
    assert f'class="{DRAWN_CLASS}"' in data["text/html"]
    assert "data-jp-theme-light=false" in data["text/html"]
    assert "idle" in data["text/html"]  # what it shows, for who cannot see it
    assert figure.get_facecolor() == (1, 1, 1, 1)
    assert type(pickle.loads(pickle.dumps(figure))) is type(figure)


def test_the_last_part_of_a_bar_has_its_whole_frame(profile: Profile) -> None:
    bars = [patch for axes in profile.figure().axes for patch in axes.patches]
    assert bars
    right = max(bars, key=lambda bar: bar.get_x() + bar.get_width())
    assert not right.get_clip_on() or right.axes.get_xlim()[1] > 1.003
