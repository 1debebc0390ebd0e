"""The Lab without a browser or child process: what it says, sends and keeps."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from _fake_session import FakeSession
from torch.utils.data import DataLoader, TensorDataset

from perfkit.base.errors import SettingError, UsageError, WorkloadFailedError
from perfkit.base.progress import Progress
from perfkit.experiment.compare import _cancel
from perfkit.experiment.process.events import Points
from perfkit.experiment.process.phase_means import PhaseMeans
from perfkit.experiment.settings import setting
from perfkit.widgets import lab as lab_module
from perfkit.widgets._cell import Execution
from perfkit.widgets.lab import Lab

WORKERS = setting("num_workers", [0, 2, 4])
SETTINGS = [WORKERS, setting("cached", [False, True]), "pin_memory"]


def train(settings: Any) -> Iterator[None]:
    yield


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Lab]]:
    monkeypatch.setattr(lab_module, "Session", FakeSession)
    labs: list[Lab] = []

    def make_(settings: Any = SETTINGS, workload: Any = train, **options: Any) -> Lab:
        labs.append(Lab(workload, settings, **options))
        return labs[-1]

    yield make_
    for lab in labs:
        lab.close()


def sent_by(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], list[Any]]]:
    sent: list[tuple[dict[str, Any], list[Any]]] = []
    monkeypatch.setattr(lab, "send", lambda content, buffers=(): sent.append((content, buffers)))
    return sent


def click(lab: Lab, **content: Any) -> None:
    lab._handle_custom_msg(content, [])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited 60 s in vain"
        time.sleep(0.005)


def session(lab: Lab) -> FakeSession:
    return lab._session  # type: ignore[return-value]


def test_run_returns_the_result_and_moves_the_toggles(make: Callable[..., Lab]) -> None:
    lab = make()
    result = lab.run(num_workers=2)
    assert result.values == {"num_workers": 2, "cached": False, "pin_memory": False}
    assert lab.choice == {"num_workers": 1, "cached": 0, "pin_memory": 0}
    assert lab.runs == (result,)


def test_other_settings_stand_as_the_last_run_left_them(make: Callable[..., Lab]) -> None:
    lab = make()
    lab.run(num_workers=2)
    assert lab.run(cached=True).values["num_workers"] == 2


def test_table_says_what_changed_and_the_ratio_to_run_1(make: Callable[..., Lab]) -> None:
    lab = make()
    assert lab.origin == ""
    lab.run()
    assert lab.origin == lab.runs[0].provenance.sentence()
    assert lab.status["line"].startswith("Run 1 · ")
    told = "Run 1: num_workers 0, cached off, pin_memory off · "
    assert lab.status["shared"].startswith(told), "a picture has no table beside it"
    lab.run(num_workers=2)
    first, second = lab.rows
    assert first["changed"]["text"] == "num_workers 0, cached off, pin_memory off"
    assert second["changed"]["text"] == "num_workers 0 → 2"
    # 40.3 against 10.3 ms, means of the fixed ripple
    assert second["ratio"]["text"] == "3.92×"
    # one after the other is not a comparison
    assert (second["ratio"]["kind"], second["ratio"]["detail"]) == ("unconfirmed", "unconfirmed")
    assert first["peak"]["text"] == "300 MiB"
    assert first["peak"]["title"] == "resident memory, with workers"
    # the ratio is that of the figures beside it: a median may order runs the other way round
    assert [row["step"]["text"] for row in lab.rows] == ["40.3 ms", "10.3 ms"]
    assert second["step"]["detail"] == "median\u00a010.3\u00a0ms"
    assert "over 30 quiet steps" in second["step"]["title"]
    assert "median 10.3 ms, 95 % interval [10.1, 10.4] ms" in second["step"]["title"]
    assert lab.status["line"].endswith("· 3.92× the speed of run 1, unconfirmed")


def test_another_batch_size_is_compared_by_samples(
    make: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = make()
    session(lab).rate = 800.0
    lab.run()
    lab.run(num_workers=2)  # a quarter of the samples in a quarter of the time
    assert lab.rows[1]["ratio"]["text"] == "1.00×"
    assert "per sample" in lab.rows[1]["ratio"]["detail"]
    assert "1.00× per sample, unconfirmed" in str(lab)
    exported = json.loads(lab.save(tmp_path / "lab.json").read_text())
    assert exported["runs"][0]["speed"] is None
    assert exported["runs"][1]["speed"]["per"] == "sample"
    assert exported["runs"][1]["speed"]["ratio"] == pytest.approx(1.0)
    assert "mean time per step" in exported["speed"]
    assert "mean time per step" in lab.save(tmp_path / "lab.md").read_text()


def test_runs_with_the_same_settings_are_called_faster_by_nothing(make: Callable[..., Lab]) -> None:
    lab = make()
    lab.run()
    lab.run()
    assert lab.rows[1]["ratio"]["kind"] == "same settings"
    assert lab.rows[1]["changed"]["text"] == "as run 1"
    assert lab.status["line"].startswith("Run 2: the settings of run 1 · ")


@pytest.mark.parametrize("state", ["failed", "out of memory", "hung", "killed"])
def test_a_failed_run_is_shown_and_the_lab_goes_on(make: Callable[..., Lab], state: Any) -> None:
    lab = make()
    session(lab).finish_at_once = False
    lab.start()
    session(lab).finish(state, "batch 3 <b>broke</b>", "Traceback …\nValueError")
    row = lab.rows[0]
    assert (row["state"], row["message"]) == (state, "batch 3 <b>broke</b>")
    assert row["traceback"].endswith("ValueError")
    assert row["ratio"]["text"] == "–"
    assert lab.status["busy"] is False
    assert "&lt;b&gt;broke" in lab._static_bundle()["text/html"]
    session(lab).finish_at_once = True
    assert lab.run().state == "done"


def test_unknown_setting_lists_those_that_exist(make: Callable[..., Lab]) -> None:
    with pytest.raises(SettingError, match="num_workers, cached, pin_memory"):
        make().run(colour="red")


def test_a_lab_that_cannot_be_made_says_one_thing_only(capsys: Any) -> None:
    with pytest.raises(SettingError, match="num_worker"):
        Lab(train, ["num_worker"])
    gc.collect()
    assert capsys.readouterr().err == ""


def test_points_travel_as_one_buffer_of_float32_columns(
    make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make()
    session(lab).finish_at_once = False
    sent = sent_by(lab, monkeypatch)
    lab.start(num_workers=2)
    session(lab).steps(3)
    kinds = [content["type"] for content, _ in sent]
    assert kinds == ["run", "ghost", "points"]
    content, buffers = sent[2]
    assert content == {"type": "points", "run": 1, "first": 0, "rows": 3}
    seconds, step, wait, memory, quiet = np.frombuffer(buffers[0], np.float32).reshape(5, 3)
    assert step.tolist() == pytest.approx([10.0, 10.1, 10.2])
    assert wait.tolist() == pytest.approx([5.0, 5.05, 5.1])
    assert seconds.tolist() == pytest.approx([0.0100, 0.0201, 0.0303])
    assert memory.tolist() == [300, 300, 300]
    assert quiet.tolist() == [1, 1, 1]


def test_points_are_sent_at_most_twice_a_second_and_none_is_lost(
    make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make()
    session(lab).finish_at_once = False
    now = [100.0]
    monkeypatch.setattr(lab_module.time, "monotonic", lambda: now[0])
    sent = sent_by(lab, monkeypatch)
    lab.start()
    for _ in range(40):  # 4 s of steps, ten messages a second from the child
        now[0] += 0.1
        session(lab).steps(2)
    session(lab).finish()
    batches = [content["rows"] for content, _ in sent if content["type"] == "points"]
    assert sum(batches) == 80
    assert len(batches) <= 4 / 0.5 + 2


def test_gaps_between_points_take_their_time(make: Callable[..., Lab]) -> None:
    lab = make()
    session(lab).finish_at_once = False
    lab.start()
    two = np.array([20.0, 20.0])
    memory, quiet = np.zeros(2, np.int64), np.zeros(2, bool)
    lab._take(Points(1, np.array([0, 10]), two, two, memory, quiet))
    lab._flush()
    assert lab._live is not None
    rows = lab._live.history.rows()
    assert rows[:, 0].tolist() == pytest.approx([0.02, 0.22])
    assert np.isnan(rows[:, 3]).all()  # 0 bytes is "not read", no curve at zero


def test_state_holds_live_and_ghost_for_a_page_that_reloads(make: Callable[..., Lab]) -> None:
    lab = make()
    lab.run()
    lab.run(num_workers=2)
    curves = lab.get_state("curves")["curves"]
    assert (curves["live"]["run"], curves["ghost"]["run"]) == (2, 1)
    assert curves["live"]["total"] == 30
    assert len(curves["live"]["data"]) == 30 * 5 * 4
    assert struct.unpack("<f", curves["ghost"]["data"][30 * 4 : 31 * 4]) == (40.0,)


def test_first_click_on_a_toggle_chooses_the_next_ones_run(make: Callable[..., Lab]) -> None:
    lab = make()
    click(lab, type="set", name="num_workers", index=1)
    until(lambda: lab.choice["num_workers"] == 1)
    assert lab.runs == ()
    click(lab, type="start")
    until(lambda: len(lab.runs) == 1)
    click(lab, type="set", name="cached", index=1)
    until(lambda: len(lab.runs) == 2)
    assert lab.runs[1].values == {"num_workers": 2, "cached": True, "pin_memory": False}


def test_a_toggle_during_a_run_ends_it_and_starts_the_next(make: Callable[..., Lab]) -> None:
    lab = make()
    session(lab).finish_at_once = False
    lab.start()
    session(lab).steps(5)
    click(lab, type="set", name="cached", index=1)
    until(lambda: session(lab)._run_id == 2)
    until(lambda: lab.status["state"] == "running")
    assert lab.runs[0].state == "stopped"
    assert lab.status["line"].startswith("Run 2: cached off → on")


def test_clicks_on_the_buttons(make: Callable[..., Lab]) -> None:
    lab = make()
    session(lab).finish_at_once = False
    click(lab, type="start")
    until(lambda: lab.status["state"] == "running")
    click(lab, type="pause")
    until(lambda: lab.status["state"] == "paused")
    click(lab, type="resume")
    until(lambda: lab.status["state"] == "running")
    click(lab, type="stop")
    until(lambda: lab.status["state"] == "stopped")
    assert session(lab).calls == ["pause", "resume", "stop"]


def test_an_unavailable_value_is_refused_in_words(make: Callable[..., Lab]) -> None:
    lab = make()
    values = next(one for one in lab.controls if one["name"] == "pin_memory")["values"]
    reason = values[1]["reason"]
    if reason is None:
        pytest.skip("this machine can pin memory")
    click(lab, type="set", name="pin_memory", index=1)
    until(lambda: lab.warning != "")
    assert reason in lab.warning
    assert lab.runs == ()


def test_a_value_from_run_that_the_control_lacks_takes_its_place(make: Callable[..., Lab]) -> None:
    lab = make(["num_workers"])
    lab.run(num_workers=3)
    control = lab.controls[0]
    assert [value["label"] for value in control["values"]] == ["0", "1", "2", "3", "4", "8"]
    assert lab.choice == {"num_workers": 3}


def test_a_footnote_says_once_how_a_run_ended(make: Callable[..., Lab]) -> None:
    lab = make()
    session(lab).finish_at_once = False
    lab.start()
    session(lab).finish("out of memory", "out of memory: MemoryError")
    assert "run 1 out of memory: MemoryError" in str(lab)


def test_a_second_lab_refuses_while_the_first_runs(make: Callable[..., Lab]) -> None:
    one, two = make(title="one"), make(title="two")
    session(one).finish_at_once = False
    one.start()
    with pytest.raises(UsageError, match="another Lab \\('one'\\) was running"):
        two.run()
    click(two, type="start")
    until(lambda: "another Lab ('one')" in two.warning)
    one.stop()
    assert two.run().state == "done"


def test_an_error_in_our_own_code_is_shown_under_the_widget(
    make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make()

    def broken(*_args: Any) -> None:
        raise RuntimeError("no picture today")

    monkeypatch.setattr(lab, "_picture_later", broken)
    lab.run()
    assert lab.problem.startswith("error in the kernel: RuntimeError: no picture today\n")


def test_interrupting_run_stops_it_and_comes_through(make: Callable[..., Lab]) -> None:
    lab = make()
    session(lab).finish_at_once = False

    def interrupted(timeout_s: float | None = None) -> None:
        raise KeyboardInterrupt

    session(lab).wait = interrupted  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        lab.run()
    assert lab.status["state"] == "stopped"


def test_export_writes_picture_numbers_and_table(make: Callable[..., Lab], tmp_path: Path) -> None:
    lab = make()
    lab.run()
    lab.run(num_workers=2)
    assert lab.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads(lab.save(tmp_path / "a.json").read_text())
    assert [run["values"]["num_workers"] for run in numbers["runs"]] == [0, 2]
    table = lab.save(tmp_path / "a.md").read_text()
    assert "| 2 | done |" in table
    assert "num\\_workers 0 → 2 |" in table
    with pytest.raises(UsageError, match=r"a\.docx.*\.png, \.json or \.md"):
        lab.save(tmp_path / "a.docx")


def test_where_a_steps_time_goes_is_in_the_row_and_in_the_files(
    make: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = make()
    lab.run()
    (row,) = lab.rows
    parts = {part["phase"]: round(part["share"], 3) for part in row["phases"]["parts"]}
    assert parts == {"data_wait": 0.5, "forward": 0.167, "backward": 0.333}
    assert row["phases"]["words"] == (
        "data wait 20.0 ms (50 %), forward 6.67 ms (17 %), backward 13.3 ms (33 %); means of "
        "steps while the plot was drawn, host time (20 steps)"
    )
    table = lab.save(tmp_path / "a.md").read_text()
    assert "| 1 | 20 | 20.0 ms | 6.67 ms | 13.3 ms |" in table
    numbers = json.loads(lab.save(tmp_path / "a.json").read_text())
    assert numbers["runs"][0]["phases"]["n_steps"] == 20
    assert numbers["runs"][0]["phases"]["ms"]["data_wait"] == 20.0


def test_where_the_time_was_not_seen_the_row_says_why(make: Callable[..., Lab]) -> None:
    lab = make()
    session(lab).phases = PhaseMeans(why_not="the workload has compiled code")
    lab.run()
    (row,) = lab.rows
    assert row["phases"] == {
        "parts": [], "words": "", "why_not": "the workload has compiled code"
    }  # fmt: skip
    assert "time goes" not in str(lab)
    session(lab).phases = None
    lab.run()  # and so does the text, beside a run that has the figures
    assert "run 1: where a step's time goes was not seen: the workload has comp" in (
        " ".join(str(lab).split())
    )


def test_export_before_the_first_run(make: Callable[..., Lab], tmp_path: Path) -> None:
    lab = make()
    assert lab.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "no run yet" in lab.save(tmp_path / "a.md").read_text()


def test_the_export_button_sends_a_file(
    make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make(title="my run/1")
    lab.run()
    sent = sent_by(lab, monkeypatch)
    click(lab, type="export", format="json")
    until(lambda: len(sent) == 2)
    assert sent[0][0] == {"type": "heard"}
    content, buffers = sent[1]
    assert content == {"type": "file", "name": "my-run-1.json", "mime": "application/json"}
    assert json.loads(buffers[0])["title"] == "my run/1"


def test_the_copy_button_gets_markdown_that_is_scrubbed(
    make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make(title="see /home/somebody/runs")
    lab.run()
    sent = sent_by(lab, monkeypatch)
    click(lab, type="export", format="copy")
    until(lambda: len(sent) == 2)
    content, buffers = sent[1]
    assert (content["copy"], content["mime"]) == (True, "text/markdown")
    said = buffers[0].decode()
    assert said.startswith("# see /home/")
    assert "| 1 | done |" in said
    assert "somebody" not in said


def test_what_stays_can_be_copied_and_turns_dark(
    make: Callable[..., Lab],
) -> None:
    lab = make()
    lab.run()
    page = lab._static_bundle(picture=b"png")["text/html"]
    assert page.count("Copy as Markdown</summary>") == 1
    assert "<td>done</td>" in page
    assert 'class="pk-drawn"' in page, "dark on a dark page"


def test_repr_is_stable_and_str_is_the_table(make: Callable[..., Lab]) -> None:
    lab = make()
    words = "Lab('train', settings=['num_workers', 'cached', 'pin_memory'])"
    assert (repr(lab), str(lab)) == (words, words + "\ntrain: no run yet.")
    lab.run()
    assert repr(lab) == words
    assert "num_workers 0, cached off" in str(lab)


def test_a_lab_without_a_name_has_no_empty_one(make: Callable[..., Lab]) -> None:
    """It was printed as "Lab('', settings=…)"."""

    def workload(settings: Any) -> Iterator[None]:
        yield

    lab = make(workload=workload)
    assert repr(lab) == "Lab(settings=['num_workers', 'cached', 'pin_memory'])"


def test_run_1_starts_from_the_values_of_the_users_loaders(make: Callable[..., Lab]) -> None:
    data = TensorDataset(torch.zeros(8))
    one = DataLoader(data, batch_size=48, num_workers=2)
    other = DataLoader(data, batch_size=48, num_workers=1)

    def trains(settings: Any) -> Iterator[Any]:
        yield from DataLoader(one.dataset, **settings.loader_kwargs())

    def torn(settings: Any) -> Iterator[Any]:
        yield from (one, other)

    settings = ["num_workers", "batch_size"]
    assert make(settings, workload=trains).run().values == {"num_workers": 2, "batch_size": 48}
    values = make(settings, workload=torn).run().values
    assert values == {"num_workers": 0, "batch_size": 48}, "they do not agree on the workers"


def test_close_ends_session_and_thread_once(make: Callable[..., Lab]) -> None:
    lab = make()
    click(lab, type="start")
    until(lambda: len(lab.runs) == 1)
    lab.close()
    lab.close()
    assert session(lab).closed == 1
    until(lambda: all(thread.name != "perfkit-lab" for thread in threading.enumerate()))
    with pytest.raises(UsageError, match="closed"):
        lab.run()


def test_the_session_ends_with_the_interpreter() -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from _fake_session import FakeSession
from perfkit.widgets import lab
class Told(FakeSession):
    def close(self):
        print("closed", flush=True)
lab.Session = Told
kept = lab.Lab(print, ["num_workers"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("closed\n", "")


def test_events_do_not_keep_a_lab_alive(make: Callable[..., Lab]) -> None:
    lab = make()
    closures = [cell.cell_contents for cell in session(lab).on_event.__closure__ or ()]
    assert not any(one is lab for one in closures)
    gc.collect()


@pytest.mark.parametrize(
    "place", ["no/such/x.png", "device.json", "x" * 300 + ".md", "a\0.md", None, "", 5]
)
def test_an_export_to_an_impossible_place_is_told_before_drawing(
    make: Callable[..., Lab], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(Lab, "_png", lambda lab, title: drawn.append("png") or b"")
    os.mkfifo(tmp_path / "device.json")
    target = tmp_path / place if isinstance(place, str) and place else place
    with pytest.raises(UsageError, match=r"^cannot (save|write)") as caught:
        make().save(target)
    assert "\n" not in str(caught.value)
    assert drawn == []
    assert (tmp_path / "device.json").is_fifo()


def test_a_closed_lab_shows_its_table(
    make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    import IPython.display

    lab = make()
    lab.run()
    lab.close()
    shown: list[Any] = []
    monkeypatch.setattr(lab_module, "has_front_end", lambda: True)
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: shown.append(data))
    lab._ipython_display_()
    (bundle,) = shown
    assert "mean step" in bundle["text/html"]
    assert "pk-static" not in bundle["text/html"]
    assert "mean step" in bundle["text/plain"]


def test_a_wrong_argument_leaves_nothing_to_complain_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with pytest.raises(TypeError, match="foo"):
        Lab(train, foo=1)  # type: ignore[call-arg]
    gc.collect()
    assert ignored == []


def test_the_panel_has_the_words_and_the_name(make: Callable[..., Lab]) -> None:
    lab = make(["num_workers", "batch_size", setting("cached", [False, True])])
    labels = [one["label"] for one in lab.controls]
    assert labels == ["DataLoader workers (num_workers)", "Batch size", "Cached"]


def test_a_workload_called_workload_is_no_title(
    make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert make().title == "train"
    monkeypatch.setattr(train, "__name__", "workload")
    lab = make()
    assert lab.title == ""
    assert lab.file_stem == "lab"
    assert lab.save(tmp_path / "lab.md").read_text().startswith("# Lab\n")
    assert make(title="workload").title == "workload"


# --- pin ----------------------------------------------------------------------------------------


def test_everything_refers_to_the_pinned_run(
    make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make()
    lab.run()
    lab.run(num_workers=2)
    lab.run(num_workers=4)
    sent = sent_by(lab, monkeypatch)
    click(lab, type="pin", run=2)
    until(lambda: "run 2 is pinned" in lab.status["line"])
    assert [row["pinned"] for row in lab.rows] == [False, True, False]
    assert lab.rows[0]["changed"]["text"] == "num_workers 2 → 0"
    assert lab.rows[1]["changed"]["text"] == "num_workers 2, cached off, pin_memory off"
    assert lab.rows[2]["changed"]["text"] == "num_workers 2 → 4"
    assert lab.rows[0]["ratio"]["text"] == "0.255×"
    assert lab.rows[1]["ratio"] | {"why": ""} == {
        "kind": "pinned",
        "value": None,
        "low": None,
        "high": None,
        "why": "",
        "text": "1×",
        "detail": "pinned",
        "title": "",
    }
    (ghost,) = [(content, buffers) for content, buffers in sent if content["type"] == "ghost"]
    assert (ghost[0]["run"], ghost[0]["rows"]) == (2, 30)
    steps = np.frombuffer(ghost[1][0], np.float32).reshape(5, 30)[1]
    assert steps[:2].tolist() == pytest.approx([10.0, 10.1])
    assert lab.status["line"].startswith("Run 3: num_workers 2 → 4 (run 2 is pinned) · ")
    assert lab.status["line"].endswith(" the speed of run 2, unconfirmed")
    curves = lab.get_state("curves")["curves"]
    assert (curves["live"]["run"], curves["ghost"]["run"]) == (3, 2)
    assert "2 (pinned)" in str(lab)
    exported = lab._content()
    assert exported["pinned"] == 2
    assert exported["runs"][0]["speed"]["against_run"] == 2
    lab.run(num_workers=0)
    assert lab.rows[3]["changed"]["text"] == "num_workers 2 → 0"
    assert lab.get_state("curves")["curves"]["ghost"]["run"] == 2


def test_the_line_never_mixes_two_baselines(make: Callable[..., Lab]) -> None:
    # 0 → 2 → 4 workers: the change and the ratio are both against run 1
    lab = make()
    lab.run()
    lab.run(num_workers=2)
    lab.run(num_workers=4)
    assert lab.status["line"].startswith("Run 3: num_workers 0 → 4 (run 1 is pinned) · ")
    assert "the speed of run 1" in lab.status["line"]


def test_only_a_measured_run_can_be_pinned(make: Callable[..., Lab]) -> None:
    lab = make()
    with pytest.raises(UsageError, match="run 1 cannot be pinned: no run yet"):
        lab.pin(1)
    session(lab).finish_at_once = False
    lab.start()
    session(lab).finish("failed", "broken")
    session(lab).finish_at_once = True
    lab.run()
    with pytest.raises(UsageError, match=r"run 1 cannot be pinned: runs with .* are 2$"):
        lab.pin(1)
    with pytest.raises(UsageError, match=r"run array\(\[2, 2\]\) cannot be pinned"):
        lab.pin(np.array([2, 2]))  # type: ignore[arg-type]
    assert lab.rows[1]["pinned"], "the first that was measured is pinned from the start"
    assert (lab.rows[0]["pinnable"], lab.rows[1]["pinnable"]) == (False, True)


def test_a_pin_while_a_run_is_paused_changes_its_line(make: Callable[..., Lab]) -> None:
    lab = make()
    lab.run()
    lab.run(num_workers=2)
    session(lab).finish_at_once = False
    lab.start(num_workers=4)
    session(lab).steps(5)
    lab.pause()
    assert lab.status["line"].startswith("Run 3: num_workers 0 → 4 (run 1 is pinned) · ")
    lab.pin(2)
    assert lab.status["line"].startswith("Run 3: num_workers 2 → 4 (run 2 is pinned) · ")
    assert lab.status["state"] == "paused"
    lab.resume()
    lab.stop()
    assert lab.status["line"].endswith(" the speed of run 2, unconfirmed")


def test_the_pinned_run_alone_has_no_ghost(make: Callable[..., Lab]) -> None:
    lab = make()
    lab.run()
    assert lab.get_state("curves")["curves"]["ghost"] is None
    lab.run(num_workers=2)
    lab.pin(2)
    assert lab.get_state("curves")["curves"]["ghost"] is None


# --- Confirm ------------------------------------------------------------------------------------


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of ``perfkit.ab``, and its answer."""
    from perfkit.experiment.compare import ab as ab_module

    asked: dict[str, Any] = {"low": 3.8, "high": 4.0, "hold": None}

    def fake(workload: Any, a: Any, b: Any, **more: Any) -> Any:
        asked.update(workload=workload, a=a, b=b, more=more)
        told = Progress("run 1 | run 2", more["say"])
        for low, high in ((3.0, 5.0), (3.6, 4.2)):
            told.line("3 blocks, ratio 3.900", left_s=9.0, interval=(low, high))
        while asked["hold"] is not None and not asked["hold"].is_set():
            _cancel.raise_if_cancelled()
            time.sleep(0.005)
        return SimpleNamespace(
            ratio=(asked["low"] + min(asked["high"], 4)) / 2,
            low=asked["low"],
            high=asked["high"],
            per="step",
            blocks=(None,) * 8,
            sentence="'run 2' is 3.90× as fast as 'run 1'.",
            warnings=("the machine was busy",),
            to_dict=lambda: {"sentence": "…"},
        )

    monkeypatch.setattr(ab_module, "ab", fake)
    return asked


