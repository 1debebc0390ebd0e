"""Every rule fires when it must, and stays silent on similar cases."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pytest
import torch
from simulated_traces import SINGLE, WORKERS, Simulated, cpu_training, gpu_training

from perfkit.advice import Diagnosis, Finding
from perfkit.advice.case import Case
from perfkit.advice.diagnose import BOUNDS, diagnose
from perfkit.advice.findings import fact, gain_words, interval
from perfkit.advice.line_kinds import OTHER, beside_the_model, kind_of
from perfkit.advice.rules import NEEDS
from perfkit.advice.rules.data import RULE_OF_CAUSE
from perfkit.base.machine.cpu_contention import CpuContention
from perfkit.base.machine.dataloader_stats import DataLoaderStats, ProcessUse
from perfkit.base.words import fmt_ms
from perfkit.measure.summary import summarize
from perfkit.trace import Line, LineSamples, breakdown, find_steps, load
from perfkit.trace.record.facts import Facts, OptimizerFacts, optimizer_facts
from perfkit.trace.record.lines import NO_LINES


def _diagnosis(
    sim: Simulated,
    lines: LineSamples = NO_LINES,
    facts: Facts | None = None,
    **known: Any,
) -> Diagnosis:
    trace = load(sim.json())
    steps = find_steps(trace)
    split = breakdown(trace, steps)
    case = Case(trace, steps, split, lines, facts or Facts(), **known)
    return diagnose(case, summarize(split.wall_ms), "simulated")


def _rules(sim: Simulated, lines: LineSamples = NO_LINES, facts: Facts | None = None) -> set[str]:
    return {f.rule for f in _diagnosis(sim, lines, facts).findings}


def _finding(diagnosis: Diagnosis, rule: str) -> Finding:
    return next(f for f in diagnosis.findings if f.rule == rule)


def _adamw(**changes: object) -> Facts:
    optimizer = OptimizerFacts("AdamW", 4, ("float32",))
    return Facts((dataclasses.replace(optimizer, **changes),), 2, 2)  # type: ignore[arg-type]


def _line(
    text: str, n: int, of: int, *, waiting: bool = True, library: str = "PIL", called: str = ""
) -> Line:
    return Line("data.py", 9, "data.py:9", "__getitem__", text, n, n / of, waiting, library, called)


HEALTHY: dict[str, Callable[[], Simulated]] = {
    "cpu": lambda: cpu_training(6),
    "cpu, workers that keep up": lambda: cpu_training(6, wait=20),
    "gpu": lambda: gpu_training(6, n_kernels=30, every=96),
    "gpu, workers that keep up": lambda: gpu_training(
        6, n_kernels=30, every=96, wait=50, loader=WORKERS
    ),
    "gpu, pinned copies": lambda: gpu_training(
        6, n_kernels=30, every=96, copy="HtoD (Pinned -> Device)", copy_call=8
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_has_no_finding(name: str) -> None:
    diagnosis = _diagnosis(HEALTHY[name](), facts=_adamw())
    assert diagnosis.findings == ()
    assert diagnosis.bound_by == "compute"


# --- data ---------------------------------------------------------------------------------


def test_no_loader_workers() -> None:
    diagnosis = _diagnosis(cpu_training(6, wait=870, loader=SINGLE))
    assert diagnosis.bound_by == "data"
    assert diagnosis.sentence.startswith("Data-bound: 50 % of each step waits for the DataLoader")
    assert "n=6, simulated" in diagnosis.sentence
    finding = _finding(diagnosis, "dataloader-no-workers")
    assert finding.gain_at_most == pytest.approx(2)
    assert finding.formula == (
        "at most 1 / max(0.50 / 4, 0.50) = 2.0×, with 4 workers loading alongside the rest of "
        "the step"
    )
    assert "num_workers" in finding.what_to_do
    assert "870 µs of each step (50 %)" in finding.evidence[0]


@pytest.mark.parametrize(
    ("wait", "cores", "gain"),
    [
        (870 * 19, 2, 2 / 0.95),  # loading stays the longer part
        (870 * 19, 3, 3 / 0.95),
        (870 * 19, 16, 8 / 0.95),  # no more workers are proposed than eight
        (870 * 19, None, 4 / 0.95),  # a trace from a file: cores unknown
        (870, 1, 2),
    ],
)
def test_workers_bring_no_more_than_their_number(
    wait: float, cores: int | None, gain: float
) -> None:
    facts = dataclasses.replace(_adamw(), n_cores=cores)
    diagnosis = _diagnosis(cpu_training(6, wait=wait, loader=SINGLE), facts=facts)
    finding = _finding(diagnosis, "dataloader-no-workers")
    assert finding.gain_at_most == pytest.approx(gain)
    n = int(re.findall(r"num_workers=(\d+)", finding.what_to_do)[0])
    assert f"/ {n}, " in finding.formula
    few = any("to spare" in e for e in finding.evidence)
    assert few is (cores is not None and cores <= 2)


def test_less_work_for_each_sample_comes_before_workers() -> None:
    lines = LineSamples((_line("img = Image.open(path)", 90, 100),), 100)
    facts = dataclasses.replace(_adamw(), n_cores=2)
    found = _diagnosis(cpu_training(6, wait=870 * 19, loader=SINGLE), lines, facts).findings
    assert [f.rule for f in found] == ["image-decode", "dataloader-no-workers"]


def test_workers_are_not_advised_for_short_waits() -> None:
    assert _rules(cpu_training(6, wait=56, loader=SINGLE)) == set()  # 6 %
    long = {"forward": 30_000.0, "backward": 50_000.0}
    assert _rules(cpu_training(6, wait=5_500, loader=SINGLE, **long)) == set()  # 6 %, 5 ms
    # half of a step, but no longer than a worker needs to hand over a batch
    short = {"forward": 100.0, "backward": 100.0}
    assert _rules(cpu_training(6, wait=250, loader=SINGLE, **short)) == set()


@pytest.mark.parametrize("loader", [SINGLE, WORKERS])
def test_snippets_name_no_unknown(loader: str) -> None:
    for finding in _diagnosis(cpu_training(6, wait=870, loader=loader)).findings:
        names = {n.id for n in ast.walk(ast.parse(finding.what_to_do)) if isinstance(n, ast.Name)}
        assert names <= {"loader", "DataLoader", "dataset"}


def test_slow_loader_workers_get_other_advice() -> None:
    assert _rules(cpu_training(6, wait=870, loader=WORKERS)) == {"dataloader-slow-workers"}


@pytest.mark.parametrize(
    ("worker", "facts", "rule"),
    [
        ({"cpu_s": 9.8}, {}, "dataloader-slow-code"),
        ({"cpu_s": 9.8}, {"spare_cores": 5.0}, "dataloader-few-workers"),
        ({"cpu_s": 1.0, "disk_bytes": 10**9}, {}, "dataloader-slow-disk"),
        ({"cpu_s": 1.0}, {}, "dataloader-blocked"),
        # workers that do neither for long, or that were not seen: the old advice
        ({"cpu_s": 6.0}, {}, "dataloader-slow-workers"),
        ({"cpu_s": 1.0, "waited_s": None}, {}, "dataloader-slow-workers"),
    ],
)
def test_why_workers_are_slow_decides_what_helps(
    worker: dict[str, Any], facts: dict[str, Any], rule: str
) -> None:
    made = ProcessUse(10.0, 0.0, 0.0, 0)
    one = dataclasses.replace(made, **worker)
    use = DataLoaderStats(10.0, 8, (one, one), 0.2)
    loading = dataclasses.replace(use, **facts)
    known = dataclasses.replace(_adamw(), loading=loading)
    diagnosis = _diagnosis(cpu_training(6, wait=870 * 4, loader=WORKERS), facts=known)
    assert {f.rule for f in diagnosis.findings} == {rule}
    finding = _finding(diagnosis, rule)
    assert 1.1 <= finding.gain_at_most <= 10
    assert "pass in the DataLoader's __next__" in finding.evidence[0]
    assert diagnosis.no_cure == ""


def test_slow_workers_are_told_with_the_line_that_they_are_on() -> None:
    """The advice was to profile the data set by hand."""
    made = ProcessUse(10.0, 9.9, 0.0, 0)
    known = dataclasses.replace(_adamw(), loading=DataLoaderStats(10.0, 8, (made, made), 0.2))
    seen = LineSamples((_line("x = sorted(words)", 60, 100, waiting=False),), 100)
    diagnosis = _diagnosis(
        cpu_training(6, wait=870 * 4, loader=WORKERS), facts=known, worker_lines=seen
    )
    finding = _finding(diagnosis, "dataloader-slow-code")
    assert finding.line == "data.py:9: x = sorted(words)"
    assert "60 % of the workers' time is at data.py:9" in finding.evidence


@pytest.mark.parametrize(
    ("seen", "rule"), [(95, "dataloader-blocked"), (15, "dataloader-slow-workers")]
)
def test_workers_that_wait_to_be_asked_are_not_blocked(seen: int, rule: str) -> None:
    """They have loaded ahead; the step waits at an epoch's start, say. It was "a lock, a sleep"."""
    idle = ProcessUse(10.0, 1.5, 0.0, 0)
    known = dataclasses.replace(_adamw(), loading=DataLoaderStats(10.0, 8, (idle, idle), 6.0))
    lines = LineSamples((_line("x = fetch(url)", seen, 100, waiting=False),), 100)
    diagnosis = _diagnosis(
        cpu_training(6, wait=870 * 4, loader=WORKERS), facts=known, worker_lines=lines
    )
    assert {f.rule for f in diagnosis.findings} == {rule}


