"""How a widget notices that its kernel is another one: kernel.js with a made model and clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

import perfkit

pytestmark = pytest.mark.browser

SOURCE = Path(perfkit.__file__).parent / "widgets" / "js" / "src" / "kernel.js"
# `kernel` says what becomes of a question: answered, dealt with in silence, or not looked at yet
MODEL = """
window.kernel = "answers";
window.asked = 0;
window.gone = 0;
window.busy = true;
const listeners = {};
window.say = (event, ...facts) => (listeners[event] ?? []).forEach((one) => one(...facts));
const model = {
  on: (event, one) => (listeners[event] ??= []).push(one),
  off: (event, one) => { listeners[event] = listeners[event].filter((other) => other !== one); },
  send: (content, callbacks) => {
    window.asked += 1;
    const state = (execution_state) => callbacks.iopub.status({ content: { execution_state } });
    if (window.kernel === "works") return;
    state("busy");
    if (window.kernel === "answers") window.say("msg:custom", { type: "heard" });
    state("idle");
  },
};
watchKernel(model, {
  disconnected: () => false, busy: () => window.busy, gone: () => { window.gone += 1; },
});
"""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    page.clock.install()
    page.goto("data:text/html,")  # about:blank keeps the real clock
    source = SOURCE.read_text(encoding="utf-8").replace("export function", "function")
    page.evaluate(f"() => {{ {source} {MODEL} }}")
    yield page
    page.close()


def seen(page: Page, seconds: int) -> list[int]:
    """Questions asked and "the kernel is gone" said so far, after these seconds."""
    page.clock.run_for(1000 * seconds)
    said: list[int] = page.evaluate("() => [window.asked, window.gone]")
    return said


def test_a_kernel_that_answers_lives(page: Page) -> None:
    asked, gone = seen(page, 65)
    assert asked == 3  # each answer is a word, after which it may be silent once
    assert gone == 0


def test_a_kernel_that_deals_with_the_question_in_silence_is_another_one(page: Page) -> None:
    page.evaluate("() => { window.kernel = 'knows nothing'; }")
    assert seen(page, 10) == [1, 0]
    assert seen(page, 2) == [1, 1]
    assert seen(page, 60) == [1, 1]  # said once, and asked no more


def test_a_kernel_that_is_at_work_is_asked_once_and_lives(page: Page) -> None:
    page.evaluate("() => { window.kernel = 'works'; }")
    assert seen(page, 65) == [1, 0]


def test_who_speaks_or_has_nothing_to_do_is_not_asked(page: Page) -> None:
    page.evaluate("() => { window.busy = false; }")
    assert seen(page, 30) == [0, 0]
    page.evaluate("() => { window.busy = true; }")
    for _ in range(5):
        page.evaluate("() => window.say('msg:custom', { type: 'points' })")
        assert seen(page, 10) == [0, 0]
    assert seen(page, 10) == [1, 0]
