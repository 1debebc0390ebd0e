"""A callable or a recording becomes a Profile that can be shown, tabulated and saved."""

from __future__ import annotations

import gzip
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from simulated_traces import SINGLE, cpu_training, gpu_training
from torch import nn

import perfkit
from perfkit import show
from perfkit.advice import Profile, explain
from perfkit.base.errors import UsageError
from perfkit.base.machine.cpu_contention import ContentionMark, CpuContention
from perfkit.measure.summary import summarize
from perfkit.trace import breakdown, load
from perfkit.trace.record.profiler import TorchProfiler
from tests.left_running import assert_nothing_runs


def _step() -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()


@pytest.fixture(scope="module")
def profile() -> Profile:
    return perfkit.profile(_step, steps=3, warmup=1)


@pytest.fixture(scope="module")
def from_file() -> Profile:
    return explain(load(gpu_training(4, wait=500).json()))


@pytest.mark.slow
def test_a_step_is_called_until_enough_are_profiled(profile: Profile) -> None:
    assert profile.n_steps == 3
    assert profile.step.n == 3
    assert profile.cost is not None
    assert (profile.cost.n_profiled, profile.cost.n_unprofiled) == (3, 3)
    assert profile.provenance.kind == "measured here"
    assert "measured here" in profile.diagnosis.sentence
    assert_nothing_runs()


def test_a_function_without_optimizer_is_one_step_per_call() -> None:
    calls = 0

    def forward() -> None:
        nonlocal calls
        calls += 1
        torch.randn(4, 4).sum()

    profile = perfkit.profile(forward, steps=3, warmup=2)
    assert profile.n_steps == 3
    assert calls == 3 + 2 + 3  # profiled, warm-up, unprofiled


def test_a_training_loop_is_called_once() -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = 0

    def loop() -> None:
        nonlocal calls
        calls += 1
        for _ in range(9):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()

    profile = perfkit.profile(loop, steps=4, warmup=2)
    assert (calls, profile.n_steps) == (1, 4)
    assert profile.cost is not None
    assert profile.cost.n_unprofiled == 3


@pytest.mark.slow
def test_several_batches_in_a_step_are_told() -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(160, 8)

    def loop(accumulate: int) -> None:
        for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=4), 1):
            model(x).sum().backward()
            if i % accumulate == 0:
                optimizer.step()

    told = "a step is one optimizer step: 4 batches of the DataLoader"
    assert told in perfkit.profile(lambda: loop(4), steps=3).warnings
    assert not [w for w in perfkit.profile(lambda: loop(1), steps=3).warnings if "batches" in w]


def test_what_is_covered_is_in_the_profile(profile: Profile, from_file: Profile) -> None:
    assert profile.coverage is not None
    assert profile.to_dict()["coverage"]["last_step"] == 4
    assert 0 < profile.to_dict()["coverage"]["share"] < 1
    for shown in (" ".join(profile.to_text().split()), profile._repr_html_()):
        assert "Profiled: 3 of 7 steps (steps 2–4)" in shown
    assert from_file.coverage is None


def test_notes_speak_of_steps(profile: Profile) -> None:
    shown = " ".join(profile.to_text().split())
    assert "only 3 steps: the interval is their whole range (75 %)" in shown
    assert "value" not in shown
    one = perfkit.profile(_step, steps=1).to_text()
    assert "One step profiled, so no interval" in one
    late = replace(profile, step=summarize([50.0, 10, 10, 10, 10, 10, 10]))
    assert "the median of the other steps: skip more steps first" in " ".join(
        late.to_text().split()
    )


def test_what_the_function_raises_passes() -> None:
    def broken() -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        perfkit.profile(broken)
    assert_nothing_runs()


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(UsageError, match="step is 3; give a function"):
        perfkit.profile(3)  # type: ignore[arg-type]