def test_a_loader_that_a_busy_device_hides_is_no_finding() -> None:
    # The host waits 600 µs for data while the device works through its queue.
    sim = Simulated()
    for i in range(4):
        at = i * 1_000
        sim.step(i, at, 1_000)
        sim.kernel("aten::linear", at, at + 12, 985)
        sim.label(SINGLE, at + 200, 600)
    assert _rules(sim) == set()


def test_the_function_of_a_line_that_runs_a_whole_training_is_none_that_loads() -> None:
    line = _line("trainer.fit(model)", 30, 100)
    for is_framework in (False, True):
        one = dataclasses.replace(line, function="main", is_framework=is_framework)
        diagnosis = _diagnosis(cpu_training(6, wait=870, loader=SINGLE), LineSamples((one,), 100))
        finding = _finding(diagnosis, "dataloader-no-workers")
        assert ("main()" in finding.what_to_do) is not is_framework


@pytest.mark.parametrize(
    ("mostly", "told"),
    [
        ("", True),
        ("draw (pictures/plot.py)", True),
        ("forward (torch/nn/modules/linear.py)", False),
        ("forward (bert/modeling.py)", False),
    ],
)
def test_a_line_that_calls_a_package_s_model_says_nothing(mostly: str, told: bool) -> None:
    line = _line("outputs = model(**batch)", 40, 100, waiting=False, library="bert")
    lines = LineSamples((dataclasses.replace(line, function="train", mostly=mostly),), 100)
    assert ("hottest-line" in _rules(cpu_training(6), lines)) is told


def test_python_of_which_no_line_was_seen_is_told_only_where_it_is_most_of_the_step() -> None:
    """It said that some function takes much of the step, and to look for it line by line."""
    for gap, told in ((600, False), (2_400, True)):
        sim = Simulated()
        for i in range(4):
            sim.step(i, i * 4_000, 4_000)
            sim.host("aten::linear", i * 4_000, 4_000 - gap - 100)
        seen = LineSamples((_line("loss.backward()", 40, 100, waiting=False),), 100)
        assert ("host-python" in _rules(sim, seen)) is told
        assert "host-python" in _rules(sim)  # nobody looked


def test_image_decoding() -> None:
    lines = LineSamples((_line("img = Image.open(path)", 30, 100),), 100)
    diagnosis = _diagnosis(cpu_training(6, wait=870, loader=SINGLE), lines)
    finding = _finding(diagnosis, "image-decode")
    assert finding.line == "data.py:9: img = Image.open(path)"
    assert finding.gain_at_most == pytest.approx(1 / 0.7)
    assert [f.rule for f in diagnosis.findings] == ["dataloader-no-workers", "image-decode"]


@pytest.mark.parametrize(
    ("text", "library", "waiting", "fires"),
    [
        ("return cv2.imread(path)", "data", True, True),
        ("return parse(path)", "data", True, False),
        ("img = Image.open(path)", "PIL", False, False),
    ],
)
def test_image_decoding_is_told_from_its_neighbours(
    text: str, library: str, waiting: bool, fires: bool
) -> None:
    lines = LineSamples((_line(text, 30, 100, waiting=waiting, library=library),), 100)
    rules = _rules(cpu_training(6, wait=870, loader=SINGLE), lines)
    assert ("image-decode" in rules) is fires


def test_lines_that_issue_no_operators_are_not_where_many_small_ones_come_from() -> None:
    sim = Simulated()
    for i in range(4):
        sim.step(i, i * 12_000, 12_000)
        for k in range(600):
            sim.host("aten::mul", i * 12_000 + k * 20, 8)
    lines = tuple(
        dataclasses.replace(_line(text, n, 100, waiting=False, library="__main__"), line=at)
        for at, (text, n) in enumerate(
            [("writer.writerows(self.metrics)", 60), ("y = f(x)", 30), ("loss.backward()", 10)]
        )
    )
    found = {f.rule: f for f in _diagnosis(sim, LineSamples(lines, 100)).findings}
    assert "writerows" not in (found["tiny-ops"].line or "")
    assert "metric" not in found["tiny-ops"].what_to_do
    assert "= torch.compile(" not in found["tiny-ops"].what_to_do  # of the training loop itself
    assert found[
        "slow-line"
    ].line == "data.py:0: writer.writerows(self.metrics)" or "writerows" in (
        found["slow-line"].line or ""
    )


def test_one_kind_on_several_lines_of_a_data_set_is_one_finding_instead_of_workers() -> None:
    """No line of the four has a third of the time, and workers would only share the work."""
    rows = (f'{name} = self.table.iloc[i]["{name}"]' for name in ("a", "b", "c", "d"))
    lines = tuple(
        dataclasses.replace(_line(text, 20, 100, library="data"), line=n)
        for n, text in enumerate(rows)
    )
    diagnosis = _diagnosis(cpu_training(6, wait=870, loader=SINGLE), LineSamples(lines, 100))
    (only,) = diagnosis.findings
    assert "pandas" in only.title
    assert "to_numpy" in only.what_to_do


