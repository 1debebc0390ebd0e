"""Which cell is being executed, and which execution it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import IPython
import pytest

from perfkit.widgets._cell import execution


def _in_kernel(monkeypatch: pytest.MonkeyPatch, parent: Any) -> None:
    shell = SimpleNamespace(get_parent=lambda: parent)
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)


def test_the_front_end_names_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    _in_kernel(monkeypatch, {"header": {"msg_id": "m1"}, "metadata": {"cellId": "c7"}})
    assert execution("ipykernel_1/2.py") == ("c7", "m1")


def test_without_a_name_the_text_tells_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    _in_kernel(monkeypatch, {"header": {"msg_id": "m2"}, "metadata": {}})
    assert execution("ipykernel_1/2.py") == ("ipykernel_1/2.py", "m2")


@pytest.mark.parametrize("parent", [{}, None, {"header": {}}])
def test_outside_of_an_execution_there_is_none(
    monkeypatch: pytest.MonkeyPatch, parent: Any
) -> None:
    _in_kernel(monkeypatch, parent)
    assert execution("a.py") is None
    monkeypatch.setattr(IPython, "get_ipython", lambda: None)
    assert execution("a.py") is None
