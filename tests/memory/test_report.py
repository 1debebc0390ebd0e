"""Memory reports: a sentence first, the same figures in text, HTML and JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from perfkit import show
from perfkit.base.words import fmt_bytes
from perfkit.memory.account import MemoryAccount, account
from perfkit.memory.live import now

MIB = 2**20


def _account() -> MemoryAccount:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()) for _ in range(6)])
    batch = torch.randn(256, 64)
    return account(lambda: model(batch).sum().backward())


def test_the_sentence_tells_peak_largest_share_and_what_stayed() -> None:
    result = _account()
    said = show.document(result)
    assert said is not None
    sentence = said.sentence
    assert sentence.startswith(f"Peak {fmt_bytes(result.peak_bytes)}, ")
    assert "activations" in sentence
    assert sentence.endswith(f"{fmt_bytes(result.left_behind_bytes)} stayed behind.")


def test_text_and_html_tell_the_same_and_fit() -> None:
    result = _account()
    words, page = result.to_text(), result._repr_html_()
    assert all(len(line) <= 100 for line in words.splitlines())
    for category, nbytes in result.at_peak_bytes.items():
        if nbytes:
            assert fmt_bytes(nbytes) in words
            assert fmt_bytes(nbytes) in page
            assert category in page
    for said in ("resident set of the process (not tensor memory)", "measured here"):
        assert said in words.lower()
        assert said in page.lower()
    # the picture has its words
    assert 'role="img"' in page
    assert "aria-label" in page
    assert "<script" not in page
    assert "http" not in page


def test_no_work_is_a_plain_answer() -> None:
    words = account(lambda: None).to_text()
    assert words.startswith("No tensor was made or freed here")
    assert "by category" not in words


def test_less_and_nothing_left_behind_are_said() -> None:
    kept = [torch.zeros(256)]
    cleared = account(kept.clear).to_text()
    assert "nothing stayed behind and 1.00 KiB from before was freed" in " ".join(cleared.split())
    assert "nothing stayed behind" in account(lambda: torch.zeros(256)).to_text()


def test_the_rise_and_what_the_cell_itself_left_stand_apart_from_what_was_before() -> None:
    old = [torch.zeros(2**20)]
    new: list[torch.Tensor] = []

    def cell() -> None:
        old.clear()
        new.append(torch.zeros(2**18))

    result = account(cell)
    main = result.devices[0]
    assert (main.left_behind_bytes, main.kept_bytes, main.freed_bytes) == (-3 * MIB, MIB, 4 * MIB)
    words = " ".join(result.to_text().split())
    assert "no more than at the start" in words
    assert "1.00 MiB stayed behind and 4.00 MiB from before was freed." in words

    again = account(lambda: new.append(torch.zeros(2**19)))
    assert again.devices[0].rise_bytes == 2 * MIB
    assert f"Peak {fmt_bytes(again.peak_bytes)}, 2.00 MiB above the start, " in again.to_text()
    assert again.to_dict()["devices"][0]["kept_bytes"] == 2 * MIB


def test_names_are_escaped() -> None:
    state = now({"<b>x</b>": torch.zeros(10**6)})
    assert "<b>x</b>" in state.to_text()
    assert "<b>x</b>" not in state._repr_html_()
    assert "&lt;b&gt;x&lt;/b&gt;" in state._repr_html_()


def test_the_bundle_carries_the_numbers() -> None:
    result = _account()
    bundle = show.mime_bundle(result)
    data = json.loads(json.dumps(bundle[show.RESULT_MIME]))
    assert data["type"] == "memory"
    assert data["peak_bytes"] == result.peak_bytes == sum(data["at_peak_bytes"].values())


@pytest.mark.slow
def test_the_room_imports_neither_ipython_nor_jinja() -> None:
    code = (
        "import sys, perfkit.memory.account, perfkit.memory.live\n"
        "r = perfkit.memory.account.account(lambda: None)\n"
        "str(r)\n"
        "print([m for m in ('IPython', 'ipywidgets', 'matplotlib', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
