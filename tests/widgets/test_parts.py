"""Small parts of the widgets, run under node."""

from __future__ import annotations

import json
from pathlib import Path

from javascript import says

from perfkit.base.words import fmt_bytes, fmt_ms

SOURCES = Path(__file__).resolve().parents[2] / "perfkit/widgets/js/src"


def test_a_curves_figures_read_as_in_the_table(tmp_path: Path) -> None:
    times_ms, sizes_mib = [0.0, 0.0124, 8.5, 1140.0, 75_000.0], [0.0, 0.353, 286.0, 2048.0]
    asked = [(x, "ms") for x in times_ms] + [(x, "MiB") for x in sizes_mib] + [(7.25, "reward")]
    module = tmp_path / "parts.mjs"
    module.write_text(
        f"import {{ format }} from {json.dumps((SOURCES / 'parts.js').as_uri())};\n"
        f"const said = {json.dumps(asked)}.map(([value, unit]) => format(value, unit));\n"
        "console.log(JSON.stringify([...said, format(NaN, 'ms'), format(null, 'MiB')]));\n",
        encoding="utf-8",
    )
    read = [*map(fmt_ms, times_ms), *(fmt_bytes(x * 2**20) for x in sizes_mib)]
    assert says(module) == [*read, "7.25 reward", "–", "–"]
