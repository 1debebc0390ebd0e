"""When the claims of lesson 16 hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfkit.course.ledger.criteria import all_of, criterion
from perfkit.course.ledger.recording import Figure, Outcome

_LESSON = "16-many-machines"


@criterion(
    "B11",
    lesson=_LESSON,
    title="two hosts on one machine by torchrun; a kill and a restart; bytes an update",
    holds_if="two torchruns, as on two hosts, train the weights of one process to rounding, and "
    "after a kill, with the data's position in the checkpoint, each sample is trained on once",
)
def several_hosts(
    hosts: Sequence[int],
    apart: float,
    lost: Mapping[str, int],
    sent: Mapping[str, float],
    predicted: Mapping[str, float],
) -> Outcome:
    """Judge two torchruns on one machine, and a restart after a kill.

    Args:
        hosts: the number of the host on which each rank ran.
        apart: largest difference of a weight from one process's.
        lost: ``"without position"`` and ``"with position"`` → samples that never came.
        sent: ``"DDP"`` and ``"DiLoCo"`` → bytes that a rank of 1,024 sends an update.
        predicted: the same names → seconds an update over a slow network.
    """
    two, one = len(set(hosts)) == 2, apart < 1e-5
    return Outcome(
        holds=all_of(two, one, lost["with position"] == 0),
        figures={
            "bytes_ratio": Figure.exact(sent["DDP"] / sent["DiLoCo"], "×"),
            "lost_without_position": Figure.exact(lost["without position"]),
            "lost_with_position": Figure.exact(lost["with position"]),
            "ddp_1024_s": Figure(predicted["DDP"], "s", kind="predicted"),
            "diloco_1024_s": Figure(predicted["DiLoCo"], "s", kind="predicted"),
        },
        headline="bytes_ratio",
        sentence=f"Ranks of {len(set(hosts))} torchruns on one machine train what one process "
        f"trains. After a kill {lost['without position']} of 128 samples never come if the "
        f"checkpoint lacks the data's position, and {lost['with position']} if it has it. DiLoCo "
        f"sends 1/{sent['DDP'] / sent['DiLoCo']:.0f} of DDP's bytes an update.",
    )


@criterion(
    "B12",
    lesson=_LESSON,
    title="a Trainer's options beside the same by hand",
    holds_if="accumulation and precision by option give the weights of the loop by hand, and "
    "devices, num_nodes and strategy are options of today's Trainer",
)
def by_option(same: Mapping[str, bool | None], names: Mapping[str, bool] | None) -> Outcome:
    """Judge Lightning's options, where Lightning is installed.

    Args:
        same: option → whether the Trainer's weights are those by hand; None without Lightning.
        names: option → whether the Trainer has it, those of 2019 among them; None without
            Lightning.
    """
    from perfkit.course.lessons.lesson_16_many_machines.measured import GONE, OPTIONS

    if names is None:
        said = (
            "Lightning is not installed here, so only the loops by hand ran: nothing is said of "
            "its options."
        )
        return Outcome(
            holds=None,
            figures={"options_compared": Figure.exact(0)},
            headline="options_compared",
            sentence=said,
        )
    gone = sum(not names[name] for name in GONE)
    return Outcome(
        holds=all_of(*same.values(), all(names[name] for name in OPTIONS)),
        figures={"options_compared": Figure.exact(len(same)), "names_gone": Figure.exact(gone)},
        headline="options_compared",
        sentence=f"{', '.join(same)}: {sum(map(bool, same.values()))} of {len(same)} give the "
        f"weights of the loop by hand. {gone} of {len(GONE)} names of 2019 are gone.",
    )
