"""What the energy of a step says."""

from __future__ import annotations

from perfkit.base.words import fmt_ms, fmt_number, fmt_share, plural
from perfkit.measure.energy import Energy
from perfkit.show.document import Document, Doubt, Table, document_for


@document_for(Energy)
def _energy(of: Energy) -> Document:
    if of.joules_per_step is None:
        why = f": {'; '.join(of.unread)}" if of.unread else ""
        return Document(
            "energy",
            f"No counter of energy can be read on this machine{why}.",
            foot=(of.provenance.sentence(),),
        )
    said = f"A step takes {_joules(of.joules_per_step)}"
    if of.joules_per_sample is not None:
        said += f", a sample {_joules(of.joules_per_sample)}"
    rows = [
        (
            c.what,
            _joules(c.joules_per_step),
            f"{_joules(c.low)} … {_joules(c.high)}",
            f"{fmt_number(c.watts)} W",
            "–" if c.resting_watts is None else f"{fmt_number(c.resting_watts)} W",
            fmt_share(min(c.resting_watts / c.watts, 1.0))
            if c.resting_watts is not None and c.watts
            else "–",
        )
        for c in of.counters
    ]
    return Document(
        "energy",
        f"{said}: {', '.join(c.what for c in of.counters)}.",
        figure=f"{fmt_ms(of.step_ms)} a step",
        lines=(f"{plural(of.n_steps, 'step')} of {fmt_ms(of.step_ms)} in {of.n_blocks} blocks.",),
        doubts=tuple(map(Doubt.of, (*of.warnings, *of.unread))),
        tables=(
            Table(
                ("counter", "a step", "blocks", "power", "at rest", "drawn anyway"),
                tuple(rows),
                title="Energy by counter",
                note="a step: median of the blocks; at rest: while this program slept",
                open=True,
            ),
        ),
        foot=(of.provenance.sentence(),),
    )


def _joules(value: float) -> str:
    for size, unit in ((1e3, "kJ"), (1.0, "J"), (1e-3, "mJ")):
        if value >= size:
            return f"{fmt_number(value / size)} {unit}"
    return f"{fmt_number(value * 1e6)} µJ"
