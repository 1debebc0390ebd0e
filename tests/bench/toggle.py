"""How long a toggle takes to its first point: with the prepared process, and without.

    python tests/bench/toggle.py out.json

Prepared: ``Session.ready()`` was true before the run began. Cold: the run was started together
with the session, so that torch is imported within it. The workload is a small step, so that
what is measured is perfkit's part. The times are of this machine; the ratio says what the
preparation is worth.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from perfkit.base.machine import stamp
from perfkit.experiment import Session

COLD_ROUNDS = 5
PREPARED_ROUNDS = 10
READY_WITHIN_S = 120.0


def workload(settings):
    import torch

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        loss = model(torch.randn(32, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield 32


def first_point_s(session: Session) -> float:
    result = session.run().raise_if_failed()
    assert result.first_point_s is not None
    return result.first_point_s


def cold() -> float:
    with Session(workload, seconds=0.2) as session:
        return first_point_s(session)


def prepared() -> tuple[float, list[float]]:
    """How long the preparation took, in the background, and the times of the runs after it."""
    with Session(workload, seconds=0.2) as session:
        begin_s = time.perf_counter()
        if not session.ready(READY_WITHIN_S):
            raise SystemExit(f"the prepared process is not ready after {READY_WITHIN_S:.0f} s")
        took_s = time.perf_counter() - begin_s
        return took_s, [first_point_s(session) for _ in range(PREPARED_ROUNDS)]


def row(name: str, times_s: list[float]) -> dict[str, object]:
    return {
        "start": name,
        "n": len(times_s),
        "median_s": statistics.median(times_s),
        "least_s": min(times_s),
        "most_s": max(times_s),
    }


def main() -> None:
    cold_s = [cold() for _ in range(COLD_ROUNDS)]
    ready_s, prepared_s = prepared()
    rows = [row("cold", cold_s), row("prepared", prepared_s)]
    ratio = statistics.median(cold_s) / statistics.median(prepared_s)
    print(f"{'start':<10}{'n':>4}{'median':>11}{'least':>11}{'most':>11}")
    for one in rows:
        print(
            f"{one['start']:<10}{one['n']:>4}"
            + "".join(f"{one[key]:>9.3f} s" for key in ("median_s", "least_s", "most_s"))
        )
    print(f"prepared is {ratio:.1f}× as quick; preparing took {ready_s:.1f} s, in the background")
    provenance = stamp(command="tests/bench/toggle.py", device="cpu")
    print(provenance.sentence())
    found = {
        "rows": rows,
        "cold_over_prepared": ratio,
        "preparation_s": ready_s,
        "provenance": provenance.to_dict(),
    }
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
