"""Lesson 03: the cost of a step's data, where to keep it, tables, and vector code.

Pictures are made by :func:`perfkit.course.kit.images.make_images` in the scratch folder.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfkit.course.kit.images import ImageSet, make_images
from perfkit.course.kit.threads import one_thread
from perfkit.course.ledger.recording import Context, Figure, Outcome, experiment
from perfkit.measure.compare import Comparison, compare
from perfkit.measure.summary import summarize

__all__ = [
    "columns_not_text",
    "kept_in_ram",
    "resized_offline",
    "shares_of_a_step",
    "table_rows",
    "vector_instructions",
]

_LESSON = "03-storage-and-formats"
_LARGE, _SMALL, _SIDE = (2048, 1536), (512, 384), 256
_QUICK_S = 2.0  # a smaller budget is a test: use fewer and smaller pictures
_COLD_ROUNDS = 3
_RECORDS, _RECORD_BYTES = 20_000, 400
_ROWS = 50_000
_TWO = ("x1", "label")
# ILSVRC 2012, training set: pictures, bytes of the archive; and the claim's machine.
_IMAGENET, _IMAGENET_BYTES, _MACHINE_BYTES = 1_281_167, 147_897_477_120, 248e9


def _pictures(context: Context, *, n: int = 16, size: tuple[int, int] = _LARGE) -> ImageSet:
    if context.budget_s < _QUICK_S:
        n, size = 4, (size[0] // 4, size[1] // 4)
    return make_images(context.folder, n=n, size=size, seed=context.seed)


def _decode(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data)).convert("RGB")


def _shrink(picture: Any) -> Any:
    from PIL import Image

    return picture.resize(_SMALL, Image.Resampling.BILINEAR)


def _to_tensor(picture: Any) -> Any:
    import torch

    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def _piece(pixels: Any) -> Any:
    """The middle of a picture, side × side: costs as much as a random crop."""
    top, left = (pixels.shape[1] - _SIDE) // 2, (pixels.shape[2] - _SIDE) // 2
    return pixels[:, top : top + _SIDE, left : left + _SIDE]


def _jpeg(picture: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=90)
    return out.getvalue()


def _loading(pixels: Callable[[int], Any], n: int) -> Callable[[], Any]:
    """A function that loads the next two of n pictures and stacks them, like a loader."""
    import torch

    turn = itertools.cycle(range(n))
    return lambda: torch.stack([_piece(pixels(next(turn))) for _ in range(2)])


def _training_step(device: str) -> Callable[[Any], Any]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 8), (8, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, 4))
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(pieces: Any) -> Any:
        pictures = torch.stack(pieces).to(device).float() / 255
        optimizer.zero_grad()
        labels = torch.zeros(len(pictures), dtype=torch.int64, device=device)
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    return step


@experiment(
    "A2", lesson=_LESSON, title="shares of read, decode and transform in a step", needs=["PIL"]
)
def shares_of_a_step(context: Context) -> Outcome:
    from perfkit.course.lessons.lesson_03_storage_and_formats.phases import time_phases

    images = _pictures(context)

    def each(function: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
        return lambda batch: [function(one) for one in batch]

    phases: dict[str, Callable[[Any], Any]] = {
        "read": each(lambda index: images.files[index].read_bytes()),
        "decode": each(_decode),
        "transform": each(lambda picture: _piece(_to_tensor(_shrink(picture)))),
        "train": _training_step(context.device),
    }
    batches = [list(range(start, start + 4)) for start in range(0, len(images), 4)]
    rounds = max(1, min(6, int(context.budget_s / 3)))
    with one_thread():
        found = time_phases(phases, batches, rounds=rounds)
    shares = {name: 100 * share for name, share in found.shares.items()}
    figures = {f"{name}_share": Figure(share, "%") for name, share in shares.items()}
    figures |= {
        name: Figure(one.median / 4, "ms", one.low / 4, one.high / 4)
        for name, one in found.times.items()
    }
    # the claim is about reading and decoding: resizing and cropping are separate
    claimed = shares["read"] + shares["decode"]
    figures["read_and_decode_share"] = Figure(claimed, "%")
    figures["data_share"] = Figure(100 - shares["train"], "%")
    cold = _cold(images.files)
    figures |= cold
    read_cold = (
        f"; read cold, a picture takes {cold['cold_read'].value:.2g} ms instead of "
        f"{found.times['read'].median / 4:.2g}"
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


def _cold(files: Sequence[Path]) -> dict[str, Figure]:
    """The time to read a file that is not in the page cache; empty if that is not possible."""
    from perfkit.course.lessons.lesson_03_storage_and_formats.cold_reads import cold_reads_ms

    times = [time for _ in range(_COLD_ROUNDS) for time in cold_reads_ms(files) or ()]
    if not times:
        return {}
    found = summarize(times)
    return {"cold_read": Figure(found.median, "ms", found.low, found.high)}


@experiment(
    "A3",
    lesson=_LESSON,
    title="files, encoded bytes in RAM, decoded pixels in RAM or mapped: time and bytes",
    needs=["PIL"],
)
def kept_in_ram(context: Context) -> Outcome:
    import torch

    images = _pictures(context, n=32, size=_SMALL)
    # the tests' pictures are smaller than the crop, so every arm uses the usual size
    encoded = [_jpeg(_shrink(_decode(file.read_bytes()))) for file in images.files]
    files = [context.folder / f"{index}.jpg" for index in range(len(encoded))]
    for file, data in zip(files, encoded, strict=True):
        file.write_bytes(data)
    decoded = torch.stack([_to_tensor(_decode(data)) for data in encoded])
    pixels = context.folder / "pixels.bin"
    decoded.numpy().tofile(pixels)
    n, shape = len(encoded), decoded.shape
    mapped = torch.from_file(str(pixels), size=decoded.numel(), dtype=torch.uint8).view(shape)
    from_files = _loading(lambda i: _to_tensor(_decode(files[i].read_bytes())), n)
    budget_s = context.budget_s / 4
    with one_thread():
        found = {
            "encoded": _compared(
                from_files, _loading(lambda i: _to_tensor(_decode(encoded[i])), n), budget_s
            ),
            "decoded": _compared(from_files, _loading(lambda i: decoded[i], n), budget_s),
            "mapped": _compared(from_files, _loading(lambda i: mapped[i], n), budget_s),
        }
    # the claim's 0.08 to 0.16 ms are for a cold SSD; here the files are in the page cache, and cold
    # reads are measured separately
    access = _compared(lambda: files[n // 2].read_bytes(), lambda: encoded[n // 2], 1.0)
    figures = {f"{name}_ratio": Figure.of(one) for name, one in found.items()}
    encoded_bytes = sum(map(len, encoded)) / n
    figures |= {
        "encoded_bytes": Figure(encoded_bytes, "B", kind="exact"),
        "decoded_bytes": Figure(decoded[0].numel(), "B", kind="exact"),
        "warm_file": Figure(access.a.median, "ms", access.a.low, access.a.high),
        "list_item": Figure(1e6 * access.b.median, "ns", 1e6 * access.b.low, 1e6 * access.b.high),
        "imagenet_encoded": Figure(_IMAGENET_BYTES / 1e9, "GB", kind="exact"),
        "imagenet_decoded_256": Figure(_IMAGENET * 3 * 256 * 256 / 1e9, "GB", kind="exact"),
    }
    figures |= _cold(files)
    figures |= _own_pages(context)
    ratio = found["decoded"]
    return Outcome(
        holds=ratio.different and ratio.ratio > 1 and _IMAGENET_BYTES < _MACHINE_BYTES,
        figures=figures,
        headline="decoded_ratio",
        sentence=(
            f"Decoded pixels in RAM load {ratio.ratio:.0f} times as fast as warm files and take "
            f"{decoded[0].numel() / encoded_bytes:.1f} times the bytes; encoded bytes in RAM, the "
            f"source's own listing: {_said(found['encoded'])}."
        ),
    )


def _own_pages(context: Context) -> dict[str, Figure]:
    """The bytes that each of two workers copies, for a list of short records and for a tensor."""
    import torch

    from perfkit.course.lessons.lesson_03_storage_and_formats.worker_pages import (
        why_unavailable,
        worker_pages,
    )

    if why_unavailable():
        return {}
    count = _RECORDS if context.budget_s >= _QUICK_S else _RECORDS // 4
    records = [b"%0*d" % (_RECORD_BYTES, number) for number in range(count)]
    rows = torch.tensor(np.frombuffer(b"".join(records), np.uint8)).view(count, _RECORD_BYTES)
    pages = worker_pages({"list": (records, rows.nbytes), "tensor": (rows, rows.nbytes)})
    return {
        f"own_of_{name}": Figure(pages.per_worker(name) / rows.nbytes, "×")
        for name in ("list", "tensor")
    }


@experiment(
    "A6", lesson=_LESSON, title="resize 2048 → 512 in every epoch or once before", needs=["PIL"]
)
def resized_offline(context: Context) -> Outcome:
    import time

    from perfkit.course.lessons.lesson_03_storage_and_formats.pictures import break_even

    images = _pictures(context)
    start = time.perf_counter()
    small = []
    for index, file in enumerate(images.files):
        small.append(context.folder / f"small-{index}.jpg")
        small[-1].write_bytes(_jpeg(_shrink(_decode(file.read_bytes()))))
    once_s = time.perf_counter() - start
    n = len(small)
    with one_thread():
        found = compare(
            _loading(lambda i: _to_tensor(_shrink(_decode(images.files[i].read_bytes()))), n),
            _loading(lambda i: _to_tensor(_decode(small[i].read_bytes())), n),
            names=("every epoch", "once"),
            budget_s=context.budget_s,
            seed=context.seed,
        )
    online_s = found.a.median / 2 * n / 1e3
    epochs = break_even(online_s, online_s / found.ratio, once_s)
    figures = {
        "load_ratio": Figure.of(found),
        "pixels_ratio": Figure(
            images.size[0] * images.size[1] / (_SMALL[0] * _SMALL[1]), "×", kind="exact"
        ),
        "bytes_ratio": Figure(
            images.total_bytes / sum(f.stat().st_size for f in small), "×", kind="exact"
        ),
    }
    said = "does not pay"
    if np.isfinite(epochs):
        figures["break_even"] = Figure(epochs, "epochs")
        said = f"has paid after {epochs:.1f} epochs"
    return Outcome(
        holds=found.different and found.ratio > 1,
        figures=figures,
        headline="load_ratio",
        sentence=(
            f"Pictures resized beforehand from {images.size[0]} to {_SMALL[0]} pixels load "
            f"{found.ratio:.1f} times as fast; resizing them {said}."
        ),
    )


@experiment("A7", lesson=_LESSON, title="a row of a DataFrame, a row of a tensor", needs=["pandas"])
def table_rows(context: Context) -> Outcome:
    import torch

    from perfkit.course.lessons.lesson_03_storage_and_formats.exercise import count_calls
    from perfkit.course.lessons.lesson_03_storage_and_formats.tables import NUMBERS, make_table

    frame = make_table(5_000, seed=context.seed)[NUMBERS]
    numbers = torch.tensor(frame.to_numpy())
    row = len(frame) // 2

    def of_frame() -> Any:
        return torch.tensor(frame.iloc[row].to_numpy())

    def of_tensor() -> Any:
        return numbers[row]

    found = compare(
        of_frame,
        of_tensor,
        names=("DataFrame", "tensor"),
        budget_s=context.budget_s / 2,
        seed=context.seed,
    )
    calls = count_calls(of_frame)[1], count_calls(of_tensor)[1]
    same = bool(torch.equal(of_frame(), of_tensor()))
    return Outcome(
        holds=same and found.different and found.ratio > 1,
        figures={
            "row_ratio": Figure.of(found),
            "frame_calls": Figure(calls[0], "1", kind="exact"),
            "tensor_calls": Figure(calls[1], "1", kind="exact"),
        },
        headline="row_ratio",
        sentence=(
            f"A row of a tensor takes 1/{found.ratio:.0f} of the time of a DataFrame's row, "
            f"and {calls[1]} function calls against {calls[0]}."
        ),
    )


@experiment(
    "C13",
    lesson=_LESSON,
    title="CSV against Parquet and Arrow: size, load time, columns read",
    needs=["pandas", "pyarrow"],
)
def columns_not_text(context: Context) -> Outcome:
    import pandas
    import pyarrow
    from pyarrow import feather, parquet

    from perfkit.course.lessons.lesson_03_storage_and_formats.tables import make_table, write_table

    rows = _ROWS if context.budget_s >= _QUICK_S else _ROWS // 10
    files = write_table(make_table(rows, seed=context.seed), context.folder)

    def text() -> Any:
        return pandas.read_csv(files.csv)

    ways: dict[str, Callable[[], Any]] = {
        "csv_two": lambda: pandas.read_csv(files.csv, usecols=list(_TWO)),
        "parquet": lambda: pandas.read_parquet(files.parquet),
        "parquet_two": lambda: pandas.read_parquet(files.parquet, columns=list(_TWO)),
        "arrow": lambda: feather.read_feather(files.arrow),
        "arrow_mapped": lambda: feather.read_table(files.arrow, memory_map=True),
    }
    found = {name: _compared(text, way, context.budget_s / len(ways)) for name, way in ways.items()}
    group = parquet.ParquetFile(files.parquet).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    needed = sum(c.total_compressed_size for c in columns if c.path_in_schema in _TWO)
    sizes = {name: getattr(files, name).stat().st_size for name in ("csv", "parquet", "arrow")}
    before = pyarrow.total_allocated_bytes()
    mapped = ways["arrow_mapped"]()
    allocated = pyarrow.total_allocated_bytes() - before
    del mapped
    figures = {f"{name}_ratio": Figure.of(one) for name, one in found.items()}
    figures |= {f"{name}_bytes": Figure(size, "B", kind="exact") for name, size in sizes.items()}
    figures["two_columns_bytes"] = Figure(needed, "B", kind="exact")
    figures["mapped_allocates"] = Figure(allocated, "B", kind="exact")
    ratio = found["parquet"]
    return Outcome(
        holds=ratio.different and ratio.ratio > 1 and sizes["parquet"] < sizes["csv"],
        figures=figures,
        headline="parquet_ratio",
        sentence=(
            f"The same table as Parquet takes {sizes['parquet'] / sizes['csv']:.0%} of the CSV's "
            f"bytes and loads {ratio.ratio:.1f} times as fast, two of its columns "
            f"{found['parquet_two'].ratio:.0f} times; a mapped Arrow file allocates {allocated} B."
        ),
    )


@experiment(
    "C14", lesson=_LESSON, title="decode and resize with and without vector code", needs=["PIL"]
)
def vector_instructions(context: Context) -> Outcome:
    from perfkit.course.lessons.lesson_03_storage_and_formats.vector_code import WORKS

    picture = _pictures(context, n=4, size=(1024, 768)).files[0]
    works = [work for work in WORKS if work.installed]
    found: dict[str, Comparison] = {}
    figures: dict[str, Figure] = {}
    for work in works:
        short = work.name.lower().replace(" ", "_")
        with work.running(picture, vector=False) as slow, work.running(picture, vector=True) as on:
            found[work.name] = _compared(slow, on, context.budget_s / len(works))
        figures[f"{short}_ratio"] = Figure.of(found[work.name])
        figures[f"{short}_same"] = Figure(int(slow.digest == on.digest), "1", kind="exact")
        if on.level:
            level = on.level
    without = [work.name for work in works if not work.reaches]
    said = f" The switch does not reach {', '.join(without)}." if without else ""
    decode, resize = found["Pillow decode"], found["torch resize"]
    return Outcome(
        holds=resize.different and resize.ratio > 1,
        figures=figures,
        headline="torch_resize_ratio",
        sentence=(
            f"With vector code against without it: torch ({level}) resizes {_said(resize)}, and "
            f"Pillow decodes a JPEG {_said(decode)}.{said}"
        ),
    )


def _compared(slow: Callable[[], Any], fast: Callable[[], Any], budget_s: float) -> Comparison:
    return compare(slow, fast, names=("slow", "fast"), budget_s=budget_s)


def _said(found: Comparison) -> str:
    """A ratio in words, or that no difference was seen."""
    if not np.isfinite(found.high):
        return "with too few measurements to tell"
    if not found.different:
        return f"with no difference seen ({found.low:.2f} to {found.high:.2f} times as fast)"
    return f"{found.ratio:.1f} times as fast"
