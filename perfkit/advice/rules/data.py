"""Waiting for data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl, times
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_ms, fmt_share, plural
from perfkit.measure.loader_cause import LoaderCause, loader_cause
from perfkit.trace.read.columns import Category
from perfkit.trace.record.lines import Line, LineSamples

# If the loader costs less than a twentieth of the step, changing it has no visible effect.
_LEAST_SHARE = 0.05
# Workers cost processes, memory and start-up: a smaller gain is not worth it.
_LEAST_GAIN = 1.1
# Handing over a batch from a worker costs some 0.1 ms (pickling, a pipe, a thread): data already in
# memory arrives sooner without workers.
_LEAST_WAIT_MS = 0.3
# Workers to propose if the number of cores is unknown, and at most: each is a process.
_USUAL_WORKERS, _MOST_WORKERS = 4, 8
# The training process needs one core, and so does each busy worker.
_FEW_CORES = 2

#: Why a loader is slow → the rule: what helps, and what is learned about it, differs.
RULE_OF_CAUSE = {
    "disk": "dataloader-slow-disk",
    "code": "dataloader-slow-code",
    "workers": "dataloader-few-workers",
    "cores": "dataloader-no-core",
    "batches": "dataloader-large-batches",
    "elsewhere": "dataloader-blocked",
}

# What a sample in a library was doing, from its Python function. PIL decodes in ImageFile.load and
# in its plugins, and reads headers in Image.open; its other functions work on decoded pixels.
_DECODING_FUNCTION = re.compile(
    r"^(PIL\.(ImageFile|\w+ImagePlugin|Image\.open)|torchvision\.io|imageio|tifffile|pydicom|"
    r"nibabel|skimage\.io)\b(?!.*(save|encode|write))"
)
_IMAGE_LIBRARIES = frozenset({"PIL", "cv2", "skimage", "albumentations", "kornia"})
# C functions have no frame of their own: then use the user's line.
_DECODING = re.compile(
    r"\b(cv2\.imread|cv2\.imdecode|Image\.open|imread|decode_jpeg|decode_png|decode_image|"
    r"read_image)\b"
)
_IMAGE_WORK = re.compile(r"\bcv2\.\w+\(")
# How a line decodes at a reduced size, by the library on it; others have no such form.
_DECODES_LESS = (
    (
        re.compile(r"\bcv2\."),
        "img = cv2.imread(path, cv2.IMREAD_REDUCED_COLOR_2)  # JPEG: half as wide and high\n",
    ),
    (
        re.compile(r"^PIL\.|\bImage\.open\("),
        "img = Image.open(path)\n"
        'img.draft("RGB", (size, size))  # JPEG: decode at a reduced size\n',
    ),
)
# Do not name a line for fewer samples than this.
_LEAST_SAMPLES = 5


@rule
def dataloader(case: Case) -> Iterator[Finding]:
    """The step waits for the DataLoader: there are no workers, or they are too slow."""
    lost = case.lost_to("data wait")
    share = case.shares["data wait"]
    if case.ms_per_step(share) < _LEAST_WAIT_MS:
        return
    waits = case.rows(
        Category.ANNOTATION,
        Category.OP,
        named=lambda n: n.startswith("enumerate(DataLoader)"),
    )
    names = {case.trace.names[i] for i in case.trace.name_id[waits]}
    alone = any("_SingleProcessDataLoaderIter" in name for name in names)
    evidence = [
        f"{fmt_ms(case.ms_per_step(share))} of each step ({fmt_share(share)}) pass in the "
        f"DataLoader's __next__ ({', '.join(sorted(n.partition('#')[2] for n in names))})"
    ]
    if case.on_device:
        evidence.append(f"meanwhile the device is idle for {fmt_share(lost)} of each step")
    top = _top_line(case)
    if top is not None:
        evidence.append(f"{fmt_share(top.share)} of the line samples fall on {top.where}")
    if not alone:
        top = next((x for x in case.worker_lines.by_line() if x.n_samples >= _LEAST_SAMPLES), None)
        if top is not None:
            evidence.insert(1, f"{_counted(top)} of the workers' time is at {top.where}")
    cause = loader_cause(case.facts.loading, lost=lost)
    if cause is not None and (not alone or cause.kind == "disk"):
        found = _because(cause, evidence[: 1 if alone or top is None else 2], _shown(top))
        if found.gain_at_most >= _LEAST_GAIN:
            yield found
        if not alone:
            return
    cores = case.facts.n_cores
    workers = min(cores or _USUAL_WORKERS, _MOST_WORKERS)
    if alone:
        gain, formula = _overlapped(share, lost, workers)
        if gain < _LEAST_GAIN:
            return
        if cores is not None and cores <= _FEW_CORES:
            evidence.append(
                f"{plural(cores, 'core')} for this process: each worker needs one to "
                "spare, so do less work for each sample first"
            )
        yield Finding(
            rule="dataloader-no-workers",
            cures=("data",),
            title="The DataLoader has no workers: loading and "
            f"{'training' if case.trains else 'the model'} take turns",
            evidence=tuple(evidence),
            what_to_do=(
                "loader = DataLoader(\n"
                f"    dataset, ..., num_workers={workers}, persistent_workers=True\n"
                ")  # then try more and fewer: measure"
            ),
            gain_at_most=gain,
            formula=formula,
            line=_shown(top),
        )
        return
    gain, formula = amdahl(lost)
    if gain < _LEAST_GAIN:
        return
    yield Finding(
        rule="dataloader-slow-workers",
        cures=("data",),
        title="The DataLoader's workers do not keep up",
        evidence=tuple(evidence),
        what_to_do=(
            "loader = DataLoader(\n"
            f"    dataset, ..., num_workers={workers}, prefetch_factor=4, persistent_workers=True\n"
            f")  # {_how_many(workers, cores)}; then make __getitem__ cheaper\n"
            "# small samples that are in memory already: measure num_workers=0, too"
        ),
        gain_at_most=gain,
        formula=formula,
        line=_shown(top),
    )


def _counted(line: Line) -> str:
    """A line's share with its interval."""
    low, high = line.interval
    part = f", mostly in {line.mostly}," if line.mostly else ""
    return f"{fmt_share(line.share)} ({100 * low:.0f}–{100 * high:.0f} %){part}"