def test_few_samples_name_no_line() -> None:
    lines = LineSamples((_line("img = Image.open(path)", 3, 5),), 5)
    diagnosis = _diagnosis(cpu_training(6, wait=870, loader=SINGLE), lines)
    assert [f.rule for f in diagnosis.findings] == ["dataloader-no-workers"]
    assert diagnosis.findings[0].line is None


# --- host ---------------------------------------------------------------------------------


def _sampled(sim: Simulated, inside: dict[str, int], outside: dict[str, int]) -> Diagnosis:
    """Lines by their text, with how often each was seen outside torch and elsewhere."""
    trace = load(sim.json())
    steps = find_steps(trace)
    gaps = Case(trace, steps, breakdown(trace, steps)).outside_of_torch
    longest = int(np.argmax(gaps.end - gaps.start))
    times = {
        "inside": int(gaps.start[longest] + gaps.end[longest]) // 2,
        "outside": int(gaps.end[longest] + gaps.start[longest + 1]) // 2,
    }
    n = sum(inside.values()) + sum(outside.values())
    found, taken = [], []
    for where, counts in (("inside", inside), ("outside", outside)):
        for text, count in counts.items():
            found.append(_line(text, count, n, waiting=False, library="__main__"))
            taken += [(times[where], len(found) - 1)] * count
    found = [dataclasses.replace(x, line=i) for i, x in enumerate(found)]
    return _diagnosis(sim, LineSamples(tuple(found), n, taken=tuple(taken)))


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("time.sleep(0.1)", "the step sleeps"),
        ("logger.info(loss)", "log(...)"),
        ('print(f"{step}")', "log(...)"),
        ("writer.add_scalar('loss', x)", "log(...)"),
        ("a = np.percentile(images, 5)", "DataLoader workers"),
        ("torch.save(model.state_dict(), path)", "torch.save"),
        ('picture = Image.open(path).convert("RGB").resize((8, 8))', "draft"),
        ("picture = cv2.imread(path)", "draft"),
        ("picture.save(path)", "torch.save"),
        ('with open(self.path, "w", newline="") as f:', r"open\(path, 'a'\)"),
        ("ema.update(model)", "moving average|_foreach_lerp_"),
        ("acc = accuracy(y, target)", "metric.update"),
        ("value = self.metric.compute()", "once, after the loop"),
        ("with zipfile.ZipFile(self.path) as z:", "at first use"),
        ("dist = MultivariateNormal(mean, cov)", "Independent"),
        ("logp = Normal(mean, std).log_prob(action)", "what need not be there"),
        ("loss = torch.log_softmax(x, 1) + math.log(3)", "what need not be there"),
        ("batch = random.sample(self.memory, 64)", "from a deque"),
        ("i = np.random.choice(self.size, 64, replace=False)", r"rng\.choice\(n, k"),
        ("i = torch.randperm(n)[:64]", r"torch\.randint"),
        ('x = Image.merge("HSV", parts).convert("RGB")', "crop and resize first"),
        ('picture = self.open(index).convert("RGB")', "draft"),  # PIL decodes as it converts
        ('y = self.frame.iloc[i]["label"]', "to_numpy"),
        ("(loss / 4).backward()", "fewer and larger operators in the forward pass"),
        ("(g,) = torch.autograd.grad(loss, x)", "fewer and larger operators in the forward pass"),
        ("rows = [f(x) for x in batch]", "what need not be there"),
    ],
)
def test_python_outside_of_torch_names_the_line_in_that_time(text: str, advice: str) -> None:
    # the line seen most often overall is another one, in torch's own time
    diagnosis = _sampled(cpu_training(6, python=850), {text: 12}, {"loss.backward()": 60})
    assert diagnosis.bound_by == "host"
    found = _finding(diagnosis, kind_of(_line(text, 1, 1, library="__main__"), trains=True).rule)
    assert found.line == f"data.py:9: {text}"
    assert "100 % of it (12 of 12 samples) is at data.py:9" in found.evidence[1]
    assert re.search(advice, found.what_to_do), found.what_to_do
    assert ("log(" in found.what_to_do) == ("log(" in advice)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("time.sleep(0.1)", "in a thread alongside the model"),
        ("logger.info(y)", "not each time"),
        ("torch.save(y, path)", "in a thread alongside the model"),
        ('picture = Image.open(path).convert("RGB")', "draft"),
        ("a = np.percentile(images, 5)", "DataLoader workers"),
        ("acc = accuracy(y, target)", "metric.compute()"),
        ("y = ema(x)", "what need not be there"),  # no average is updated here
        ("y = cutmix_free(x)", "what need not be there"),
        ("rows = [f(x) for x in batch]", "what need not be there"),
    ],
)
def test_a_line_of_an_inference_gets_no_advice_on_training(text: str, advice: str) -> None:
    """It was told to do it every fiftieth step, or once an epoch."""
    sim = Simulated()
    for i in range(6):
        sim.step(i, 2_000 * i, 2_000)
        sim.host("aten::linear", 2_000 * i, 1_000)
    diagnosis = _sampled(sim, {text: 12}, {"y = model(x)": 60})
    found = _finding(diagnosis, kind_of(_line(text, 1, 1, library="__main__"), trains=False).rule)
    assert found.line == f"data.py:9: {text}"
    assert advice in found.what_to_do
    assert not re.search(r"train|epoch|step %|optimizer|weights", found.what_to_do)
    ast.parse(found.what_to_do)


def test_python_inside_a_modules_forward_is_told_as_that() -> None:
    line = _line("y = [f(part) for part in x]", 9, 9, waiting=False, library="__main__")
    kind = kind_of(dataclasses.replace(line, function="forward"), trains=True)
    assert kind.words == "Python inside a module's forward"
    assert "one operation on the whole tensor" in kind.what_to_do
    assert kind_of(dataclasses.replace(line, function="train"), trains=True) is OTHER


def test_too_few_samples_in_that_time_name_no_line() -> None:
    diagnosis = _sampled(cpu_training(6, python=850), {"x()": 3}, {"loss.backward()": 60})
    found = _finding(diagnosis, "host-python")
    assert found.line is None
    assert found.what_to_do.startswith("# which code runs then?")


