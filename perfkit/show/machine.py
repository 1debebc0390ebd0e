"""How a machine and a provenance stamp look."""

from __future__ import annotations

import html as _stdlib_html

from perfkit.machine import Machine, Provenance
from perfkit.show import _text
from perfkit.words import fmt_bytes

__all__ = ["html", "text"]

_FACTS = ("fact", "value")
_WORKS = ("works?", "what", "seen")
_LABEL_WIDTH = 19


def text(obj: Machine | Provenance) -> str:
    """The plain-text form, at most 100 columns wide."""
    if isinstance(obj, Provenance):
        return obj.sentence()
    lines = [_title(obj), ""]
    for label, value in _fact_rows(obj):
        lines.append(_labelled(label, value))
    lines += ["", "What works here"]
    for works, name, seen, remedy in _capability_rows(obj):
        lines.append(_labelled(f"{works} {name}", seen))
        if remedy:
            lines.append(_labelled("", f"→ {remedy}"))
    lines.append("")
    lines += _text.notes(obj.warnings)
    lines.append(_text.wrap(obj.provenance.sentence(), hang="  "))
    return "\n".join(lines)


def html(obj: Machine | Provenance) -> str:
    """The HTML form."""
    if isinstance(obj, Provenance):
        return f"<small>{_stdlib_html.escape(obj.sentence())}</small>"
    from perfkit.show._html import render

    works = [
        (mark, name, f"{seen} → {remedy}" if remedy else seen)
        for mark, name, seen, remedy in _capability_rows(obj)
    ]
    return render(
        "machine.html",
        title=_title(obj),
        warnings=obj.warnings,
        tables=(("this machine", _FACTS, _fact_rows(obj)), ("what works here", _WORKS, works)),
        foot=obj.provenance.sentence(),
    )


def _title(machine: Machine) -> str:
    missing = sum(not c.available for c in machine.capabilities)
    n = len(machine.capabilities)
    if not missing:
        return f"perfkit doctor: all {n} things work here"
    return f"perfkit doctor: {n - missing} of {n} things work here"


def _fact_rows(machine: Machine) -> list[tuple[str, str]]:
    cores = f"{machine.cores}"
    if machine.logical_cpus != machine.cores:
        cores += f" of {machine.logical_cpus} (affinity or container limit)"
    rows = [
        ("CPU", machine.cpu),
        ("usable cores", cores),
        ("RAM", fmt_bytes(machine.ram_bytes)),
    ]
    if machine.shm_bytes is not None:
        size, free = fmt_bytes(machine.shm_bytes), fmt_bytes(machine.shm_free_bytes)
        rows.append(("/dev/shm", f"{size}, {free} free"))
    for gpu in machine.gpus:
        capability = gpu.compute_capability
        dotted = f"{capability[0]}.{capability[1]}" if capability else "unknown"
        rows.append(
            (
                f"GPU {gpu.index}",
                f"{gpu.name}, {fmt_bytes(gpu.memory_bytes)}, "
                f"compute capability {dotted}, driver {gpu.driver or 'unknown'}",
            )
        )
    rows += [("system", machine.system), ("Python", machine.python)]
    build = machine.torch
    if build is not None:
        made_for = f"CUDA {build.cuda}" if build.cuda else "CPU"
        made_for = f"ROCm {build.hip}" if build.hip else made_for
        threads = f", {build.threads} threads" if build.threads else ""
        rows.append(("torch", f"{build.version}, built for {made_for}{threads}"))
    return rows


def _capability_rows(machine: Machine) -> list[tuple[str, str, str, str]]:
    return [
        ("yes" if c.available else "no ", c.name, c.reason, c.remedy) for c in machine.capabilities
    ]


def _labelled(label: str, value: str) -> str:
    """A label and beside it a value, wrapped in its own column."""
    lead = f"  {label:<{_LABEL_WIDTH}}  "
    wrapped = _text.wrap(value, width=_text.WIDTH - len(lead))
    return lead + wrapped.replace("\n", "\n" + " " * len(lead))
