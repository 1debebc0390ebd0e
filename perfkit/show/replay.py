"""How a replay of an allocator looks: one sentence, and what it held at its marks."""

from __future__ import annotations

from perfkit.base.words import fmt_bytes, fmt_count, fmt_ratio, plural
from perfkit.memory.replay import Replayed
from perfkit.show.document import Document, Table, document_for

#: Marks that are listed; of more, this many spread over all.
_ROWS = 12

_SOURCES = {
    "shapes": "predicted from shapes, without workspaces of libraries",
    "operators": "what operators made, without workspaces of libraries",
    "allocator": "recorded by the allocator",
}


@document_for(Replayed)
def _replayed(found: Replayed) -> Document:
    limit = "" if found.limit_bytes is None else f", {fmt_bytes(found.limit_bytes)} at most"
    end = ""
    if found.failed_bytes is not None:
        end = (
            f" Out of memory after {plural(found.failed_at_mark or 0, 'mark')}: "
            f"{fmt_bytes(found.failed_bytes)} asked for, "
            f"{fmt_bytes(found.reserved_bytes)} reserved, of which "
            f"{fmt_bytes(found.reserved_bytes - found.allocated_bytes)} not in use."
        )
    n = len(found.marks)
    listed = sorted({round(k * (n - 1) / (_ROWS - 1)) for k in range(_ROWS)} if n > 1 else range(n))
    return Document(
        name="replay",
        headline=_headline(found),
        sentence=(
            f"Simulated ({found.settings}{limit}): at most {fmt_bytes(found.peak_reserved_bytes)} "
            f"reserved for {fmt_bytes(found.peak_allocated_bytes)} of tensors "
            f"at once ({_times(found)}); "
            f"{fmt_count(found.n_device_allocs)} × cudaMalloc, "
            f"{fmt_count(found.n_device_frees)} × cudaFree, "
            f"{plural(found.n_retries, 'retry', 'retries')}.{end}"
        ),
        tables=(
            Table(
                title="At the marks",
                note="" if len(listed) == n else f"{len(listed)} of {n}",
                header=("mark", "reserved", "in use, at most", "cudaMalloc", "cudaFree", "retries"),
                rows=tuple(
                    (
                        str(k + 1),
                        fmt_bytes(found.marks[k].highest_reserved_bytes),
                        fmt_bytes(found.marks[k].highest_allocated_bytes),
                        fmt_count(found.marks[k].n_device_allocs),
                        fmt_count(found.marks[k].n_device_frees),
                        fmt_count(found.marks[k].n_retries),
                    )
                    for k in listed
                ),
                align=">>>>>>",
            ),
        ),
        foot=(
            f"{plural(found.n_allocs, 'request')} of {found.device}: {_SOURCES[found.source]}. "
            "Counts and bytes by the rules of torch's allocator; no times.",
            found.provenance.sentence(),
        ),
        kind="replay",
    )


def _headline(found: Replayed) -> str:
    if found.failed_bytes is not None:
        return f"Simulated: out of memory after {plural(found.failed_at_mark or 0, 'mark')}."
    reserved, used = fmt_bytes(found.peak_reserved_bytes), fmt_bytes(found.peak_allocated_bytes)
    return f"Simulated: {reserved} reserved for {used} of tensors."


def _times(found: Replayed) -> str:
    if not found.peak_allocated_bytes:
        return "nothing"
    return fmt_ratio(found.peak_reserved_bytes / found.peak_allocated_bytes)
