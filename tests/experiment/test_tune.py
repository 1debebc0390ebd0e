"""Proposals and their verification."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import perfkit
from perfkit import show
from perfkit.base.errors import SettingError, WorkloadFailedError
from perfkit.experiment import setting
from perfkit.experiment.compare.tune import _judged, tune

pytestmark = pytest.mark.slow


def by_value(function):
    """As from a notebook: not to be imported by name in the child."""
    function.__module__ = "__main__"
    return function


@by_value
def sleeping(s):
    import time

    from torch import nn, optim, randn

    model = nn.Linear(4, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    while True:
        loss = model(randn(8, 4)).square().mean()
        if getattr(s, "wrong", False):
            loss = loss * 7
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.03 if s.slow else 0.002)
        yield loss


SLOW = setting("slow", [True, False])


def test_what_is_faster_and_gives_the_same_is_recommended():
    found = tune(sleeping, [SLOW], budget_s=25.0, seconds=0.25, say=False)
    assert perfkit.tune is tune
    assert found.start == {"slow": True}
    assert found.proposed == {"slow": False}
    assert found.verified.low > 1.5
    assert found.verified.same.same is True, found.verified.same
    assert found.recommended
    assert found.sentence.startswith("Recommended: slow off. Verified against the start: ")
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["recommended"] is True
    text = " ".join(show.text(found).split())
    assert "Recommended: slow off." in text
    assert "Recommended: slow off." in show.html(found)


def test_what_is_faster_but_learns_something_else_is_refused():
    @by_value
    def workload(s):
        import time

        from torch import nn, optim, randn

        model = nn.Linear(4, 1)
        optimizer = optim.SGD(model.parameters(), lr=0.01)
        while True:
            loss = model(randn(8, 4)).square().mean()
            if s.cheat:
                loss = 7 * loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.002 if s.cheat else 0.03)
            yield loss

    found = tune(
        workload, [setting("cheat", [False, True])], budget_s=25.0, seconds=0.25, say=False
    )
    assert found.proposed == {"cheat": True}
    assert found.verified.same.same is False, found.verified.same
    assert not found.recommended
    assert "does not give the same result" in found.sentence


def test_where_nothing_is_faster_the_start_is_kept_and_nothing_verified():
    found = tune(sleeping, [SLOW], start={"slow": False}, budget_s=3.0, seconds=0.1, say=False)
    assert found.proposed == found.start == {"slow": False}
    assert found.verified is None
    assert not found.recommended
    assert found.sentence.startswith("Keep the start (slow off)")


def test_many_combinations_are_tuned_one_setting_after_the_other(monkeypatch):
    def left_out(*_, **__):
        raise WorkloadFailedError("left out")

    monkeypatch.setattr("perfkit.experiment.compare.tune.ab", left_out)

    @by_value
    def workload(s):
        import time

        if (s.x, s.y) != (1, 1):
            raise ValueError("a point that fails is not run again")
        while True:
            time.sleep(0.04 if s.slow else 0.002)
            yield 1

    others = [setting(name, [1, 2, 3]) for name in ("x", "y")]
    found = tune(workload, [SLOW, *others], budget_s=40.0, seconds=0.1, say=False)
    assert [tuple(one.grid) for one in found.sweeps] == [("slow",), ("x",), ("y",)]
    assert found.proposed["slow"] is False
    assert all(run.values["slow"] is False for one in found.sweeps[1:] for run in one.runs)


def test_where_nothing_ran_no_start_is_recommended():
    @by_value
    def failing(s):
        raise ValueError("no data")
        yield

    # a point that failed is not run again, so this takes no time
    found = tune(failing, ["num_workers"], budget_s=1.0, say=False)
    assert not found.recommended
    assert found.sentence.startswith("Nothing that was tried could be measured, the start included")
    assert "ValueError: no data" in found.sentence


def test_nothing_to_tune_is_refused():
    with pytest.raises(SettingError, match="nothing to tune"):
        tune(sleeping, [])
    with pytest.raises(SettingError, match="no setting is called 'speed'"):
        tune(sleeping, ["speed"])


def test_what_the_verification_does_not_see_is_not_recommended():
    found = tune(sleeping, [SLOW], budget_s=20.0, seconds=0.2, say=False)
    start, proposed, verified = found.start, found.proposed, found.verified
    for centre, low, high in ((1.02, 0.97, 1.07), (0.9, 0.85, 0.95)):
        unseen = replace(verified, ratio=centre, low=low, high=high)
        good, sentence = _judged(start, proposed, unseen, "")
        assert not good
        assert "the verification against the start did not" in sentence
    good, sentence = _judged(start, proposed, replace(verified, same=None), "")
    assert good
    assert "Whether it learns the same is unknown" in sentence
    good, sentence = _judged(start, proposed, None, "proposal: killed")
    assert not good
    assert "could not be verified: proposal: killed" in sentence
