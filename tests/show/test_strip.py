"""The step strip: adds up, stays small, is well-formed XML, says in words what it shows."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from perfkit import show
from perfkit.advice.profile import explain
from perfkit.base.errors import UsageError
from perfkit.base.words import fmt_ms
from perfkit.show import strip
from perfkit.trace.ask.breakdown import breakdown
from perfkit.trace.ask.idle import idle_causes
from perfkit.trace.read.load import load
from perfkit.trace.read.steps import find_steps
from tests.simulated_traces import Simulated, cpu_training, gpu_training

HOSTILE = "ProfilerStep#1 <img src=x onerror=alert(1)> \"quoted\" 'too' \x07\x00\u202e]]>"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def gpu() -> strip.Strip:
    made = strip.strip_of(load(gpu_training(5, wait=700, n_kernels=20).json()))
    assert made is not None
    return made


def test_totals_are_those_of_the_breakdown() -> None:
    trace = load(gpu_training(5, wait=700, n_kernels=20, launch_ahead=False).json())
    made = strip.strip_of(trace)
    assert made is not None
    steps = find_steps(trace)
    typical = breakdown(trace, steps).typical
    assert made.step == typical.name
    host, device = made.lanes
    assert host.totals_ns == typical.host_ns
    assert sum(device.totals_ns.values()) == made.wall_ns == typical.wall_ns
    causes = idle_causes(trace, steps)[steps.names.index(made.step)]
    shown = {k.removeprefix("idle: "): v for k, v in device.totals_ns.items() if "idle" in k}
    assert shown == causes
    assert device.totals_ns["compute"] == typical.device_ns["compute"]


def test_parts_cover_the_step_without_gaps(gpu: strip.Strip) -> None:
    for lane in gpu.lanes:
        assert lane.parts[0].start == 0
        assert lane.parts[-1].end == 1
        for one, other in zip(lane.parts, lane.parts[1:], strict=False):
            assert one.end == other.start
            assert one.name != other.name


def test_device_idle_is_told_by_its_cause(gpu: strip.Strip) -> None:
    device = gpu.lanes[1]
    assert device.totals_ns["idle: data"] == pytest.approx(700_000, rel=0.05)
    assert device.parts[0].name == "idle: data"
    assert "idle, the host waits for data 700 µs" in gpu.words


def test_boxes_below_a_pixel_are_merged() -> None:
    sim = Simulated()
    for i in range(20_000):
        sim.host("aten::a", 1000 + 5 * i, 2)
    sim.step(0, 1000, 100_000)
    made = strip.strip_of(load(sim.json()))
    assert made is not None
    assert len(made.lanes[0].parts) <= strip.WIDTH
    assert made.lanes[0].totals_ns["forward"] == 40_000_000  # every ns is still counted
    assert len(strip.svg(made)) < 250_000


def test_svg_is_well_formed_and_stands_alone(gpu: strip.Strip) -> None:
    svg = strip.svg(gpu)
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert not tags & {"script", "foreignObject", "image", "use", "a", "animate"}
    assert not re.search(r"href|@import|url\((?!#)|\bon\w+=", svg)
    assert "prefers-color-scheme:dark" in svg
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert desc is not None
    assert desc.text == gpu.words
    assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"


def test_a_narrow_page_keeps_both_lanes_and_says_which_step(gpu: strip.Strip) -> None:
    root = ElementTree.fromstring(strip.svg(gpu))
    assert f"height:{root.get('height')}px" in str(root.get("style"))
    head = next(e for e in root.iter(f"{SVG}text") if e.get("class") == "h")
    rest = head.find(f"{SVG}tspan")
    assert rest is not None
    assert rest.get("class") == "pc"  # what a narrow page hides
    assert f"{head.text}{rest.text}" == gpu.title
    assert str(head.text).endswith(" ms")


def test_hostile_step_names_are_text() -> None:
    sim = cpu_training(1)
    sim.events[-1]["name"] = HOSTILE
    made = strip.strip_of(load(sim.json()))
    svg = strip.svg(made)
    root = ElementTree.fromstring(svg)
    assert "<img" not in svg
    assert any("<img src=x" in (element.text or "") for element in root.iter())
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", svg + strip.text(made))


def test_ids_differ_between_strips_and_not_between_calls(gpu: strip.Strip) -> None:
    other = strip.strip_of(load(cpu_training(2).json()))
    ids = [set(re.findall(r'id="([^"]+)"', strip.svg(x))) for x in (gpu, other)]
    assert not ids[0] & ids[1]
    assert strip.svg(gpu) == strip.svg(gpu)


def test_text_has_a_letter_for_each_column(gpu: strip.Strip) -> None:
    shown = strip.text(gpu, width=50)
    lines = re.findall(r"\|(.*)\|", shown)
    assert [len(line) for line in lines] == [50, 50]
    assert lines[0].startswith("dddd")
    assert max(map(len, shown.splitlines())) <= 96


def test_labels_stand_only_where_they_fit(gpu: strip.Strip) -> None:
    inner = re.findall(r'class="in"[^>]*? width="([\d.]+)%"', strip.svg(gpu))
    assert inner
    assert all(float(width) / 100 * strip.WIDTH > 40 for width in inner)


def _with_an_empty_last_step() -> Simulated:
    sim = gpu_training(1, n_kernels=20)
    end = max(e["ts"] + e["dur"] for e in sim.events)
    sim.step(1, end, 5)  # the mark that was open when the profiler stopped
    return sim


def test_an_empty_step_is_not_the_typical_one() -> None:
    trace = load(_with_an_empty_last_step().json())
    assert [step.is_empty for step in breakdown(trace).steps] == [False, True]
    made = strip.strip_of(trace)
    assert made is not None
    assert made.step == breakdown(trace).typical.name == "ProfilerStep#0"
    assert made.title.endswith(", the only step in which anything ran")
    profile = explain(trace)
    assert profile.step.n == 1
    words = " ".join(show.text(profile).split())
    assert "1 more in which nothing ran is left out" in words
    assert profile.n_steps == len(profile.breakdown.steps) == 2


def test_steps_that_are_all_empty_still_have_a_strip() -> None:
    sim = Simulated()
    for i in range(3):
        sim.step(i, i * 100, 100)
    made = strip.strip_of(load(sim.json()))
    assert made is not None
    assert made.title.endswith(", the median of 3 steps")


def test_inside_a_report_only_what_its_bars_do_not_tell_is_told(gpu: strip.Strip) -> None:
    alone, inside = strip.figure(gpu, alone=True), strip.figure(gpu)
    assert "forward <b>" in alone
    assert "forward <b>" not in inside
    assert "idle: data <b>" in inside
    host_only = strip.strip_of(load(cpu_training(3).json()))
    assert "pk-swatch" not in strip.figure(host_only)
    shown = strip.text(gpu, inline=True)
    assert "Host: d data wait; f forward; . other" in shown
    assert "d idle, the host waits for data 700 µs" in shown
    assert max(map(len, shown.splitlines())) <= 96


def test_a_trace_without_any_length_has_no_strip() -> None:
    sim = Simulated()
    sim.host("aten::a", 10, 0)
    assert strip.strip_of(load(sim.json())) is None
    assert strip.svg(None) == strip.text(None) == ""


def test_no_bins() -> None:
    with pytest.raises(UsageError, match="at least one bin"):
        strip.strip_of(load(cpu_training(1).json()), bins=0)


def test_the_profile_report_holds_it_above_the_tables() -> None:
    profile = explain(load(gpu_training(3).json()))
    html, text = show.html(profile), show.text(profile)
    # the advice above both names the table
    assert html.index("pk-step") < html.rindex("Top operators")
    assert text.index("  Device |") < text.rindex("Top operators")


def test_page_is_whole_scrubbed_and_calls_nobody(tmp_path: Path) -> None:
    from perfkit.show.files import page, save

    sim = gpu_training(3)
    sim.host("/home/alice/train.py(3): <img src=x onerror=1>", 1_100, 900)
    profile = explain(load(sim.json()))
    shown = page(profile, title="of </title><b>alice@node7</b>")
    assert "alice" not in shown
    assert "/home/[user]/train.py" in shown
    assert "</title><b>" not in shown
    assert shown.count("</title>") == 1
    assert not re.search(r"<script|<img|https?:|<link|@import|url\((?!#)", shown)
    assert "alice" in page(profile, scrub=False)
    assert save(profile, tmp_path / "report.html").read_text() == page(profile)
    assert profile.save(tmp_path / "other.html").read_text().count("alice") == 0
    assert sorted(x.name for x in tmp_path.iterdir()) == ["other.html", "report.html"]


def test_what_is_left_without_styles_reads_well() -> None:
    """A notebook that is not trusted takes styles, SVG and most attributes out of a report."""
    profile = explain(load(gpu_training(5, wait=700, n_kernels=20).json()))
    page = re.sub(r"<style>.*?</style>", "", show.html(profile), flags=re.S)
    assert "<svg" not in page, "of an SVG the letters would be left, one after the other"
    left = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    pieces = [part for lane in profile_lanes(page) for part in lane]
    assert pieces == [], "boxes hold no text: it would run together"
    assert f"idle: data {fmt_ms(0.7)}" in left


def profile_lanes(page: str) -> list[list[str]]:
    """The text within the boxes of each lane."""
    lanes = re.findall(r'<div class="pk-lane".*?</div>', page, flags=re.S)
    assert lanes
    return [[t for t in re.sub(r"<[^>]+>", " ", lane).split() if t] for lane in lanes]
