"""``%torchprof`` in a real shell, on a real (tiny) training loop."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from IPython.core.error import UsageError

from perfkit.advice import profiling
from perfkit.advice.profile import Profile
from perfkit.show import RESULT_MIME
from perfkit.trace.read.load import load

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from conftest import Notebook, Shown

SETUP = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.rand(8, 32), torch.zeros(8, dtype=torch.long)
calls = 0

def train_step():
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()

def train(n):
    for _ in range(n):
        loss = train_step()
    return loss

def predict():
    global calls
    calls += 1
    return model(x).sum().item()
"""


@pytest.fixture
def kit(notebook: Notebook) -> Notebook:
    notebook.shell.run_line_magic("load_ext", "perfkit")
    assert notebook.run(SETUP).error is None
    return notebook


def profile_of(shown: Shown) -> dict[str, object]:
    """The numbers of the one report that this cell showed."""
    (bundle,) = shown.bundles
    numbers = bundle[RESULT_MIME]
    assert isinstance(numbers, dict)
    return numbers


def refused(shown: Shown, message: str) -> None:
    """One line on standard error, no traceback, nothing shown."""
    assert type(shown.error) is UsageError
    assert re.search(message, str(shown.error))
    assert shown.err == f"UsageError: {shown.error}\n"
    assert len(shown.err.splitlines()) == 1
    assert shown.bundles == ()


# ---- what it does ------------------------------------------------------------------------


def test_a_cell_is_profiled_for_its_steps_and_then_runs_on(kit: Notebook) -> None:
    shown = kit.run("%%torchprof -n 3\nlast = train(20)\nlast")
    assert shown.error is None
    assert kit.ns["calls"] == 20
    assert shown.result.result == kit.ns["last"]
    numbers = profile_of(shown)
    assert numbers["type"] == "profile"
    assert numbers["n_steps"] == 3
    assert sum(numbers["shares"].values()) == pytest.approx(1.0)
    assert numbers["cost"]["n_unprofiled"] > 0


SLEEPING_REPORT = """
import time
from perfkit.advice import profiling
explain = profiling.explain
def slowly(*args, **kwargs):
    time.sleep(3)
    told_after.append(calls)
    return explain(*args, **kwargs)
profiling.explain, told_after = slowly, []
"""


