"""The HTML frame: escapes, asks nobody for anything, and knows its theme."""

from __future__ import annotations

import re
from dataclasses import replace

import jinja2
import pytest

from perfkit.show._as_html import as_html
from perfkit.show._as_text import as_text
from perfkit.show._html import environment, render_string
from perfkit.show.document import Cell, Document, Finding, Fold, Table

FRAME = '{% extends "_base.html" %}{% block body %}<p>{{ what }}</p>{% endblock %}'


def test_what_comes_from_outside_is_escaped() -> None:
    shown = render_string(FRAME, what="<img src=x onerror=alert(1)>")
    assert "<img" not in shown
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown


def test_it_is_self_contained() -> None:
    shown = render_string(FRAME, what="x")
    assert not re.search(r"https?:|url\(|@import|<script|<link|\bsrc=|javascript:", shown)


def test_every_rule_is_scoped_to_the_report() -> None:
    style = re.search(r"<style>(.*)</style>", render_string(FRAME, what=""), re.DOTALL)
    assert style is not None
    rules = re.sub(r"@media[^{]*\{(.*?\})\s*\}", r"\1", style[1], flags=re.DOTALL)
    selectors = re.findall(r"([^{}]+)\{[^{}]*\}", rules)
    assert len(selectors) > 20
    for selector in selectors:
        for part in selector.split(","):
            assert part.strip().startswith(".pk-report"), part


def test_colours_come_from_the_front_end_or_else_from_the_readers_preference() -> None:
    style = str(environment().globals["style"])
    assert "var(--jp-content-font-color1," in style
    dark = style.split("@media (prefers-color-scheme:dark)")[1]
    assert "var(--jp-content-font-color1," in dark  # JupyterLab's own theme wins over it


def test_a_name_that_the_context_lacks_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render_string("{{ absent }}")


def test_filters_are_the_text_forms() -> None:
    shown = render_string("{{ 12.34 | ms }} {{ 0.714 | share }} {{ 2048 | bytes }} {{ 2 | ratio }}")
    assert shown == "12.3\xa0ms 71\xa0% 2.00\xa0KiB 2.00×"


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    """What is copied keeps its spaces, and so do attributes and other words after a number."""
    plain = "<style>a 1 s</style><pre>x = 7 % 3</pre><code>5 % 2</code><p title='3 ms'>4 steps</p>"
    assert render_string(plain) == plain
    assert render_string("<b>73 %</b>, 9.5 GB/s in 2 min, 4 batches") == (
        "<b>73\xa0%</b>, 9.5\xa0GB/s in 2\xa0min, 4 batches"
    )


def test_code_in_a_sentence_is_marked_as_code() -> None:
    """A note of torchprof showed its backticks."""
    said = "call `peaks(<x>)` once"
    document = Document(
        "x",
        said,
        lines=(said,),
        warnings=(said, said, said),
        advice=(said,),
        findings=(Finding(said, facts=(said,), lead=said, code="`c`", small=(said, said)),),
        tables=(Table(("a", "b"), ((said, Cell(said, (said,), "more", (said,))),), note=said),),
        foot=(said,),
    )
    page = as_html(document).partition("<h3")[2]
    assert page.count("<code>peaks(&lt;x&gt;)</code>") == 17
    assert re.findall("`.*`", page) == ["`c`"]


def test_findings_are_more_only_where_others_are_shown() -> None:
    """On a busy machine none is shown: "3 more findings" promised others above."""
    long = (Fold("log", "line\n" * 30),)
    more = (Finding("a"), Finding("b"))
    kept = Document("x", "Busy.", more_findings=more, more_title="Measure first", folds=long)
    assert "Measure first (2)" in as_html(kept)
    assert "more finding" not in as_html(kept)
    assert "2 findings" in as_text(kept, brief=True)
    shown = replace(kept, findings=more[:1], more_findings=more[1:])
    assert "1 more finding<" in as_html(shown)
    assert "1 more finding" in as_text(shown, brief=True)
