from __future__ import annotations

from itertools import pairwise

import pytest

from perfkit.experiment.process import _windows
from perfkit.experiment.process._windows import Windows


def walk(step_s, until_s):
    """Steps of one length: per step (begin, quiet, action)."""
    windows, now, told = Windows(), 0.0, []
    while now < until_s:
        begin, now = now, now + step_s
        quiet = windows.is_quiet(begin)
        action = windows.after_step(begin, now)
        if action == "send":
            windows.sent(now)
        told.append((begin, quiet, action))
    return told


def test_the_first_step_is_sent_at_once():
    assert walk(0.01, 0.02)[0] == (0.0, False, "send")


def test_nothing_is_sent_in_quiet_windows():
    told = walk(0.01, 20.0)
    quiet = [i for i, (_, is_quiet, _) in enumerate(told) if is_quiet]
    # all but the last step of a quiet stretch send nothing
    for i in quiet[:-1]:
        if told[i + 1][1]:
            assert told[i][2] in ("nothing", "beat")
    assert 0.4 < len(quiet) / len(told) < 0.6


def test_points_go_out_twice_a_second_at_most():
    sends = [begin for begin, _, action in walk(0.01, 20.0)[1:] if action == "send"]
    gaps = [b - a for a, b in pairwise(sends)]
    assert min(gaps) >= _windows.SEND_EVERY_S - 0.02
    assert max(gaps) <= _windows.QUIET_S + 0.02


@pytest.mark.parametrize("step_s", [0.001, 0.1, 0.7, 2.0, 30.0])
def test_some_steps_are_quiet_whatever_their_length(step_s):
    told = walk(step_s, 40 * max(step_s, 1.0))
    assert sum(quiet for _, quiet, _ in told) >= len(told) / 5


@pytest.mark.parametrize("step_s", [0.1, 0.7, 2.0])
def test_there_is_a_life_sign_within_half_a_second_and_a_step(step_s):
    told = walk(step_s, 60.0)
    signs = [begin + step_s for begin, _, action in told if action != "nothing"]
    gaps = [b - a for a, b in pairwise(signs)]
    assert max(gaps) <= _windows.SEND_EVERY_S + step_s + 1e-6


def test_points_are_sent_twice_a_second_and_a_window_ends_after_a_second():
    told = walk(0.35, 2.0)
    assert [action for _, _, action in told[:4]] == ["send", "nothing", "send", "send"]
    assert [quiet for _, quiet, _ in told] == [False] * 5 + [True]
    sends = [begin for begin, _, action in walk(0.01, 20.0) if action == "send"]
    assert min(b - a for a, b in pairwise(sends)) == pytest.approx(0.5, abs=0.02)


def test_a_step_is_quiet_when_the_browser_has_drawn():
    windows = Windows()
    assert not windows.is_quiet(99.0)
    assert not windows.sent(1.0)
    assert windows.is_live
    assert not windows.is_quiet(99.0)
    assert not windows.sent(1.99)
    assert windows.sent(2.0)
    assert not windows.is_live
    assert [windows.is_quiet(at) for at in (2.14, 2.16)] == [False, True]
    assert windows.after_step(2.1, 3.6) == "beat", "no whole step was quiet yet"
    assert windows.after_step(2.2, 3.6) == "send"
