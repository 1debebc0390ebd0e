"""What the price of a run says."""

from __future__ import annotations

from perfkit.advice.cost import BreakEven, RunCost
from perfkit.base.words import fmt_count, fmt_ms, fmt_number, fmt_share, plural
from perfkit.show.document import Document, Table, document_for

_MS_PER_HOUR = 3.6e6


@document_for(RunCost)
def _cost(of: RunCost) -> Document:
    said = (
        f"{plural(of.steps, 'step')} of {fmt_ms(of.step_ms)} take "
        f"{fmt_ms(of.hours * _MS_PER_HOUR)} and cost {_amount(of.price, of)}."
    )
    return Document(
        name="price of a run",
        sentence=f"{said} {_paid(of.break_even, of)}" if of.break_even else said,
        lines=_lines(of),
        warnings=of.warnings,
        tables=(_elsewhere(of),),
        foot=("Prices are those that you gave.",),
    )


def _amount(value: float, of: RunCost) -> str:
    """Money: two decimals below a thousand."""
    size = f"{abs(value):,.2f}" if abs(value) < 1e3 else f"{abs(value):,.0f}"
    if 0 < abs(value) < 0.005:
        size = fmt_number(abs(value))
    sign = "−" if value < 0 else ""
    return f"{sign}{size} {of.currency}".rstrip()


def _paid(one: BreakEven, of: RunCost) -> str:
    if one.saved_per_run <= 0:
        return "It costs no less than before."
    saved = (
        f"Before, it took {fmt_ms(one.saved_hours_per_run * _MS_PER_HOUR)} longer and cost "
        f"{_amount(one.saved_per_run, of)} more"
    )
    if not one.work_cost or one.runs is None:
        return f"{saved}."
    return (
        f"{saved}: the {fmt_number(one.work_hours)} h of work ({_amount(one.work_cost, of)}) pay "
        f"off after {_runs(one.runs)}."
    )


def _runs(n: float) -> str:
    return f"{fmt_number(n)} such runs" if n < 99.5 else f"{fmt_count(round(n))} such runs"


def _lines(of: RunCost) -> tuple[str, ...]:
    parts = [f"Length of a step: {of.how}."]
    if of.price_low is not None and of.price_high is not None:
        parts.append(
            f"Over its interval, {fmt_ms(of.low_ms)} to {fmt_ms(of.high_ms)}: "
            f"{_amount(of.price_low, of)} to {_amount(of.price_high, of)}."
        )
    return (" ".join(parts),)


def _elsewhere(of: RunCost) -> Table:
    rows = [
        (
            one.step.device,
            fmt_ms(one.step.ms),
            f"{fmt_ms(one.step.low_ms)} … {fmt_ms(one.step.high_ms)}",
            _amount(one.price, of),
            f"{_amount(one.price_low, of)} … {_amount(one.price_high, of)}",
            fmt_share(one.step.share_kept),
        )
        for one in of.elsewhere
    ]
    return Table(
        ("device", "step", "band", "run", "band of the price", "not the device's"),
        tuple(rows),
        title="On other devices, predicted",
        note="last: share of the recorded step that stays the same on any device",
        open=True,
    )
