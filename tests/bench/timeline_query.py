"""What a viewport of the Timeline costs on a trace of a million events.

    python tests/bench/timeline_query.py OUT.json [--events N]

For viewports from the whole trace down to a hundred-thousandth of it, at random places: the time
that Python takes from the browser's question to the message, and the size of that message. What
is promised: at most 50 ms and some hundred kilobytes, so that a million events stay fluid.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from _big_trace import write

from perfkit.base.machine import stamp
from perfkit.measure.summary import summarize
from perfkit.trace.ask.levels import Levels
from perfkit.trace.read.load import load
from perfkit.widgets.timeline import Timeline

AT_MOST_MS = 50
AT_MOST_BYTES = 400_000
_PIXELS = 2000  # a viewport of 1000 with a margin on each side
_ZOOMS = np.geomspace(1, 1e5, 60)


def measure(n_events: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.json"
        write(path, n_events)
        trace = load(path)
    _ = trace.start_ns, trace.end_ns
    began = time.perf_counter()
    Levels(trace)
    build_s = time.perf_counter() - began
    timeline = Timeline(trace)
    rows = list(range(sum(lane["rows"] for lane in timeline.lanes)))
    rng = np.random.default_rng(0)
    times_ms, sizes, boxes = [], [], []
    for zoom in _ZOOMS:
        width = timeline.span_us / zoom
        start = float(rng.uniform(0, timeline.span_us - width))
        question = {"type": "query", "start": start, "end": start + width, "pixels": _PIXELS}
        began = time.perf_counter()
        answer = timeline._answer({**question, "rows": rows})
        times_ms.append(1e3 * (time.perf_counter() - began))
        assert answer is not None
        header, (data,) = answer
        sizes.append(len(data) + len(json.dumps(header)))
        boxes.append(header["n"])
    began = time.perf_counter()
    found = timeline._answer({"type": "search", "text": "kernel"})
    search_ms = 1e3 * (time.perf_counter() - began)
    assert found is not None
    timeline.close()
    return {
        "n_events": len(trace),
        "build_s": build_s,
        "query_ms": summarize(times_ms).to_dict(),
        "largest_query_ms": max(times_ms),
        "largest_message_bytes": max(sizes),
        "most_boxes": max(boxes),
        "search_ms": search_ms,
        "matches": found[0]["count"],
        "held": max(times_ms) <= AT_MOST_MS and max(sizes) <= AT_MOST_BYTES,
        "provenance": stamp().to_dict(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    # a quarter of a trace's items are arrows, which are no timed events
    parser.add_argument("--events", type=int, default=1_450_000)
    arguments = parser.parse_args()
    result = measure(arguments.events)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"{result['n_events']:,} events: levels in {result['build_s']:.2f} s; a viewport takes at "
        f"most {result['largest_query_ms']:.1f} ms and {result['largest_message_bytes']:,} bytes "
        f"({result['most_boxes']:,} boxes); a search {result['search_ms']:.0f} ms"
    )
    return 0 if result["held"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
