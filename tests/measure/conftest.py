"""Only the clock is faked."""

from __future__ import annotations

import pytest

from perfkit.base.machine.cpu_contention import ContentionMark, CpuContention


class FakeClock:
    """A clock that advances only when told; it may also go back."""

    device = "cpu"

    def __init__(self) -> None:
        self.ns = 1_000_000
        self.settled = 0

    def advance_ms(self, duration_ms: float) -> None:
        self.ns += round(duration_ms * 1e6)

    def now(self) -> int:
        return self.ns

    def settle(self) -> None:
        self.settled += 1


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def quiet_machine(monkeypatch) -> None:
    """Pretend that nothing else runs on the machine."""
    quiet = CpuContention(10.0, 2, 10.0)
    monkeypatch.setattr(ContentionMark, "until_now", lambda self: quiet)
