"""Nothing written for sharing contains a secret, at any exit; the store is not scrubbed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfkit.experiment.compare._saved import saved
from perfkit.measure.compare import compare
from perfkit.show.files import page
from perfkit.widgets.lab import Lab, _status
from tests.show.test_runs import SLOW

# made up, and put together here, so that no scanner takes this file for a leak
SECRETS = [
    "hf_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7",
    "sk_" + "live_a1B2c3D4e5F6g7H8i9J0k1L2",
    "AKIA" + "A1B2C3D4E5F6G7H8",
    "nvapi-" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7",
]


def _none_in(written: str) -> None:
    for secret in SECRETS:
        assert secret not in written
        assert secret.replace("_", "\\_") not in written
    assert "[secret]" in written.replace("\\", "")


def _a_run() -> Any:
    from dataclasses import replace

    said = " ".join(SECRETS)
    return replace(SLOW, values={"url": said}, output=said, message=said, state="failed")


def test_a_run_saved_as_json(tmp_path: Path) -> None:
    run = _a_run()
    made = run.save(tmp_path / "run.json").read_text()
    _none_in(made)
    json.loads(made)
    assert SECRETS[0] in run.save(tmp_path / "as-it-is.json", scrub=False).read_text()


def test_a_run_as_markdown(tmp_path: Path) -> None:
    run = _a_run()
    _none_in(run.to_markdown())
    _none_in(run.save(tmp_path / "run.md").read_text())
    assert "\\[secret\\]" not in run.to_markdown(scrub=False)


def test_the_page_of_a_run() -> None:
    _none_in(page(_a_run()))


@pytest.mark.slow
def test_the_names_of_a_comparison(tmp_path: Path) -> None:
    found = compare(lambda: 1, lambda: 2, names=(SECRETS[0], "b"), budget_s=0.05)
    made = [found.to_markdown()]
    for name in ("a.md", "a.json", "a.svg"):
        made.append(found.save(tmp_path / name).read_text(encoding="utf-8"))
    for written in made:
        _none_in(written)


@pytest.mark.parametrize("ending", ["md", "json"])
def test_the_files_of_a_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    lab = Lab(lambda settings: iter(()), settings=["num_workers"], title=SECRETS[0])
    run = _a_run()
    monkeypatch.setattr(Lab, "runs", (run,))
    sent: list[bytes] = []
    monkeypatch.setattr(lab, "send", lambda content, buffers: sent.extend(buffers))
    try:
        made = lab.save(tmp_path / f"lab.{ending}").read_text()
        kept = lab.save(tmp_path / f"kept.{ending}", scrub=False).read_text()
        lab._send_file(ending)
        lab._send_file("copy")
    finally:
        lab.close()
    _none_in(made)
    assert SECRETS[2] in kept
    assert (lab.shared_title, lab.file_stem) == ("[secret]", "secret")
    for file in sent:  # what the buttons send
        _none_in(file.decode())


def test_the_store_keeps_the_truth() -> None:
    assert SECRETS[0] in json.dumps(saved(_a_run()))


def test_what_a_labs_page_writes_into_its_png() -> None:
    """The page draws that file itself, from words that it is given for it."""
    said = _status("failed", f"Run 1: {SECRETS[0]}", started=True)
    assert said["line"].endswith(SECRETS[0])
    _none_in(said["shared"])