def test_the_limits_of_a_step_hold_for_runs_and_for_confirm(
    make: Callable[..., Lab], answers: dict[str, Any]
) -> None:
    """What a hung run advises to raise can be raised."""
    limits_s = {"step_timeout_s": 90.0, "start_timeout_s": 600.0}
    lab = make(**limits_s)
    lab.run()
    lab.run(num_workers=2)
    lab.confirm(2)
    assert session(lab).timeouts_s == limits_s
    assert {name: answers["more"][name] for name in limits_s} == limits_s


def test_confirm_puts_its_answer_into_the_table(
    make: Callable[..., Lab], answers: dict[str, Any]
) -> None:
    lab = make()
    lab.run()
    lab.run(num_workers=2)
    found = lab.confirm()
    assert found.ratio == pytest.approx(3.9)
    assert answers["workload"] == "packed", "the very code that the runs ran"
    assert (answers["a"]["num_workers"], answers["b"]["num_workers"]) == (0, 2)
    cell = lab.rows[1]["ratio"]
    assert (cell["kind"], cell["text"], cell["low"], cell["high"]) == ("confirmed", "3.90×", 3.8, 4)
    assert cell["detail"] == "faster [3.80,\u00a04.00]"
    assert lab.status["state"] == "done"
    assert lab.status["line"].endswith("· confirmed: faster than run 1, 3.90× [3.80, 4.00]")
    assert lab.rows[1]["notes"] == ["Confirm: the machine was busy"]
    assert "3.90× [3.80, 4.00]" in str(lab)
    # the same answer, read from the other side
    lab.pin(2)
    assert lab.rows[0]["ratio"]["kind"] == "confirmed"
    assert lab.rows[0]["ratio"]["detail"] == "slower [0.250,\u00a00.263]"
    assert lab._content()["confirmed"] == [{"sentence": "…"}]


