"""Recorded times of kernels beside what a roofline predicts, by family.

    python tests/bench/recorded_kernels.py TRACE…

Predicted is max(FLOPs / peak, bytes / bandwidth) by the data sheet of the recorded device, plus
2 µs a kernel. Traces need shapes. This is why the played device has no speed
(``tests/played_cuda/README.md``): the errors by family are not those of another device.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from perfkit.trace import limit, load

START_US = 2.0


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        found = limit(load(path))
        counted = f"{found.counted_share:.1%} of the kernels' time is counted"
        print(f"\n{path.name}: {found.recorded_on}, {found.n_steps} steps, {counted}")
        ratios: dict[str, list[float]] = defaultdict(list)
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for op in found.ops:
            if op.least_us is None or not op.measured_us:
                continue
            predicted_us = op.least_us + START_US * op.n_kernels
            ratios[op.family] += [op.measured_us / predicted_us] * op.count
            sums[op.family][0] += op.measured_us
            sums[op.family][1] += predicted_us
        print("family             calls  recorded ms  predicted ms  recorded / predicted of calls:")
        print("                                                  median  9 of 10 within  worst")
        for family in sorted(sums, key=lambda f: -sums[f][0]):
            of = np.array(ratios[family])
            low, median, high = np.quantile(of, [0.05, 0.5, 0.95])
            worst = max(of.max(), of.min(), key=lambda ratio: abs(np.log(ratio)))
            recorded_us, predicted_us = (us / found.n_steps for us in sums[family])
            print(
                f"{family:18} {len(of):5}  {recorded_us / 1e3:11.3f}  {predicted_us / 1e3:12.3f}"
                f"  {median:6.2f}  {low:5.2f} to {high:5.2f}  {worst:5.2f}"
            )
        recorded_us, predicted_us = (sum(two[i] for two in sums.values()) for i in (0, 1))
        print(f"all: predicted {predicted_us / recorded_us:.2f} of the recorded time")


if __name__ == "__main__":
    main()
