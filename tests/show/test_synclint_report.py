"""How the sync lint looks: a sentence, each line with what helps, user code never as markup."""

from __future__ import annotations

import re

import torch
from torch import nn

from perfkit import show
from perfkit.synclint.find import SyncLines, find_syncs


def _syncs() -> SyncLines:
    net = nn.Linear(2, 2)

    def step() -> None:
        y = net(torch.randn(3, 2))
        [y.sum().item(), "<script>alert(1)</script>"]

    return find_syncs(step)


def test_text_tells_line_reason_and_what_helps_in_96_columns() -> None:
    text = show.text(_syncs())
    assert text.startswith("1 line would make the host wait for a GPU.\n")
    assert "test_synclint_report.py:" in text
    assert re.search(r"\n +- instead: keep it on the device", text)
    assert re.search(r"for example:\n +total = total \+ loss.detach\(\)", text)
    foot = text.rpartition("\n\n")[2]  # folded where the processor's name is long
    assert foot.startswith("predicted: ")
    assert max(len(line) for line in text.splitlines()) <= 96


def test_html_escapes_the_users_code() -> None:
    html = show.html(_syncs())
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "role=" in html


def test_a_clean_step_and_one_without_a_model() -> None:
    net = nn.Linear(2, 2)
    assert show.text(find_syncs(lambda: net(torch.ones(1, 2)))).startswith("No line of this code")
    # a line that logs every tenth step was in none of the two that a run looks at
    of_some = SyncLines()
    of_some.seen = "Seen: steps 2 and 3."
    assert show.text(of_some).startswith("No line of what was seen would make")
    unseen = find_syncs(lambda: None)
    assert "Note: no module with parameters ran" in show.text(unseen)
    assert "pk-chip" in show.html(unseen)


def test_a_single_sync_shows_itself() -> None:
    (sync,) = _syncs()
    assert "Tensor.item" in str(sync)
    assert "Tensor.item" in sync._repr_html_()


def test_counts_of_lines_are_not_taken_for_counts_of_waits() -> None:
    net = nn.Linear(2, 2)

    def step() -> None:
        for _ in range(3):
            y = net(torch.randn(3, 2))
            y.sum().item()
            torch.tensor([1.0, 2.0], device=y.device) + y.detach()[:, 0].mean()

    said = " ".join(show.text(find_syncs(step)).split())
    assert (
        "2 lines would make the host wait for a GPU, 6 times in this run, 1 of these lines" in said
    )
