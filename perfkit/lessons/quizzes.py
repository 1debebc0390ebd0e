"""The quizzes of the lessons. They stand here so that no answer is in sight in a notebook."""

from __future__ import annotations

from perfkit.lessons.quiz import Quiz

__all__ = ["interval_quiz", "mask_quiz", "names_quiz", "twice_quiz"]


def interval_quiz() -> Quiz:
    """Lesson 01: what to write of an interval that holds 1."""
    return Quiz(
        "A comparison of an old and a new version says: ratio 1.03, 95 % interval 0.97 to 1.09. "
        "What do you write?",
        {
            "a": "the new version is 3 % faster",
            "b": "both are equally fast",
            "c": "no difference seen; from 3 % slower to 9 % faster, all is possible",
            "d": "the measurement is broken: it should have given 1",
        },
        right="c",
        because={
            "a": "1 lies inside the interval: the same code against itself gives such figures.",
            "b": "1 lies inside the interval, but a gain of 9 % does, too.",
            "c": "That is what the interval says; to know more, measure for longer.",
            "d": "Two arms never take the same time exactly; the interval says what that means.",
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
            "a": "Nothing is garbage: pages were copied because counts in them were written to.",
            "b": "One object with one count: the pages with the letters are never written to.",
            "c": "The names are still two million objects, each with a count of its own.",
            "d": "Batches are not what grows: every name that is looked at copies a page.",
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
            "a": "That makes steps slower. It adds none.",
            "b": "Two passes over the data in what is counted as one epoch.",
            "c": "Order alone changes neither the number of steps nor, on average, the loss.",
        },
    )


def mask_quiz() -> Quiz:
    """Lesson 07: which masked line does not wait."""
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
