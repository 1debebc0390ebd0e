"""What ``torch.compile`` did."""

from __future__ import annotations

from perfkit.base.compiling import CompileReport, GraphBreak, Recompilation
from perfkit.base.words import fmt_count, fmt_ms, plural
from perfkit.show.document import Document, Table, document_for


@document_for(GraphBreak)
def _graph_break(obj: GraphBreak) -> Document:
    said = f"{obj.place} ends a graph: {obj.reason}"
    return Document(name="graph break", sentence=said)


@document_for(Recompilation)
def _recompilation(obj: Recompilation) -> Document:
    return Document(name="recompilation", sentence=f"{obj.place} was compiled again: {obj.why}")


@document_for(CompileReport)
def _compiled(obj: CompileReport) -> Document:
    return Document(
        name="compile report",
        sentence=compile_sentence(obj),
        headline=_given_up(obj),
        warnings=()
        if obj.complete
        else ("torch logs the last 64 compilations; there were more, so time is missing here",),
        tables=compile_tables(obj),
    )


def _given_up(obj: CompileReport) -> str:
    """The worst that can come of compiling, where it came to that."""
    places = dict.fromkeys(one.place for one in obj.given_up)
    if len(places) > 1:
        return f"torch gave up: {len(places)} pieces of code now run uncompiled."
    return "".join(f"torch gave up: {place} now runs uncompiled." for place in places)


def compile_sentence(obj: CompileReport) -> str:
    """What was compiled, how often again, in how many pieces."""
    if obj.is_empty:
        return "Nothing was compiled."
    parts = [f"{plural(obj.n_graphs, 'graph')} compiled in {fmt_ms(1e3 * obj.compile_s)}"]
    if obj.breaks:
        n = len(obj.breaks)
        parts.append(f"{plural(n, 'line')} {'ends' if n == 1 else 'end'} a graph")
    if obj.recompilations:
        parts.append(f"compiled again {plural(len(obj.recompilations), 'time')}")
    if obj.given_up:
        places = " and ".join(dict.fromkeys(one.place for one in obj.given_up))
        parts.append(f"then given up: {places} now runs uncompiled")
    return f"{'; '.join(parts)}."


def compile_tables(obj: CompileReport) -> tuple[Table, Table]:
    """The lines that end graphs, and the checks that failed; tables without rows are not shown."""
    again = [(one.place, one.why) for one in obj.recompilations]
    again += [(one.place, f"{one.why} (given up)") for one in obj.given_up]
    return (
        Table(
            ("Line", "Times", "Why the graph ends"),
            tuple((one.place, fmt_count(one.count), one.reason) for one in obj.breaks),
            title="Graph breaks",
            align="<><",
            open=True,
            wrap=True,
        ),
        Table(
            ("Code", "Check that failed"),
            tuple(again),
            title="Compiled again",
            align="<<",
            open=True,
            wrap=True,
        ),
    )
