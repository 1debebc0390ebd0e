"""What a machine and a provenance stamp say."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit.base.machine import Machine, Provenance
from perfkit.base.machine._capabilities import Capability
from perfkit.base.words import fmt_bytes
from perfkit.show.document import Document, Doubt, Table, document_for


@document_for(Provenance)
def _provenance(obj: Provenance) -> Document:
    return Document(name="provenance", sentence=obj.sentence())


@document_for(Machine)
def _machine(machine: Machine) -> Document:
    there = [c for c in machine.capabilities if c.available]
    missing = [c for c in machine.capabilities if not c.available]
    names = [c.name for c in there]
    return Document(
        name="doctor",
        sentence=_title(machine),
        doubts=tuple(map(Doubt.of, machine.warnings)),
        tables=(
            Table(
                ("works?", "what", "seen"),
                (*_capability_rows(missing), ("yes", f"{len(there)} things", ", ".join(names))),
                title="What works here",
                align="<<<",
                open=True,
                wrap=True,
            ),
            Table(
                ("works?", "what", "seen"),
                tuple(_capability_rows(there)),
                title="What does, and how it is known",
                align="<<<",
                brief=False,
                wrap=True,
            ),
            Table(
                ("fact", "value"),
                tuple(_fact_rows(machine)),
                title="This machine",
                align="<<",
                open=True,
                brief=False,
                wrap=True,
            ),
        ),
        foot=(machine.provenance.sentence(),),
    )


def _title(machine: Machine) -> str:
    missing = sum(not c.available for c in machine.capabilities)
    n = len(machine.capabilities)
    if not missing:
        return f"All {n} things work here."
    return f"{n - missing} of {n} things work here."


def _fact_rows(machine: Machine) -> list[tuple[str, str]]:
    cores = f"{machine.cores}"
    if machine.logical_cpus != machine.cores:
        cores += f" of {machine.logical_cpus} (affinity or container limit)"
    rows = [("CPU", machine.cpu), ("usable cores", cores), ("RAM", fmt_bytes(machine.ram_bytes))]
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


def _capability_rows(capabilities: Sequence[Capability]) -> list[tuple[str, str, str]]:
    return [
        (
            "yes" if c.available else "no",
            c.name,
            f"{c.reason} → {c.remedy}" if c.remedy else c.reason,
        )
        for c in capabilities
    ]
