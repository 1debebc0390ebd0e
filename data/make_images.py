"""Make the course's photographs: ``python data/make_images.py [FOLDER] [--n 64] [--seed 0]``."""

from __future__ import annotations

import argparse
import sys

from perfkit.base.errors import PerfkitError
from perfkit.course.kit.images import make_images


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the course's photographs.")
    parser.add_argument("folder", nargs="?", help="default: data/generated in the clone")
    parser.add_argument("--n", type=int, default=64, help="how many (default 64)")
    parser.add_argument("--width", type=int, default=1600, help="pixels (default 1600)")
    parser.add_argument("--height", type=int, default=1200, help="pixels (default 1200)")
    parser.add_argument("--quality", type=int, default=90, help="of the JPEG encoder (default 90)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default 0)")
    wanted = parser.parse_args()
    try:
        images = make_images(
            wanted.folder,
            n=wanted.n,
            size=(wanted.width, wanted.height),
            quality=wanted.quality,
            seed=wanted.seed,
        )
    except PerfkitError as error:
        print(f"make_images: {error}", file=sys.stderr)
        return 1
    print(f"{images!r}, {images.total_bytes / 2**20:.1f} MiB in {images.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
