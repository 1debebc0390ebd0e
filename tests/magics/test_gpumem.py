"""``%gpumem`` and ``%%gpumem`` in a real shell, with a tiny model."""

from __future__ import annotations

import gc
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.error import UsageError

from perfkit.memory.account import MemoryAccount
from perfkit.memory.live import MemoryNow
from perfkit.show import RESULT_MIME

if TYPE_CHECKING:
    from conftest import Notebook, Shown

SETUP = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(128, 64)

def step():
    optimizer.zero_grad()
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    return loss.item()
"""

PARAMETERS = (64 * 64 + 64 + 64 * 8 + 8) * 4


@pytest.fixture
def kit(notebook: Notebook) -> Notebook:
    gc.collect()  # what the cells of the test before left would go in the middle of this one
    notebook.shell.run_line_magic("load_ext", "perfkit")
    assert notebook.run(SETUP).error is None
    return notebook


def numbers(shown: Shown) -> dict[str, Any]:
    (bundle,) = shown.bundles
    assert {"text/plain", "text/html", RESULT_MIME} <= bundle.keys()
    data: dict[str, Any] = bundle[RESULT_MIME]
    return json.loads(json.dumps(data))  # type: ignore[no-any-return]


def gained(data: dict[str, Any], category: str) -> int:
    main = data["devices"][0]
    return int(main["at_end_bytes"][category] - main["at_start_bytes"][category])


def test_a_cell_is_counted_and_its_model_and_optimizer_are_found(kit: Notebook) -> None:
    shown = kit.run("%%gpumem\nlosses = [step() for _ in range(3)]\nlen(losses)")
    assert shown.error is None
    data = numbers(shown)
    assert data["type"] == "memory"
    assert data["n_steps"] == 3
    assert gained(data, "gradients") == PARAMETERS
    assert gained(data, "optimizer state") == 2 * PARAMETERS + 4 * 4
    assert data["peak_bytes"] == sum(data["at_peak_bytes"].values())
    assert shown.bundles[0]["text/plain"].startswith("Peak ")
    assert data["provenance"]["command"] == "%%gpumem"
    # the cell's value is shown as usual, and its variables stay
    assert "3" in shown.out
    assert len(kit.ns["losses"]) == 3


def test_a_statement_is_counted(kit: Notebook) -> None:
    data = numbers(kit.run("%gpumem out = model(x)"))
    assert kit.ns["out"].shape == (128, 8)
    # the sigmoid's output and the result
    assert gained(data, "activations") == 128 * 64 * 4 + 128 * 8 * 4


def test_inside_a_function_a_statement_sees_its_locals(kit: Notebook) -> None:
    cell = "def f():\n    n = 256\n    %gpumem -q -o seen torch.zeros(n)\nf()"
    assert kit.run(cell).error is None
    seen = kit.ns["seen"]
    assert seen.peak_bytes - seen.start_bytes == 1024


def test_without_a_statement_it_shows_what_is_alive(kit: Notebook) -> None:
    # larger than anything that other tests may have left in this process
    assert kit.run("rows, wide = torch.zeros(9_000_000), nn.Linear(3000, 3000)").error is None
    shown = kit.run("%gpumem -o state")
    data = numbers(shown)
    assert data["type"] == "memory now"
    assert isinstance(kit.ns["state"], MemoryNow)
    names = {tensor["name"] for tensor in data["biggest"]}
    assert {"rows", "wide.weight"} <= names
    assert "resident set " in shown.bundles[0]["text/plain"]


def test_flags_store_write_and_silence(kit: Notebook, tmp_path: Path) -> None:
    text, data = tmp_path / "a b.txt", tmp_path / "memory.json"
    shown = kit.run(f"%%gpumem -q -o result -T '{text}' -D {data}\nstep()")
    assert shown.error is None
    assert shown.bundles == ()
    result = kit.ns["result"]
    assert isinstance(result, MemoryAccount)
    assert text.read_text(encoding="utf-8") == f"{result.to_text()}\n"
    assert json.loads(data.read_text(encoding="utf-8")) == result.to_dict()


def test_counting_can_end_after_some_steps(kit: Notebook) -> None:
    shown = kit.run("%%gpumem -n 2\nlosses = [step() for _ in range(5)]")
    data = numbers(shown)
    assert (data["n_steps"], data["complete"]) == (2, False)
    assert shown.bundles[0]["text/plain"].startswith("First 2 optimizer steps: peak ")
    assert len(kit.ns["losses"]) == 5


def test_a_cell_without_torch_gets_a_plain_answer(kit: Notebook) -> None:
    shown = kit.run("%%gpumem\ntotal = sum(range(10))")
    assert shown.error is None
    assert kit.ns["total"] == 45
    assert shown.bundles[0]["text/plain"].startswith("No tensor was made or freed here")
    assert kit.run("%%gpumem\n# nothing").error is None


@pytest.mark.parametrize("kind", ["ValueError", "KeyboardInterrupt", "StopIteration"])
def test_exceptions_come_through_after_what_was_seen(kit: Notebook, kind: str) -> None:
    kit.run("raised = " + kind + "('mine')")
    shown = kit.run("%%gpumem\nkept = torch.zeros(256)\nraise raised")
    # run_cell tells a KeyboardInterrupt in words only
    assert shown.error is kit.ns["raised"] or kind == "KeyboardInterrupt"
    assert kind in shown.out + shown.err
    data = numbers(shown)
    assert data["ended_by"] == kind
    assert gained(data, "other") == 1024
    assert shown.bundles[0]["text/plain"].startswith(f"Until {kind}: peak ")


def test_the_traceback_shows_the_users_line_and_none_of_ours(kit: Notebook) -> None:
    shown = kit.run("%%gpumem\n\nboom = 1\nboom / 0")
    assert isinstance(shown.error, ZeroDivisionError)
    assert "boom / 0" in shown.out
    assert "accountant" not in shown.out


def test_a_magic_inside_a_magic(kit: Notebook) -> None:
    shown = kit.run("%%gpumem -o outer\nbig = torch.zeros(1024)\n%gpumem -o inner y = big + 1")
    assert shown.error is None
    assert kit.ns["inner"].left_behind_bytes == 4096
    assert kit.ns["outer"].left_behind_bytes == 2 * 4096


def test_it_counts_beside_torchprof(kit: Notebook) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown = kit.run("%%torchprof -q -n 1 -w 1\n%gpumem -q -o inner step()\nstep()\nstep()")
    assert shown.error is None
    assert kit.ns["inner"].n_steps == 1


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("%gpumem --nonsense", "unrecognized"),
        ("%gpumem -n 0 step()", "at least 1"),
        ("%gpumem -n many step()", "invalid int"),
        ("%gpumem -n 3", "give a statement"),
        ("%gpumem -o 3x step()", "not a variable name"),
        ("%gpumem -T /nonexistent/folder/file.txt step()", "no directory"),
        ("%gpumem -D result.csv step()", r"\.json"),
        ("%%gpumem step()\nstep()", "move it into the cell"),
    ],
)
def test_bad_flags_are_one_line_and_nothing_runs(kit: Notebook, cell: str, says: str) -> None:
    kit.run("def step():\n    raise AssertionError('it ran')")
    shown = kit.run(cell)
    assert isinstance(shown.error, UsageError)
    assert len(str(shown.error).splitlines()) == 1
    with pytest.raises(UsageError, match=says):
        raise shown.error


def test_a_syntax_error_shows_the_users_text_and_nothing_runs(kit: Notebook) -> None:
    shown = kit.run("%%gpumem\nran = True\nx ==(")
    assert isinstance(shown.error, SyntaxError)
    assert "ran" not in kit.ns


def test_the_help_names_the_flags(kit: Notebook) -> None:
    doc = kit.shell.find_line_magic("gpumem").__doc__
    for flag in ("-n", "-o", "-q", "-T", "-D"):
        assert flag in doc


def test_lines_of_a_function_can_be_watched(kit: Notebook) -> None:
    shown = kit.run("%gpumem -o seen -f step -f model step()")
    assert shown.error is None
    lines = [line.text for line in kit.ns["seen"].function_lines]
    assert "loss = model(x).sum()" in lines
    assert "loss.backward()" in lines
    for text in (shown.bundles[0]["text/plain"], shown.bundles[0]["text/html"]):
        assert "by line of what is watched" in text
    # modules are called by the user's names
    assert any(m.path.startswith("model.") for m in kit.ns["seen"].by_module)


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("%gpumem -f nothing step()", "no 'nothing' here"),
        ("%gpumem -f model.nothing step()", "Sequential has no 'nothing'"),
        ("%gpumem -f len step()", "'len' here"),
        ("%gpumem -f x step()", "no lines to watch"),
        ("%gpumem -f step", "give a statement"),
    ],
)
def test_what_cannot_be_watched_is_said(kit: Notebook, cell: str, says: str) -> None:
    error = kit.run(cell).error
    assert isinstance(error, UsageError)
    assert says in str(error)


def test_the_curve_has_words(kit: Notebook) -> None:
    page = kit.run("%gpumem step()").bundles[0]["text/html"]
    assert "<svg" in page
    assert 'aria-label="CPU tensors over the region' in page


def test_out_of_memory_is_explained_and_the_tensors_go(kit: Notebook) -> None:
    import gc
    import weakref

    kit.ns["refs"] = refs = []
    kit.ns["weakref"] = weakref
    kit.run(
        "def train():\n"
        "    big = torch.zeros(10_000)\n"
        "    refs.append(weakref.ref(big))\n"
        "    raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')"
    )
    shown = kit.run("%%gpumem\ntrain()")
    data = numbers(shown)
    assert data["out_of_memory"]
    assert shown.bundles[0]["text/plain"].startswith("Out of memory: an allocation of 2.00 GiB")
    # the user's error propagates, with its line
    assert type(shown.error).__name__ == "OutOfMemoryError"
    assert "raise torch.OutOfMemoryError" in shown.out
    gc.collect()
    assert refs[0]() is None


@pytest.fixture
def recording(kit: Notebook, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A recording of the allocator that a GPU would give (simulated); what was called."""
    from contextlib import contextmanager

    from perfkit.base.machine import stamp
    from perfkit.memory import history

    snapshot = {
        "segments": [
            {"device": 0, "total_size": 2**21, "allocated_size": 2**20, "segment_type": "small"}
        ],
        "device_traces": [
            [{"action": "segment_alloc", "size": 2**21}, {"action": "alloc", "size": 2**20}]
        ],
    }
    calls: list[str] = []

    @contextmanager
    def record() -> Any:
        recorded = history.Recorded()
        calls.append("start")
        try:
            yield recorded
        finally:
            calls.append("stop")
            recorded.history = history.history_of(
                snapshot, provenance=stamp("simulated", device="simulated")
            )

    monkeypatch.setattr(history, "record", record)
    return calls


