"""Whose code a file is: one decision for the sampler, the sync lint, memory and slow steps."""

from __future__ import annotations

import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
import torch

import perfkit.trace.record.record
from perfkit.base import user_code
from perfkit.base.user_code import is_user_code, package_path, tells_something, where
from perfkit.synclint.sites import site_of


@pytest.mark.parametrize(
    ("filename", "users"),
    [
        (__file__, True),
        ("/home/me/train.py", True),
        ("/tmp/ipykernel_1234/567.py", True),
        ("<ipython-input-3-abcdef>", True),
        ("<stdin>", True),
        ("<console>", True),
        ("<doctest train[0]>", True),
        ("<my program>", True),  # compile(text, "<my program>", "exec")
        (torch.__file__, False),
        (threading.__file__, False),
        (pytest.__file__, False),
        (perfkit.trace.record.record.__file__, False),
        ("/usr/lib/python3/dist-packages/peft/a.py", False),
        ("/tmp/torchinductor_me/bx/cbx7nxx3opeiuqha4wdli3sxmzhjgomilqf6ty67zesemdko2xmh.py", False),
        ("/home/me/bx/cbx.py", True),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),  # methods of dataclasses and namedtuples
        ("<eval_with_key>.4", False),
        ("<attrs generated init train.Config>", False),
        ("<class 'networkx.utils.decorators.argmap'> compilation 12", False),
        ("<__array_function__ internals>", False),
        ("<@beartype(train.step) at 0x7f>", False),
    ],
)
def test_whose_code_it_is(filename: str, users: bool) -> None:
    assert is_user_code(filename) is users
    # the sync lint blames a frame of it, or goes on to the one that called it
    frames: list[types.FrameType] = []
    exec(compile("look()", filename, "exec"), {"look": lambda: frames.append(sys._getframe(1))})
    site = site_of(frames[0])
    assert site is not None
    blamed = site.below[0] if site.below is not None else site.file
    assert (blamed == filename) is users


@pytest.mark.slow
@pytest.mark.usefixtures("programs_are_forked")
def test_a_program_on_the_command_line_is_the_users() -> None:
    program = (
        "import torch, perfkit\n"
        "net = torch.nn.Linear(2, 1)\n"
        "print(perfkit.find_syncs(lambda: net(torch.ones(1, 2)).sum().item()))\n"
        "from perfkit.base.user_code import is_user_code\n"
        "print(is_user_code('<string>'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "<string>, line 3" in done.stdout
    assert done.stdout.splitlines()[-1] == "True"


@pytest.mark.parametrize(
    ("filename", "said"),
    [
        ("/home/me/train.py", "train.py:7"),
        ("<ipython-input-3-abcdef>", "cell [3], line 7"),
        ("/tmp/ipykernel_1234/567.py", "cell, line 7"),
        ("cell.py", "cell [12], line 7"),
        ("<stdin>", "<stdin>, line 7"),
        ("/x/site-packages/peft/tuners/lora.py", "peft/tuners/lora.py:7"),
        ("C:\\x\\site-packages\\peft\\a.py", "peft/a.py:7"),
        ("/x/site-packages/torch/nn/modules/linear.py", "linear.py:7"),
    ],
)
def test_a_line_has_one_name(filename: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_code, "cell_names", lambda: {"cell.py": 12})
    assert where(filename, 7) == said


@pytest.mark.parametrize(
    ("package", "tells"),
    [("peft/a.py", True), ("six.py", True), ("torch/a.py", False), ("tqdm/std.py", False)],
)
def test_packages_that_only_pass_on_tell_nothing(package: str, tells: bool) -> None:
    assert tells_something(f"/x/site-packages/{package}") is tells
    assert package_path(f"/x/site-packages/{package}") == package


def test_what_pip_put_into_a_folder_of_the_path_is_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``pip install --target libs``: its lines were told as the user's own."""
    info = tmp_path / "lents-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("lents/trainer.py,sha256=x,12\n../../bin/lents,,\nalone.py,,\n")
    trainer, mine = str(tmp_path / "lents" / "trainer.py"), str(tmp_path / "train.py")
    monkeypatch.setattr(sys, "path", [*sys.path, f"{tmp_path}/"])
    assert not is_user_code(trainer)
    assert package_path(trainer) == "lents/trainer.py"
    assert tells_something(trainer)
    assert where(trainer, 3) == "lents/trainer.py:3"
    assert not is_user_code(str(tmp_path / "alone.py"))
    assert is_user_code(mine)  # beside them, and not one of them
    assert package_path(mine) == ""


def test_the_users_own_files_are_in_no_package() -> None:
    assert package_path("/home/me/train.py") == ""
    assert not tells_something("/home/me/train.py")
    assert not tells_something(threading.__file__)
