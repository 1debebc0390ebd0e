"""An experiment stopped from another thread, and one on a workload packed earlier."""

from __future__ import annotations

import threading

import pytest

from perfkit.experiment import setting
from perfkit.experiment.compare._cancel import Cancelled, cancellable, raise_if_cancelled
from perfkit.experiment.compare.ab import ab

pytestmark = pytest.mark.slow

FACTOR = 1


def workload(s):
    import time

    while True:
        time.sleep(0.001 * s.slow * FACTOR)
        yield 4


def test_a_comparison_ends_soon_after_it_is_asked_to(session):
    asked = threading.Event()
    outcome = []

    def compare() -> None:
        try:
            with cancellable(asked):
                ab(
                    workload,
                    {"slow": 1},
                    {"slow": 2},
                    settings=[setting("slow", [1, 2])],
                    budget_s=600.0,
                    say=lambda _: begun.set(),
                )
        except BaseException as error:
            outcome.append(type(error))

    begun = threading.Event()
    thread = threading.Thread(target=compare)
    thread.start()
    assert begun.wait(60), "the first block"
    asked.set()
    thread.join(20)  # far less than the budget; that no process stays is checked by the fixture
    assert outcome == [Cancelled]


def test_what_nobody_can_cancel_goes_on():
    raise_if_cancelled()
    asked = threading.Event()
    with cancellable(asked):
        raise_if_cancelled()
        asked.set()
        with pytest.raises(Cancelled):
            raise_if_cancelled()
    raise_if_cancelled()


def test_a_packed_workload_stays_what_it_was(session):
    namespace = {"__name__": "__main__", "SAMPLES": 3}
    exec("def taken(s):\n    for _ in range(8):\n        yield SAMPLES\n", namespace)
    packed = session(namespace["taken"]).packed
    namespace["SAMPLES"] = 5
    result = session(packed).run()
    assert result.ok
    assert result.samples_per_step == pytest.approx(3)
    assert [*packed(None)] == [3] * 8
