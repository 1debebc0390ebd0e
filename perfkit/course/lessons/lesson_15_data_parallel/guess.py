"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "c",
    "When DistributedDataParallel wraps the model, it sends rank 0's weights and buffers to all "
    "others. What each rank drew before is gone. Seeds still decide what dropout and augmentation "
    "draw, and there ranks should differ.",
)