def test_a_long_cell_tells_its_report_while_it_runs_on_and_completes_it_at_the_end(
    kit: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told after step 120 of 120; what it takes to tell it is no time of the cell's."""
    monkeypatch.setattr("perfkit.magics.torchprof.has_front_end", lambda: True)
    monkeypatch.setattr("perfkit.advice.profiling._GOES_ON_S", 0.0)
    monkeypatch.setattr("perfkit.advice.profiling.explain", profiling.explain)  # put back
    kit.run(SLEEPING_REPORT)
    loop = "for _ in range(12):\n    time.sleep(0.03)\n    train_step()"
    shown = kit.run(f"%%torchprof -n 3 -w 2 -v -o found\n{loop}")
    assert shown.error is None
    first, last = (one["text/plain"] for one in shown.bundles)
    assert kit.ns["told_after"] == [5, 12]
    assert "Your code runs on" in first
    assert "Your code runs on" not in last
    assert "Profiled: 3 of 5 steps" in first
    assert "Profiled: 3 of 12 steps" in last
    assert "time.sleep(0.03)" in first
    assert "time.sleep(0.03)" in last
    found: Profile = kit.ns["found"]
    assert found.coverage is not None
    assert found.coverage.region_s < 3
    assert found.elsewhere is None or not found.elsewhere.is_worth_a_word
    assert found.cost.n_unprofiled == 7


def test_a_terminal_prints_the_report_once(kit: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfkit.advice.profiling._GOES_ON_S", 0.0)
    assert len(kit.run("%%torchprof -n 3\ntrain(12)").bundles) == 1


def test_a_report_that_fails_early_leaves_the_cell_alone(
    kit: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("no report")

    monkeypatch.setattr("perfkit.magics.torchprof.has_front_end", lambda: True)
    monkeypatch.setattr("perfkit.advice.profiling._GOES_ON_S", 0.0)
    monkeypatch.setattr("perfkit.advice.profiling.explain", fails)
    shown = kit.run("%%torchprof -n 3\ntrain(12)")
    assert kit.ns["calls"] == 12
    assert isinstance(shown.error, ValueError)


def test_an_evaluation_loop_has_a_step_a_batch(kit: Notebook) -> None:
    kit.run(
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "loader = DataLoader(TensorDataset(torch.rand(96, 32)), batch_size=8)\n"
        "large = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512)).eval()"
    )
    shown = kit.run(
        "%%torchprof\nwith torch.no_grad():\n    for (x,) in loader:\n        for _ in range(20):\n"
        "            large(x)"
    )
    assert shown.error is None
    numbers = profile_of(shown)
    assert numbers["n_steps"] == 96 // 8
    assert numbers["how_found"] == "fetches of the DataLoader"
    assert [step["name"] for step in numbers["steps"]][-1] == "batch 12"
    for step in numbers["steps"]:
        assert sum(step["host_us"].values()) == pytest.approx(step["wall_us"])
    words = " ".join(shown.bundles[0]["text/html"].replace("\xa0", " ").split())
    assert "12 steps profiled: " in words
    assert "found by fetches of the DataLoader" in words
    assert "optimizer step" not in words


def test_text_and_html_come_in_one_bundle(kit: Notebook) -> None:
    (bundle,) = kit.run("%%torchprof\ntrain(9)").bundles
    assert set(bundle) == {"text/plain", "text/html", RESULT_MIME}
    assert bundle["text/plain"].startswith(bundle[RESULT_MIME]["verdict"])
    assert bundle[RESULT_MIME]["verdict"] in html.unescape(bundle["text/html"]).replace("\xa0", " ")
    assert "aten::addmm" in bundle["text/html"]
    assert "measured here:" in bundle["text/plain"]
    assert "Profiling cost:" in bundle["text/html"]


def test_tables_come_with_verbose_text(kit: Notebook) -> None:
    (short,) = kit.run("%%torchprof -o found\ntrain(9)").bundles
    (whole,) = kit.run("%%torchprof -v\ntrain(9)").bundles
    assert "\nTop operators" not in short["text/plain"]
    assert "More with -v" in " ".join(short["text/plain"].split())
    assert "\nTop operators" in whole["text/plain"]
    assert "aten::addmm" in whole["text/plain"]
    assert "More with" not in whole["text/plain"]
    assert "aten::addmm" in kit.ns["found"].to_text()


def test_a_statement_of_one_step_is_repeated(kit: Notebook) -> None:
    numbers = profile_of(kit.run("%torchprof -n 4 -w 1 train_step()"))
    assert numbers["n_steps"] == 4
    assert kit.ns["calls"] == 1 + 4 + 3  # warm-up, profiled, unprofiled to know the cost
    assert numbers["cost"]["n_unprofiled"] == 3


def test_a_statement_without_optimizer_is_a_step_too(kit: Notebook) -> None:
    numbers = profile_of(kit.run("%torchprof -n 4 predict()"))
    assert numbers["n_steps"] == 4
    assert kit.ns["calls"] == 2 + 4 + 3


def test_a_statement_of_many_steps_runs_once(kit: Notebook) -> None:
    numbers = profile_of(kit.run("%torchprof -n 3 train(12)"))
    assert kit.ns["calls"] == 12
    assert numbers["n_steps"] == 3


@pytest.mark.parametrize("repeat", [1, 5])
def test_repeat_says_how_often(kit: Notebook, repeat: int) -> None:
    assert kit.run(f"%torchprof -r {repeat} train_step()").error is None
    assert kit.ns["calls"] == repeat


def test_a_slow_statement_is_not_repeated_for_long(
    kit: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.advice.profiling._REPEAT_FOR_S", -1.0)
    shown = kit.run("%torchprof train_step()")
    assert kit.ns["calls"] == 1
    assert len(shown.bundles) == 1


def test_the_value_of_a_repeated_statement_is_shown_once(kit: Notebook) -> None:
    shown = kit.run("%torchprof -q -n 2 predict()")
    assert shown.out.count("Out[") == 1
    assert kit.run("%torchprof -q -n 2 predict();").out == ""


def test_output_stores_the_result_and_quiet_shows_nothing(kit: Notebook) -> None:
    shown = kit.run("%torchprof -q -o result -n 2 train(8);")
    assert (shown.out, shown.err, shown.bundles) == ("", "", ())
    result = kit.ns["result"]
    assert isinstance(result, Profile)
    assert result.n_steps == 2
    assert "aten::addmm" in {one.name for one in result.operators}
    assert "pk-report" in result._repr_html_()


def test_text_and_data_are_written(kit: Notebook, tmp_path: Path) -> None:
    kit.run(f"%torchprof -q -n 2 -T {tmp_path}/p.txt -D {tmp_path}/t.json.gz train(8)")
    assert "measured here:" in (tmp_path / "p.txt").read_text(encoding="utf-8")
    trace = load(tmp_path / "t.json.gz")
    assert "aten::addmm" in trace.names
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.txt", "t.json.gz"]


def test_shapes_and_stacks_reach_the_trace(kit: Notebook, tmp_path: Path) -> None:
    kit.run(f"%torchprof -q -n 2 --shapes --stacks -D {tmp_path}/t.json train(8)")
    events = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]
    assert any(e.get("args", {}).get("Input Dims") for e in events)
    assert any(e.get("cat") == "python_function" for e in events)


def test_variables_stay_and_source_lines_are_those_of_the_cell(kit: Notebook) -> None:
    cell = (
        "%%torchprof -o p\nimport time\nfor i in range(9):\n    train_step()\n    time.sleep(0.05)"
    )
    shown = kit.run(cell)
    assert shown.error is None
    assert kit.ns["i"] == 8
    assert "time" in kit.ns
    numbers = {line.text: line.line for line in kit.ns["p"].lines.lines}
    assert numbers["time.sleep(0.05)"] == 5  # `%%torchprof` is line 1


def test_a_cell_that_prints_a_lot_keeps_its_output(kit: Notebook) -> None:
    shown = kit.run("%%torchprof\nfor i in range(2000):\n    print('line', i)\ntrain(4);")
    assert shown.out.count("line ") == 2000
    assert len(shown.bundles) == 1


def test_a_statement_in_a_function_sees_its_locals(kit: Notebook) -> None:
    shown = kit.run("def f():\n    many = 7\n    %torchprof -q -o p train(many)\nf()")
    assert shown.error is None
    assert kit.ns["calls"] == 7
    assert kit.ns["p"].n_steps > 0


def test_how_often_a_statement_ran_is_told(kit: Notebook) -> None:
    (bundle,) = kit.run("%torchprof -v -n 4 -w 1 train_step()").bundles
    text = " ".join(bundle["text/plain"].split())
    assert "Note: the step ran 8 times: warm-up, profiled, then unprofiled; `-r 1`" in text
    (bundle,) = kit.run("%torchprof train(12)").bundles
    assert "the step ran" not in bundle["text/plain"]


def test_a_cell_may_use_torchs_profiler_itself(kit: Notebook) -> None:
    shown = kit.run("%%torchprof\ntrain(4)\nwith torch.profiler.profile() as q:\n    train_step()")
    assert "a torch profiler of its own" in str(shown.error)
    assert any(e.name == "aten::addmm" for e in kit.ns["q"].events())


def test_relative_paths_are_those_before_the_cell(
    kit: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    kit.run("%%torchprof -q -T p.txt -D t.json\nimport os\nos.chdir('elsewhere')\ntrain(4);")
    assert {p.name for p in tmp_path.iterdir()} == {"p.txt", "t.json", "elsewhere"}
    assert list((tmp_path / "elsewhere").iterdir()) == []


# ---- where there is nothing to say -------------------------------------------------------


@pytest.mark.parametrize("cell", ["%%torchprof\nz = 3\nprint('hi')", "%torchprof len('abc')"])
def test_code_without_torch_gets_a_plain_answer(kit: Notebook, cell: str) -> None:
    shown = kit.run(cell)
    assert shown.error is None
    (bundle,) = shown.bundles
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/plain"].startswith("No torch operators ran in this thread, the only")


@pytest.mark.parametrize("work", ["train(4)", "predict()"])
def test_work_in_another_thread_is_told(kit: Notebook, work: str) -> None:
    (bundle,) = kit.run(
        "%%torchprof\nimport threading\n"
        f"t = threading.Thread(target=lambda: {work})\nt.start()\nt.join()"
    ).bundles
    text = " ".join(bundle["text/plain"].split())
    assert text.startswith("No torch operators ran in this thread, the only one that is recorded")
    assert ("4 optimizer steps ran in another thread" in text) == (work == "train(4)")


def test_a_cell_of_comments_gets_a_plain_answer(kit: Notebook) -> None:
    (bundle,) = kit.run("%%torchprof\n# later").bundles
    assert bundle == {"text/plain": "Nothing to profile: the cell holds no code."}


# ---- what goes wrong ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ValueError", "KeyboardInterrupt", "SystemExit"])
def test_the_users_exception_comes_after_what_was_recorded(kit: Notebook, kind: str) -> None:
    kit.run(f"the_error = {kind}('mine')")
    shown = kit.run("%%torchprof -n 3 -o p\ntrain(7)\nraise the_error")
    assert shown.error is kit.ns["the_error"]
    assert shown.error.__cause__ is None
    assert shown.error.__context__ is None
    assert profile_of(shown)["n_steps"] == 3
    assert kit.ns["p"].n_steps == 3
    told = f"the code raised {kind}; what was recorded until then is shown"
    assert kit.ns["p"].warnings[0] == told


def test_an_interrupt_in_the_middle_of_the_steps_shows_those_before(kit: Notebook) -> None:
    shown = kit.run("%%torchprof -n 6\ntrain(5)\nraise KeyboardInterrupt\n")
    assert isinstance(shown.error, KeyboardInterrupt)
    assert 0 < profile_of(shown)["n_steps"] < 6


def test_an_error_in_the_first_line_is_just_that_error(kit: Notebook) -> None:
    shown = kit.run("%%torchprof\nundefined_name")
    assert isinstance(shown.error, NameError)
    (bundle,) = shown.bundles
    assert bundle["text/plain"].startswith("No torch operators ran in this thread before it failed")


def test_an_error_while_repeating_stops_the_repeats(kit: Notebook) -> None:
    kit.run("def third_fails():\n    if train_step() and calls == 3:\n        raise OSError('3')")
    shown = kit.run("%torchprof third_fails()")
    assert isinstance(shown.error, OSError)
    assert kit.ns["calls"] == 3


def test_a_failing_report_does_not_hide_the_users_error(
    kit: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the report is broken")

    monkeypatch.setattr("perfkit.advice.profiling.explain", broken)
    shown = kit.run("%%torchprof\ntrain(3)\nraise ValueError('mine')")
    assert isinstance(shown.error, ValueError)
    assert isinstance(kit.run("%%torchprof\ntrain(3)").error, RuntimeError)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%torchprof --speed train_step()", "unrecognized arguments: --speed; %torchprof\\? shows"),
        ("%torchprof -n 0 train_step()", "-n 0: must be from 1 to 1000"),
        ("%torchprof -n -3 train_step()", "-n -3: must be from 1 to 1000"),
        ("%torchprof -n 1000000 train_step()", "-n 1000000: must be from 1 to 1000"),
        ("%torchprof -n many train_step()", "invalid int value: 'many'"),
        ("%torchprof -w -1 train_step()", "-w -1: must be from 0 to 1000"),
        ("%torchprof -r 0 train_step()", "-r 0: must be from 1 to 10000"),
        ("%torchprof", "nothing to profile: write a statement"),
        ("%torchprof -q", "nothing to profile: write a statement"),
        ("%torchprof -o 1x train_step()", "-o 1x: not a variable name"),
        ("%torchprof -T /no/such/dir/p.txt train_step()", "there is no directory '/no/such/dir'"),
        ("%torchprof -D trace.csv train_step()", "must end in .json or .json.gz"),
        ("%%torchprof -r 3\ntrain_step()", "-r: a cell runs once"),
        ("%%torchprof train_step()\ntrain_step()", "takes only flags on its first line"),
        ("%%torchprof\nawait train_step()", "top-level `await`"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_anything_runs(
    kit: Notebook, line: str, message: str
) -> None:
    refused(kit.run(line), message)
    assert kit.ns["calls"] == 0


def test_a_syntax_error_is_pythons(kit: Notebook) -> None:
    shown = kit.run("%%torchprof\ntrain(3)\nx = = 3")
    assert isinstance(shown.error, SyntaxError)
    assert shown.error.lineno == 3
    assert kit.ns["calls"] == 0
    assert shown.bundles == ()


def test_an_active_profiler_is_named_and_left_alone(kit: Notebook) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        refused(kit.run("%torchprof train_step()"), "a torch profiler is already active")
        assert torch._C._autograd._profiler_enabled()
    assert kit.ns["calls"] == 0


def test_torchprof_inside_of_torchprof_is_refused_and_the_outer_one_still_tells(
    kit: Notebook,
) -> None:
    shown = kit.run("%%torchprof\ntrain(4)\n%torchprof train_step()")
    assert type(shown.error) is UsageError
    assert "is already active in this process" in shown.err
    assert len(shown.err.splitlines()) == 1
    assert len(shown.bundles) == 1
    assert kit.ns["calls"] == 4


def test_a_full_disk_is_told_in_one_line(kit: Notebook, monkeypatch: pytest.MonkeyPatch,
                                         tmp_path: Path) -> None:  # fmt: skip
    def full(self: Profile, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Profile, "save", full)
    shown = kit.run(f"%torchprof -q -D {tmp_path}/t.json train(4)")
    assert type(shown.error) is UsageError
    assert "No space left on device" in shown.err
    assert list(tmp_path.iterdir()) == []


# ---- help, coming and going --------------------------------------------------------------


def test_help_names_every_flag(kit: Notebook) -> None:
    shown = kit.run("%torchprof?")
    text = shown.out + "".join(b.get("text/plain", "") for b in shown.bundles)
    for flag in ("-n", "-w", "-r", "-o", "-q", "-T", "-D", "--stacks", "--shapes"):
        assert flag in text, flag
    assert "Profile a few training steps" in text


def test_unload_takes_the_magic_away_and_load_brings_it_back(kit: Notebook) -> None:
    kit.shell.run_line_magic("unload_ext", "perfkit")
    assert kit.shell.find_line_magic("torchprof") is None
    assert kit.shell.find_cell_magic("torchprof") is None
    kit.shell.run_line_magic("load_ext", "perfkit")
    assert kit.run("%torchprof -q train(3)").error is None


def test_unload_leaves_a_magic_of_the_same_name_that_is_somebody_elses(kit: Notebook) -> None:
    kit.shell.register_magic_function(lambda line: "mine", "line", "torchprof")
    kit.shell.run_line_magic("unload_ext", "perfkit")
    assert kit.run("%torchprof x").result.result == "mine"


# ---- what it says is true of the whole cell ----------------------------------------------


@pytest.mark.serial
def test_slow_steps_after_the_recorded_ones_are_named_by_line(kit: Notebook) -> None:
    shown = kit.run(
        "%%torchprof -o p\nimport time\nfor i in range(31):\n    train_step()\n"
        "    if i % 10 == 9:\n        time.sleep(1.0)"
    )
    assert shown.error is None
    found = kit.ns["p"].elsewhere
    assert found.is_most
    assert found.stretches[0].source == "time.sleep(1.0)"
    assert found.stretches[0].place.endswith("line 6")
    words = " ".join(shown.bundles[0]["text/plain"].split())
    assert " of the time is in every 10th step. " in words
    assert "every 10th step" in words or "steps (" in words  # a loaded machine adds some


@pytest.mark.serial
def test_time_before_the_first_step_is_named_too(kit: Notebook) -> None:
    kit.run("%%torchprof -o p\nimport time\ntime.sleep(1.5)\ntrain(30)")
    found = kit.ns["p"].elsewhere
    assert found.stretches[0].when == "before the first step ended"
    assert found.stretches[0].source == "time.sleep(1.5)"


def test_a_small_statement_is_not_told_to_log_less(kit: Notebook) -> None:
    kit.run("deep = nn.Sequential(*[nn.Linear(8, 8) for _ in range(30)])\nz = torch.rand(2, 8)")
    kit.run("%torchprof -o p deep(z).sum().backward()")
    findings = kit.ns["p"].diagnosis.findings
    assert not [f for f in findings if "log(" in f.what_to_do]


def test_a_framework_that_ends_whichever_profiler_runs_does_no_harm(kit: Notebook) -> None:
    shown = kit.run(
        "%%torchprof -o p\ntrain(20)\ntorch.autograd._disable_profiler()\n"
        "with torch.profiler.profile() as q:\n    train_step()"
    )
    assert shown.error is None
    assert kit.ns["p"].n_steps == 6
    shown = kit.run(
        "%%torchprof -o p\ntrain(5)\nif torch.autograd._profiler_enabled():\n"
        "    torch.autograd._disable_profiler()\nwith torch.profiler.profile() as q:\n"
        "    train_step()"
    )
    assert "a torch profiler of its own" in str(shown.error)
    assert any(e.name == "aten::addmm" for e in kit.ns["q"].events())
