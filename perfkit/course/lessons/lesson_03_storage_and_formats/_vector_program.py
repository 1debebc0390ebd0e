"""One piece of work, repeated for every line on standard input; see ``vector_code``.

It is a separate program because libraries decide at start-up whether to use vector code. Its first
line is JSON: a digest of the result, and what the library reports about itself.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def _pillow(data: bytes) -> Callable[[], Any]:
    from PIL import Image

    return lambda: np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def _simplejpeg(data: bytes) -> Callable[[], Any]:
    import simplejpeg

    return lambda: simplejpeg.decode_jpeg(data)


def _opencv_decode(data: bytes) -> Callable[[], Any]:
    import cv2

    cv2.setNumThreads(1)
    encoded = np.frombuffer(data, np.uint8)
    return lambda: cv2.imdecode(encoded, cv2.IMREAD_COLOR_RGB)


def _opencv_blur(data: bytes) -> Callable[[], Any]:
    import cv2

    pixels = _opencv_decode(data)()
    return lambda: cv2.GaussianBlur(pixels, (5, 5), 1)


def _opencv_resize(data: bytes) -> Callable[[], Any]:
    import cv2

    pixels = _opencv_decode(data)()
    return lambda: cv2.resize(pixels, (512, 384), interpolation=cv2.INTER_CUBIC)


def _torch_resize(data: bytes) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(1)
    pixels = torch.tensor(_pillow(data)()).permute(2, 0, 1)[None]
    return lambda: torch.nn.functional.interpolate(
        pixels, (384, 512), mode="bilinear", antialias=True
    ).numpy()


WORK = {
    "Pillow decode": _pillow,
    "simplejpeg decode": _simplejpeg,
    "OpenCV decode": _opencv_decode,
    "OpenCV blur": _opencv_blur,
    "OpenCV resize": _opencv_resize,
    "torch resize": _torch_resize,
}


def _main(work: str, file: str) -> None:
    run = WORK[work](Path(file).read_bytes())
    digest = hashlib.sha256(np.ascontiguousarray(run()).tobytes()).hexdigest()
    torch = sys.modules.get("torch")
    level = torch.backends.cpu.get_cpu_capability() if torch is not None else ""
    sys.stdout.write(json.dumps({"digest": digest, "level": level}) + "\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        run()
        sys.stdout.write('"done"\n')
        sys.stdout.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
