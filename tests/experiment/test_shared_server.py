"""The shared server of prepared processes."""

from __future__ import annotations

import signal

import pytest

from perfkit.experiment.process import _process


def test_ctrl_c_as_the_interpreter_ends_shows_nothing_and_ends_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python printed a traceback of perfkit's insides ("Exception ignored in atexit callback")."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ended = []
    shared = _process._Shared()

    def end() -> None:
        signal.raise_signal(signal.SIGINT)
        ended.append(True)

    monkeypatch.setattr(shared, "_end", end)
    try:
        shared.end_at_exit()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended
