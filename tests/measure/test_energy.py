"""Energy from made counters: what is read, what wraps, what may not be read; never an error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import perfkit
from perfkit.base.errors import UsageError
from perfkit.base.machine import energy as counters
from perfkit.base.machine.energy import EnergyReading, joules_between, read_energy
from perfkit.measure import energy as measured


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with its core and memory, and a platform counter around it."""
    for folder, name, microjoules in (
        ("intel-rapl:0", "package-0", 5_000_000),
        ("intel-rapl:0:0", "core", 3_000_000),
        ("intel-rapl:0:1", "dram", 700_000),
        ("intel-rapl:1", "psys", 9_000_000),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "name").write_text(f"{name}\n")
        (tmp_path / folder / "energy_uj").write_text(f"{microjoules}\n")
        (tmp_path / folder / "max_energy_range_uj").write_text("262143328850\n")
    monkeypatch.setattr(counters, "_POWERCAP", tmp_path)
    monkeypatch.setattr(counters, "_of_gpus", dict)
    return tmp_path


def test_packages_and_their_memory_are_counted_once(powercap: Path) -> None:
    found = read_energy()
    assert found.joules == {"CPU package 0": 5.0, "memory of package 0": 0.7}
    assert found.wraps_at["CPU package 0"] == pytest.approx(262143.32885)
    assert found.unread == ()


