"""Reading and explaining a trace of a million events, beside what else can.

    python tests/bench/bench_trace.py build/bench/trace.json [--events 1000000] [--quick]

Every measurement runs in a process of its own, several times, taking turns; the least time of
each counts (other load on the machine only ever adds), the median stands beside it. The file is
read once before, so that it comes from memory for everybody.

* **perfkit**: file → columns → breakdown, idle causes, syncs, operators and all findings, as
  ``perfkit trace`` explains it;
* **msgspec alone**: the same file decoded by msgspec into structs of the same fields, and into
  plain dicts: what the fastest decoder needs before a question is even asked;
* **64 ranks**, read a few at a time in processes of their own: time, the memory of the process
  that asks and of the largest that reads;
* **128 to 1,024 ranks** of small traces, of which one comes late to every collective: whether it is
  found, the same figures, and the exponent of time over the number of ranks;
* **growth**: perfkit on 0.25, 1 and 4 million events; the exponent is the slope of log time over
  log events, 1 is linear;
* **HolisticTraceAnalysis** and **the TensorBoard plugin's loader** on the same file, where the
  environment names a Python that has them: ``HTA_PYTHON``, ``TB_PLUGIN_PYTHON`` (their pins do not
  go with perfkit's: make an environment for each and ``pip install HolisticTraceAnalysis``,
  ``pip install torch-tb-profiler``). Each is asked for the least that compares: load, and
  HTA's own breakdowns by time and idle.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _big_trace import write, write_ranks

from perfkit.base.machine import stamp

AT_MOST_TIMES_MSGSPEC = 2.0
AT_MOST_PEAK_GB = 1.2
AT_MOST_OF_HTA = 0.1
# Sorting alone (n log n) gives 1.06 here; other load on the machine moves it by a tenth.
AT_MOST_EXPONENT = 1.2
# Of the process that asks; torch's own import is most of it.
AT_MOST_GB_OF_RANKS = 0.6
_RANK_COUNTS = (128, 512, 1_024)
_PATIENCE_S = 900

_MEASURE = """
import json, resource, sys, time
path = sys.argv[1]
{setup}
begin = time.perf_counter()
cpu = time.process_time()
{run}
took = time.perf_counter() - begin
cpu = time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
peak *= 1 if sys.platform == "darwin" else 1024
result = {{"s": took, "cpu_s": cpu, "peak_bytes": peak, "said": said}}
print("\\nperfkit-bench:" + json.dumps(result))
"""

_PERFKIT = (
    """
from perfkit.advice.profile import explain
from perfkit.trace import idle, load
""",
    """
trace = load(path)
loaded = time.perf_counter() - begin
profile = explain(trace)  # breakdown, operators, syncs, findings
why = idle(trace)
said = {
    "events": len(trace),
    "steps": profile.n_steps,
    "load_s": loaded,
    "shares": profile.breakdown.shares(),
    "bound_by": profile.diagnosis.bound_by,
    "n_findings": len(profile.diagnosis.findings),
    "n_syncs": len(profile.syncs),
    "idle_ns": [sum(step.values()) for step in why.steps][:3],
}
""",
)
_RANKS = (
    """
from pathlib import Path
from perfkit.trace import ranks
paths = sorted(Path(path).glob("rank*.json"))
""",
    """
found = ranks(paths)
children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
children *= 1 if sys.platform == "darwin" else 1024
said = {
    "ranks": len(found.ranks), "largest_child_bytes": children,
    "stragglers": list(found.stragglers), "n_collectives": found.n_collectives,
}
""",
)
_STRUCTS = (
    """
import gc, msgspec
import importlib
_File = importlib.import_module("perfkit.trace.read.load")._File
decoder = msgspec.json.Decoder(_File, strict=False)
gc.disable()
""",
    """
with open(path, "rb") as file:
    data = file.read()
said = {"events": len(decoder.decode(data).traceEvents)}
""",
)
_DICTS = (
    """
import gc, msgspec
gc.disable()
""",
    """
with open(path, "rb") as file:
    data = file.read()