def test_a_real_loader_without_workers_is_found() -> None:
    class Slow(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> torch.Tensor:
            # long enough that cold first steps do not outweigh it on a busy machine
            return torch.linalg.svd(torch.ones(120, 120))[0][0]

    model = nn.Linear(120, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def epoch() -> None:
        for x in torch.utils.data.DataLoader(Slow(), batch_size=8):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

    diagnosis = perfkit.profile(epoch, steps=4).diagnosis
    assert diagnosis.bound_by == "data"
    assert "dataloader-no-workers" in [found.rule for found in diagnosis.findings]


@pytest.mark.slow
def test_a_real_healthy_step_has_no_finding() -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(2048, 512)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    diagnosis = perfkit.profile(step, steps=4).diagnosis
    assert diagnosis.bound_by == "compute"
    # how this machine is set up, and a first call that a busy one held up
    of_the_machine = {"one-thread", "outside-the-steps"}
    assert {f.rule for f in diagnosis.findings} <= of_the_machine


def test_a_profile_as_plain_data(profile: Profile, from_file: Profile) -> None:
    for each in (profile, from_file):
        data = json.loads(json.dumps(each.to_dict()))
        assert data["type"] == "profile"
        for step in data["steps"]:
            assert math.isclose(sum(step["host_us"].values()), step["wall_us"], rel_tol=1e-9)
    assert "device_us" not in profile.to_dict()["steps"][0]
    assert "device_us" in from_file.to_dict()["steps"][0]
    assert from_file.to_dict()["cost"] is None
    assert from_file.provenance.kind == "recorded"


@pytest.mark.parametrize("name", ["a.json", "b.json.gz"])
def test_a_saved_trace_tells_the_same(profile: Profile, tmp_path: Path, name: str) -> None:
    path = profile.save(tmp_path / name)
    assert breakdown(load(path)).steps == profile.breakdown.steps


_SECRET = "hf_" + "a1B2" * 9


@pytest.mark.parametrize("name", ["p.json", "p.json.gz", "p.txt", "p.html"])
def test_what_is_saved_is_scrubbed_unless_told_otherwise(tmp_path: Path, name: str) -> None:
    def step() -> None:
        with torch.profiler.record_function(f"/home/alice/run token={_SECRET}"):
            (torch.ones(64, 64) @ torch.ones(64, 64)).sum().item()

    made = perfkit.profile(step, steps=2, warmup=0, lines=False)
    made = replace(made, warnings=(*made.warnings, "/home/alice/run is slow"))

    def words(path: Path) -> str:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()

    clean = words(made.save(tmp_path / name))
    assert "alice" not in clean
    assert _SECRET not in clean
    assert "/home/[user]/run" in clean
    assert "alice" in words(made.save(tmp_path / f"as-it-is-{name}", scrub=False))
    if ".json" in name:
        again = load(tmp_path / name)
        assert len(again) == len(made.trace)
        assert load(tmp_path / f"as-it-is-{name}").names == made.trace.names
        assert breakdown(again).steps == made.breakdown.steps


def test_a_trace_that_is_no_clean_json_is_scrubbed_too(tmp_path: Path) -> None:
    made = perfkit.profile(lambda: torch.ones(8).sum(), steps=2, warmup=0, lines=False)
    broken = made.raw.replace(b"perfkit", b"/home/alice/x\x01 perfkit", 1)
    broken = broken.replace(b'"traceEvents": [', b'"traceEvents": [\x02', 1)
    made = replace(made, raw=broken + b"}")
    saved = made.save(tmp_path / "p.json").read_text()
    assert "alice" not in saved
    assert breakdown(load(tmp_path / "p.json")).steps == made.breakdown.steps


def test_saved_text_and_page(profile: Profile, tmp_path: Path) -> None:
    said = " ".join(profile.save(tmp_path / "p.txt").read_text().split())
    assert profile.diagnosis.sentence in said
    page = profile.save(tmp_path / "p.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page


def test_an_unknown_ending_is_refused(profile: Profile, from_file: Profile, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"take one of \.txt, \.md, \.html, \.json"):
        profile.save(tmp_path / "p.pdf")
    with pytest.raises(UsageError, match="not recorded here"):
        from_file.save(tmp_path / "p.json")
    assert list(tmp_path.iterdir()) == []


def test_hostile_names_are_text_in_the_page() -> None:
    sim = cpu_training(4, wait=900, loader=SINGLE)
    for i in range(4):
        sim.host('<img src=x onerror="alert(1)">', 1_000 + i * 1_770 + 930, 200)
    html = explain(load(sim.json()))._repr_html_()
    assert "<img src=x" not in html
    assert "&lt;img src=x" in html


def _traced(run: Callable[[], None], folder: Path) -> Profile:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        run()
    path = folder / "trace.json"
    recorded.export_chrome_trace(str(path))
    return explain(load(path))


def test_a_training_loop_without_an_optimizer_says_how_many_passes_it_has(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    data = torch.randn(30, 16, 64)

    def train() -> None:
        for i in range(30):
            model.zero_grad()
            model(data[i]).square().mean().backward()
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-0.01)

    found = _traced(train, tmp_path)
    assert any("30 backward passes" in warning for warning in found.breakdown.warnings)


def _by_hand(model: torch.nn.Module, n: int) -> None:
    """A training loop without an optimizer object."""
    for _ in range(n):
        model(torch.rand(32, 64)).sum().backward()
        for p in model.parameters():
            p.grad = None


def test_that_no_step_was_found_is_the_headline_with_what_to_do() -> None:
    model = torch.nn.Linear(64, 64)
    with perfkit.profile() as p:
        for _ in range(2):
            _by_hand(model, 1)
        for _ in range(50):  # small operators: there is something to find
            model(torch.rand(1, 64)).relu_()
    said = p.result.diagnosis.headline
    assert (
        "No step was found: in this thread no optimizer stepped and no batch of a DataLoader made"
        in said
    )
    assert "%torchprof train_step()" in said
    text = " ".join(p.to_text().split())
    assert "2 backward passes are in it" in text
    assert "One step profiled" not in text
    assert p.to_dict()["first"][-1].startswith("No step was found")


def test_without_a_step_no_figure_is_per_step() -> None:
    model = torch.nn.Linear(64, 64)
    with perfkit.profile() as p:
        for _ in range(300):
            x = model(torch.rand(1, 64))
            for i in range(8):
                x[0, i].item()
    findings = p.result.diagnosis.findings
    assert findings  # of Python, of small operators, of a loop over elements
    said = [p.result.diagnosis.headline.partition("as one piece")[2]]
    said += [words for f in findings for words in (f.title, *f.evidence, f.formula)]
    said += [show.text(p.result), show.markdown(p.result), show.html(p.result)]
    for text in said:
        text = re.sub(r"No step was found.*?train_step\(\)", "", " ".join(text.split()))
        text = re.sub(r"<style.*?</style>", "", text)
        assert not re.search(r"(of|per|each|a|every|the) step\b", text, re.IGNORECASE), text


def test_a_loop_without_an_optimizer_steps_by_its_backward_passes() -> None:
    model = torch.nn.Linear(64, 64)
    _by_hand(model, 3)
    with perfkit.profile(max_seconds=600) as p:
        _by_hand(model, 200)
    assert p.result.n_steps == 199  # the first one began with the region
    assert p.result.breakdown.how_found == "ends of backward passes"
    assert "a step here is one backward pass: no optimizer was seen" in p.result.warnings
    assert "No step was found" not in p.to_text()
    assert not p.result.is_piece


def test_passes_before_an_optimizer_steps_are_no_steps() -> None:
    """Accumulation: what is recorded before the warm-up is over has one optimizer step in it."""
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with perfkit.profile() as p:
        _by_hand(model, 20)
        optimizer.step()
    assert "a step here is one backward pass: no optimizer was seen" not in p.result.warnings


def test_code_that_is_called_as_a_step_is_one() -> None:
    model = torch.nn.Linear(64, 64)
    result = perfkit.profile(lambda: _by_hand(model, 1), repeat=1)
    assert "No step was found" not in result.diagnosis.headline
    with perfkit.profile() as p:
        for batch in torch.utils.data.DataLoader(torch.rand(1600, 64), batch_size=16):
            model(batch)
    assert "No step was found" not in p.result.diagnosis.headline


def test_what_perfkit_does_around_a_region_is_no_time_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five passes of 3 ms were told as 29 ms, 95 % of it Python: perfkit's own end was in them."""
    model = torch.nn.Linear(64, 64)
    marks: list[str] = []
    until_now, close = ContentionMark.until_now, TorchProfiler.close_mark

    def looks(self: ContentionMark) -> CpuContention:
        marks.append("busy")
        return until_now(self)

    def closes(self: TorchProfiler) -> None:
        if self._mark is not None:
            marks.append("closed")
        close(self)

    monkeypatch.setattr(ContentionMark, "until_now", looks)
    monkeypatch.setattr(TorchProfiler, "close_mark", closes)
    with perfkit.profile() as p:
        _by_hand(model, 5)
    assert marks == ["closed", "busy"]
    assert p.result.coverage is not None
    assert p.result.coverage.profiled_s <= p.result.coverage.region_s


# In a process of its own: where no optimizer has ever been made.
_PASSES = """\
import torch, perfkit
net, x, calls = torch.nn.Linear(4, 2), torch.randn(8, 4), []

def step():
    calls.append(1)
    for part in x.chunk(4):
        net(part).square().mean().backward()

print(perfkit.profile(step, steps=3, warmup=1).n_steps, len(calls) > 3)
"""


@pytest.mark.slow
def test_a_call_is_a_step_however_many_backward_passes_it_has() -> None:
    done = subprocess.run([sys.executable, "-c", _PASSES], capture_output=True, text=True)
    assert done.stdout == "3 True\n", done.stderr
