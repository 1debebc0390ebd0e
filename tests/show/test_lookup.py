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

    @show.text.register(Mine)
    def _(obj: object) -> str:
        return "mine"

    assert show.text(Mine()) == "mine"


def test_every_room_with_results_has_a_renderer_that_imports() -> None:
    import importlib

    for module in set(show._RENDERERS.values()):
        renderer = importlib.import_module(module)
        assert callable(renderer.text)
        assert callable(renderer.html)


def test_plain_text_needs_neither_jinja2_nor_matplotlib() -> None:
    probe = (
        "import sys, perfkit.show as r\n"
        "from perfkit.machine import stamp\n"
        "assert str(stamp())\n"
        "print(sorted({'jinja2', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