said = {"events": len(msgspec.json.decode(data)["traceEvents"])}
""",
)
_HTA = (
    """
import logging, os
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
""",
    """
analysis = TraceAnalysis(trace_files={0: path})
loaded = time.perf_counter() - begin
times = analysis.get_temporal_breakdown(visualize=False)
idle = analysis.get_idle_time_breakdown(visualize=False)
said = {"load_s": loaded, "rows": len(times)}
""",
)
_TB_PLUGIN = (
    """
import logging, os
logging.disable(logging.CRITICAL)
from torch_tb_profiler.profiler.data import RunProfileData
""",
    """
profile = RunProfileData.parse("worker", None, path, os.path.dirname(path))
said = {"steps": len(profile.steps_names)}
""",
)


def _measure(python: str, what: tuple[str, str], path: Path) -> dict[str, Any]:
    program = _MEASURE.format(setup=what[0], run=what[1])
    try:
        done = subprocess.run(
            [python, "-c", program, str(path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {_PATIENCE_S} s"}
    for line in done.stdout.splitlines():
        if line.startswith("perfkit-bench:"):
            return dict(json.loads(line.removeprefix("perfkit-bench:")))
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return {"failed": last[:300]}


def _repeat(
    arms: dict[str, tuple[str, tuple[str, str]]], path: Path, rounds: int
) -> dict[str, dict[str, Any]]:
    """Every arm once per round, so that whatever else the machine does hits all of them."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, (python, what) in arms.items():
            if not runs[name] or "failed" not in runs[name][-1]:
                runs[name].append(_measure(python, what, path))
    found = {name: _summary(results) for name, results in runs.items()}
    for name, result in found.items():
        print(_line(name, result), flush=True)
    return found


def _summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    failed = [r["failed"] for r in results if "failed" in r]
    if failed:
        return {"failed": failed[0]}
    return {
        "least_s": min(r["s"] for r in results),
        "median_s": statistics.median(r["s"] for r in results),
        "least_cpu_s": min(r["cpu_s"] for r in results),
        "peak_bytes": max(r["peak_bytes"] for r in results),
        "n": len(results),
        "said": results[-1]["said"],
    }