def test_numpy_between_small_operators_is_told_as_numpy() -> None:
    """x = x + np.random.rand(...) in a loop: all its gaps are short, and torch.compile no cure."""
    sim = Simulated()
    for i in range(4):
        sim.step(i, i * 2_500, 2_500)
        for k in range(10):
            sim.host("aten::mul", i * 2_500 + k * 250, 50)
    trace = load(sim.json())
    steps = find_steps(trace)
    gaps = Case(trace, steps, breakdown(trace, steps)).outside_of_torch
    middle = [int(a + b) // 2 for a, b in zip(gaps.start, gaps.end, strict=True)]
    numpy, python, other = (
        _line(text, n, 14, waiting=False, library="__main__")
        for text, n in (("x = x + np.random.rand(8)", 12), ("y = f(x)", 12), ("y = g(x)", 2))
    )

    def rules_of(first: Line, second: Line, third: Line | None = None) -> dict[str, Finding]:
        ends = np.cumsum([first.n_samples, second.n_samples])
        taken = tuple((middle[i], int((i >= ends).sum())) for i in range(14))
        lines = (
            first,
            dataclasses.replace(second, line=2),
            dataclasses.replace(third or other, line=3),
        )
        told = _diagnosis(sim, LineSamples(lines, 14, taken=taken))
        return {finding.rule: finding for finding in told.findings}

    found = rules_of(numpy, other)
    assert "small-calls" not in found
    assert found["host-python"].line == "data.py:9: x = x + np.random.rand(8)"
    assert "compile" not in found["host-python"].what_to_do
    # plain Python there is not known to be anything but the calls; so few have no place of theirs
    assert rules_of(python, other)["small-calls"].line is None
    # less than half of that time is in numpy
    some, more, rest = (
        dataclasses.replace(line, n_samples=n) for line, n in ((numpy, 6), (python, 5), (other, 3))
    )
    assert "small-calls" in rules_of(some, more, rest)
    assert "small-calls" not in rules_of(*(dataclasses.replace(numpy, n_samples=8), more))


def test_gaps_too_long_for_a_call_are_not_told_as_calls() -> None:
    def said(op: int, gap: int) -> str:
        sim = Simulated()
        for i in range(4):
            sim.step(i, i * 2_500, 2_500)
            for k in range(2_500 // (op + gap)):
                sim.host("aten::mul", i * 2_500 + k * (op + gap), op)
        found = _finding(_diagnosis(sim), "small-calls")
        return f"{found.title}: {found.evidence[1]}"

    assert "Calling small operators from Python" in said(30, 20)
    assert "Calling small operators from Python" in said(30, 43)
    assert "Calling small operators from Python" not in said(30, 57)
    long = said(50, 200)
    assert "half of that time in gaps of 200 µs or less" in long
    assert "Python between operators" in long


def test_calling_small_operators_is_no_logging() -> None:
    sim = Simulated()
    for i in range(4):
        sim.step(i, i * 2_500, 2_500)
        for k in range(50):
            sim.host("aten::mul", i * 2_500 + k * 50, 30)
    found = _finding(_diagnosis(sim), "small-calls")
    assert "log(" not in found.what_to_do
    assert "50 gaps a step" in found.evidence[1]
    assert "host-python" not in _rules(sim)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model_ema.update(model)", "EMA"),
        ("metrics.update(y, target)", "metrics"),
        ("decay = sum((p**2).sum() for p in model.parameters())", "a penalty on the weights"),
        ("d = a.unsqueeze(1) - b.unsqueeze(0)", "All pairs are subtracted"),
        ("d = a[:, None] - b[None]", "All pairs are subtracted"),
        ("rows = np.nonzero(np.array(self.ys) == c)[0]", "All labels are searched"),
    ],
)
def test_what_counts_as_forward_is_told_as_what_it_is(text: str, said: str) -> None:
    sim = cpu_training(6)
    trace = load(sim.json())
    steps = find_steps(trace)
    forward = Case(trace, steps, breakdown(trace, steps)).in_forward
    at = int(forward.start[0] + forward.end[0]) // 2
    lines = (
        dataclasses.replace(_line(text, 15, 40, waiting=False, library="__main__"), line=1),
        dataclasses.replace(_line("y = model(x)", 25, 40, waiting=False, library="torch"), line=2),
    )
    # most samples are of steps that were not recorded
    taken = ((at, 0),) * 2 + ((at, 1),) * 3
    told = _diagnosis(sim, LineSamples(lines, 40, taken=taken)).findings
    (found,) = (f for f in told if "15 line samples fall on such lines" in f.evidence[0])
    assert said in found.title
    shares = breakdown(trace, steps).shares()
    backward = shares["backward"] * (said not in ("EMA", "metrics"))
    assert found.gain_at_most == pytest.approx(
        1 / (1 - 15 / 40 * (shares["forward"] + backward)), abs=0.01
    )


@pytest.mark.parametrize("text", ["rows = torch.where(y == c)[0]", "x = np.where(self.y == 1)"])
def test_labels_of_a_batch_are_searched_each_time(text: str) -> None:
    line = _line(text, 9, 9, waiting=False, library="__main__")
    assert "All labels" not in kind_of(line, trains=True).title


@pytest.mark.parametrize(
    "path", ["torch_geometric/nn/conv/gcn_conv.py:9", "a/schema.py:1", "semantic.py:3"]
)
def test_a_name_that_only_looks_like_it_tells_nothing(path: str) -> None:
    line = dataclasses.replace(_line("y = f(x)", 9, 9, waiting=False), inner=path)
    assert beside_the_model(line, trains=True) is None


def test_a_busy_machine_hides_no_finding_and_bounds_none() -> None:
    """All that was lost to others may have been outside of the part that a finding is about."""
    trace = load(cpu_training(6, wait=4_000, loader=SINGLE).json())
    steps = find_steps(trace)
    split = breakdown(trace, steps)
    quiet = CpuContention(wall_s=2.0, n_cores=2, process_s=1.0, waited_s=0.0, others_s=0.1)
    told = [
        diagnose(Case(trace, steps, split), summarize(split.wall_ms), "simulated", busy=b)
        for b in (quiet, dataclasses.replace(quiet, waited_s=1.0, others_s=3.0))
    ]
    calm, busy = told
    assert not calm.doubts
    assert calm.headline.startswith("Data-bound")
    assert busy.sentence == calm.sentence
    assert busy.doubts[0].startswith("The machine was busy: other programs used 1.5 of 2 cores")
    (one,), (same,) = calm.findings, busy.findings
    assert one.rule == same.rule == "dataloader-no-workers"
    assert (one.has_bound, same.has_bound) == (True, False)
    assert same.gain_at_most == one.gain_at_most  # they are sorted by it


def test_a_line_that_costs_time_in_steps_and_outside_of_them_is_told_once() -> None:
    trace = load(cpu_training(6).json())
    split = breakdown(trace, find_steps(trace))
    inside = Finding("host-python", "A tensor is made", (), "", 3.0, "", line="a.py:1: x")
    rest = dataclasses.replace(inside, rule="outside-the-steps", gain_at_most=1.2)
    other = dataclasses.replace(rest, line="a.py:9: y")
    told = diagnose(
        Case(trace, find_steps(trace), split),
        summarize(split.wall_ms),
        "simulated",
        state=[rest, inside, other],
    )
    assert [f for f in told.findings if f.title == inside.title] == [inside, other]


def test_a_tensor_that_grows_is_told_before_the_memory_that_it_takes() -> None:
    """And what hooks that nobody removes keep is not told beside them."""
    sim = cpu_training(6)
    trace = load(sim.json())
    split = breakdown(trace, find_steps(trace))
    line = _line("self.all = torch.cat([self.all, new])", 30, 40, waiting=False, library="torch")
    kept = fact("tensors-kept", "metric.all keeps tensors of every step", (), "")
    hooks = fact("hooks-multiply", "Hooks multiply", (), "", acts_on=("forward",))

    def titles(*state: Finding) -> list[str]:
        case = Case(trace, find_steps(trace), split, lines=LineSamples((line,), 40))
        told = diagnose(case, summarize(split.wall_ms), "simulated", state=state)
        return [f.title for f in told.findings][: 1 + len(state)]

    grows, memory = titles(kept)
    assert (grows[:27], memory) == ("A tensor grows with every b", kept.title)
    assert kept.title not in titles(hooks, kept)


