"""Waiting for data."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl, percent
from perfkit.trace.columns import Category
from perfkit.trace.lines import Line

# Where the loader costs less than a twentieth of the step, changing it brings nothing to see.
_LEAST_SHARE = 0.05

_DECODERS = frozenset({"PIL", "cv2", "imageio", "skimage", "tifffile", "pydicom", "nibabel"})
# C functions leave no frame of their own: then the user's line tells.
_DECODING = re.compile(
    r"\b(cv2\.imread|cv2\.imdecode|Image\.open|imread|decode_jpeg|decode_png|decode_image|"
    r"read_image)\b"
)
# Fewer samples than this name no line.
_LEAST_SAMPLES = 5


def dataloader(case: Case) -> Iterator[Finding]:
    """The step waits for the DataLoader: without workers, or with workers too slow."""
    lost = case.lost_to("data wait")
    if lost < _LEAST_SHARE:
        return
    waits = case.rows(
        Category.ANNOTATION,
        Category.OP,
        named=lambda n: n.startswith("enumerate(DataLoader)"),
    )
    names = {case.trace.names[i] for i in case.trace.name_id[waits]}
    alone = any("_SingleProcessDataLoaderIter" in name for name in names)
    share = case.shares["data wait"]
    evidence = [
        f"{case.ms_per_step(share):,.1f} ms of each step ({percent(share)}) pass in the "
        f"DataLoader's __next__ ({', '.join(sorted(n.partition('#')[2] for n in names))})"
    ]
    if case.on_device:
        evidence.append(f"the device idles meanwhile for {percent(lost)} of each step")
    top = _top_line(case)
    if top is not None:
        evidence.append(f"{percent(top.share)} of the line samples fall on {top.where}")
    gain, formula = amdahl(lost)
    if alone:
        workers = max(min((case.facts.n_cores or 4) - 1, 8), 1)
        yield Finding(
            rule="dataloader-no-workers",
            title="The DataLoader has no workers: loading and training take turns",
            evidence=tuple(evidence),
            what_to_do=(
                "loader = DataLoader(\n"
                f"    dataset, ..., num_workers={workers}, persistent_workers=True\n"
                ")  # then try more and fewer: measure"
            ),
            gain_at_most=gain,
            formula=formula,
            lesson="04-dataloader",
            line=_shown(top),
        )
    else:
        yield Finding(
            rule="dataloader-slow-workers",
            title="The DataLoader's workers do not keep up",
            evidence=tuple(evidence),
            what_to_do=(
                "loader = DataLoader(\n"
                "    dataset, ..., num_workers=2 * n, prefetch_factor=4, persistent_workers=True\n"
                ")  # more workers while cores are free; then make __getitem__ cheaper"
            ),
            gain_at_most=gain,
            formula=formula,
            lesson="04-dataloader",
        )


def decoding(case: Case) -> Iterator[Finding]:
    """One line that decodes images makes up much of the wait."""
    lines = [x for x in case.lines.lines if x.in_data_wait and _decodes(x)]
    share = sum(x.share for x in lines)
    if sum(x.n_samples for x in lines) < _LEAST_SAMPLES or share < 2 * _LEAST_SHARE:
        return
    lost = min(share, case.lost_to("data wait"))
    gain, formula = amdahl(lost)
    top = lines[0]
    yield Finding(
        rule="image-decode",
        title="Most of the loading is decoding images at full size, every epoch again",
        evidence=(
            f"{percent(share)} of the line samples ({sum(x.n_samples for x in lines)} of "
            f"{case.lines.n_samples}) fall into image decoding inside the DataLoader",
        ),
        what_to_do=(
            "img = Image.open(path)\n"
            'img.draft("RGB", (size, size))  # JPEG: decode at a reduced size\n'
            "# or: resize once, store the small images (or a uint8 array), and load those"
        ),
        gain_at_most=gain,
        formula=formula,
        lesson="03-storage-and-formats",
        line=_shown(top),
    )


def _decodes(line: Line) -> bool:
    return line.library in _DECODERS or _DECODING.search(line.text) is not None


def _top_line(case: Case) -> Line | None:
    lines = [x for x in case.lines.by_line() if x.in_data_wait and x.n_samples >= _LEAST_SAMPLES]
    return lines[0] if lines else None


def _shown(line: Line | None) -> str | None:
    return None if line is None else f"{line.where}: {line.text}" if line.text else line.where
