"""Records made by hand, for tests only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from perfkit.base.machine import Provenance, facts, machine_sentence
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.ledger.records import Device, Record

SOMEWHERE = "AMD EPYC 0000 of a test"
GPU = "NVIDIA H100 0000 of a test"


def here() -> str:
    return facts().cpu


def made(
    claim: str = "A9",
    *,
    lesson: str = "06",
    figures: Mapping[str, Figure] | None = None,
    holds: bool = True,
    device: str = SOMEWHERE,
    type: Literal["cpu", "cuda"] = "cpu",  # noqa: A002
    gpus: int = 0,
    when: str = "2026-01-02T03:04:05+00:00",
    sentence: str = "A batch is a fifth of what it was.",
    machine: str = "",
) -> Record:
    figures = {"bytes_ratio": Figure(5.0, "×", kind="exact")} if figures is None else figures
    return Record(
        claim=claim,
        lesson=lesson,
        title="bytes of a batch",
        outcome=Outcome(holds, figures, next(iter(figures)), sentence),
        device=Device(device, type, gpus),
        provenance=Provenance(
            "recorded", machine or machine_sentence(), device, {"torch": "2.13.0"}, when, None, 0
        ),
        budget_s=5.0,
        duration_s=1.0,
    )