def test_a_confirmed_loss_is_told_against_the_pinned_run(
    make: Callable[..., Lab], answers: dict[str, Any]
) -> None:
    answers.update(low=0.7, high=0.9)
    lab = make()
    lab.run()
    lab.run(num_workers=2)
    lab.confirm()
    cell, line = lab.rows[1]["ratio"], lab.status["line"]
    assert (cell["text"], cell["detail"]) == ("0.800×", "slower [0.700,\u00a00.900]")
    assert line.endswith("· confirmed: slower than run 1, 0.800× [0.700, 0.900]")


def test_confirm_that_sees_no_difference_says_so(
    make: Callable[..., Lab], answers: dict[str, Any]
) -> None:
    lab = make()
    lab.run()
    lab.run(num_workers=2)
    answers.update(low=0.98, high=1.04)
    lab.confirm(2)
    assert lab.rows[1]["ratio"]["detail"].startswith("no difference seen [0.98")


def test_a_comparison_that_tells_nothing_is_not_called_confirmed(
    make: Callable[..., Lab], answers: dict[str, Any]
) -> None:
    lab = make()
    lab.run()
    lab.run(num_workers=2)
    answers.update(low=0.8, high=1.4)
    lab.confirm(2)
    said = " ".join(str(lab).split())
    assert "run 2: compared with run 1: too unsteady to tell, 1.10× [0.800, 1.400]" in said


