"""The course's photographs: JPEG files of camera size, generated identically on every machine.

Each picture is cloud-like noise with the spectrum of a photograph (amplitude falls as 1/frequency:
Field, J. Opt. Soc. Am. A 4, 1987) behind one large shape, which is the label. So files are as large
and as slow to decode as real ones, and a network has something to learn.

The computation uses only integers, and random bits from PCG64's raw stream, which NumPy promises
not to change. Only the JPEG encoder can vary: files are identical for one version of Pillow.
"""

from __future__ import annotations

import base64
import contextlib
import html
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfkit.base.errors import MissingError, UsageError
from perfkit.base.extras import needs
from perfkit.base.scratch import new_folder
from perfkit.course.kit._places import data_folder

CLASSES = ("disc", "square", "triangle", "cross")

_MANIFEST = "manifest.json"
_MAKER_VERSION = 1  # increase it when the pictures change, so that old files are regenerated
# A 4:2:0 JPEG of these pictures at quality 90 takes about 0.3 bytes per pixel; half a byte leaves
# room for the file system and higher quality.
_BYTES_PER_PIXEL = 0.5

# Per cent of the summed octaves to keep; gives files of about 0.6 MB at 1600 x 1200, like a
# camera's at this size and quality.
_CONTRAST = 20

_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ImageSet:
    """A folder of labelled JPEG files.

    Attributes:
        folder: contains one sub-folder per class.
        files: all pictures, in a fixed order that alternates between the classes.
        labels: the class number of each file.
        classes: the names of the classes, by number.
        size: width and height of every picture, in pixels.
        total_bytes: size of all files together.
    """

    folder: Path
    files: tuple[Path, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    size: tuple[int, int]
    total_bytes: int

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        width, height = self.size
        return (
            f"<ImageSet: {len(self)} JPEG files of {width} x {height} pixels, "
            f"{len(self.classes)} classes>"
        )

    def _repr_html_(self) -> str:
        """A thumbnail of each class, and a description of the set."""
        figures = "".join(
            f'<img alt="a {html.escape(self.classes[label])} on a noisy background" '
            f'src="data:image/jpeg;base64,{_thumbnail(file)}" style="margin:0 6px 0 0">'
            for file, label in list(zip(self.files, self.labels, strict=True))[: len(self.classes)]
        )
        return f"<div>{figures}<br>{html.escape(repr(self)[1:-1])}</div>"


def make_images(
    folder: str | Path | None = None,
    *,
    n: int = 64,
    size: tuple[int, int] = (1600, 1200),
    quality: int = 90,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> ImageSet:
    """Make ``n`` labelled JPEG files, or find those of an earlier call.

    The set gets its final name only when complete, so an interrupted call leaves nothing half
    done; a set with missing or truncated files is regenerated.

    Args:
        folder: where to put the set; by default ``$PERFKIT_DATA``, else ``data/generated`` of
            the clone, else the user's cache.
        n: number of pictures.
        size: width and height in pixels.
        quality: quality of the JPEG encoder, 1 to 95.
        seed: seed for everything random.
        progress: called with (pictures made, n) after each picture.

    Raises:
        UsageError: a value is invalid, or the folder cannot be written.
        MissingError: Pillow is not installed, or the disk is full.
    """
    _check(n, size, quality, seed)
    parent = data_folder() if folder is None else Path(folder).expanduser()
    width, height = size
    target = parent / f"photos-{width}x{height}-q{quality}-n{n}-seed{seed}"
    recipe = {"maker": _MAKER_VERSION, "n": n, "size": [width, height], "quality": quality}
    recipe |= {"seed": seed}
    found = _read_set(target, recipe)
    if found is not None:
        return found

    try:
        parent.mkdir(parents=True, exist_ok=True)
        scratch = new_folder(parent, hidden=True)
    except OSError as error:
        raise UsageError(f"cannot write images to {parent}: {error.strerror}") from None
    try:
        _check_room(parent, n * width * height)
        _write_set(scratch, recipe, n, size, quality, seed, progress)
        _publish(scratch, target, recipe)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"cannot write images to {parent}: {reason}; free some space there, or set "
            "PERFKIT_DATA to another folder"
        ) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    made = _read_set(target, recipe)
    if made is None:
        raise UsageError(f"images in {target} were changed while they were made; call again")
    return made


def _check(n: int, size: tuple[int, int], quality: int, seed: int) -> None:
    if n < 1:
        raise UsageError(f"n must be at least 1, not {n}")
    if len(size) != 2 or min(size) < 16 or max(size) > 16384:
        raise UsageError(f"size must be (width, height) between 16 and 16384 pixels, not {size}")
    if not 1 <= quality <= 95:
        raise UsageError(f"quality must be between 1 and 95, not {quality}")
    if seed < 0:
        raise UsageError(f"seed must not be negative, but is {seed}")


def _check_room(folder: Path, pixels: int) -> None:
    needed = int(pixels * _BYTES_PER_PIXEL)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise MissingError(
            f"the images need about {needed / 2**20:.0f} MiB, and {folder} has "
            f"{free / 2**20:.0f} MiB free; free some, or set PERFKIT_DATA to another disk"
        )


def _read_set(target: Path, recipe: dict[str, Any]) -> ImageSet | None:
    """The finished set, or ``None`` if it is missing, damaged, or made with other parameters."""
    try:
        manifest = json.loads((target / _MANIFEST).read_text())
        if manifest["recipe"] != recipe:
            return None
        entries = manifest["files"]
        files = tuple(target / name for name, _, _ in entries)
        if any(f.stat().st_size != size for f, (_, _, size) in zip(files, entries, strict=True)):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return ImageSet(
        folder=target,
        files=files,
        labels=tuple(label for _, label, _ in entries),
        classes=CLASSES,
        size=(recipe["size"][0], recipe["size"][1]),
        total_bytes=sum(size for _, _, size in entries),
    )


def _write_set(
    folder: Path,
    recipe: dict[str, Any],
    n: int,
    size: tuple[int, int],
    quality: int,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    random = _Random(seed)
    sky = _sky(random, size)
    entries = []
    for name in CLASSES:
        (folder / name).mkdir()
    for index in range(n):
        label = index % len(CLASSES)
        name = f"{CLASSES[label]}/{index:05d}.jpg"
        picture = _picture(random, sky, size, label)
        picture.save(folder / name, quality=quality)
        entries.append([name, label, (folder / name).stat().st_size])
        if progress is not None:
            progress(index + 1, n)
    (folder / _MANIFEST).write_text(json.dumps({"recipe": recipe, "files": entries}, indent=1))


def _publish(scratch: Path, target: Path, recipe: dict[str, Any]) -> None:
    """Rename the finished set into place. If another process was first, its set may be in use."""
    if _read_set(target, recipe) is not None:
        return
    with contextlib.suppress(OSError):
        scratch.rename(target)
        return
    if _read_set(target, recipe) is not None:
        return
    # A damaged or outdated set is there (a rename does not replace a non-empty folder).
    shutil.rmtree(target, ignore_errors=True)
    with contextlib.suppress(OSError):
        scratch.rename(target)


class _Random:
    """Random bytes and integers from PCG64's raw stream."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def bytes(self, rows: int, columns: int) -> _Bytes:
        count = -(-rows * columns // 8)
        raw = self._bits.random_raw(count).astype("<u8").view(np.uint8)
        return raw[: rows * columns].reshape(rows, columns)

    def below(self, limit: int) -> int:
        return int(self._bits.random_raw()) % limit


def _sky(random: _Random, size: tuple[int, int]) -> list[_Bytes]:
    """Red, green and blue of one large field of noise from which all pictures are cut.

    As in photographs, the channels share their brightness, and colour varies more slowly.
    """
    wide = (size[0] * 5 // 4, size[1] * 5 // 4)
    light = _noise(random, wide, finest=2) * _CONTRAST // 100 + 128
    warm, cold = (_noise(random, wide, finest=64) * _CONTRAST // 300 for _ in range(2))
    planes = (light + warm, light - (warm + cold) // 2, light + cold)
    return [np.clip(plane, 0, 255).astype(np.uint8) for plane in planes]


def _noise(random: _Random, size: tuple[int, int], finest: int) -> npt.NDArray[np.int32]:
    """1/f noise around 0, as a sum of octaves from a third of the size down to ``finest`` pixels.

    In two dimensions an amplitude of 1/f means equal energy in every octave.
    """
    pillow = _pillow()
    width, height = size
    total = np.zeros((height, width), dtype=np.int32)
    cell = max(width, height) // 3
    while cell >= finest:
        grid = random.bytes(height // cell + 2, width // cell + 2)
        smooth = pillow.fromarray(grid).resize(size, pillow.Resampling.BICUBIC)
        total += np.asarray(smooth, dtype=np.int32) - 128
        cell //= 2
    return total


def _picture(random: _Random, sky: list[_Bytes], size: tuple[int, int], label: int) -> Any:
    """One picture: a piece of sky behind one shape of class ``label``.

    The shape has the texture of another piece of sky, in a colour independent of its class.
    """
    pillow = _pillow()
    picture = pillow.merge("RGB", _cut(random, sky, size))
    texture = _cut(random, sky[:1], size)[0]
    shape = pillow.merge("RGB", [_tinted(texture, 64 + random.below(160)) for _ in range(3)])
    picture.paste(shape, (0, 0), _shape(random, size, label))
    return picture


def _cut(random: _Random, planes: list[_Bytes], size: tuple[int, int]) -> list[Any]:
    """The same piece of every plane, flipped at random."""
    width, height = size
    top = random.below(planes[0].shape[0] - height + 1)
    left = random.below(planes[0].shape[1] - width + 1)
    down = 1 if random.below(2) else -1
    along = 1 if random.below(2) else -1
    pieces = (p[top : top + height, left : left + width][::down, ::along] for p in planes)
    return [_pillow().fromarray(np.ascontiguousarray(piece)) for piece in pieces]


def _thumbnail(file: Path) -> str:
    """A JPEG of at most 160 pixels per side, as base64."""
    with _pillow().open(file) as picture:
        picture.thumbnail((160, 160))
        small = io.BytesIO()
        picture.save(small, "JPEG", quality=75)
    return base64.b64encode(small.getvalue()).decode()


def _tinted(texture: Any, level: int) -> Any:
    table = [max(0, min(255, level + (value - 128) // 2)) for value in range(256)]
    return texture.point(table)


def _shape(random: _Random, size: tuple[int, int], label: int) -> Any:
    """A mask with one filled shape at a random place, about half as high as the picture."""
    pillow = _pillow()
    from PIL import ImageDraw

    width, height = size
    mask = pillow.new("L", size, 0)
    draw = ImageDraw.Draw(mask)
    r = min(width, height) * (20 + random.below(11)) // 100
    x = r + random.below(width - 2 * r)
    y = r + random.below(height - 2 * r)
    match CLASSES[label]:
        case "disc":
            draw.ellipse((x - r, y - r, x + r, y + r), fill=255)
        case "square":
            draw.rectangle((x - r, y - r, x + r, y + r), fill=255)
        case "triangle":
            draw.polygon([(x, y - r), (x + r, y + r), (x - r, y + r)], fill=255)
        case _:
            arm = r // 3
            draw.rectangle((x - r, y - arm, x + r, y + arm), fill=255)
            draw.rectangle((x - arm, y - r, x + arm, y + r), fill=255)
    return mask


def _pillow() -> Any:
    with needs("making the images"):
        from PIL import Image
    return Image