def test_what_only_root_may_read_is_said(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Path.read_text

    def refused(path: Path, *args: Any, **kwargs: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return plain(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", refused)
    found = read_energy()
    assert found.joules == {}
    assert len(found.unread) == 1
    said = perfkit.energy(lambda: None)
    assert said.joules_per_step is None
    assert "only root may read it" in " ".join(str(said).split())


def test_a_damaged_counter_is_left_out(powercap: Path) -> None:
    (powercap / "intel-rapl:0" / "energy_uj").write_text("many\n")
    assert read_energy().joules == {"memory of package 0": 0.7}


def test_a_counter_that_began_anew_is_counted_on() -> None:
    before = EnergyReading({"a": 90.0, "b": 5.0, "c": 1.0}, {"a": 100.0})
    after = EnergyReading({"a": 10.0, "b": 7.0, "d": 1.0}, {"a": 100.0})
    assert joules_between(before, after) == {"a": 20.0, "b": 2.0}
    # one that does not say where it wraps is not guessed
    assert joules_between(EnergyReading({"b": 9.0}, {}), after) == {}


def test_a_gpu_counts_in_millijoules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvml = SimpleNamespace(
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: 12_500,
    )
    device = SimpleNamespace(is_cpu=False, devices=lambda: [1], uuid=lambda index: f"GPU-{index}")
    monkeypatch.setattr(counters, "_POWERCAP", tmp_path)
    monkeypatch.setattr(counters, "_nvml", lambda: nvml)
    monkeypatch.setattr(counters, "in_use", lambda: device)
    assert read_energy().joules == {"GPU 1": 12.5}

    def unsupported(handle: Any) -> int:
        raise RuntimeError("Not Supported")

    nvml.nvmlDeviceGetTotalEnergyConsumption = unsupported
    assert read_energy().joules == {}


def test_without_a_gpu_in_use_no_driver_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []
    monkeypatch.setattr(counters, "_POWERCAP", tmp_path)
    monkeypatch.setattr(counters, "_nvml", lambda: asked.append(True))
    monkeypatch.setattr(counters, "in_use", lambda: SimpleNamespace(is_cpu=True))
    assert read_energy().joules == {}
    assert asked == []


def test_joules_of_a_step_and_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def reading() -> EnergyReading:
        return EnergyReading({"CPU package 0": 2.0 * len(ran), "GPU 0": 6.0 * len(ran)}, {})

    monkeypatch.setattr(measured, "read_energy", reading)
    monkeypatch.setattr(measured, "_BLOCK_S", 0.01)
    monkeypatch.setattr(measured, "_REST_S", 0.0)
    found = perfkit.energy(lambda: ran.append(1), samples_per_step=4, budget_s=0.03)
    assert found.n_blocks >= 3
    assert found.joules_per_step == pytest.approx(8.0)
    assert found.joules_per_sample == pytest.approx(2.0)
    assert [(c.what, c.joules_per_step, c.low, c.high) for c in found.counters] == [
        ("CPU package 0", 2.0, 2.0, 2.0),
        ("GPU 0", 6.0, 6.0, 6.0),
    ]
    assert found.counters[0].resting_watts == 0
    said = " ".join(found.to_text().split())
    assert "A step takes 8.00 J, a sample 2.00 J: CPU package 0, GPU 0." in said
    assert "other tenants are in it" in said


class Machine:
    """Time passes in steps and in sleep alone; a package draws 50 W in a step and 7 W asleep."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.now_s = self.joules = 0.0
        self.n_steps = self.n_readings = self.fails_at = 0
        self.slept_s: list[float] = []

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds
        self.joules += 7 * seconds

    def step(self) -> None:
        self.n_steps += 1
        self.now_s += self.step_s
        self.joules += 50 * self.step_s

    def read(self) -> EnergyReading:
        self.n_readings += 1
        fails = self.n_readings == self.fails_at
        return EnergyReading({} if fails else {"CPU package 0": self.joules}, {})


def measured_on(machine: Machine, monkeypatch: pytest.MonkeyPatch, budget_s: float) -> Any:
    monkeypatch.setattr(measured, "time", machine)
    monkeypatch.setattr(measured, "read_energy", machine.read)
    return perfkit.energy(machine.step, budget_s=budget_s)


@pytest.mark.parametrize(
    ("step_s", "budget_s", "n_blocks", "n_steps"),
    [
        (0.25, 5.0, 5, 20),
        (0.25, 0.1, 3, 12),
        (4.0, 5.0, 3, 3),  # five blocks of one step each took 20 s
        (1.5, 5.0, 4, 4),
    ],
)
def test_blocks_of_a_second_fill_the_budget_and_are_three_at_least(
    step_s: float, budget_s: float, n_blocks: int, n_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(step_s)
    found = measured_on(machine, monkeypatch, budget_s)
    assert (found.n_blocks, found.n_steps) == (n_blocks, n_steps)
    assert machine.n_steps - n_steps == 2  # two warm it up
    assert machine.slept_s == [1.0]
    (one,) = found.counters
    assert one.joules_per_step == pytest.approx(50 * step_s)
    assert (one.watts, one.resting_watts) == pytest.approx((50, 7))


def test_a_block_whose_counter_could_not_be_read_takes_nothing_from_the_power(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(0.25)
    machine.fails_at = 7  # the first look, two at rest, two a block: at the end of the second
    (one,) = measured_on(machine, monkeypatch, 5.0).counters
    assert (one.watts, one.joules_per_step) == pytest.approx((50, 12.5))


def test_the_median_of_the_blocks_and_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Warmer(Machine):
        def step(self) -> None:
            """Two to warm it up, then four a block: 50, 60 and 100 W."""
            super().step()
            self.joules += [0, 0, *([0] * 4), *([10] * 4), *([50] * 4)][self.n_steps - 1] / 4

    found = measured_on(Warmer(0.25), monkeypatch, 3.0)
    (one,) = found.counters
    assert (one.low, one.joules_per_step, one.high) == pytest.approx((12.5, 15, 25))
    assert one.watts == pytest.approx(70)
    assert found.step_ms == pytest.approx(250)
    assert (found.samples_per_step, found.joules_per_sample) == (None, None)


def test_a_machine_without_counters_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "read_energy", lambda: EnergyReading({}, {}))
    found = perfkit.energy(lambda: None, samples_per_step=1)
    assert (found.joules_per_step, found.joules_per_sample) == (None, None)
    assert (found.step_ms, found.n_steps, found.n_blocks) == (0, 0, 0)
    with pytest.raises(UsageError, match="samples_per_step"):
        perfkit.energy(lambda: None, samples_per_step=0)
