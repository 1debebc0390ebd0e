"""Lesson 02: its simulated steps, what its exercise accepts and says, and its claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from perfkit.base.errors import UsageError
from perfkit.course.kit.claim import claim
from perfkit.course.kit.picture import picture
from perfkit.course.kit.simulated_gpu import BOUNDS, simulate, what_bounds
from perfkit.course.kit.simulated_traces import Simulated
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.ledger.settle import Settled
from perfkit.course.lessons.lesson_02_read_a_trace import lesson as read_a_trace
from perfkit.course.lessons.lesson_02_read_a_trace import measured
from perfkit.course.lessons.lesson_02_read_a_trace.lesson import (
    BUSY,
    CASES,
    achievable_tflop_per_s,
    anonymous_steps,
    documents,
    name_the_bound,
    operators_per_step,
    pace,
    step_strip,
    tokens,
    what_if_table,
)
from perfkit.course.lessons.lesson_02_read_a_trace.pictures import (
    Use,
    draw_steps,
    draw_use,
    measured_on,
    words_of_steps,
    words_of_use,
)
from perfkit.trace import Recorder, Trace, breakdown, flops, idle, launch_queue, load


def _right(trace: Trace) -> str:
    lost = dict(idle(trace).shares())
    lost["copy"] += breakdown(trace).device_shares()["copy"]
    worst = max(lost, key=lambda cause: lost[cause])
    return worst if lost[worst] >= 0.2 else "compute"


def _by_the_hosts_lane(trace: Trace) -> str:
    shares = breakdown(trace).shares()
    most = max(shares, key=lambda name: shares[name])
    words = {"data wait": "data", "sync": "sync", "copy": "copy", "backward": "launch"}
    return words.get(most, "compute")


def _without_copies(trace: Trace) -> str:
    lost = idle(trace).shares()
    worst = max(lost, key=lambda cause: lost[cause])
    return worst if lost[worst] >= 0.2 else "compute"


def _learnt_by_heart(trace: Trace) -> str:
    shown = {id(step) for step in anonymous_steps().values()}
    return _right(trace) if id(trace) in shown else "compute"


def _busy_first(trace: Trace) -> str:
    """Also right: ask whether the device computes nearly all the time, and only then why not."""
    device = breakdown(trace).device_shares()
    if device["compute"] + device["communication"] > 0.8:
        return "compute"
    lost = dict(idle(trace).shares()) | {"copy": device["copy"]}
    return max(lost, key=lambda cause: lost[cause])


def _in_order(trace: Trace) -> str:
    """Also right: sorted, with another threshold."""
    shares = idle(trace).shares()
    copies = shares["copy"] + breakdown(trace).device_shares()["copy"]
    worst, share = sorted({**shares, "copy": copies}.items(), key=lambda item: item[1])[-1]
    return worst if share > 0.25 else "compute"


def _next_to_compute(trace: Trace) -> str:
    """Takes any loss for one worth removing."""
    lost = dict(idle(trace).shares())
    lost["copy"] += breakdown(trace).device_shares()["copy"]
    return max(lost, key=lambda cause: lost[cause])


@pytest.mark.parametrize("answer", [_right, _busy_first, _in_order])
@pytest.mark.slow
def test_every_right_answer_passes(answer: Callable[[Trace], Any]) -> None:
    assert repr(name_the_bound.check(answer)).startswith("Done")


def test_a_right_answer_passes_with_its_facts() -> None:
    said = repr(name_the_bound.check(_right)).replace("\n", " ")
    assert said.startswith("Done")
    assert "A launch, B data, C sync, D compute, E copy, F compute" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda trace: None, "returns nothing yet"),
        (lambda trace: "gpu", "return one of data, launch, sync, copy, compute, not 'gpu'"),
        (lambda trace: 3, "not 3"),
        (lambda trace: "compute", "step A: not compute"),
        (lambda trace: "data", "without another cause"),
        (_by_the_hosts_lane, "Without its syncs, step D would be 1.01× as fast"),
        (_without_copies, "step E: not compute"),
        (_next_to_compute, "would be 1.0"),
        (_learnt_by_heart, "a step like A, of another size"),
    ],
)
def test_a_wrong_answer_is_told_what_acting_on_it_would_bring(
    answer: Callable[[Trace], Any], reason: str
) -> None:
    said = repr(name_the_bound.check(answer)).replace("\n", " ")
    assert said.startswith("Not yet")
    assert reason in said


def test_the_readers_own_error_is_told() -> None:
    def broken(trace: Trace) -> str:
        raise KeyError("idle")

    assert repr(name_the_bound.check(broken)).startswith("Your function stopped with an error")


def test_show_tells_both_lanes_of_every_step() -> None:
    said = repr(name_the_bound.show(_right))
    for letter in anonymous_steps():
        assert f"- {letter}: " in said
    assert "device busy" in said


def test_the_hints_lead_to_the_solution() -> None:
    exercise = read_a_trace.name_the_bound
    said = repr(exercise.hint())
    assert said.startswith("Hint 1 of 4")
    assert ".shares()" in " ".join(exercise._hints)


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_bound_by_what_it_is_called_after(name: str) -> None:
    assert what_bounds(CASES[name]) == name
    assert _right(simulate(CASES[name])) == name


def test_the_queue_tells_launch_bound_from_compute_bound() -> None:
    launch, compute = (launch_queue(simulate(CASES[c])) for c in ("launch", "compute"))
    assert launch.empty_share is not None
    assert compute.empty_share is not None
    assert launch.empty_share > 0.5
    assert compute.empty_share == 0


def test_busy_is_hardly_used() -> None:
    trace = simulate(BUSY)
    shares = breakdown(trace).device_shares()
    assert shares["compute"] > 0.9
    assert flops(trace).per_step == BUSY.flops
    assert flops(trace).achieved_tflop_per_s < 0.05 * 20
    assert what_bounds(BUSY) == "compute"


def test_the_table_of_what_ifs_has_a_row_for_each_case() -> None:
    lines = what_if_table(CASES).splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(CASES)
    assert all(line.count("×") == len(BOUNDS) for line in lines[1:])


def test_a_strip_says_that_it_is_simulated() -> None:
    shown = step_strip(simulate(CASES["sync"]))
    assert "(simulated)" in repr(shown)
    html = shown._repr_html_()
    assert "(simulated)" in html
    assert all(name in html for name in ("forward", "idle: a sync", "compute"))  # its legend
    nothing = read_a_trace.StepStrip(None)
    assert repr(nothing) == "No step was found in this trace."
    assert "No step was found" in nothing._repr_html_()


def test_the_name_of_a_step_never_becomes_markup() -> None:
    sim = Simulated()
    sim.label("ProfilerStep#1 <script>alert(1)</script>", 0, 100)
    sim.host("aten::mm", 10, 50)
    html = step_strip(load(sim.json()))._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_the_pictures_have_their_figures_in_words() -> None:
    traces = {name: simulate(CASES[name]) for name in ("data", "compute")}
    words = words_of_steps(traces, source="simulated")
    assert "data: host mostly data wait" in words
    assert "queue empty 0 % of the time" in words
    assert picture(draw_steps(traces, source="simulated"), words).png.startswith(b"\x89PNG")
    uses = [Use("one", 0.93, 0.029)]
    words = words_of_use(uses, source="simulated")
    assert "one: utilisation 93 %, 2.9 % of the achievable FLOP/s" in words
    assert picture(draw_use(uses, source="simulated"), words).png.startswith(b"\x89PNG")


def test_a_picture_of_steps_without_a_device_is_drawn_too() -> None:
    with Recorder(steps=1, warmup=0, lines=False) as recorder:
        torch.ones(8, 8) @ torch.ones(8, 8)
        recorder.step()
    traces = {"cpu": recorder.recording.trace}
    words = words_of_steps(traces, source="measured here")
    assert "queue" not in words.split("cpu:")[1]
    assert picture(draw_steps(traces, source="measured here"), words).png


def test_texts_are_the_same_everywhere_and_cut_after_all_was_read() -> None:
    one, two = documents(2, words=50, seed=3), documents(2, words=50, seed=3)
    assert one == two
    assert one[0] != one[1]
    assert tokens("w5 W7 w11", 2) == [5, 7]


def test_operators_are_counted_per_step() -> None:
    x = torch.ones(4, 4)
    with Recorder(steps=2, warmup=0, lines=False) as recorder:
        for _ in range(2):
            for _ in range(10):
                x.neg()
            recorder.step()
    assert operators_per_step(recorder.recording.trace) == 10


def test_rates_are_of_the_calls_that_were_made() -> None:
    calls = []
    ran = pace(lambda: calls.append(1), calls=5, rounds=2)
    assert len(calls) == 11  # one before the clock starts
    assert ran.seconds > 0
    assert achievable_tflop_per_s(size=64, calls=2) > 0


@pytest.mark.slow
def settled(found: Settled) -> Outcome:
    assert found.outcome is not None, found.why
    # what is said of a GPU is of a simulated one, and the headline says so
    assert found.headline is not None
    assert found.headline.kind == "simulated"
    simulated = [f for name, f in found.outcome.figures.items() if name.startswith("simulated")]
    assert simulated
    assert all(f.kind == "simulated" for f in simulated)
    return found.outcome


@pytest.mark.slow
def test_what_the_claims_are_settled_with() -> None:
    before = torch.get_num_threads()
    data = simulate(CASES["data"])
    slow, prepared = (measured.record_steps(prepared=ready) for ready in (False, True))
    parts = settled(claim("D3").settle(data, slow, "cpu"))
    assert parts.figures["parts_named"] == Figure(3, "1", kind="exact")
    assert parts.figures["unexplained_ns"] == Figure(0, "ns", kind="exact")
    assert parts.holds
    causes = settled(claim("D4").settle(data, slow, prepared, "cpu"))
    assert causes.figures["idle_without_cause_ns"].value == 0
    assert causes.figures["idle_without_cause_ns"].kind == "simulated"
    swapped = settled(claim("D4").settle(data, prepared, slow, "cpu"))
    assert swapped.holds != causes.holds
    used = settled(claim("E6").settle(simulate(BUSY), measured.used_here()))
    assert used.figures["simulated_utilisation"].value > 90
    assert used.figures["simulated_flops_share"].value < 5
    assert torch.get_num_threads() == before


def test_e6_needs_a_step_that_is_busy_and_computes_little() -> None:
    for flops_share, holds in ((0.1, True), (0.6, False)):
        found = claim("E6").settle(simulate(BUSY), measured.UsedHere(1.0, flops_share))
        assert settled(found).holds is holds


def test_the_numbers_in_the_lessons_prose_are_those_of_the_simulation() -> None:
    assert (CASES["data"].op_us, CASES["data"].launch_us, CASES["data"].layers) == (8, 4, 24)
    assert (CASES["data"].batch, CASES["data"].loader_us) == (1024, 8_000)
    assert CASES["launch"].batch == 16
    assert (CASES["sync"].batch, CASES["sync"].items, CASES["sync"].python_us) == (4096, 10, 700)
    assert CASES["compute"].batch == 4096
    assert BUSY.elementwise == 8


def test_with_a_gpu_the_picture_says_whose_core_and_whose_flops_are_shown() -> None:
    uses = [Use("one", 0.93, 0.029)]
    on_gpu = words_of_use(uses, **measured_on("cuda"))
    assert "one core of the host busy 93 %, 2.9 % of the GPU's achievable FLOP/s" in on_gpu
    on_cpu = words_of_use(uses, **measured_on("cpu"))
    assert "one core busy 93 %, 2.9 % of the achievable FLOP/s" in on_cpu
    legend = draw_use(uses, **measured_on("cuda")).axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [
        "one core of the host busy",
        "achieved FLOP/s, of the GPU's achievable",
    ]


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one step"):
        simulate(BUSY, steps=0)
