"""perfkit's hooks cannot raise into the user's code."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from perfkit.base import uninterrupted as heard
from perfkit.base.instrument import Instrument


def broken(*_: object) -> int:
    raise RuntimeError("dictionary changed size\nduring iteration")


def test_a_hook_that_raises_is_switched_off_and_its_failure_is_kept():
    switched = []
    instrument = Instrument("the sampler", switch_off=lambda: switched.append(1))
    calls = []

    def hook(x: int) -> int:
        calls.append(x)
        return broken()

    guarded = instrument.hook(hook, instead=-1)
    assert [guarded(1), guarded(2)] == [-1, -1]
    assert calls == [1]  # not called again
    assert switched == [1]
    assert not instrument.is_on
    said = instrument.failure.sentence()
    assert "the sampler failed and was switched off" in said
    assert "RuntimeError: dictionary changed size during iteration" in said
    assert "test_instrument.py:" in said


def test_a_hook_that_works_is_as_before():
    instrument = Instrument("x")
    assert instrument.hook(lambda a, *, b: a + b)(1, b=2) == 3
    assert instrument.is_on


def test_switching_off_may_fail_too():
    instrument = Instrument("x", switch_off=broken)
    assert instrument.hook(broken)() is None
    assert instrument.failure.during == "broken"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_not_a_fault_passes(kind: type[BaseException]):
    instrument = Instrument("x")

    def stopped() -> None:
        raise kind

    with pytest.raises(kind):
        instrument.hook(stopped)()
    with pytest.raises(kind), instrument.guard("x"):
        stopped()
    assert instrument.is_on


def test_a_refusal_passes():
    class RefusalError(Exception):
        pass

    def refuse() -> None:
        raise RefusalError("no")

    instrument = Instrument("x", let_pass=(RefusalError,))
    with pytest.raises(RefusalError):
        instrument.hook(refuse)()
    assert instrument.is_on


def test_around_user_code_only_ours_is_caught():
    @contextmanager
    def ours(fails: str):
        if fails == "entering":
            broken()
        yield
        if fails == "leaving":
            broken()

    for fails in ("entering", "leaving"):
        instrument = Instrument("x")
        ran = []
        with instrument.around(ours(fails)):
            ran.append(1)
        assert ran == [1]
        assert instrument.failure.during == fails
    instrument = Instrument("x")
    with pytest.raises(ZeroDivisionError), instrument.around(ours("")):
        raise ZeroDivisionError
    assert instrument.is_on


def test_the_first_failure_is_kept():
    instrument = Instrument("x")
    with instrument.guard("first"):
        broken()
    with instrument.guard("second"):
        broken()
    assert instrument.failure.during == "first"


def test_an_error_that_refuses_to_say_what_it_is_does_not_reach_the_user():
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("never")

    def broken() -> None:
        raise SilentError

    instrument = Instrument("x")
    instrument.hook(broken)()
    assert instrument.failure is not None
    assert instrument.failure.error == "SilentError"
    assert "test_instrument.py" in instrument.failure.where


def test_a_program_that_replaced_what_the_guard_calls_goes_on(monkeypatch):
    """`builtins.isinstance = …` of a program broke the guard itself, and the hook of `hear`."""
    monkeypatch.setattr(heard.signal, "valid_signals", lambda: 1 / 0)
    monkeypatch.setattr(heard, "_is_ours", lambda trace: True)
    monkeypatch.setattr(heard, "_hook", None)
    instrument = Instrument("x")
    instrument.hook(lambda: {}["absent"])()
    assert instrument.failure is not None
    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    heard.hear()
    error = KeyboardInterrupt()
    sys.unraisablehook(SimpleNamespace(exc_value=error, exc_traceback=error.__traceback__))
    assert len(seen) == 1
