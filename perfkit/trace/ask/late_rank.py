"""When a rank counts as late: one rule for collectives in traces and for phases of all steps."""

from __future__ import annotations

#: Where ranks wait less than this share of the mean wait, who comes last is chance. Of buckets that
#: are sent one after the other, for example, only the first one waits for the late rank.
HARDLY = 0.1
#: A late rank costs the others more than this share of their steps.
LEAST_SHARE = 0.02


def more_than_fair(total: float, n_ranks: int) -> float:
    """From how much of the blame on a rank is late.

    That is twice its fair share. Of two ranks a fair share is a half already: there it is three
    quarters.

    Args:
        total: what is divided among the ranks: how often one came last, or waiting; 1 for shares.
        n_ranks: how many meet.
    """
    fair = total / n_ranks
    return min(2 * fair, (total + fair) / 2)
