"""What the ranks of all machines left, gathered on the machine that ends last.

It travels through the store that torchrun keeps for the job's process groups: no port is opened.
Traces stay where they were recorded.
"""

from __future__ import annotations

import datetime
import io
import zipfile
from collections.abc import Mapping

from perfkit.base.instrument import Instrument
from perfkit.script.ranks.job import Job

_PATIENCE = datetime.timedelta(seconds=10)


def gather(job: Job, environment: Mapping[str, str]) -> bool:
    """Give what this machine's ranks left; tell whether it is the last, which takes all others'."""
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return False  # the store is a rank's, and ends with it
    names = ("MASTER_PORT", "GROUP_RANK", "GROUP_WORLD_SIZE")
    numbers = [environment.get(name, "") for name in names]
    if not all(map(str.isdecimal, numbers)):
        return False
    instrument = Instrument("the gathering of what the ranks of other machines saw")
    address = environment.get("MASTER_ADDR", "localhost")
    exchange = instrument.hook(_exchange, instead=False)
    return bool(exchange(job, address, *map(int, numbers)))


def _exchange(job: Job, address: str, port: int, host: int, n_hosts: int) -> bool:
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    server = TCPStore(address, port, is_master=False, timeout=_PATIENCE)
    store = PrefixStore(f"perfkit/{job.folder.name}", server)
    store.set(f"host{host}", _packed(job))  # type: ignore[arg-type] # the stub knows text only
    if store.add("hosts", 1) < n_hosts:
        return False
    for other in range(n_hosts):
        if other != host:
            with zipfile.ZipFile(io.BytesIO(store.get(f"host{other}"))) as parcel:
                parcel.extractall(job.folder)
    return True


def _packed(job: Job) -> bytes:
    """The files of this machine's ranks, but for their traces."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as parcel:
        for rank in job.here:
            for name in (f"status{rank}.json", f"rank{rank}.json"):
                if (job.folder / name).exists():
                    parcel.write(job.folder / name, name)
    return data.getvalue()
