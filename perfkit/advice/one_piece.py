"""Sentences about steps, said of code in which no step was found: its figures are of one piece."""

from __future__ import annotations

import re

# in this order: the longer ones first
_INSTEAD = (
    (re.compile(r"\b(of|for|in|inside) (?:each|every|the|a|1) step\b"), r"\1 that time"),
    (re.compile(r" per step\b"), " in all"),
    (re.compile(r"(?<=\w) a step\b"), ""),
    (re.compile(r"\b(?:each|every|the) step\b"), "the code"),
)


def of_one_piece(sentence: str) -> str:
    """The sentence without steps: ``12 % of each step`` becomes ``12 % of that time``."""
    for pattern, instead in _INSTEAD:
        sentence = pattern.sub(instead, sentence)
    return sentence
