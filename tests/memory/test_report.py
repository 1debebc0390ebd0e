"""How memory is told: a sentence first, the same figures in text, HTML and JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import torch
from torch import nn

from perfkit import report
from perfkit.memory.account import MemoryAccount, account
from perfkit.memory.live import now
from perfkit.report._text import fmt_bytes


def _account() -> MemoryAccount:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()) for _ in range(6)])
    batch = torch.randn(256, 64)
    return account(lambda: model(batch).sum().backward())


def test_the_sentence_tells_peak_largest_share_and_what_stayed() -> None:
    result = _account()
    sentence = str(result).splitlines()[0]
    assert sentence.startswith(f"Peak {fmt_bytes(result.peak_bytes)}, ")
    assert "activations" in sentence
    assert sentence.endswith(f"{fmt_bytes(result.left_behind_bytes)} stayed behind.")


def test_text_and_html_tell_the_same_and_fit() -> None:
    result = _account()
    words, page = str(result), result._repr_html_()
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
    words = str(account(lambda: None))
    assert words.startswith("No tensor was made or freed here")
    assert "by category" not in words


def test_less_and_nothing_left_behind_are_said() -> None:
    kept = [torch.zeros(256)]
    assert "1.00 KiB less than before" in str(account(kept.clear))
    assert "nothing stayed behind" in str(account(lambda: torch.zeros(256)))


def test_names_are_escaped() -> None:
    state = now({"<b>x</b>": torch.zeros(10**6)})
    assert "<b>x</b>" in str(state)
    assert "<b>x</b>" not in state._repr_html_()
    assert "&lt;b&gt;x&lt;/b&gt;" in state._repr_html_()


def test_the_bundle_carries_the_numbers() -> None:
    result = _account()
    bundle = report.mime_bundle(result, "memory")
    data = json.loads(json.dumps(bundle[report.RESULT_MIME]))
    assert data["type"] == "memory"
    assert data["peak_bytes"] == result.peak_bytes == sum(data["at_peak_bytes"].values())


def test_the_room_imports_neither_ipython_nor_jinja() -> None:
    code = (
        "import sys, perfkit.memory.account, perfkit.memory.live\n"
        "r = perfkit.memory.account.account(lambda: None)\n"
        "str(r)\n"
        "print([m for m in ('IPython', 'ipywidgets', 'matplotlib', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
