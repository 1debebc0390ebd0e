"""The quizzes of the lessons, kept here so that no notebook shows the answers."""

from __future__ import annotations

from perfkit.course.kit.quiz import Quiz

__all__ = ["interval_quiz", "mask_quiz", "names_quiz", "twice_quiz"]


def interval_quiz() -> Quiz:
    """Lesson 01: what to conclude from an interval that contains 1."""
    return Quiz(
        "A comparison of an old and a new version says: ratio 1.03, 95 % interval 0.97 to 1.09. "
        "What do you write?",
        {
            "a": "the new version is 3 % faster",
            "b": "both are equally fast",
            "c": "no difference seen; anything from 3 % slower to 9 % faster is possible",
            "d": "the measurement is broken: it should have given 1",
        },
        right="c",
        because={
            "a": "The interval contains 1: the same code against itself gives figures like these.",
            "b": "The interval contains 1, but also a gain of 9 %.",
            "c": "That is what the interval says; to know more, measure longer.",
            "d": "Two arms never take exactly the same time; the interval says what that means.",
        },
    )


def names_quiz() -> Quiz:
    """Lesson 03: memory that grows with every worker."""
    return Quiz(
        "A dataset keeps two million file names in a Python list. With 8 workers the machine runs "
        "out of memory, slowly, during the first epoch. What helps?",
        {
            "a": "call gc.collect() in the workers",
            "b": "keep the names in one tensor or array, with offsets",
            "c": "use a tuple instead of a list",
            "d": "a smaller batch size",
        },
        right="b",
        because={
            "a": "There is no garbage: writing reference counts is what copies pages.",
            "b": "One object with one count: the pages that hold the names are never written.",
            "c": "The names are still two million objects, each with its own count.",
            "d": "Batches do not grow: every name that a worker reads copies a page.",
        },
    )


def twice_quiz() -> Quiz:
    """Lesson 04: an epoch that is twice as long."""
    return Quiz(
        "With num_workers=2 an epoch over an IterableDataset has twice as many steps, "
        "and the loss falls faster per epoch. What happened?",
        {
            "a": "the workers compete for the disk",
            "b": "each sample is read twice",
            "c": "prefetching changed the order",
        },
        right="b",
        because={
            "a": "That makes steps slower. It does not add any.",
            "b": "Two passes over the data in what is counted as one epoch.",
            "c": "The order alone changes neither the number of steps nor, on average, the loss.",
        },
    )


def mask_quiz() -> Quiz:
    """Lesson 07: which line with a mask does not wait."""
    return Quiz(
        "x and y are tensors on a GPU, mask = x > 0. Which line does not wait?",
        {
            "a": "x[mask] = y[mask]",
            "b": "x[mask] = 0.0",
            "c": "n = x[mask].shape[0]",
            "d": "torch.bincount(labels, minlength=10)",
        },
        right="b",
        because={
            "a": "Two masks, two waits: the size of y[mask] depends on its values.",
            "b": "A plain number on the right: it fills under the mask, and all sizes are known.",
            "c": ".shape costs nothing, but x[mask] had to wait to have one.",
            "d": "It looks for the largest value, whatever minlength is. scatter_add does not.",
        },
    )
