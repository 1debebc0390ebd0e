"""A lesson's figure: opaque, described in words, shown once."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image

from perfkit.base.errors import UsageError
from perfkit.course.kit.axes import whiskers
from perfkit.course.kit.picture import picture, show


def _drawn(**kwargs: Any) -> Figure:
    figure = Figure(figsize=(4, 2), **kwargs)
    figure.add_subplot().bar(["a", "b"], [1, 2])
    return figure


def _pixels(html: str) -> np.ndarray[Any, Any]:
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA"))


@pytest.mark.parametrize("ground", ["white", "none", (1, 1, 1, 0)])
def test_the_ground_is_white_and_opaque_on_every_theme(ground: Any) -> None:
    pixels = _pixels(picture(_drawn(facecolor=ground), "two bars")._repr_html_())
    assert pixels.shape == (300, 600, 4)
    assert (pixels[..., 3] == 255).all()
    assert pixels[0, 0].tolist() == [255, 255, 255, 255]


def test_a_dark_figure_stays_dark() -> None:
    pixels = _pixels(picture(_drawn(facecolor="black"), "two bars")._repr_html_())
    assert pixels[0, 0].tolist() == [0, 0, 0, 255]


def test_the_words_are_escaped_and_are_the_text_form() -> None:
    shown = picture(_drawn(), 'b is "twice"\n   a <b>')
    assert repr(shown) == 'Figure: b is "twice" a <b>'
    html = shown._repr_html_()
    assert 'alt="b is &#34;twice&#34; a &lt;b&gt;"' in html
    assert 'width="384"' in html


def test_a_pyplot_figure_is_closed_and_another_stays_open() -> None:
    other = pyplot.figure()
    figure = pyplot.figure()
    picture(figure, "empty")
    try:
        assert pyplot.get_fignums() == [other.number]
    finally:
        pyplot.close(other)


def test_a_figure_that_cannot_be_drawn_is_closed_too() -> None:
    figure = pyplot.figure()
    figure.add_subplot().set_title(r"$\no_such_command$")
    with pytest.raises(ValueError, match="no_such_command"):
        picture(figure, "broken")
    assert not pyplot.fignum_exists(figure.number)


def test_show_displays_one_picture(capsys: pytest.CaptureFixture[str]) -> None:
    show(_drawn(), alt="two bars, the second twice as high")
    assert capsys.readouterr().out == "Figure: two bars, the second twice as high\n"


@pytest.mark.parametrize(
    ("figure", "alt", "reason"),
    [
        (None, "words", "got NoneType"),
        (_drawn().axes[0], "words", "got Axes"),
        (_drawn(), " \n", "say what the figure shows"),
        (_drawn(), None, "say what the figure shows"),
    ],
)
def test_what_cannot_be_shown_is_told(figure: Any, alt: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        show(figure, alt)


def test_an_interval_without_an_end_has_no_whisker() -> None:
    # a ratio of one block, as perfkit.compare gives it, and the time that is calculated from it
    reach = whiskers([2.0, 8.0, 8.0], [1.5, 0.0, 1.0], [3.0, 9.0, np.inf])
    np.testing.assert_array_equal(reach, [[0.5, np.nan, np.nan], [1.0, np.nan, np.nan]])
