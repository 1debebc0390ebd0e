"""What can go wrong, as one tree.

::

    PerfkitError                 everything that perfkit raises on purpose
    ├── UsageError               a flag, argument or value that cannot be (also a ValueError)
    │   └── SettingError         an unknown or impossible setting of a Lab or sweep
    ├── MissingError             a package, program or device that is not here; says how to get it
    ├── RecordError              a recorded result that cannot be read, or was changed by hand
    ├── TraceError               a file or byte string that is no (complete enough) Kineto trace
    ├── ProfilerBusyError        another profiler already runs in this process
    ├── MeasurementError         a measurement that cannot be made or trusted at all
    ├── StoreError               a file of runs: locked, of another workload, damaged, not writable
    ├── SyncFoundError           code under ``no_syncs`` would make a GPU wait (an AssertionError)
    └── WorkloadError            the user's workload did not run
        ├── WorkloadNotPortableError   it cannot travel to the child process; names the culprit
        ├── WorkloadEmptyError         it yielded no step
        ├── WorkloadFailedError        it raised; carries the child's traceback as text
        ├── WorkloadMemoryError        it ran out of memory
        ├── WorkloadHungError          no step within the time limit
        └── WorkloadKilledError        its process died by a signal

Every message is one line that says what failed, with which input, and what to do. It is fit to
print, whatever the input held: a file name with a newline or an escape sequence cannot forge a
line or drive a terminal.
"""

from __future__ import annotations

from perfkit._printable import printable


class PerfkitError(Exception):
    """Base of everything that perfkit raises on purpose."""

    def __str__(self) -> str:
        return printable(super().__str__())


class UsageError(PerfkitError, ValueError):
    """A flag, argument or value that cannot be."""


class SettingError(UsageError):
    """An unknown or impossible setting of a Lab or sweep."""


class MissingError(PerfkitError):
    """A package, program or device that is not here; the message says how to get it."""


class RecordError(PerfkitError):
    """A recorded result that cannot be read, or was changed by hand."""


class TraceError(PerfkitError):
    """A file or byte string that is no (complete enough) Kineto trace."""


class ProfilerBusyError(PerfkitError):
    """Another profiler already runs in this process."""


class MeasurementError(PerfkitError):
    """A measurement that cannot be made or trusted at all."""


class StoreError(PerfkitError):
    """A file of runs that is in use, damaged, of another workload or machine, or not writable."""


class SyncFoundError(PerfkitError, AssertionError):
    """Code under ``perfkit.no_syncs`` would make the host wait for a GPU.

    Its message has a line for each place and one for the cure: a test's report shows it whole.

    Attributes:
        syncs: the list of :class:`perfkit.advice.synclint.find.Sync`.
    """

    def __init__(self, message: str, syncs: object = ()) -> None:
        super().__init__(message)
        self.syncs = syncs

    def __str__(self) -> str:
        return printable(AssertionError.__str__(self), lines=True)


class WorkloadError(PerfkitError):
    """The user's workload did not run.

    Attributes:
        traceback_text: the child's traceback, as plain text; empty where there is none.
    """

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


class WorkloadNotPortableError(WorkloadError):
    """It cannot travel to the child process; the message names the culprit."""


class WorkloadEmptyError(WorkloadError):
    """It yielded no step."""


class WorkloadFailedError(WorkloadError):
    """It raised."""


class WorkloadMemoryError(WorkloadError):
    """It ran out of memory."""


class WorkloadHungError(WorkloadError):
    """No step came within the time limit."""


class WorkloadKilledError(WorkloadError):
    """Its process died by a signal."""