def _how_many(workers: int, cores: int | None) -> str:
    """What these workers are to this process, in words."""
    return "as many as there are cores" if workers == cores else "then try more and fewer: measure"


def _because(cause: LoaderCause, evidence: list[str], line: str | None) -> Finding:
    return Finding(
        rule=RULE_OF_CAUSE[cause.kind],
        cures=("data",),
        title=cause.title,
        evidence=(*evidence, *cause.evidence, *cause.doubts),
        what_to_do=cause.what_to_do,
        gain_at_most=cause.gain_at_most,
        formula=cause.formula,
        line=line,
    )


def _overlapped(wait: float, lost: float, workers: int) -> tuple[float, str]:
    """Bound of the gain from ``workers``, and the formula in words.

    The workers load that many batches at once, alongside the rest of the step, which is unchanged:
    the longer of the two is the new step.
    """
    rest = 1.0 - lost
    gain = 1.0 / max(wait / workers, rest)
    return gain, (
        f"at most 1 / max({wait:.2f} / {workers}, {rest:.2f}) = {times(gain)}×, with "
        f"{plural(workers, 'worker')} loading alongside the rest of the step"
    )


@rule
def images(case: Case) -> Iterator[Finding]:
    """Decoding or other work on images is much of the wait."""
    waiting = [x for x in case.lines.lines if x.in_data_wait]
    decodes = [x for x in waiting if _decodes(x)]
    works = [x for x in waiting if x not in decodes and _works_on_images(x)]
    limit = case.lost_to("data wait")
    decoding, working = _share(decodes, limit), _share(works, limit)
    if decoding >= 2 * _LEAST_SHARE:
        evidence = [_samples(decodes, case, "fall on decoding images inside the DataLoader")]
        if working >= _LEAST_SHARE:
            evidence.append(
                f"{fmt_share(working)} more is other work on these images: it shrinks with them"
            )
        gain, formula = amdahl(min(decoding + working, limit))
        top = _most(decodes)
        called = top.library_function
        by = called if _DECODING_FUNCTION.match(called) else top.text
        less = next((code for pattern, code in _DECODES_LESS if pattern.search(by)), "")
        yield Finding(
            rule="image-decode",
            cures=("data",),
            title="Images are decoded while the step waits" + ", every epoch again" * case.trains,
            evidence=tuple(evidence),
            what_to_do=(
                f"{less}# {'or: ' * bool(less)}resize once, store the small images (or a uint8 "
                "array), and load those"
            ),
            gain_at_most=gain,
            formula=formula,
            line=_shown(top),
        )
    if working >= 2 * _LEAST_SHARE:
        gain, formula = amdahl(working)
        yield Finding(
            rule="image-work",
            cures=("data",),
            title="Work on images, other than decoding, while the step waits",
            evidence=(
                _samples(works, case, "resize, convert or otherwise change images in memory"),
            ),
            what_to_do=(
                "img = img.resize((size, size))  # first: what follows then has less to do\n"
                "img = augment(img)\n"
                f"# or: resize once {'before training' if case.trains else 'beforehand'}, and keep "
                "the small images"
            ),
            gain_at_most=gain,
            formula=formula,
            line=_shown(_most(works)),
        )


def _share(lines: Sequence[Line], limit: float) -> float:
    """The share of the step that these lines cost; 0 if there are too few samples."""
    if sum(x.n_samples for x in lines) < _LEAST_SAMPLES:
        return 0.0
    return min(sum(x.share for x in lines), limit)


def _samples(lines: Sequence[Line], case: Case, what: str) -> str:
    n = sum(x.n_samples for x in lines)
    share = fmt_share(sum(x.share for x in lines))
    return f"{share} of the line samples ({n} of {case.lines.n_samples}) {what}"


def _decodes(line: Line) -> bool:
    if line.library in _IMAGE_LIBRARIES and line.library_function:
        return _DECODING_FUNCTION.match(line.library_function) is not None
    return (
        _DECODING_FUNCTION.match(line.library_function) is not None
        or _DECODING.search(line.text) is not None
    )


def _works_on_images(line: Line) -> bool:
    return line.library in _IMAGE_LIBRARIES or _IMAGE_WORK.search(line.text) is not None


def _most(lines: Sequence[Line]) -> Line:
    return LineSamples(tuple(lines), 0).by_line()[0]


def _top_line(case: Case) -> Line | None:
    lines = [x for x in case.lines.by_line() if x.in_data_wait and x.n_samples >= _LEAST_SAMPLES]
    return lines[0] if lines else None


def _shown(line: Line | None) -> str | None:
    return None if line is None else f"{line.where}: {line.text}" if line.text else line.where