def test_confirm_with_too_few_blocks_confirms_nothing(
    make: Callable[..., Lab], answers: dict[str, Any]
) -> None:
    lab = make()
    lab.run()
    lab.run(num_workers=2)
    answers.update(low=0.0, high=float("inf"))
    lab.confirm(2, budget_s=10)
    assert answers["more"]["budget_s"] == 10
    assert lab.rows[1]["ratio"]["kind"] == "unconfirmed"
    assert (
        "Still unconfirmed: give it more time with lab.confirm(2, budget_s=20)"
        in (lab.status["line"])
    )


def test_confirm_takes_longer_for_slow_steps(
    make: Callable[..., Lab], answers: dict[str, Any]
) -> None:
    from perfkit.widgets._lab_confirm import budget_s_of

    lab = make()
    fast = lab.run()
    assert budget_s_of(fast, fast) == 30
    slow = dataclasses.replace(fast, step_ms=50 * fast.step_ms)  # 2 s a step
    assert budget_s_of(fast, slow) == 120
    long_start = dataclasses.replace(fast, first_point_s=9.0)
    assert budget_s_of(long_start, fast) > 60
    # but for a wait that no run of the comparison has: torch was still being loaded
    waited = dataclasses.replace(long_start, prepared_s=8.9)
    assert budget_s_of(waited, fast) == 30


