"""The browser bundle: built from the current sources, and making no requests."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from javascript import says

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "perfkit" / "widgets" / "static"


@pytest.fixture(scope="module")
def hook() -> Any:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_bundle_fits_its_sources(hook: Any) -> None:
    assert hook.is_up_to_date(ROOT), "run `python hatch_build.py`"


def test_a_changed_source_is_noticed(hook: Any, tmp_path: Path) -> None:
    js, static = tmp_path / "perfkit/widgets/js", tmp_path / "perfkit/widgets/static"
    (js / "src").mkdir(parents=True)
    static.mkdir()
    for name in ("package.json", "package-lock.json", "src/lab.js"):
        (js / name).write_text("{}")
    (table := tmp_path / "perfkit/show/palette.json").parent.mkdir()
    table.write_text("{}")
    assert not hook.is_up_to_date(tmp_path)
    for entry in hook.ENTRIES:
        (static / entry).write_text(f"/* perfkit sources {hook.sources_digest(tmp_path)} */")
    assert hook.is_up_to_date(tmp_path)
    table.write_text("changed")
    assert not hook.is_up_to_date(tmp_path)
    table.write_text("{}")
    (js / "src/lab.js").write_text("changed")
    assert not hook.is_up_to_date(tmp_path)


def test_what_is_bundled_has_its_licence_kept(hook: Any, tmp_path: Path) -> None:
    inputs = ["src/lab.js", "node_modules/one/dist/one.js", "node_modules/@all/two/index.js"]
    for package in ("one", "@all/two", "not-bundled"):
        (tmp_path / "node_modules" / package).mkdir(parents=True)
        (tmp_path / "node_modules" / package / "LICENSE").write_text(f"free: {package}")
    (tmp_path / "licenses/@all").mkdir(parents=True)
    (tmp_path / "licenses/one.txt").write_text("free: one")
    with pytest.raises(hook.JsBuildError, match="@all/two is bundled: copy its licence"):
        hook.check_licences(tmp_path, inputs)
    (tmp_path / "licenses/@all/two.txt").write_text("free: @all/two")
    hook.check_licences(tmp_path, inputs)
    (tmp_path / "licenses/one.txt").write_text("another")
    with pytest.raises(hook.JsBuildError, match="one is bundled"):
        hook.check_licences(tmp_path, inputs)


@pytest.mark.parametrize(
    "name", ["lab.js", "live_plot.js", "timeline.css", "timeline.js", "widget.css"]
)
def test_the_bundle_names_no_host(name: str) -> None:
    hosts = set(re.findall(r"(?:https?:)?//([\w-]+(?:\.[\w-]+)+)", (STATIC / name).read_text()))
    assert hosts <= {"www.w3.org"}  # the name space of SVG, which nobody fetches


def test_the_lock_file_names_no_registry() -> None:
    assert "http" not in (ROOT / "perfkit/widgets/js/package-lock.json").read_text()


def test_an_axis_of_steps_has_whole_numbers_only(tmp_path: Path) -> None:
    source = (ROOT / "perfkit/widgets/js/src/chart.js").read_text(encoding="utf-8")
    (whole,) = re.findall(r"^const WHOLE = .*;$", source, re.MULTILINE)
    assert 'xLabel === "step" ? { incrs: WHOLE }' in source
    (tmp_path / "say.mjs").write_text(f"{whole}\nconsole.log(JSON.stringify(WHOLE));\n")
    steps = says(tmp_path / "say.mjs")
    assert steps[:6] == [1, 2, 5, 10, 20, 50]
    assert all(isinstance(step, int) for step in steps)


def test_words_of_a_picture_end_within_it(tmp_path: Path) -> None:
    source = (ROOT / "perfkit/widgets/js/src/picture.js").read_text(encoding="utf-8")
    pure = source[source.index("/** `text` in lines") :]
    (tmp_path / "say.mjs").write_text(
        f"{pure}\nconsole.log(JSON.stringify([\n"
        "  wrap('Run 2: num_workers 0 → 1 (run 1 is pinned)', 14, (text) => text.length),\n"
        "  wrap('abc', 2, (text) => text.length),\n"
        "  inRows([60, 60, 200, 30], 150, 10),\n"
        "]));\n",
        encoding="utf-8",
    )
    lines, wide, places = says(tmp_path / "say.mjs")
    assert lines == ["Run 2:", "num_workers 0", "→ 1 (run 1 is", "pinned)"]
    assert wide == ["abc"]
    assert [(one["x"], one["row"]) for one in places] == [(0, 0), (70, 0), (0, 1), (0, 2)]
