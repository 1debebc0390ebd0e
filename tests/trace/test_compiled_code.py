"""Which compiled code ran in the steps, from torch's labels in the trace."""

from __future__ import annotations

from simulated_traces import Simulated, cpu_training

from perfkit.trace import load
from perfkit.trace.ask.compiled import Compiled, compiled


def _found(sim: Simulated) -> Compiled:
    return compiled(load(sim.json()))


def test_regions_are_counted_by_piece_and_attempt() -> None:
    sim = Simulated()
    for step in range(3):
        at = step * 10_000.0
        sim.step(step, at, 9_000)
        sim.host("Torch-Compiled Region: 0/0", at + 100, 2_000)
        sim.host("Torch-Compiled Region: 1/2", at + 3_000, 500)
    sim.host("entire_frame_compile", 6_000, 1_500)
    sim.host("_compile.compile_inner", 6_100, 1_000)
    found = _found(sim)
    assert [(one.name, one.count, one.total_us) for one in found.regions] == [
        ("0/0", 3, 6_000),
        ("1/2", 3, 1_500),
    ]
    assert (found.n_compilations, found.compile_us) == (1, 1_500)
    said = " ".join(str(found).split())
    assert "2 pieces of compiled code, called 2 times a step. 1 compilation in these" in said
    assert "0/0 1 2.00 ms" in said


def test_without_compiled_code_it_says_so() -> None:
    found = _found(cpu_training(3))
    assert found == Compiled((), 0, 0.0, 3, found.warnings)
    assert "No compiled code ran in the steps." in str(found)
