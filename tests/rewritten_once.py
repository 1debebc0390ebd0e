"""The rewriting of test files for their asserts, once in all workers of xdist.

In a fresh clone each would rewrite all, as all begin with the same file. So each rewrites its
share first, and finds most of the others in pytest's cache.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def rewrite_share(config: pytest.Config, files: list[Path], number: int, of: int) -> int:
    """Rewrite each ``of``-th file from ``number`` on; return how many were not in the cache."""
    if sys.dont_write_bytecode:
        return 0
    state = config.stash[rewrite.assertstate_key]
    n_rewritten = 0
    for file in files[number::of]:
        cache = rewrite.get_cache_dir(file)
        kept = cache / (file.stem + rewrite.PYC_TAIL)
        if rewrite._read_pyc(file, kept) is None and rewrite.try_makedirs(cache):
            source_hash, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(state, code, source_hash, kept)
            n_rewritten += 1
    return n_rewritten
