"""Which renderer shows a result, and what an object that is no result looks like."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from perfkit import show


@dataclass
class Stranger:
    name: str


def test_a_stranger_is_shown_by_its_escaped_repr() -> None:
    assert show.text(Stranger("<b>")) == repr(Stranger("<b>"))
    assert "<b>" not in show.html(Stranger("<b>"))
    assert "&lt;b&gt;" in show.html(Stranger("<b>"))


def test_a_registered_type_wins() -> None:
    class Mine:
        pass

    @show.document_for(Mine)
    def _(obj: object) -> show.Document:
        return show.Document(name="mine", sentence="It is <mine>.")

    assert show.text(Mine()) == "It is <mine>."
    assert "It is &lt;mine&gt;." in show.html(Mine())
    assert show.markdown(Mine()) == "**It is \\<mine\\>.**\n"


def test_every_room_with_results_has_a_module_that_imports() -> None:
    import importlib

    from perfkit.show.lookup import _HOMES

    for module in set(_HOMES.values()):
        importlib.import_module(module)


def test_plain_text_needs_neither_jinja2_nor_matplotlib() -> None:
    probe = (
        "import sys, perfkit.show as r\n"
        "from perfkit.base.machine import stamp\n"
        "assert str(stamp())\n"
        "print(sorted({'jinja2', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
