"""A profile's text and HTML say the same, escape what they show, and fit."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from simulated_traces import SINGLE, cpu_training

from perfkit import show
from perfkit.advice.profile import Profile, explain
from perfkit.base import lessons
from perfkit.show import RESULT_MIME
from perfkit.show._as_text import _table
from perfkit.show.document import Document
from perfkit.show.profile import _lines_table, _step_name
from perfkit.trace.read.load import load
from perfkit.trace.record.lines import Line, LineSamples
from perfkit.trace.record.recording import Cost

HOSTILE = "<img src=x onerror=alert(1)>"


def _event(name: str, cat: str, start: int, dur: int, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": cat, "name": name, "ts": start, "dur": dur, "pid": 1, "tid": tid,
        "args": args,
    }  # fmt: skip


def _trace(*, with_device: bool, operator: str = "aten::mm") -> bytes:
    """Three steps of 10 ms: 6 ms of data wait, 2 ms of one operator, 2 ms of nothing."""
    events = []
    for i in range(3):
        at = 1000 + 10_000 * i
        events += [
            _event(f"ProfilerStep#{i}", "user_annotation", at, 10_000),
            _event(
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                "user_annotation", at, 6000,
            ),
            _event(operator, "cpu_op", at + 6000, 2000),
        ]  # fmt: skip
        if with_device:
            events += [
                _event("cudaLaunchKernel", "cuda_runtime", at + 6500, 10, correlation=i + 1),
                _event(
                    "sgemm", "kernel", at + 7000, 1000, tid=7,
                    correlation=i + 1, stream=7, device=0,
                ),
            ]  # fmt: skip
    return json.dumps({"traceEvents": events}).encode()


@pytest.fixture(scope="module", params=[False, True], ids=["cpu", "gpu"])
def profile(request: pytest.FixtureRequest) -> Profile:
    return explain(load(_trace(with_device=request.param)))


def _document(profile: Profile) -> Document:
    said = show.document(profile)
    assert said is not None
    return said


def test_text_and_html_say_the_same(profile: Profile) -> None:
    text, shown = show.text(profile), html.unescape(show.html(profile)).replace("\xa0", " ")
    view = _document(profile)
    assert text.startswith(view.headline)
    assert f">{view.headline}</h3>" in shown
    for line in (view.sentence, *view.foot, *view.warnings, *view.lines):
        assert line in shown
        assert " ".join(line.split()) in " ".join(text.split())
    for lane in view.bars:
        for segment in lane.segments:
            assert f"{segment.label} <b>{segment.shown}</b>" in shown
            assert re.search(rf"{segment.label} +{re.escape(segment.shown)}", text)
    for finding in (*view.findings, *view.more_findings):
        assert finding.title in shown
        assert " ".join(finding.title.split()) in " ".join(text.split())


def test_the_bar_shows_the_mean_step_and_adds_up(profile: Profile) -> None:
    lanes = _document(profile).bars
    assert len(lanes) == (2 if profile.breakdown.has_device else 1)
    for lane in lanes:
        assert sum(s.value for s in lane.segments) == pytest.approx(10.0)
    host = {s.label: s.shown for s in lanes[0].segments}
    assert host["data wait"] == "6.00 ms"
    assert host["forward"] == "2.00 ms"


def test_device_columns_stand_only_where_a_device_worked(profile: Profile) -> None:
    operators = _document(profile).tables[0]
    assert ("launches" in operators.header) == profile.breakdown.has_device
    assert operators.rows[0][0] == "aten::mm"
    assert operators.rows[0][4] == "1"  # calls per step, not of all three


def test_text_is_at_most_96_columns_wide_but_for_code(profile: Profile) -> None:
    code = {line.strip() for f in profile.diagnosis.findings for line in f.what_to_do.splitlines()}
    for line in show.text(profile).splitlines():
        assert len(line) <= 96 or line.strip() in code


def test_snippets_keep_their_lines(profile: Profile) -> None:
    text, shown = show.text(profile), html.unescape(show.html(profile)).replace("\xa0", " ")
    assert profile.diagnosis.findings, "a loop that waits for data has a finding"
    for finding in profile.diagnosis.findings[:3]:
        snippet = finding.what_to_do.strip("\n")
        assert f">{snippet}</pre>" in shown
        for line in snippet.splitlines():
            assert line.rstrip() in text


def test_a_verdict_without_a_finding_says_so_and_what_to_try() -> None:
    p = explain(load(cpu_training(6).json()))
    assert (p.diagnosis.bound_by, p.diagnosis.findings) == ("compute", ())
    for shown in (show.brief(p), show.text(p), show.markdown(p), html.unescape(show.html(p))):
        said = " ".join(shown.split()).replace("\\_", "_")
        assert said.count("Nothing stands out: no rule of perfkit knows a cure for this.") == 1
        assert f"Costliest operator: {p.operators[0].name}, " in said
        assert "precision, batch size, torch.compile" in said.replace("\\", "")
        assert "perfkit.peaks()" not in said, "a trace of another machine has no peaks here"
    here = replace(p, cost=Cost(None, None, 6, 0, 0.1, 0.2, 10))
    # that of the command may be of another number of threads, and bring nothing here
    assert "call `perfkit.peaks()` once, with as many threads" in " ".join(show.brief(here).split())


def test_a_verdict_with_findings_has_one_list_of_what_to_do() -> None:
    p = explain(load(cpu_training(6, wait=870, loader=SINGLE).json()))
    assert p.diagnosis.findings
    assert show.text(p).count("What to do") == 1
    assert not _document(p).advice


def test_an_operator_cannot_inject_markup() -> None:
    profile = explain(load(_trace(with_device=False, operator=HOSTILE)))
    assert profile.operators[0].name == HOSTILE
    shown = show.html(profile)
    assert "<img" not in shown
    assert html.escape(HOSTILE) in shown


def test_html_asks_nobody_and_runs_nothing(profile: Profile) -> None:
    shown = show.html(profile)
    assert not re.search(r"https?:|url\((?!#)|@import|<script|<link|<iframe|\bon\w+=", shown)


def test_html_is_well_formed_enough_to_nest_in_a_page(profile: Profile) -> None:
    from html.parser import HTMLParser

    class Balance(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "br":
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Balance()
    parser.feed(show.html(profile))
    assert parser.open == []


def test_every_table_can_be_scrolled_and_unfolded_by_keyboard(profile: Profile) -> None:
    shown = show.html(profile)
    assert shown.count("<table>") == shown.count('class="pk-wide" tabindex="0" role="region"')
    assert shown.count("<details") == shown.count("<summary>")


def test_the_bundle_carries_text_html_and_the_numbers(profile: Profile) -> None:
    bundle = show.mime_bundle(profile)
    assert set(bundle) == {"text/plain", "text/html", RESULT_MIME}
    numbers = json.loads(json.dumps(bundle[RESULT_MIME]))
    assert numbers["type"] == "profile"
    gain = numbers["findings"][0]["gain_at_most"]
    # a trace from a file, without a device, carries no bound
    assert gain > 1 if profile.breakdown.has_device else gain is None


def test_a_breakdown_alone_can_be_shown(profile: Profile) -> None:
    text = show.text(profile.breakdown)
    assert text.startswith("Largest part of the step: data wait, 60 %.")
    assert "found by ProfilerStep marks" in text
    assert "pk-lane" in show.html(profile.breakdown)


def test_a_trace_of_nothing_is_shown_not_raised() -> None:
    one = json.dumps({"traceEvents": [_event("a label", "user_annotation", 0, 0)]})
    profile = explain(load(one.encode()))
    assert profile.operators == ()
    assert show.text(profile)
    assert show.html(profile)


def test_another_type_of_the_room_falls_back_to_its_repr(profile: Profile) -> None:
    operator = profile.operators[0]
    assert show.text(operator) == repr(operator)
    assert html.unescape(show.html(operator)) == f"<pre>{operator!r}</pre>"


def test_a_finding_names_the_lesson_that_a_course_has_about_it(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lessons, "_courses", lambda: ())
    assert "lesson" not in show.text(profile).lower()
    assert "lesson" not in show.html(profile).lower()
    (first, *_) = profile.diagnosis.findings
    assert first.to_dict()["lesson"] is None

    def course(kind: str, name: str) -> str | None:
        return "04-dataloader" if (kind, name) == ("rule", first.rule) else None

    monkeypatch.setattr(lessons, "_courses", lambda: (course,))
    assert "Lesson: 04-dataloader" in show.text(profile)
    assert "Lesson: 04-dataloader" in show.html(profile)
    assert first.to_dict()["lesson"] == "04-dataloader"


def test_steps_have_names_that_people_use(profile: Profile) -> None:
    steps = next(t for t in _document(profile).tables if t.title == "Every step on the host")
    assert [row[0] for row in steps.rows] == ["step 0", "step 1", "step 2"]
    assert _step_name("train_step#4") == "train_step#4"
    # the data keeps the trace's name
    assert profile.to_dict()["steps"][0]["name"] == "ProfilerStep#0"


def test_below_a_framework_the_packages_lines_are_named_in_a_table_that_fits() -> None:
    def inside(number: int, n: int) -> Line:
        return Line(
            "a.py", 3, "cell [3], line 5", "f", "trainer.train()", n, n / 30, False, "torch",
            inner=f"transformers/trainer.py:{number}", inner_function="Trainer.training_step",
            inner_text="loss = self.compute_loss(model, inputs, num_items_in_batch=n)",
            is_framework=True,
        )  # fmt: skip

    own = Line("b.py", 9, "cell [2], line 9", "g", "time.sleep(1)", 5, 5 / 30, False, "torch")
    lines = LineSamples((inside(1909, 15), inside(2164, 10), own), 30)
    assert [x.n_samples for x in lines.by_line()] == [15, 10, 5]
    found = _lines_table(lines, "Top source lines")
    assert [row[0] for row in found.rows] == [
        "transformers/trainer.py:1909",
        "transformers/trainer.py:2164",
        "cell [2], line 9",
    ]
    assert found.rows[0][-1].startswith("Trainer.training_step: loss = ")
    assert "called from cell [3], line 5" in found.note
    assert max(len(row) for row in _table(found).splitlines()) <= 96
