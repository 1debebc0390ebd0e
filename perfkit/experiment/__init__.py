"""What if? Settings, and a workload that runs with them in a process of its own."""

from perfkit.experiment.process.events import Event, Points, RunFinished, RunStarted, StateChanged
from perfkit.experiment.process.result import Ratio, RunResult, ratio, table
from perfkit.experiment.process.session import Session
from perfkit.experiment.settings import CATALOGUE, Setting, Settings, setting

__all__ = [
    "CATALOGUE",
    "Event",
    "Points",
    "Ratio",
    "RunFinished",
    "RunResult",
    "RunStarted",
    "Session",
    "Setting",
    "Settings",
    "StateChanged",
    "ratio",
    "setting",
    "table",
]
