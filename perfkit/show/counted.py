"""What is counted and not timed: number formats, and what ``torch.compile`` did."""

from __future__ import annotations

from collections import Counter

from perfkit.base.compiling import CompileReport, GraphBreak, Recompilation
from perfkit.base.words import fmt_bytes, fmt_count, fmt_ms, plural
from perfkit.measure.formats import FormatCount
from perfkit.show.document import Document, Table, document_for


@document_for(FormatCount)
def _formats(obj: FormatCount) -> Document:
    each: Counter[str] = Counter()
    for forms in obj.operators.values():
        each.update(forms)
    computed = ", ".join(f"{fmt_count(n)} in {form}" for form, n in each.most_common())
    kept = ", ".join(f"{fmt_bytes(n)} in {form}" for form, n in obj.saved_bytes.items())
    formats = dict.fromkeys([*(form for form, _ in each.most_common()), *obj.saved_bytes])
    return Document(
        name="format count",
        sentence=(
            f"Operators: {computed or 'none with numbers as a result'}; "
            f"{plural(obj.casts, 'cast')} between formats; kept for the backward pass: "
            f"{kept or 'nothing'}."
        ),
        tables=(
            Table(
                ("Format", "Operators", "Kept for backward"),
                tuple(
                    (form, fmt_count(each[form]), fmt_bytes(obj.saved_bytes.get(form, 0)))
                    for form in formats
                ),
                title="By format",
                open=True,
            ),
            Table(
                ("Operator", "Result", "Times"),
                tuple(
                    (name, form, fmt_count(n))
                    for name, forms in obj.operators.items()
                    for form, n in forms.items()
                ),
                title="By operator",
                align="<<>",
                code="c..",
                brief=False,
            ),
        ),
    )


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
        warnings=()
        if obj.complete
        else ("torch logs the last 64 compilations; there were more, so time is missing here",),
        tables=compile_tables(obj),
    )


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
