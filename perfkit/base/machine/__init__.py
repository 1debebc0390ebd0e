"""Which machine this is, what works on it, and the provenance of every result.

:func:`stamp` is cheap and never imports torch. :func:`facts` adds what works here, and is read only
once. :func:`doctor` also starts a new Python that imports torch and lists its GPUs, so that neither
torch nor CUDA is initialised in the calling process.
"""

from __future__ import annotations

import contextlib
import functools
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from perfkit._version import __version__
from perfkit.base.device import in_use
from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.base.machine import _host, _packages
from perfkit.base.machine._packages import TorchBuild, probe_torch, torch_build

if TYPE_CHECKING:  # a plain result needs its provenance alone
    from perfkit.base.machine._capabilities import Capability
    from perfkit.base.machine._gpu import Gpu

Kind = Literal["measured here", "recorded", "played", "simulated", "predicted"]

_GIB = 2**30


@dataclass(frozen=True)
class Provenance(Shown):
    """Where a figure comes from: machine, versions, time and command.

    Attributes:
        kind: ``"measured here"``, ``"recorded"``, ``"played"``, ``"simulated"`` or ``"predicted"``.
        machine: the computer in words, e.g. ``"AMD EPYC 7B13, 2 cores, 24 GiB"``.
        device: ``"cpu"`` or the GPU's name, e.g. ``"NVIDIA H200"``.
        versions: of python, torch, perfkit, and of cuda and driver if present.
        when_utc: ISO 8601 to the second, in UTC.
        command: the command, if it was a single one.
        seed: the random seed, if there was one.
    """

    kind: str
    machine: str
    device: str
    versions: Mapping[str, str]
    when_utc: str
    command: str | None = None
    seed: int | None = None

    def sentence(self) -> str:
        """One line to put below a figure: kind, device, machine, torch, time."""
        # little is known about someone else's trace: leave out what is missing
        device = "" if self.device == "cpu" and self.machine else self.device
        torch = self.versions.get("torch")
        software = f"torch {torch}" if torch else "no torch" if self.versions else ""
        parts = [p for p in (device, self.machine, software, self._minute()) if p]
        if not parts:
            return self.kind
        lead = "recorded on" if self.kind == "recorded" else f"{self.kind}:"
        return f"{lead} {', '.join(parts)}"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Provenance:
        """Read what :meth:`to_dict` wrote.

        Raises:
            UsageError: a field is missing or of the wrong type.
        """
        from perfkit.base.structs import as_struct

        try:
            return as_struct(data, cls)
        except ValueError as error:
            raise UsageError(f"this is not a provenance: {error}") from None

    def _minute(self) -> str:
        return self.when_utc[:16].replace("T", " ") + " UTC" if self.when_utc else ""


@dataclass(frozen=True)
class Machine(Shown):
    """This computer, and which parts of perfkit work on it.

    Attributes:
        cores: logical processors that this process may use (CPU affinity and container quota).
        logical_cpus: logical processors of the machine.
        ram_bytes: memory that this process may use (including a container limit).
        shm_bytes: size of ``/dev/shm``; ``None`` if it does not exist.
        shm_free_bytes: free bytes of it.
        system: operating system and architecture.
        torch: the torch that would be imported; ``None`` if there is none.
        gpus: the GPUs that CUDA shows to this process.
        packages: name → version of the relevant installed packages.
        capabilities: what works, each with reason and remedy.
        provenance: when this was read.
    """

    cpu: str
    cores: int
    logical_cpus: int
    ram_bytes: int
    shm_bytes: int | None
    shm_free_bytes: int | None
    system: str
    python: str
    torch: TorchBuild | None
    gpus: tuple[Gpu, ...]
    packages: Mapping[str, str]
    capabilities: tuple[Capability, ...]
    provenance: Provenance
    warnings: tuple[str, ...] = field(default=())

    def capability(self, name: str) -> Capability:
        """The capability with this name.

        Raises:
            UsageError: there is none.
        """
        for capability in self.capabilities:
            if capability.name == name:
                return capability
        names = ", ".join(c.name for c in self.capabilities)
        raise UsageError(f"no capability is called {name!r}; there are: {names}")


def stamp(
    kind: Kind = "measured here",
    *,
    command: str | None = None,
    seed: int | None = None,
    device: str | None = None,
) -> Provenance:
    """The provenance of a result made now on this machine.

    Args:
        kind: one of the five kinds of figures. Measured or recorded becomes played on a played GPU
            (see :mod:`perfkit.base.machine.played`).
        command: the command, if it was a single one.
        seed: the random seed, if there was one.
        device: ``"cpu"`` or a GPU's name. By default torch's current GPU if this process uses
            one, else the first visible GPU if torch is built for one, else the CPU.

    Raises:
        UsageError: ``kind`` is not one of the five.
    """
    if kind not in get_args(Kind):
        raise UsageError(f"a figure cannot be {kind!r}; it is one of: {', '.join(get_args(Kind))}")
    device = _default_device() if device is None else device
    if kind in ("measured here", "recorded") and device != "cpu":
        from perfkit.base.machine.played import is_played

        kind = "played" if is_played() else kind
    return Provenance(
        kind=kind,
        machine=machine_sentence(),
        device=device,
        versions=dict(_versions()),
        when_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        seed=seed,
    )


