"""A GPU day in its short form runs through on the played GPU, and takes no record home."""

from __future__ import annotations

import ctypes
import json
import tarfile
from pathlib import Path

import gpu_day
import pytest
import torch  # noqa: F401 - the stubs come with it

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not hasattr(ctypes.CDLL(None), "played_launch"), reason="runs on the played GPU only"
    ),
]


def test_it_runs_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu_day.main(["--short", "--out", str(tmp_path)])
    slug = "played-gpu-host-memory"
    states = {
        piece.name: (gpu_day.ended(tmp_path / slug, piece) or {}).get("state")
        for piece in gpu_day.pieces(short=True)
    }
    # nothing was recorded, so that nothing can be exported
    assert states.pop("export") == "failed"
    said = (tmp_path / slug / "export" / "output.txt").read_text(encoding="utf-8")
    assert "nothing to export" in said
    assert set(states.values()) == {"done"}, (states, capsys.readouterr().out)
    with tarfile.open(tmp_path / f"gpu-day-{slug}.tar.xz") as tar:
        names = tar.getnames()
        memory = json.load(tar.extractfile("gpu-day/gpu_memory/result.json"))
        settings = json.load(tar.extractfile("gpu-day/gpu_settings/result.json"))
    assert not [name for name in names if "recorded" in name or name.endswith(gpu_day.RECORDS)]
    for row in memory["rows"]:
        peak = row["allocator_bytes"]
        assert row["account_bytes"] == pytest.approx(peak, rel=0.01)
        assert row["history_bytes"] == pytest.approx(peak, rel=0.01)
        network = peak - row["besides_the_network_bytes"]
        assert row["predicted_bytes"] == pytest.approx(network, rel=0.02)
    assert [row["setting"] for row in settings["rows"]] == ["pin_memory"]
    assert "error" not in settings["rows"][0]
    assert {result["provenance"]["kind"] for result in (memory, settings)} == {"played"}
