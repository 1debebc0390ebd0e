"""What the lower bound of a step says, as a sentence, tables and a roofline."""

from __future__ import annotations

from perfkit.base.words import (
    fmt_bound,
    fmt_count,
    fmt_ms,
    fmt_number,
    fmt_ratio,
    fmt_share,
    fmt_si,
)
from perfkit.limit.roofs import FORMATS
from perfkit.show._roofline import roofline
from perfkit.show.document import Document, Doubt, Table, document_for
from perfkit.show.plain_text import a_step, clip, per_step
from perfkit.trace.ask.limit import Limit

_TOP = 10
_NOTHING_US = 1e-3  # no bound on anything: a kernel that fills one number
# Below this share of the operators' time, the lower bound is of a part that says little.
_ENOUGH = 0.5


@document_for(Limit)
def _limit(of: Limit) -> Document:
    picture = roofline(of)
    return Document(
        name="limit",
        sentence=limit_sentence(of) or _work(of),
        headline=_headline(of),
        figure=_figure(of),
        doubts=tuple(map(Doubt.of, of.warnings)),
        lines=_lines(of),
        pictures=() if picture is None else (picture,),
        tables=(_families(of), _rest(of), _operators(of), _unknown(of)),
        foot=_foot(of),
    )


def _headline(of: Limit) -> str:
    if not limit_sentence(of):
        return "How fast it could be is not known." if of.ops else ""
    least = fmt_ms(of.least_us / 1e3)
    if of.is_other:
        return f"{of.device}: at least {least} for this step."
    return f"A step takes {fmt_ratio(of.ratio)} its lower bound of {least}."


def _figure(of: Limit) -> str:
    if not limit_sentence(of):
        return ""
    mfu = "" if of.mfu is None else f", MFU {fmt_share(of.mfu)}"
    return f"{fmt_ms(of.measured_step_us / 1e3)} a step{mfu}"


def limit_sentence(of: Limit) -> str:
    """How far the step is from its lower bound; empty where that is not known."""
    if not of.is_known or of.counted_share < _ENOUGH:
        return ""
    least = fmt_ms(of.least_us / 1e3)
    step = fmt_ms(of.measured_step_us / 1e3)
    if of.is_unprofiled:
        step += " without the profiler"
    if of.is_other:
        return (
            f"Predicted: {of.device} needs at least {least} for this step (data sheet); on "
            f"{_recorded_on(of)} it took {step}."
        )
    by_sheet = of.kind == "predicted"
    said = (
        f"By its data sheet, {_an(of.device)} needs at least {least} for this step"
        if by_sheet
        else f"The lower bound of this step on this machine is {least}"
    )
    if of.ratio is not None and of.ratio < 1:
        return (
            f"{said}; it took {step}, less than that: its data was in a cache, or expanded from "
            "less, its convolutions took fewer operations, or the peaks were measured on a busy "
            "machine."
        )
    said += f": it took {step}, {fmt_ratio(of.ratio)} that."
    rest = {name: us for name, us in of.rest_us().items() if us > 0}
    whole = sum(rest.values())
    if not whole:
        return said
    name = max(rest, key=lambda n: rest[n])
    return f"{said} {fmt_share(rest[name] / whole)} of the rest is {_CAUSES.get(name, name)}."


_CAUSES = {
    "the device idles": "time in which the device idles",
    "the host between operators": "the host's time between operators (Python, loading, launching)",
}


def _an(device: str) -> str:
    """With its article: an H100, an A100, an RTX; a V100, a T4."""
    return f"{'an' if device[:1] in 'AHLMR' else 'a'} {device}"


def _recorded_on(of: Limit) -> str:
    return "this CPU" if of.recorded_on == "cpu" else of.recorded_on


def _work(of: Limit) -> str:
    if not of.ops:
        return "The work of the step is not recorded."
    part = (
        f" (counted: {fmt_share(of.counted_share)} of the operators' time)"
        if of.counted_share < 0.995
        else ""
    )
    said = (
        f"{fmt_si(of.flops, 'FLOP')} and at least {fmt_si(of.n_bytes, 'B')} {a_step(of.n_steps)}"
        f"{part}"
    )
    if of.kind:
        return f"{said}: too little of it is known to say how fast it could be."
    return (
        f"{said}; how fast that could be is not known: measure this machine with `perfkit doctor "
        "--peaks`, or name a device."
    )


def _lines(of: Limit) -> tuple[str, ...]:
    if not of.ops:
        return ()
    parts = []
    if limit_sentence(of):
        intensity = of.flops / of.n_bytes if of.n_bytes else 0.0
        parts.append(
            f"{fmt_si(of.flops, 'FLOP')} and at least {fmt_si(of.n_bytes, 'B')} "
            f"{a_step(of.n_steps)}: {fmt_number(intensity)} FLOP/B."
        )
    if of.mfu is not None and of.hfu is not None:
        whose = "its data sheet" if of.kind == "predicted" else "the rates measured here"
        again = (
            f", HFU {fmt_share(of.hfu)} with what is computed a second time"
            if of.hfu > 1.001 * of.mfu
            else " (HFU the same: nothing is computed twice)"
        )
        parts.append(f"MFU {fmt_share(of.mfu)} of {whose}{again}.")
        parts.append(_peaks_taken(of))
    if of.counted_share < 0.995:
        parts.append(f"Counted: {fmt_share(of.counted_share)} of the operators' time.")
    return (" ".join(filter(None, parts)),) if any(parts) else ()