def test_a_little_steal_weakens_the_verdict_and_hides_no_finding() -> None:
    """A hypervisor that took 5.4 % of the cores' time hid every finding."""
    trace = load(cpu_training(6, wait=900, loader=SINGLE).json())
    split = breakdown(trace, find_steps(trace))
    stolen = CpuContention(2.0, 2, 2.0, waited_s=0.02, others_s=0.1, stolen_s=0.216)
    told = diagnose(
        Case(trace, find_steps(trace), split), summarize(split.wall_ms), "simulated", busy=stolen
    )
    assert told.findings
    assert told.doubts == (
        "The machine was a little busy: the hypervisor took 5.4 % of the cores' time away, so "
        "times are up to 12 % too long.",
    )
    assert told.headline.startswith("Data-bound")


def test_python_that_a_busy_device_hides_is_no_finding() -> None:
    sim = Simulated()
    for i in range(4):
        sim.step(i, i * 1_000, 1_000)
        sim.kernel("aten::linear", i * 1_000, i * 1_000 + 12, 985)
    assert _rules(sim) == set()


def test_python_before_an_idle_device_is_a_finding() -> None:
    diagnosis = _diagnosis(gpu_training(6, n_kernels=5, python=500))
    assert diagnosis.bound_by == "host"
    assert "host-python" in {f.rule for f in diagnosis.findings}


def _many_ops(n: int, each: float, gap: float) -> Simulated:
    sim = Simulated()
    for i in range(2):
        at = i * n * (each + gap)
        sim.step(i, at, n * (each + gap))
        for k in range(n):
            sim.host("aten::sub", at + k * (each + gap), each)
    return sim


def test_many_tiny_operations() -> None:
    diagnosis = _diagnosis(_many_ops(800, 5, 0.2))
    finding = _finding(diagnosis, "tiny-ops")
    assert finding.title.startswith("Many tiny operations")
    assert "800 operations" in finding.evidence[0]
    assert "aten::sub (800)" in finding.evidence[0]


def test_the_gain_of_tiny_operations_bounds_what_a_rewrite_of_the_loop_brings() -> None:
    sim = Simulated()
    for i in range(2):
        at = i * 20_000
        sim.step(i, at, 20_000)
        for k in range(600):  # in each round: a tiny one, a larger one, and Python between
            sim.host("aten::sub", at + 25 * k, 5)
            sim.host("aten::softmax", at + 25 * k + 6, 12)
        sim.host("aten::mm", at + 15_000, 5_000)
    finding = _finding(_diagnosis(sim), "tiny-ops")
    # the loop takes 15 of 20 ms: without it the step is four times as fast
    assert finding.gain_at_most == pytest.approx(4.0, rel=0.01)
    assert "15 %" in finding.evidence[0]
    assert finding.title == "Many tiny operations: calling them takes much of the step"


