"""An optimizer, and what became of gradients between its steps and those of others."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any


@dataclass
class OptimizerUse:
    """An optimizer, and what became of the gradients of its first parameter.

    Attributes:
        n_thrown_away: how often it stepped, in the steps that were looked at, after a gradient was
            cleared that came to be before another optimizer's step.
        thrown_away_at: files and lines of the user's that made these other steps.
    """

    ref: weakref.ref[Any]
    n_thrown_away: int = 0
    thrown_away_at: set[tuple[str, int]] = field(default_factory=set)
    stepped_with: tuple[weakref.ref[Any], int] | None = None
    left: tuple[weakref.ref[Any], int] | None = None
    left_at: set[tuple[str, int]] = field(default_factory=set)

    def gradient(self) -> Any:
        """Of the first parameter that has one; else None."""
        optimizer = self.ref()
        for group in () if optimizer is None else optimizer.param_groups:
            for parameter in group["params"]:
                if (grad := parameter.grad) is not None:
                    return grad
        return None

    def steps(self) -> None:
        """It steps with the gradients that are there now."""
        grad = self.gradient()
        if grad is None:
            return
        if self.left is not None and self.left[0]() is not grad:
            self.n_thrown_away += 1
            self.thrown_away_at |= self.left_at
        self.left, self.stepped_with = None, (weakref.ref(grad), grad._version)
        self.left_at = set()

    def another_steps(self, at: tuple[str, int] | None) -> None:
        """Another optimizer steps: note the gradient if it was made since its own step."""
        grad: Any = self.gradient()
        if grad is None or self.stepped_with is None:
            return
        before, version = self.stepped_with
        groups = getattr(self.ref(), "param_groups", ())
        # a fused update counts as a change of the gradients that it reads
        written = grad._version != version and not any(group.get("fused") for group in groups)
        if before() is not grad or written:
            left, self.left = self.left, (weakref.ref(grad), grad._version)
            if left is None or left[1] != self.left[1] or left[0]() is not grad:
                self.left_at.add(at or ("", 0))
