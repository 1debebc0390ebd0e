"""The right answer to the lesson's guess, and the measurement that shows it."""

from __future__ import annotations

from perfkit.course.kit.keys import Key

KEY = Key(
    "c",
    "Parameters, gradients and both states of AdamW are 0.3 MB. Nearly all of the peak is what the "
    "forward pass keeps for the backward pass: 25 tensors of 1 MiB. What is computed a second time "
    "need not be kept. zero_grad, del and empty_cache free what was dead already.",
)