def test_time_between_tiny_operations_of_the_backward_pass_is_theirs() -> None:
    """As on a busy machine: the gaps are long, and the samples in them at ``loss.backward()``."""
    sim = Simulated()
    for i in range(4):
        sim.step(i, i * 10_000, 10_000)
        for k in range(1_000):
            sim.host("aten::sub", i * 10_000 + 5 * k + 2_000 * (k // 500), 4.9)
    told = _sampled(sim, {"loss.backward()": 12}, {"total = total + one(row)": 20}).findings
    (found,) = (f for f in told if f.rule in ("tiny-ops", "small-calls", "host-python"))
    assert found.line == "data.py:9: total = total + one(row)"
    assert "20 of 20 samples" in found.evidence[1]


def test_few_tiny_or_many_large_operations_are_fine() -> None:
    assert _rules(_many_ops(100, 5, 0.2)) == set()
    assert _rules(_many_ops(800, 50, 2)) == set()


def test_launch_bound() -> None:
    sim = Simulated()
    for i in range(4):
        sim.step(i, i * 1_000, 1_000)
        for k in range(10):
            at = i * 1_000 + k * 100
            external = sim.host("aten::linear", at, 95)
            sim.device("gemm", at + 60, 40, sim.call("cudaLaunchKernel", at + 50, 5, external))
    diagnosis = _diagnosis(sim)
    assert diagnosis.bound_by == "launch"
    finding = _finding(diagnosis, "launch-bound")
    assert "10 kernels per step" in finding.evidence[1]
    # as seen with a convolutional network on an H100: a step that is not profiled takes 0.45 ms of
    # 1 ms, so the device, which works 0.4 ms, hardly idles
    diagnosis = _diagnosis(sim, plain_ms=0.45)
    assert diagnosis.bound_by == "compute"
    assert diagnosis.sentence.startswith("Compute-bound: the device computes for 89 %")
    assert _diagnosis(sim, plain_ms=0.9).bound_by == "launch"


# --- transfers ----------------------------------------------------------------------------


def test_a_sync_that_empties_the_queue() -> None:
    sim = gpu_training(6, n_kernels=5, item=True, restart=200)
    diagnosis = _diagnosis(sim, facts=_adamw())
    finding = _finding(diagnosis, "sync")
    assert "1 sync per step" in finding.evidence[0]
    assert ".item()" in finding.evidence[0]
    assert "running" in finding.what_to_do
    assert diagnosis.bound_by == "sync"


def test_a_sync_names_the_users_line_not_the_librarys() -> None:
    sim = gpu_training(6, n_kernels=5, item=True, restart=200)
    for event in sim.events:
        if event["name"] == "aten::_local_scalar_dense":
            event["args"]["Call stack"] = "/x/site-packages/torch/t.py(7): f;train.py(43): step"
    assert _finding(_diagnosis(sim), "sync").line == "train.py:43 in step"


def test_a_sync_that_costs_nothing_is_no_finding() -> None:
    assert "sync" not in _rules(gpu_training(6, n_kernels=30, every=96, item=True))


def test_item_on_a_cpu_is_no_sync() -> None:
    sim = cpu_training(6)
    for i in range(6):
        sim.host("aten::item", 1_000 + i * 870 + 25, 3)
    assert _rules(sim) == set()


def test_pageable_copies() -> None:
    diagnosis = _diagnosis(
        gpu_training(6, n_kernels=5, copy="HtoD (Pageable -> Device)", copy_call=300)
    )
    finding = _finding(diagnosis, "pageable-copy")
    assert diagnosis.bound_by == "copy"
    assert finding.evidence[0].startswith("1 copy a step, 4.00 KiB: for 37 % of it")
    assert "pin_memory" in finding.what_to_do


def test_copies_that_waited_for_other_work_first_count_with_their_bytes() -> None:
    kind, sim = "HtoD (Pageable -> Device)", Simulated()
    for i in range(6):
        at = 1_000 + i * 2_300
        sim.copy(kind, at + 1, 300, at + 295, 5)
        sim.copy(kind, at + 310, 1_300, at + 1_604, 5)
        for k in range(5):
            sim.kernel("aten::linear", at + 1_620 + k * 10, at + 1_700 + k * 100, 95)
        sim.step(i, at, 2_300)
    diagnosis = _diagnosis(sim)
    evidence = _finding(diagnosis, "pageable-copy").evidence[0]
    assert evidence.startswith("2 copies a step, 8.00 KiB: for 13 % of it")


def test_pinned_copies_are_fine() -> None:
    sim = gpu_training(6, n_kernels=5, copy="HtoD (Pinned -> Device)", copy_call=300)
    assert "pageable-copy" not in _rules(sim)


# --- optimizer ----------------------------------------------------------------------------


def _update(op: str, n: int, each: float, zero: str = "", n_zero: int = 0) -> Simulated:
    """Steps of 1000 µs that end with an update of ``n`` ops and begin with zeroing."""
    sim = Simulated()
    for i in range(4):
        at = i * 1_000
        sim.step(i, at, 1_000)
        if zero:
            sim.label("Optimizer.zero_grad#AdamW.zero_grad", at, n_zero * 2)
            for k in range(n_zero):
                sim.host(zero, at + k * 2, 1)
        begin = at + 1_000 - n * each
        used = n_zero * 2 if zero else 0
        sim.host("aten::conv2d", at + used, begin - at - used)
        sim.label("Optimizer.step#AdamW.step", begin, n * each)
        for k in range(n):
            sim.host(op, begin + k * each, each - 0.5)
    return sim


def test_an_update_in_a_loop() -> None:
    diagnosis = _diagnosis(_update("aten::addcmul_", 100, 3), facts=_adamw())
    finding = _finding(diagnosis, "optimizer-loop")
    assert (
        "100 operations per step inside Optimizer.step for 4 parameter tensors"
        in (finding.evidence[0])
    )
    assert finding.what_to_do.endswith("AdamW(model.parameters(), ..., fused=True)")
    assert finding.gain_at_most == pytest.approx(1 / 0.7)


def test_the_line_that_makes_the_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the program that runs here; a file may be of any other."""
    script = tmp_path / "own.py"
    script.write_text("opt = optim.AdamW(\n    net.parameters(), lr=0.1\n)\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    of = _update("aten::addcmul_", 100, 3)
    here, elsewhere = (
        _finding(_diagnosis(of, facts=_adamw(), is_file=is_file), "optimizer-loop")
        for is_file in (False, True)
    )
    assert (here.line or "").startswith("own.py:1: opt = optim.AdamW(")
    assert here.what_to_do == "opt = optim.AdamW(net.parameters(), lr=0.1, fused=True)"
    assert elsewhere.line is None


@pytest.mark.parametrize(
    ("name", "option"),
    [("AdamW", "fused"), ("RMSprop", "foreach"), ("LBFGS", None), ("SparseAdam", None)],
)
def test_no_option_is_advised_that_the_optimizer_does_not_take(
    name: str, option: str | None
) -> None:
    facts = _adamw(name=name)
    found = _diagnosis(_update("aten::addcmul_", 100, 3), facts=facts).findings
    assert [f.rule for f in found] == (["optimizer-loop"] if option else [])
    assert all(f"{option}=True" in f.what_to_do for f in found)
    takes = inspect.signature(getattr(torch.optim, name)).parameters
    assert option is None or option in takes
    assert option is not None or "foreach" not in takes


@pytest.mark.parametrize(
    "op", ["aten::_foreach_addcmul_", "aten::_fused_adamw_", "aten::_sparse_coo_tensor_unsafe"]
)
def test_what_is_fused_or_cannot_be_is_no_loop(op: str) -> None:
    """With a sparse gradient, ``fused=True`` raises."""
    assert "optimizer-loop" not in _rules(_update(op, 100, 2))


def test_an_update_is_no_longer_than_all_steps_show() -> None:
    """Recording makes its many operators longer; 7 % are not worth the first place."""
    whole = {"data wait": 0.0, "optimizer": 0.07, "rest": 0.93}
    found = _diagnosis(_update("aten::addcmul_", 100, 3), facts=_adamw(), whole=whole).findings
    assert "optimizer-loop" not in {f.rule for f in found}


def test_a_short_loop_is_fine() -> None:
    assert _rules(_update("aten::addcmul_", 100, 0.8)) == set()


def test_a_large_update_that_is_fused_already() -> None:
    diagnosis = _diagnosis(_update("aten::_fused_adamw_", 1, 400))
    assert [f.rule for f in diagnosis.findings] == ["optimizer-share"]
    assert diagnosis.findings[0].gain_at_most == pytest.approx(1 / (1 - 0.4 + 0.4 / 4))
    assert _rules(_update("aten::_fused_adamw_", 1, 150)) == set()


@pytest.mark.parametrize(
    ("name", "op", "takes_us", "is_told"),
    [
        ("AdamW", "aten::_foreach_addcmul_", 100, True),
        ("AdamW", "aten::_foreach_addcmul_", 20, False),
        ("SGD", "aten::_foreach_add_", 100, False),  # one pass already
        ("AdamW", "aten::_fused_adamw_", 100, False),
    ],
)
def test_an_update_that_goes_over_memory_again_and_again_is_to_be_fused(
    name: str, op: str, takes_us: float, is_told: bool
) -> None:
    """On a device that is busy all the time: the host's share of the update is small."""
    sim = Simulated()
    for i in range(4):
        at = i * 1_000
        sim.step(i, at, 1_000)
        sim.kernel("aten::mm", at, at + 10, 990 - 3 * takes_us)
        sim.label(f"Optimizer.step#{name}.step", at + 100, 60)
        for k in range(3):
            sim.kernel(op, at + 110 + 15 * k, at + 1_000 - (3 - k) * takes_us, takes_us)
    found = [f for f in _diagnosis(sim).findings if f.rule == "optimizer-share"]
    assert [f.what_to_do for f in found] == [
        f"optimizer = torch.optim.{name}(model.parameters(), ..., fused=True)"
        "  # not with foreach=True"
    ] * is_told
    assert all(f.gain_at_most == pytest.approx(1 / 0.69, abs=0.02) for f in found)


@pytest.mark.parametrize("op", ["aten::addcmul_", "aten::_fused_adamw_"])
@pytest.mark.parametrize(("start", "dur"), [(590, 410), (650, 50)], ids=["hooks", "a closure"])
def test_an_update_that_is_one_with_the_backward_pass_gets_no_advice(
    op: str, start: int, dur: int
) -> None:
    """GaLore steps each weight in a hook: one optimizer for all of them would undo that."""
    sim = _update(op, 100, 4)
    for i in range(4):
        sim.host("autograd::engine::evaluate_function: X", i * 1_000 + start, dur)
    assert not [r for r in _rules(sim) if r.startswith("optimizer")]


def test_gradients_that_are_dropped_or_zeroed_quickly_are_fine() -> None:
    assert _rules(_update("aten::_fused_adamw_", 1, 50, "aten::detach", 50)) == set()
    assert _rules(_update("aten::_fused_adamw_", 1, 50, "aten::zero_", 10)) == set()


# --- precision and threads ----------------------------------------------------------------


def test_float64_on_a_cpu() -> None:
    found = _diagnosis(cpu_training(6), facts=_adamw(dtypes=("float64",)))
    assert _finding(found, "float64").gain_at_most == pytest.approx(1.96, abs=0.05)


def test_a_single_number_of_another_type_is_not_what_the_model_computes_in() -> None:
    """A temperature made by numpy beside networks in float32: "parameters are float64"."""
    scalar = torch.zeros(1, dtype=torch.float64, requires_grad=True)

    def told(n: int) -> bool:
        weights = torch.zeros(n, requires_grad=True)
        made = [optimizer_facts(torch.optim.SGD([x])) for x in (weights, scalar)]
        one = optimizer_facts(torch.optim.SGD([weights, scalar]))
        several = "float64" in _rules(cpu_training(6), facts=Facts(tuple(made), 2, 2))
        assert several == ("float64" in _rules(cpu_training(6), facts=Facts((one,), 2, 2)))
        return several

    assert told(1)
    assert not told(100)


def test_float64_on_a_device_is_told_by_its_kernels() -> None:
    sim = gpu_training(4, n_kernels=30, every=96)
    for event in sim.events:
        event["name"] = event["name"].replace("sgemm", "cutlass_80_tensorop_d884gemm_64x64")
    assert "float64" in _rules(sim)
    assert "float64" not in _rules(gpu_training(4, n_kernels=30, every=96))


@pytest.mark.parametrize(
    ("threads", "cores", "forward", "fires"),
    [(1, 4, 300, True), (4, 4, 300, False), (1, 1, 300, False), (None, None, 300, False)],
)
def test_one_thread_on_many_cores(
    threads: int | None, cores: int | None, forward: float, fires: bool
) -> None:
    facts = dataclasses.replace(_adamw(), n_threads=threads, n_cores=cores)
    rules = _rules(cpu_training(6, forward=forward), facts=facts)
    assert ("one-thread" in rules) is fires


def test_one_thread_is_enough_for_short_operations() -> None:
    facts = dataclasses.replace(_adamw(), n_threads=1, n_cores=4)
    assert "one-thread" not in _rules(_many_ops(100, 5, 0.2), facts=facts)


@pytest.mark.parametrize(
    ("threads", "cores", "fires"),
    [(8, 2, True), (2, 1, True), (2, 2, False), (1, 4, False), (None, 2, False), (2, None, False)],
)
def test_more_threads_than_cores(threads: int | None, cores: int | None, fires: bool) -> None:
    facts = dataclasses.replace(_adamw(), n_threads=threads, n_cores=cores)
    found = _diagnosis(cpu_training(6, forward=300), facts=facts)
    assert ("too-many-threads" in {f.rule for f in found.findings}) is fires
    if fires:
        finding = _finding(found, "too-many-threads")
        assert f"with {threads} threads on {cores} core" in finding.title
        assert f"torch.set_num_threads({cores})" in finding.what_to_do


def test_threads_matter_neither_to_short_operations_nor_to_a_device() -> None:
    facts = dataclasses.replace(_adamw(), n_threads=8, n_cores=2)
    assert "too-many-threads" not in _rules(_many_ops(100, 5, 0.2), facts=facts)
    gpu = gpu_training(4, n_kernels=30, every=96)
    assert "too-many-threads" not in _rules(gpu, facts=facts)


# --- all of them --------------------------------------------------------------------------


def test_communication_bound() -> None:
    sim = gpu_training(4, n_kernels=30, every=96)
    for event in sim.events:
        event["name"] = event["name"].replace("sgemm", "ncclDevKernel_AllReduce_Sum_f32")
    diagnosis = _diagnosis(sim)
    assert diagnosis.bound_by == "communication"
    assert diagnosis.sentence.startswith("Communication-bound: for 99.6 %")


def test_findings_are_ranked_by_what_they_can_bring() -> None:
    sim = cpu_training(6, wait=400, python=600, loader=SINGLE)
    gains = [f.gain_at_most for f in _diagnosis(sim).findings]
    assert len(gains) == 2
    assert gains == sorted(gains, reverse=True)


def test_every_finding_is_complete() -> None:
    sims = [
        cpu_training(6, wait=870, python=500, loader=SINGLE),
        gpu_training(6, n_kernels=5, item=True, restart=200),
        gpu_training(6, n_kernels=5, copy="HtoD (Pageable -> Device)", copy_call=300),
        _update("aten::addcmul_", 100, 3, "aten::zero_", 50),
        _many_ops(800, 5, 0.2),
    ]
    seen = set()
    for sim in sims:
        diagnosis = _diagnosis(sim, facts=_adamw())
        assert diagnosis.bound_by in BOUNDS
        for finding in diagnosis.findings:
            seen.add(finding.rule)
            assert finding.gain_at_most >= 1.05
            said = gain_words(finding.gain_at_most)
            assert said.removeprefix("at most ").removesuffix(" at best") in finding.formula
            assert finding.evidence
            assert all(any(c.isdigit() for c in e) for e in finding.evidence)
            compile(finding.what_to_do.replace("...", "**kwargs"), finding.rule, "exec")
            assert finding.to_dict()["rule"] == finding.rule
    assert len(seen) >= 6


# --- in words -----------------------------------------------------------------------------


def test_times_are_told_in_the_unit_that_reads_best() -> None:
    assert fmt_ms(152.49) == "152 ms"
    assert fmt_ms(43_425.4) == "43.4 s"
    assert fmt_ms(0.0731) == "73.1 µs"
    assert interval(4.67, 0.049, 9.29) == "4.67 ms [49.0 µs, 9.29 ms]"
    assert interval(43_425.4, 41_000, 45_000) == "43.4 s [41.0 s, 45.0 s]"


def test_a_bound_has_no_more_digits_than_it_can_carry() -> None:
    assert gain_words(1.42) == "at most 1.4×"
    assert gain_words(9.4) == "at most 9.4×"
    assert gain_words(26.3) == "over 10× at best"
    assert gain_words(1.0) == "no gain in time"


# --- the verdict --------------------------------------------------------------------------


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_every_rule_says_which_bounds_it_cures() -> None:
    """A verdict without a cure says so; a rule that does not say what it cures makes that wrong."""
    smaller = {"kept-graph", "train-mode"}  # they save no time
    cured: dict[str, tuple[str, ...]] = {}
    package = importlib.import_module("perfkit.advice.rules")
    files = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert NEEDS.keys() < files
    for module in (importlib.import_module(f"{package.__name__}.{file}") for file in files):
        for call in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                given = {k.arg: k.value for k in call.keywords}
                if call.func.id in ("Finding", "found"):
                    cures = [one.value for one in ast.walk(given["cures"]) if _is_text(one)]
                    names = [
                        one.value
                        for one in ast.walk((call.args or [given["rule"]])[0])
                        if _is_text(one)
                    ]
                    cured |= dict.fromkeys(names or RULE_OF_CAUSE.values(), tuple(cures))
    cured.pop("beside-the-model")  # by where the line is
    assert len(cured) >= 34
    assert {name for name, bounds in cured.items() if not bounds} == smaller
    assert set().union(*cured.values()) == set(BOUNDS)


def test_a_verdict_without_a_cure_says_so() -> None:
    healthy = _diagnosis(gpu_training(6, n_kernels=30, every=96), facts=_adamw())
    assert healthy.no_cure == "Nothing stands out: no rule of perfkit knows a cure for this."
    assert _diagnosis(cpu_training(6, wait=870, loader=SINGLE)).no_cure == ""
    # bound by its gaps; what is known is a cure for something smaller
    sim = gpu_training(6, n_kernels=5, item=True, restart=200)
    assert _diagnosis(sim).no_cure == ""


def test_gains_above_ten_are_not_told() -> None:
    diagnosis = _diagnosis(gpu_training(3, n_kernels=1, python=1_000_000))
    finding = _finding(diagnosis, "host-python")
    assert finding.gain_at_most == 10
    assert gain_words(finding.gain_at_most) == "over 10× at best"
    assert "1,000" not in finding.formula


def test_a_file_without_a_device_carries_no_gain() -> None:
    from perfkit import show
    from perfkit.advice.profile import explain

    profile = explain(load(cpu_training(6, wait=870, loader=SINGLE).json()))
    assert profile.diagnosis.findings
    assert {f.to_dict()["gain_at_most"] for f in profile.diagnosis.findings} == {None}
    assert "at most" not in show.text(profile)
    assert any("no device activity" in w for w in profile.warnings)


def test_who_replays_a_graph_is_not_told_to_use_graphs() -> None:
    def slow(call: str) -> Finding:
        sim = Simulated()
        for i in range(3):
            sim.step(i, i * 1_000, 1_000)
            for k in range(10):
                at = i * 1_000 + k * 100
                external = sim.host("aten::linear", at, 95)
                sim.device("gemm", at + 60, 30, sim.call(call, at + 50, 5, external))
        return _finding(_diagnosis(sim), "launch-bound")

    assert "reduce-overhead" in slow("cudaLaunchKernel").what_to_do
    assert "reduce-overhead" not in slow("cudaGraphLaunch").what_to_do


def test_host_collectives_have_their_own_verdict_and_cure() -> None:
    sim = Simulated()
    for i in range(6):
        at = 1_000.0 * i
        sim.step(i, at, 1_000)
        sim.host("aten::mm", at, 200)
        sim.label("gloo:all_reduce", at + 100, 850, tid=101)
    diagnosis = _diagnosis(sim)
    assert diagnosis.bound_by == "communication"
    assert "75 % of each step" in diagnosis.sentence
    assert diagnosis.findings[0].rule == "host-collectives"


def _sits_in_a_copy(*, queued: bool, count: int = 1) -> Simulated:
    """Steps of 470 ms; in each the host sits in a copy to the host while the device idles."""
    sim = Simulated()
    for i in range(count):
        at = 470_000.0 * i
        sim.step(i, at, 470_000)
        sim.kernel("aten::mm", at, at + 10, 40)
        if queued:
            launch = sim.call("hipLaunchKernel", at + 70, 10, sim.host("aten::relu", at + 60, 30))
            sim.device("relu", at + 463_050, 40, launch)
        copied = sim.call(
            "hipMemcpyWithStream", at + 101, 463_010, sim.host("aten::copy_", at + 100, 463_020)
        )
        sim.device("Memcpy DtoH (Device -> Host)", at + 463_095, 5, copied, "gpu_memcpy", bytes=256)
        sim.kernel("aten::mm", at + 463_200, at + 463_210, 6_000)
    return sim


def test_a_host_that_sits_in_a_copy_is_named_whatever_was_queued() -> None:
    """As in a trace of SGLang's decoding: a kernel was queued, and 463 ms later it began."""
    held = _diagnosis(_sits_in_a_copy(queued=True))
    assert held.bound_by == "gaps"
    assert held.verdict.endswith(" the device idles though work is queued.")  # not: idles, in all
    assert "the host sat in hipMemcpyWithStream for 463 ms" in held.sentence
    assert "does not show what held the device" in held.sentence
    assert [f.rule for f in held.findings] == ["held-device"]

    alone = _diagnosis(_sits_in_a_copy(queued=False))
    assert alone.bound_by == "sync"
    assert "it sat in hipMemcpyWithStream for 463 ms" in alone.sentence
    assert "the trace does not show what it waited for" in alone.sentence
    assert "the device idles" not in alone.sentence  # it may have worked: on what, is not recorded
    assert [f.rule for f in alone.findings] == ["sync"]

    several = _diagnosis(_sits_in_a_copy(queued=False, count=3))
    assert "hipMemcpyWithStream (3 calls, 1.39 s in all)" in several.sentence


def test_a_wait_that_the_code_asks_for_is_no_result_that_is_read() -> None:
    """As in vLLM before it captures a graph: a call of torch.cuda.synchronize()."""

    def waits(waiting: float, busy: float) -> Simulated:
        sim = Simulated()
        for i in range(3):
            at = 8_000.0 * i
            sim.step(i, at, 8_000)
            sim.kernel("aten::mm", at, at + 10, busy)
            sim.call("cudaDeviceSynchronize", at + 20, waiting)
            sim.kernel("aten::mm", at + 7_000, at + 7_010, 900)
        return sim

    shown = _diagnosis(waits(3_000, 2_990), facts=_adamw())
    (found,) = (f for f in shown.findings if f.rule == "sync")
    assert "asks to wait" in found.evidence[0]
    assert "detach" not in found.what_to_do
    assert "only a clock" in found.what_to_do
    unseen = _diagnosis(waits(6_900, 10))
    assert "the trace does not show what it waited for" in unseen.sentence


def test_many_short_waits_on_an_idle_device_are_no_unknown_work() -> None:
    """A call takes some µs to return: a thousand of them a step are no work from elsewhere."""
    sim = Simulated()
    sim.step(0, 0, 60_000)
    for i in range(1_000):
        sim.kernel("aten::mm", 60 * i, 60 * i + 8, 4)
        sim.item(60 * i + 13, 40)
    said = _diagnosis(sim)
    assert said.bound_by == "sync"
    assert "not show" not in said.sentence
    assert len(_finding(said, "sync").evidence) == 2


def test_waits_on_a_device_that_works_are_not_named() -> None:
    said = _diagnosis(gpu_training(6, n_kernels=5, item=True, restart=200)).sentence
    assert said.startswith("Partly sync-bound")
    assert "sat in" not in said


@pytest.mark.parametrize(
    ("called", "is_model"), [("torch.nn.modules.linear.forward", True), ("numpy.sort", False)]
)
def test_a_model_that_is_called_by_another_name_is_not_to_be_run_less(
    called: str, is_model: bool
) -> None:
    """``agent.get_action_and_value(x)``: "is its result needed each time? every 50th time"."""
    lines = tuple(
        Line("a.py", at, f"a.py:{at}", "get_action", f"y{at} = f(x)", 10, 0.1, False, "", called)
        for at in (3, 4, 5)
    )
    found = _diagnosis(cpu_training(6), LineSamples(lines, 100)).findings
    assert any("get_action()" in f.title for f in found) is not is_model


@pytest.mark.parametrize("loads", [True, False])
def test_what_a_data_set_does_for_each_item_is_not_to_be_done_every_50th_time(loads: bool) -> None:
    lines = tuple(
        Line("a.py", at, f"a.py:{at}", "clean", f"y{at} = f(x)", 10, 0.1, loads, "", "")
        for at in (3, 4, 5)
    )
    found = _diagnosis(cpu_training(6), LineSamples(lines, 100)).findings
    (told,) = (f for f in found if "clean()" in f.title)
    assert bool(told.what_to_do) is not loads
