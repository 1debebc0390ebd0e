"""A helper process: a line in, a line out, and it stays behind in no case."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import psutil
import pytest

from perfkit.base.line_child import EndedError, LineChild

ECHO = """
import json, os, sys
first = {"pid": os.getpid(), "set": os.environ.get("PERFKIT_TEST_SET")}
sys.stdout.write(json.dumps(first) + "\\n")
sys.stdout.flush()
for line in sys.stdin:
    asked = json.loads(line)
    if asked == "die":
        sys.exit("no more memory,\\nit says")
    sys.stdout.write(json.dumps([asked]) + "\\n")
    sys.stdout.flush()
"""


def test_it_answers_until_it_is_ended() -> None:
    child = LineChild("-c", ECHO, env=os.environ | {"PERFKIT_TEST_SET": "ä"})
    assert child.hear() == {"pid": child.pid, "set": "ä"}
    assert child.ask({"a": "ö\n"}) == [{"a": "ö\n"}]
    assert child.is_open
    child.end()
    child.end()
    assert not child.is_open
    assert not psutil.pid_exists(child.pid)


def test_one_that_ends_early_leaves_its_last_words() -> None:
    child = LineChild("-c", ECHO)
    child.hear()
    with pytest.raises(EndedError, match=r"^it says$"):
        child.ask("die")
    assert not child.is_open
    silent = LineChild("-c", "")
    with pytest.raises(EndedError, match="it left no message"):
        silent.hear()


def test_one_that_is_killed_or_forgotten_is_gone() -> None:
    child = LineChild("-c", ECHO)
    child.hear()
    child.kill()
    with pytest.raises(EndedError):
        child.ask("anything")
    child = LineChild("-c", ECHO)
    child.hear()
    pid = child.pid
    del child
    gc.collect()
    assert not psutil.pid_exists(pid)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # threads, since 3.12
def test_a_fork_of_the_owner_does_not_end_it(tmp_path: Path) -> None:
    child = LineChild("-c", ECHO)
    child.hear()
    pid = os.fork()
    if pid == 0:
        child.end()  # the copy: not its process
        os._exit(0)
    os.waitpid(pid, 0)
    assert child.ask(1) == [1]
    child.end()