@functools.cache
def machine_sentence() -> str:
    """The computer in words: ``"AMD EPYC 7B13, 2 cores, 24 GiB"``."""
    cores = _host.usable_cpus()
    ram_gib = _host.memory_bytes() / _GIB
    return f"{_host.cpu_model()}, {cores} core{'s' * (cores != 1)}, {ram_gib:.0f} GiB"


@functools.cache
def facts() -> Machine:
    """This machine, read once; neither imports torch nor initialises CUDA."""
    return _machine(torch_build(), _gpus_for(torch_build()), probe_error=None)


def doctor() -> Machine:
    """Check this machine and which parts of perfkit work on it.

    A new Python process imports torch and lists its GPUs (1-3 s). So a broken torch or driver is
    reported instead of crashing this process, and CUDA is not initialised here.

    Returns:
        A :class:`Machine`: processor, cores, memory (bytes), torch, GPUs, packages and
        ``capabilities``, each with its reason and remedy. Print it for a table.

    Example::

        >>> machine = perfkit.doctor()
        >>> machine.capability("bf16").available
    """
    build = torch_build()
    if build is None:
        return _machine(None, (), probe_error=None)
    answer, error = probe_torch()
    if answer is None:
        return _machine(build, _gpus_for(build), probe_error=error)
    build = TorchBuild(
        version=answer["version"],
        cuda=answer["cuda"],
        hip=answer["hip"],
        cpu_capability=answer["cpu_capability"],
        threads=answer["threads"],
    )
    return _machine(build, _merged_gpus(answer["gpus"], _gpus_for(build)), probe_error=None)


def _machine(build: TorchBuild | None, gpus: tuple[Gpu, ...], probe_error: str | None) -> Machine:
    from perfkit.base.machine._capabilities import capabilities

    shm = _host.shared_memory_bytes()
    packages = _packages.installed()
    warnings = []
    cores, logical = _host.usable_cpus(), _host.logical_cpus()
    if cores < logical:
        warnings.append(
            f"this process may use {cores} of {logical} processors; count workers and threads "
            f"by {cores}"
        )
    return Machine(
        cpu=_host.cpu_model(),
        cores=cores,
        logical_cpus=logical,
        ram_bytes=_host.memory_bytes(),
        shm_bytes=shm[0] if shm else None,
        shm_free_bytes=shm[1] if shm else None,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=build,
        gpus=gpus,
        packages=packages,
        capabilities=capabilities(build, gpus, packages, shm, probe_error),
        provenance=stamp(device=gpus[0].name if gpus else "cpu"),
        warnings=tuple(warnings),
    )


def _gpus_for(build: TorchBuild | None) -> tuple[Gpu, ...]:
    """The GPUs that this torch can use: none for a CPU build."""
    if build is None or not build.cuda:
        return ()
    from perfkit.base.machine._gpu import gpus

    return gpus()


def _merged_gpus(told: list[list[Any]], from_driver: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The list from torch is right about order and visibility; the driver's adds its version."""
    from perfkit.base.machine._gpu import Gpu

    driver = from_driver[0].driver if from_driver else ""
    return tuple(
        Gpu(index, name, int(memory), (cc[0], cc[1]) if cc else None, driver, "torch", type_)
        for index, (type_, name, memory, cc) in enumerate(told)
    )


@functools.cache
def _versions() -> Mapping[str, str]:
    build = torch_build()
    versions = {"python": platform.python_version(), "perfkit": __version__}
    if build is not None:
        versions["torch"] = build.version
        gpus = _gpus_for(build)
        if gpus and build.cuda:
            versions |= {"cuda": build.cuda, "driver": gpus[0].driver}
    return versions


def _default_device() -> str:
    # if torch uses a GPU, it knows the current one; and CUDA numbers different GPUs by speed, the
    # driver by slot
    device = in_use()
    if not device.is_cpu:
        with contextlib.suppress(RuntimeError, AssertionError):  # a failed device
            index = device.current()
            name = device.name(index)
            if name != device.place(index):
                return name
    return _first_gpu()


@functools.cache
def _first_gpu() -> str:
    gpus = _gpus_for(torch_build())
    return gpus[0].name if gpus else "cpu"
