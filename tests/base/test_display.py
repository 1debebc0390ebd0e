"""A result shows itself as text and HTML wherever it is printed or displayed."""

from __future__ import annotations

from dataclasses import dataclass

from IPython.lib.pretty import pretty

from perfkit.base.display import Shown
from perfkit.measure.summary import summarize


@dataclass(frozen=True)
class _Plain(Shown):
    value: int


def test_a_notebook_shows_the_text_and_not_the_fields() -> None:
    result = summarize([1.0, 2.0, 3.0, 2.0, 1.5, 2.5])
    assert pretty(result) == str(result)
    assert "Summary(" not in pretty(result)
    assert "pk-report" in result._repr_html_()


def test_a_type_without_renderer_shows_its_repr() -> None:
    assert str(_Plain(3)) == "_Plain(value=3)"