def test_the_allocators_history_comes_below(
    kit: Notebook, recording: list[str], tmp_path: Path
) -> None:
    text, data = tmp_path / "memory.txt", tmp_path / "memory.json"
    shown = kit.run(f"%%gpumem --history -o mem -T {text} -D {data}\nstep()")
    assert shown.error is None
    assert recording == ["start", "stop"]
    account, history = shown.bundles
    assert account[RESULT_MIME]["type"] == "memory"
    assert history[RESULT_MIME]["type"] == "allocator history"
    assert "<svg" in history["text/html"]
    assert "1 cudaMalloc" in history["text/plain"]
    assert isinstance(kit.ns["mem"], MemoryAccount)
    assert kit.ns["mem_history"].n_cuda_mallocs == 1
    assert "1 cudaMalloc" in text.read_text()
    assert json.loads(data.read_text())["allocator_history"]["n_allocs"] == 1


def test_the_history_ends_with_an_error_too(kit: Notebook, recording: list[str]) -> None:
    shown = kit.run("%%gpumem --history\nstep()\n1 / 0")
    assert isinstance(shown.error, ZeroDivisionError)
    assert recording == ["start", "stop"]
    assert len(shown.bundles) == 2


def test_without_the_flag_nothing_is_recorded(kit: Notebook, recording: list[str]) -> None:
    assert len(kit.run("%gpumem step()").bundles) == 1
    assert recording == []


def test_a_history_that_cannot_be_read_hides_no_error(
    kit: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import contextmanager

    from perfkit.memory import history

    @contextmanager
    def record() -> Any:
        yield history.Recorded()
        raise RuntimeError("no snapshot")

    monkeypatch.setattr(history, "record", record)
    assert isinstance(kit.run("%%gpumem --history\n1 / 0").error, ZeroDivisionError)
    assert "no snapshot" in str(kit.run("%%gpumem --history\nstep()").error)


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("%%gpumem --history\nran = True", "needs a CUDA device"),
        ("%gpumem --history", "--history records a run"),
    ],
)
def test_what_cannot_be_recorded_is_said_before_the_code_runs(
    kit: Notebook, monkeypatch: pytest.MonkeyPatch, cell: str, says: str
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    error = kit.run(cell).error
    assert isinstance(error, UsageError)
    assert says in str(error)
    assert "\n" not in str(error)
    assert "ran" not in kit.ns
