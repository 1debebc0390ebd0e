"""A table of sales, and its files: CSV, Parquet and Arrow.

Needs pandas, and for Parquet and Arrow also pyarrow. :func:`missing` says in one line what is not
installed, so that a notebook can continue without it.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.base.errors import MissingError, UsageError
from perfkit.base.files import write_atomically

if TYPE_CHECKING:
    from pandas import DataFrame

# a list, because pandas selects columns with lists
NUMBERS = [f"x{i}" for i in range(8)]
SHOPS = ("north", "east", "south", "west")

_INSTALL = {"cv2": "opencv-python-headless", "PIL": "pillow"}


def missing(*packages: str) -> str:
    """One line that names what is not installed and how to get it; empty if nothing is missing."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    if not absent:
        return ""
    wanted = " ".join(_INSTALL.get(name, name) for name in absent)
    return f"{', '.join(absent)} not installed here: this part is left out (pip install {wanted})"


@dataclass(frozen=True)
class TableFiles:
    """The same table in three files.

    Attributes:
        csv: text, one line per row.
        parquet: column by column, compressed.
        arrow: column by column, in memory layout: can be mapped instead of read.
    """

    csv: Path
    parquet: Path
    arrow: Path


def make_table(rows: int = 50_000, *, gaps: bool = False, seed: int = 0) -> DataFrame:
    """A table with eight measurements, a day, a shop's name and a label per row.

    Args:
        rows: number of rows.
        gaps: omit some measurements (NaN).
        seed: seed of everything random.

    Returns:
        Columns ``x0`` … ``x7`` (float32, four decimals), ``day`` (int64, 0 to 364), ``shop``
        (text, one of :data:`SHOPS`), ``label`` (int64, 0 or 1).

    Raises:
        MissingError: pandas is not installed.
        UsageError: ``rows`` is less than 1.
    """
    if rows < 1:
        raise UsageError(f"a table needs at least one row, not {rows}")
    needed = missing("pandas")
    if needed:
        raise MissingError(needed)
    import pandas

    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for name in NUMBERS:
        values = random.standard_normal(rows, dtype=np.float32).round(4)
        if gaps:
            values[random.random(rows) < 0.1] = np.nan
        columns[name] = values
    columns["day"] = random.integers(0, 365, rows)
    columns["shop"] = np.array(SHOPS)[random.integers(0, len(SHOPS), rows)]
    columns["label"] = random.integers(0, 2, rows)
    return pandas.DataFrame(columns)


def write_table(frame: DataFrame, folder: Path) -> TableFiles:
    """Write a table as CSV, Parquet and (uncompressed) Arrow.

    Raises:
        MissingError: pyarrow is not installed.
    """
    needed = missing("pyarrow")
    if needed:
        raise MissingError(needed)
    import pyarrow
    from pyarrow import feather, parquet

    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    files = TableFiles(folder / "table.csv", folder / "table.parquet", folder / "table.arrow")
    write_atomically(files.csv, lambda path: frame.to_csv(path, index=False))
    parquet.write_table(table, files.parquet)
    feather.write_feather(table, str(files.arrow), compression="uncompressed")
    return files