def _many_ranks(folder: Path, checks: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Jobs of more and more ranks, each with a late one."""
    results, points = {}, []
    for n in _RANK_COUNTS:
        job = folder / "job"
        job.mkdir()
        write_ranks(job, n, late=n // 3)
        name = f"{n:,} ranks, one late"
        results |= _repeat({name: (sys.executable, _RANKS)}, job, 1)
        shutil.rmtree(job)
        if "failed" in results[name]:
            continue
        points.append((n, results[name]["least_s"]))
        found = results[name]["said"]["stragglers"]
        checks[f"wrong late ranks of {n:,}"] = {"value": int(found != [n // 3]), "at_most": 0}
        peak_gb = results[name]["peak_bytes"] / 1e9
        checks[f"memory for {n:,} ranks in GB"] = {
            "value": peak_gb, "at_most": AT_MOST_GB_OF_RANKS,
        }  # fmt: skip
    if len(points) > 1:
        checks["exponent of time over ranks"] = {
            "value": _exponent(points), "at_most": AT_MOST_EXPONENT,
        }  # fmt: skip
    return results


def _exponent(points: list[tuple[int, float]]) -> float:
    """Slope of log time over log events by least squares."""
    xs, ys = [math.log(n) for n, _ in points], [math.log(s) for _, s in points]
    x, y = statistics.fmean(xs), statistics.fmean(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum(
        (a - x) ** 2 for a in xs
    )


def _line(name: str, r: dict[str, Any]) -> str:
    if "failed" in r:
        return f"{name:32} failed: {r['failed']}"
    largest = r["said"].get("largest_child_bytes")
    child = f", largest reader {largest / 1e9:.2f} GB" if largest else ""
    return (
        f"{name:32} {r['least_s']:7.2f} s (median {r['median_s']:.2f}, processor "
        f"{r['least_cpu_s']:.2f}), peak {r['peak_bytes'] / 1e9:.2f} GB{child}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks-only", action="store_true", help="only the jobs of many ranks")
    parser.add_argument("--quick", action="store_true", help="no growth, no slow peers")
    args = parser.parse_args()
    report: dict[str, Any] = {"provenance": stamp(command=" ".join(sys.argv)).to_dict()}
    checks: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="perfkit-bench-") as folder:
        if args.ranks_only:
            _many_ranks(Path(folder), checks)
            return _verdict(checks)
        path = Path(folder) / "trace.json"
        n = write(path, args.events)
        size = path.stat().st_size
        print(f"simulated trace: {n:,} events, {size / 1e6:.0f} MB")
        begin = time.perf_counter()
        with path.open("rb") as file:  # in blocks: children inherit this process's peak memory
            while file.read(1 << 20):
                pass
        print(f"reading the bytes alone: {time.perf_counter() - begin:.2f} s")
        here = sys.executable
        arms = {
            "perfkit": (here, _PERFKIT),
            "msgspec alone, into structs": (here, _STRUCTS),
            "msgspec alone, into dicts": (here, _DICTS),
        }
        results = _repeat(arms, path, args.rounds)
        peers = {
            "HolisticTraceAnalysis": ("HTA_PYTHON", _HTA),
            "TensorBoard plugin's loader": ("TB_PLUGIN_PYTHON", _TB_PLUGIN),
        }
        for name, (variable, what) in peers.items():
            python = os.environ.get(variable)
            if python and not args.quick:
                results |= _repeat({name: (python, what)}, path, 1)
            else:
                results[name] = {"failed": f"not installed (set {variable})"}
                print(_line(name, results[name]))
        points = []
        if not args.quick:
            for rank in range(64):
                write(Path(folder) / f"rank{rank:02d}.json", args.events // 20, rank)
            name = f"64 ranks of {args.events // 20:,} events"
            results[name] = _repeat({name: (here, _RANKS)}, Path(folder), 1)[name]
            for one in Path(folder).glob("rank*.json"):
                one.unlink()
            results |= _many_ranks(Path(folder), checks)
            for factor in (0.25, 1, 4):
                grown = Path(folder) / "grown.json"
                count = write(grown, int(args.events * factor))
                name = f"perfkit, {count:,} events"
                results |= _repeat({name: (here, _PERFKIT)}, grown, 3)
                if "failed" not in results[name]:
                    points.append((count, results[name]["least_cpu_s"]))
                grown.unlink()
    ours = results["perfkit"]
    if "failed" not in ours:
        for kind in ("structs", "dicts"):
            other = results[f"msgspec alone, into {kind}"]
            if "failed" not in other:
                checks[f"time over msgspec into {kind}"] = {
                    "value": ours["least_s"] / other["least_s"],
                    "at_most": AT_MOST_TIMES_MSGSPEC,
                }
        checks["peak memory in GB"] = {
            "value": ours["peak_bytes"] / 1e9,
            "at_most": AT_MOST_PEAK_GB * n / 1e6,
        }
        hta = results["HolisticTraceAnalysis"]
        if "failed" not in hta:
            checks["time over HTA"] = {
                "value": ours["least_s"] / hta["least_s"],
                "at_most": AT_MOST_OF_HTA,
            }
    if len(points) > 1:
        checks["exponent of growth"] = {"value": _exponent(points), "at_most": AT_MOST_EXPONENT}
    missed = _verdict(checks)
    report |= {"events": n, "bytes": size, "results": results, "checks": checks}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int("failed" in ours or missed)


def _verdict(checks: dict[str, dict[str, Any]]) -> int:
    for name, check in checks.items():
        check["ok"] = check["value"] <= check["at_most"]
        verdict = "ok" if check["ok"] else "MISSED"
        print(f"{name}: {check['value']:.2f} (at most {check['at_most']:g}) {verdict}")
    return int(not all(c["ok"] for c in checks.values()))


if __name__ == "__main__":
    sys.exit(main())