def test_confirm_from_the_browser_and_stop(
    make: Callable[..., Lab], answers: dict[str, Any]
) -> None:
    lab = make()
    lab.run()
    lab.run(num_workers=2)
    answers["hold"] = threading.Event()
    click(lab, type="confirm", run=2)
    until(lambda: lab.status.get("picture"))
    assert lab.status["line"].endswith("alternating · 3 blocks, ratio 3.900 · about 9 s left")
    assert 0 < lab.status["progress"] < 1
    assert "3.60× to 4.20×" in lab.status["picture"], "how the interval has narrowed"
    assert (lab.status["state"], lab.status["busy"]) == ("confirming", True)
    click(lab, type="stop")
    until(lambda: lab.status["state"] == "stopped")
    assert lab.rows[1]["ratio"]["kind"] == "unconfirmed"
    assert "stopped before it had an answer" in lab.status["line"]
    # a run that is started meanwhile ends it, too
    click(lab, type="confirm", run=2)
    until(lambda: lab.status["state"] == "confirming")
    assert lab.run(cached=True).run_id == 3
    assert lab.status["state"] == "done"


def test_a_confirm_that_fails_says_why(
    make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    from perfkit.experiment.compare import ab as ab_module

    def failing(*_: Any, **__: Any) -> None:
        raise WorkloadFailedError("run 2: ValueError: broken", "")

    monkeypatch.setattr(ab_module, "ab", failing)
    lab = make()
    lab.run()
    lab.run(num_workers=2)
    with pytest.raises(WorkloadFailedError):
        lab.confirm()
    assert lab.status["state"] == "failed"
    assert "no answer: run 2: ValueError: broken" in lab.status["line"]


def test_nothing_to_confirm(make: Callable[..., Lab]) -> None:
    lab = make()
    with pytest.raises(UsageError, match="nothing to confirm"):
        lab.confirm()
    lab.run()
    with pytest.raises(UsageError, match="no second run beside the pinned one"):
        lab.confirm()
    with pytest.raises(UsageError, match="no run 7 beside"):
        lab.confirm(7)


# --- a new Lab of the same cell -----------------------------------------------------------------


def test_a_new_lab_of_the_same_cell_takes_over(
    make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [Execution("cell 3", "message 1")]
    monkeypatch.setattr(lab_module, "execution", lambda _: now[0])
    old = make()
    session(old).finish_at_once = False
    old.start()
    beside = make()
    with pytest.raises(UsageError, match="another Lab"):
        beside.run()  # two Labs of one execution are two Labs
    assert old.status["busy"]
    now[0] = Execution("cell 4", "message 2")
    make()
    assert old.status["busy"], "another cell's Lab leaves it alone"
    now[0] = Execution("cell 3", "message 3")
    new = make()
    assert old.status["state"] == "stopped"
    assert new.run().state == "done"


def test_a_new_lab_takes_over_from_one_that_cannot_stop(
    make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [Execution("cell 3", "message 1")]
    monkeypatch.setattr(lab_module, "execution", lambda _: now[0])
    old = make()
    session(old).finish_at_once = False
    old.start()
    monkeypatch.setattr(session(old), "stop", lambda: None)
    now[0] = Execution("cell 3", "message 2")
    assert make().run().state == "done"


# --- what stays ---------------------------------------------------------------------------------


def test_the_saved_table_has_the_run_before_its_end_is_shown(
    make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    import IPython.display

    lab = make()
    said: list[str] = []
    monkeypatch.setattr(lab_module, "has_front_end", lambda: True)
    monkeypatch.setattr(lab, "_picture_later", lambda board: None)
    monkeypatch.setattr(
        IPython.display, "update_display", lambda data, **_: said.append(data["text/plain"])
    )
    lab.observe(lambda change: said.append(change["new"]["state"]), "status")
    lab.run()
    table = next(i for i, text in enumerate(said) if "num_workers 0, cached off" in text)
    assert table < said.index("done")


def test_a_picture_that_is_late_does_not_take_the_next_runs_table_away(
    make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first picture takes seconds, a run may take one: who saved then lost the second run."""
    import IPython.display

    lab = make()
    pages: list[str] = []
    drawing, drawn = threading.Event(), threading.Event()

    def png(title: str, curves: list[Any], *, origin: str) -> bytes:
        drawing.set()
        assert drawn.wait(30)
        return b"%d curves" % len(curves)

    monkeypatch.setattr(lab_module, "png", png)
    monkeypatch.setattr(lab_module, "drawn_image", lambda picture, alt: f"<img {picture}>")
    monkeypatch.setattr(lab_module, "has_front_end", lambda: True)
    monkeypatch.setattr(
        IPython.display, "update_display", lambda data, **_: pages.append(data["text/html"])
    )
    lab.start()
    assert drawing.wait(30)
    lab.start(num_workers=2)
    until(lambda: len(pages) == 2)
    drawn.set()
    lab._await_picture()
    has_second = ["num_workers 0 → 2" in page for page in pages]
    assert has_second == [False, True, True]
    assert "<img b'2 curves'>" in pages[-1]


def test_the_static_picture_hides_a_widget_without_a_model(make: Callable[..., Lab]) -> None:
    lab = make()
    lab.run()
    page = lab._static_bundle()["text/html"]
    assert f".pk-static-{lab.lab_id}) .jupyter-widgets:not(:has(*))" in page


def test_the_pictures_memory_curve_keeps_off_the_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    from perfkit.widgets._lab_figure import Curve, columns, png

    limits: list[tuple[float, float]] = []
    set_ylim = Axes.set_ylim

    def noted(axes: Axes, *args: Any, **more: Any) -> Any:
        found = set_ylim(axes, *args, **more)
        limits.append(found)
        return found

    monkeypatch.setattr(Axes, "set_ylim", noted)
    ones = np.ones(5)
    rows = columns(ones, ones, ones, np.full(5, 300 * 2**20), ones.astype(bool))
    assert png("", [Curve("run 1", rows)]).startswith(b"\x89PNG")
    assert limits[-1][1] == pytest.approx(345)
    assert png("", []).startswith(b"\x89PNG")


def test_the_picture_says_where_its_figures_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.text import Text

    from perfkit.widgets._lab_figure import png

    drawn: list[str] = []
    draw = Text.draw

    def noted(text: Text, *args: Any, **more: Any) -> Any:
        drawn.append(text.get_text())
        return draw(text, *args, **more)

    monkeypatch.setattr(Text, "draw", noted)
    png("a title", [], origin="measured here: a machine")
    assert {"a title", "measured here: a machine"} <= set(drawn)