def _peaks_taken(of: Limit) -> str:
    """Against which rate the products count, and for float32 on a device why."""
    flops = dict.fromkeys(FORMATS, 0.0)
    for o in of.ops:
        if o.form in flops:
            flops[o.form] += o.flops
    least = 0.01 * of.flops * of.n_steps
    used = [form for form, n in flops.items() if n > least and form in of.flop_per_s]
    rates = {form: fmt_si(rate, "FLOP/s") for form, rate in of.flop_per_s.items()}
    said = ", ".join(
        f"{rates[form]} in {'TF32' if form == 'tf32' else form}"
        for form in sorted(used, key=lambda f: -flops[f])
    )
    if not said:
        return ""
    why = ""
    if "tf32" in used and "float32" in used:
        why = "; some kernels of float32 products compute in TF32, others do not"
    elif "tf32" in used:
        why = ": the kernels of its float32 products compute in TF32"
    elif "float32" in used and "tf32" in rates:
        why = (
            f": no kernel of its float32 products computes in TF32, which would be "
            f'{rates["tf32"]} (`torch.set_float32_matmul_precision("high")`)'
        )
    return f"Its products are held against {said}{why}."


def _families(of: Limit) -> Table:
    rows = [
        (
            family,
            fmt_ms(measured / 1e3),
            fmt_ms(least / 1e3) if of.kind else "–",
            fmt_ratio(measured / least) if least > _NOTHING_US and not of.is_other else "–",
        )
        for family, (measured, least) in of.families().items()
    ]
    return Table(
        ("kind of work", "recorded", "lower bound", "recorded / bound"),
        tuple(rows),
        title="Recorded time and lower bound by kind of work",
        note=f"{'device' if of.on_device else 'host'} time {per_step(of.n_steps)}",
        open=True,
    )


def _rest(of: Limit) -> Table:
    """What lies between the lower bound and the recorded step, and what its removal would bring."""
    step_us = of.split_step_us
    if not of.is_known or of.is_other or of.counted_share < _ENOUGH:
        return Table(("",), ())
    rows = [("the lower bound", fmt_ms(of.least_us / 1e3), fmt_share(of.least_us / step_us), "")]
    parts = sorted(of.rest_us().items(), key=lambda part: -part[1])
    rows += [
        (
            name,
            fmt_ms(us / 1e3),
            fmt_share(us / step_us),
            fmt_bound(step_us / (step_us - us)) if 0.01 * step_us < us < step_us else "",
        )
        for name, us in parts
    ]
    return Table(
        ("part", "time", "share", "without it"),
        tuple(rows),
        title="From the lower bound to the "
        + ("step without the profiler" if of.on_device and of.is_unprofiled else "recorded step"),
        note="adds up to the step; without it: at most so many times as fast, each by itself",
        open=True,
    )


def _operators(of: Limit) -> Table:
    n = max(of.n_steps, 1)
    rows = [
        (
            clip(o.op.removeprefix("aten::"), 30),
            clip(o.shapes.replace(" ", ""), 26),
            fmt_count(round(o.count / n, 1)),
            fmt_number(o.flops / n / 1e9) if o.flops else "",
            fmt_number(o.n_bytes / n / 1e6),
            {"arithmetic": "FLOP/s", "memory": "B/s"}.get(o.bound, "–"),
            "–" if o.least_us is None else fmt_ms(o.least_us / n / 1e3),
            fmt_ms(o.measured_us / n / 1e3),
        )
        for o in of.ops[:_TOP]
    ]
    top = f"{len(rows)} of {len(of.ops)}, " if len(of.ops) > len(rows) else ""
    return Table(
        ("operator", "shapes", "calls", "GFLOP", "MB", "by", "bound", "recorded"),
        tuple(rows),
        title="Lower bound by operator",
        note=f"{top}{per_step(of.n_steps)}; bytes read and written at least",
        align="<<>>><>>",
        code="cc......",
        brief=False,
    )


def _unknown(of: Limit) -> Table:
    n = max(of.n_steps, 1)
    rows = [
        (clip(u.op, 60), fmt_count(round(u.count / n, 1)), fmt_ms(u.measured_us / n / 1e3), u.why)
        for u in of.unknown[:_TOP]
    ]
    more = f"{len(rows)} of {len(of.unknown)}, " if len(of.unknown) > len(rows) else ""
    return Table(
        ("operator", "calls", "recorded", "why"),
        tuple(rows),
        title="Not counted: their work is not known",
        note=f"{more}{per_step(of.n_steps)}",
        code="c...",
        align="<>><",
        brief=False,
    )


def _foot(of: Limit) -> tuple[str, ...]:
    if not of.kind:
        return ()
    return (f"{of.kind}: rates of {of.device or 'this machine'}, {of.source}.",)
