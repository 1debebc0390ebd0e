"""When the claims of lesson 03 hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from perfkit.base.errors import MissingError
from perfkit.base.words import no_difference
from perfkit.course.kit.images import ImageSet
from perfkit.course.ledger.criteria import all_of, criterion, faster
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.lessons.lesson_03_storage_and_formats.phases import Phases
from perfkit.course.lessons.lesson_03_storage_and_formats.tables import TableFiles
from perfkit.course.lessons.lesson_03_storage_and_formats.vector_code import WORKS
from perfkit.measure.compare import Comparison
from perfkit.measure.summary import summarize

_LESSON = "03-storage-and-formats"
# ILSVRC 2012, training set: pictures, bytes of the archive; and the claim's machine.
_IMAGENET, _IMAGENET_BYTES, _MACHINE_BYTES = 1_281_167, 147_897_477_120, 248e9
_TABLES = "pandas and pyarrow are not installed here: pip install pandas pyarrow"


@criterion(
    "A2",
    lesson=_LESSON,
    title="shares of read, decode and transform in a step",
    holds_if="reading and decoding together take more of a step than training, with a small "
    "network and pictures larger than it needs (resizing and cropping count for neither)",
)
def shares_of_a_step(
    phases: Phases, cold_ms: Sequence[float] | None, *, images: ImageSet, batch: int
) -> Outcome:
    """Judge the phases' times for batches of so many pictures, from files in the page cache;
    ``cold_ms`` are reads of files that are not, or ``None`` where those could not be had.
    """
    percent = {name: 100 * share for name, share in phases.shares.items()}
    shares = {name: percent[name] for name in ("read", "decode", "train")}
    shares["transform"] = 100 - sum(shares.values())
    figures = {f"{name}_share": Figure(share, "%") for name, share in shares.items()}
    figures |= {
        name: Figure(one.median / batch, "ms", one.low / batch, one.high / batch)
        for name, one in phases.times.items()
        if name in shares
    }
    others = [one.median for name, one in phases.times.items() if name not in shares]
    figures["transform"] = Figure(sum(others) / batch, "ms")
    claimed = shares["read"] + shares["decode"]
    figures["read_and_decode_share"] = Figure(claimed, "%")
    figures["data_share"] = Figure(100 - shares["train"], "%")
    cold = _cold(cold_ms)
    figures |= cold
    read_cold = (
        f"; read cold, a picture takes {cold['cold_read'].value:.2g} ms instead of "
        f"{figures['read'].value:.2g}"
        if cold
        else "; a cold read could not be had here"
    )
    return Outcome(
        holds=claimed > shares["train"],
        figures=figures,
        headline="read_and_decode_share",
        sentence=(
            f"With pictures of {images.size[0]} × {images.size[1]} and a small network a step "
            f"spends {claimed:.0f} % of its time reading (page cache warm: {shares['read']:.1f} %) "
            f"and decoding, {shares['transform']:.0f} % resizing and cropping, and "
            f"{shares['train']:.0f} % training{read_cold}."
        ),
    )


@criterion(
    "A3",
    lesson=_LESSON,
    title="files, encoded bytes in RAM, decoded pixels in RAM or mapped: time and bytes",
    holds_if="decoded pixels in RAM load faster than warm files, and ImageNet, encoded, has fewer "
    "bytes than the claim's machine",
)
def kept_in_ram(
    against_files: Mapping[str, Comparison],
    access: Comparison,
    *,
    encoded_bytes: float,
    decoded_bytes: float,
    cold_ms: Sequence[float] | None,
    own: Mapping[str, float],
) -> Outcome:
    """Judge ways to keep pictures against their files in the page cache.

    Args:
        against_files: ``"encoded"``, ``"decoded"`` and ``"mapped"``.
        access: getting the bytes of a warm file, against an item of a list.
        encoded_bytes, decoded_bytes: of a picture, as a mean.
        cold_ms: reads of files that are not in the page cache; ``None`` if they could not be had.
        own: bytes that a worker copies ÷ bytes of the data, for a ``"list"`` of short records and
            a ``"tensor"`` of them; empty where workers are not forked.
    """
    figures = {f"{name}_ratio": Figure.of(one) for name, one in against_files.items()}
    figures |= {
        "encoded_bytes": Figure.exact(encoded_bytes, "B"),
        "decoded_bytes": Figure.exact(decoded_bytes, "B"),
        "warm_file": Figure(access.a.median, "ms", access.a.low, access.a.high),
        "list_item": Figure(1e6 * access.b.median, "ns", 1e6 * access.b.low, 1e6 * access.b.high),
        "imagenet_encoded": Figure.exact(_IMAGENET_BYTES / 1e9, "GB"),
        "imagenet_decoded_256": Figure.exact(_IMAGENET * 3 * 256 * 256 / 1e9, "GB"),
    }
    figures |= _cold(cold_ms)
    figures |= {f"own_of_{name}": Figure(ratio, "×") for name, ratio in own.items()}
    decoded = against_files["decoded"]
    return Outcome(
        holds=all_of(_IMAGENET_BYTES < _MACHINE_BYTES, faster(decoded)),
        figures=figures,
        headline="decoded_ratio",
        sentence=(
            f"Decoded pixels in RAM load {decoded.ratio:.0f} times as fast as warm files and take "
            f"{decoded_bytes / encoded_bytes:.1f} times the bytes; encoded bytes in RAM, the "
            f"source's own listing: {_said(against_files['encoded'])}."
        ),
    )


@criterion(
    "A6",
    lesson=_LESSON,
    title="resize 2048 → 512 in every epoch or once before",
    holds_if="pictures that were resized once load faster than pictures resized in every epoch",
)
def resized_offline(
    timed: Comparison,
    images: ImageSet,
    small: Sequence[Path],
    *,
    size: tuple[int, int],
    online_s: float,
    once_s: float,
) -> Outcome:
    """Judge loading with and without the resize; ``small`` are the files of that size, written in
    ``once_s``, and an epoch with the resize takes ``online_s``.
    """
    from perfkit.course.lessons.lesson_03_storage_and_formats.pictures import break_even

    epochs = break_even(online_s, online_s / timed.ratio, once_s)
    figures = {
        "load_ratio": Figure.of(timed),
        "pixels_ratio": Figure.exact(images.size[0] * images.size[1] / (size[0] * size[1]), "×"),
        "bytes_ratio": Figure.exact(
            images.total_bytes / sum(file.stat().st_size for file in small), "×"
        ),
    }
    said = "does not pay"
    if np.isfinite(epochs):
        figures["break_even"] = Figure(epochs, "epochs")
        said = f"has paid after {epochs:.1f} epochs"
    return Outcome(
        holds=faster(timed),
        figures=figures,
        headline="load_ratio",
        sentence=(
            f"Pictures resized beforehand from {images.size[0]} to {size[0]} pixels load "
            f"{timed.ratio:.1f} times as fast; resizing them {said}."
        ),
    )


@criterion(
    "A7",
    lesson=_LESSON,
    title="a row of a DataFrame, a row of a tensor",
    holds_if="the tensor's row has the same numbers as the DataFrame's and is had faster",
)
def table_rows(
    timed: Comparison | None = None, calls: Sequence[int] = (), same: bool = False
) -> Outcome:
    """Judge a DataFrame's row against a tensor's; ``calls`` are the function calls of each.

    Raises:
        MissingError: nothing was measured, because pandas is not installed.
    """
    if timed is None:
        raise MissingError(_TABLES)
    of_frame, of_tensor = calls
    return Outcome(
        holds=all_of(same, faster(timed)),
        figures={
            "row_ratio": Figure.of(timed),
            "frame_calls": Figure.exact(of_frame),
            "tensor_calls": Figure.exact(of_tensor),
        },
        headline="row_ratio",
        sentence=(
            f"A row of a tensor takes 1/{timed.ratio:.0f} of the time of a DataFrame's row, "
            f"and {of_tensor} function calls against {of_frame}."
        ),
    )


@criterion(
    "C13",
    lesson=_LESSON,
    title="CSV against Parquet and Arrow: size, load time, columns read",
    holds_if="the table takes fewer bytes as Parquet than as CSV and loads faster",
)
def columns_not_text(
    against_csv: Mapping[str, Comparison] | None = None,
    files: TableFiles | None = None,
    two_columns_bytes: int = 0,
    allocated: int = 0,
) -> Outcome:
    """Judge ways to read a table against reading its whole CSV.

    Args:
        against_csv: as the lesson names them.
        files: the same table in each format.
        two_columns_bytes: of two of its columns in the Parquet file.
        allocated: bytes that opening the mapped Arrow file allocates.

    Raises:
        MissingError: nothing was measured, because pandas or pyarrow is not installed.
    """
    if against_csv is None or files is None:
        raise MissingError(_TABLES)
    names = {
        "csv_two": "CSV, 2 columns",
        "parquet": "Parquet, all columns",
        "parquet_two": "Parquet, 2 columns",
        "arrow": "Arrow, all columns",
        "arrow_mapped": "Arrow, mapped",
    }
    found = {short: against_csv[name] for short, name in names.items()}
    sizes = {name: getattr(files, name).stat().st_size for name in ("csv", "parquet", "arrow")}
    figures = {f"{name}_ratio": Figure.of(one) for name, one in found.items()}
    figures |= {f"{name}_bytes": Figure.exact(size, "B") for name, size in sizes.items()}
    figures["two_columns_bytes"] = Figure.exact(two_columns_bytes, "B")
    figures["mapped_allocates"] = Figure.exact(allocated, "B")
    return Outcome(
        holds=all_of(sizes["parquet"] < sizes["csv"], faster(found["parquet"])),
        figures=figures,
        headline="parquet_ratio",
        sentence=(
            f"The same table as Parquet takes {sizes['parquet'] / sizes['csv']:.0%} of the CSV's "
            f"bytes and loads {found['parquet'].ratio:.1f} times as fast, two of its columns "
            f"{found['parquet_two'].ratio:.0f} times; a mapped Arrow file allocates {allocated} B."
        ),
    )


@criterion(
    "C14",
    lesson=_LESSON,
    title="decode and resize with and without vector code",
    holds_if="torch resizes faster with vector code than without",
)
def vector_instructions(
    against_none: Mapping[str, Comparison], same: Mapping[str, bool], *, level: str
) -> Outcome:
    """Judge works without vector code against the same with it; ``same`` says whether the results
    are equal, ``level`` is what torch calls its vector code.
    """
    figures: dict[str, Figure] = {}
    for name, one in against_none.items():
        short = name.lower().replace(" ", "_")
        figures[f"{short}_ratio"] = Figure.of(one)
        figures[f"{short}_same"] = Figure.exact(int(same[name]))
    without = [one.name for one in WORKS if one.name in against_none and not one.reaches]
    said = f" The switch does not reach {', '.join(without)}." if without else ""
    resize = against_none["torch resize"]
    return Outcome(
        holds=faster(resize),
        figures=figures,
        headline="torch_resize_ratio",
        sentence=(
            f"With vector code against without it: torch ({level}) resizes {_said(resize)}, and "
            f"Pillow decodes a JPEG {_said(against_none['Pillow decode'])}.{said}"
        ),
    )


def _cold(times_ms: Sequence[float] | None) -> dict[str, Figure]:
    if not times_ms:
        return {}
    found = summarize(times_ms)
    return {"cold_read": Figure(found.median, "ms", found.low, found.high)}


def _said(found: Comparison) -> str:
    """A ratio in words, or that no difference was seen."""
    if not np.isfinite(found.high):
        return "with too few measurements to tell"
    if not found.different:
        ends = f"{found.low:.2f} to {found.high:.2f} times as fast"
        seen = no_difference(found.low, found.high) == "no difference seen"
        return f"with no difference seen ({ends})" if seen else f"too unsteadily to tell ({ends})"
    return f"{found.ratio:.1f} times as fast"
