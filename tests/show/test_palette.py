"""One palette, one meaning: reports, figures and the browser have their colours from one table."""

from __future__ import annotations

import colorsys
import re
from pathlib import Path

from javascript import says
from simulated_traces import gpu_training

from perfkit import open_trace, show
from perfkit.show._bar import looks_of
from perfkit.show.palette import CURVES, LOOKS, MEMORY, SERIES

ROOT = Path(__file__).resolve().parents[2]


def _luminance(colour: str) -> float:
    """Relative luminance after WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _hue(colour: str) -> float:
    return 360 * colorsys.rgb_to_hsv(*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))[0]


def test_labels_can_be_read_on_their_segments_and_curves_on_both_grounds() -> None:
    for name, look in LOOKS.items():
        if look.fill != "transparent":
            assert _contrast(look.fill, look.ink) >= 4.5, name  # WCAG's AA for small text
    for name, colour in CURVES.items():
        for ground in ("#ffffff", "#111111"):
            assert _contrast(colour, ground) >= 3, name


def test_a_category_of_memory_shares_no_hue_with_a_class_of_time() -> None:
    time = [
        look.fill
        for name, look in LOOKS.items()
        if name not in MEMORY and re.match("#", look.fill) and _saturation(look.fill) > 0.3
    ]
    for name in MEMORY:
        apart = [abs((_hue(LOOKS[name].fill) - _hue(one) + 180) % 360 - 180) for one in time]
        assert min(apart) >= 15, name


def _saturation(colour: str) -> float:
    return colorsys.rgb_to_hsv(*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))[1]


def test_the_browser_has_the_same_table(tmp_path: Path) -> None:
    source = ROOT / "perfkit/widgets/js/src/palette.js"
    (tmp_path / "say.mjs").write_text(
        f"import {{ lookOf, CURVES }} from {source.as_uri()!r};\n"
        f"const names = {[name for name in LOOKS if name not in MEMORY]!r};\n"
        "console.log(JSON.stringify([names.map(lookOf), lookOf('data_wait'), CURVES]));\n"
    )
    looks, phase, curves = says(tmp_path / "say.mjs")
    assert looks == [list(look) for name, look in LOOKS.items() if name not in MEMORY]
    assert phase == list(LOOKS["data wait"])
    assert (curves["--pk-c2"], curves["--pk-c3"]) == (CURVES["data wait"], CURVES["memory"])


def test_no_other_file_has_a_colour_of_the_table() -> None:
    colours = {look.fill.lower() for look in LOOKS.values()} | {c.lower() for c in SERIES}
    found = [
        f"{file.relative_to(ROOT)}: {colour}"
        for kind in ("py", "js", "css", "html")
        for folder in ("base", "show", "widgets", "magics", "cli")
        for file in (ROOT / "perfkit" / folder).rglob(f"*.{kind}")
        if not {"node_modules", "static"} & set(file.parts)
        for colour in re.findall(r"#[0-9a-f]{6}\b", file.read_text(encoding="utf-8").lower())
        if colour in colours
    ]
    assert not found


def test_a_class_of_time_looks_the_same_on_the_critical_path() -> None:
    path = show.document(open_trace(gpu_training(wait=600).json()).ask("critical-path"))
    assert path is not None
    looks = {s.label: looks_of([s])[0] for s in path.bars[0].segments}
    assert looks["host: data wait"] == LOOKS["data wait"]
    assert looks["host: other"] == LOOKS["other"]
