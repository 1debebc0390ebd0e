"""Below a figure stands where it comes from; on a played GPU nothing is measured."""

from __future__ import annotations

import pytest

from perfkit.course.kit import origin as origin_
from perfkit.course.kit.origin import origin
from perfkit.course.lessons.lesson_02_read_a_trace.pictures import Use, draw_use, words_of_use
from perfkit.course.lessons.lesson_08_custom_loss.pictures import draw_growth


@pytest.mark.parametrize(("played", "word"), [(False, "measured here"), (True, "played")])
def test_nothing_is_measured_on_a_played_gpu(
    monkeypatch: pytest.MonkeyPatch, played: bool, word: str
) -> None:
    monkeypatch.setattr(origin_, "is_played", lambda: played)
    assert origin() == word
    assert origin("measured here, once") == f"{word}, once"
    assert origin("simulated") == "simulated"
    use = [Use("one by one", 0.9, 0.1)]
    assert f"({word})" in words_of_use(use, source="measured here")
    drawn = draw_use(use, source="measured here")
    assert word in [text.get_text() for text in drawn.texts]
    ms = {"loop": {4: 1.0, 8: 2.0}, "bins": {4: 1.0, 8: 1.0}}
    drawn, said = draw_growth(ms, {16: 4.0}, source="measured here; 16: predicted")
    assert f"({word}; 16: predicted)" in said
    assert f"{word}; 16: predicted" in [text.get_text() for text in drawn.texts]
