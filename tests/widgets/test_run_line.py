"""The line of a run: the page words it as Python does, and a page that is opened later has it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from javascript import says

from perfkit.measure.memory_looks import Footprint
from perfkit.measure.tracker import Update
from perfkit.show.progress_line import facts, progress, status
from perfkit.widgets import live_plot
from perfkit.widgets.live_plot import LivePlot, Series


def _update(**more: Any) -> Update:
    usual: dict[str, Any] = {
        "numbers": [1.0, 2.0], "step_ms": [20.0, 21.0], "wait_ms": [5.0, 5.0],
        "memory": Footprint(3 * 2**30, "allocated"), "epoch": 1, "done": 30, "total": 120,
        "elapsed_s": 60.0, "steps_per_s": 50.0, "samples_per_s": 1600.4, "wait_share": 0.25,
    }  # fmt: skip
    return Update(**(usual | more))


def _updates() -> Iterator[Update]:
    yield _update()
    yield _update(epoch=2, samples_per_s=None, wait_share=None, steps_per_s=None, total=None)
    yield _update(done=0, elapsed_s=0.0, steps_per_s=0.0, samples_per_s=0.0, wait_share=0.0)
    yield _update(done=121, wait_share=1.0)
    yield _update(total=0)
    yield _update(done=1, total=10**9, elapsed_s=7322.0, wait_share=0.00001)
    made = random.Random(0)
    for _ in range(300):
        yield _update(
            epoch=made.randint(1, 3),
            done=made.randint(0, 20_000),
            total=made.choice([None, made.randint(1, 20_000)]),
            steps_per_s=10 ** made.uniform(-4, 5),
            samples_per_s=10 ** made.uniform(-3, 8),
            wait_share=made.random(),
            memory=Footprint(
                int(10 ** made.uniform(0, 13)), made.choice(["allocated", "resident"])
            ),
            elapsed_s=10 ** made.uniform(-2, 6),
        )


def test_the_page_says_what_python_says(tmp_path: Path) -> None:
    source = Path(live_plot.__file__).parent / "js" / "src"
    for name in ("numbers", "run_line"):
        text = (source / f"{name}.js").read_text(encoding="utf-8").replace(".js", ".mjs")
        (tmp_path / f"{name}.mjs").write_text(text, encoding="utf-8")
    updates = list(_updates())
    (tmp_path / "say.mjs").write_text(
        'import { runLine } from "./run_line.mjs";\n'
        f"const said = {json.dumps([facts(u) for u in updates])}.map(runLine);\n"
        "console.log(JSON.stringify(said));\n",
        encoding="utf-8",
    )
    expected = [{"text": status(u), "progress": progress(u), "state": "running"} for u in updates]
    assert says(tmp_path / "say.mjs") == expected


@pytest.fixture
def plot() -> Iterator[LivePlot]:
    made = LivePlot([Series("step", "ms", "step")], title="training")
    yield made
    made.close()


def _push(plot: LivePlot, update: Update) -> None:
    plot.push_run(
        update.numbers, [update.step_ms], facts(update), lambda: (status(update), progress(update))
    )


def test_an_update_is_one_message_and_its_words_are_made_for_whom_opens_the_page(
    plot: LivePlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(plot, "send", lambda content, buffers: sent.append(content))
    monkeypatch.setattr(plot, "send_state", lambda key=None: pytest.fail("sent twice"))
    first, second = _update(), _update(done=31)
    _push(plot, first)
    _push(plot, second)
    assert [content["first"] for content in sent] == [0, 2]
    assert sent[1] == {"type": "points", "first": 2, "rows": 2, "facts": facts(second)}
    told = plot.get_state("status")["status"]
    assert told == {"text": status(second), "progress": progress(second), "state": "running"}
    _push(plot, _update(numbers=[], step_ms=[]))
    assert len(sent) == 2


def test_a_line_that_was_said_before_the_update_is_sent_again(
    plot: LivePlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the third epoch would begin with the line of the second one's end."""
    states: list[Any] = []
    for _ in range(2):
        plot.set_status("next epoch")
        with monkeypatch.context() as patched:
            patched.setattr(plot, "send_state", lambda key=None: states.append(plot.get_state(key)))
            _push(plot, _update())
            plot.set_status("next epoch")
    expected = {"text": "next epoch", "progress": None, "state": "running"}
    assert states == [{"status": expected}] * 2
    plot.finish("100 steps")
    assert plot.get_state("status")["status"]["text"] == "100 steps"
