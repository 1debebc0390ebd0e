"""What can go wrong, as one tree.

::

    PerfkitError                 everything that perfkit raises on purpose
    ├── UsageError               an invalid flag, argument or value (also a ValueError)
    │   └── SettingError         an unknown or impossible setting of a Lab or sweep
    ├── MissingError             a missing package, program or device; says how to get it
    │   └── MissingNameError     a name of perfkit that needs a missing package (an AttributeError)
    ├── RecordError              a recorded result that cannot be read, or was edited by hand
    ├── TraceError               a file or byte string that is not a (complete enough) Kineto trace
    ├── ProfilerBusyError        another profiler is already running in this process
    ├── MeasurementError         a measurement that cannot be made, or cannot be trusted at all
    ├── StoreError               a store of runs: locked, damaged, read-only, or another workload's
    ├── SyncFoundError           code under ``no_syncs`` would make a GPU wait (an AssertionError)
    └── WorkloadError            the user's workload did not run
        ├── WorkloadNotPortableError   it cannot be sent to the child process; names the culprit
        ├── WorkloadEmptyError         it yielded no step
        ├── WorkloadFailedError        it raised an exception; carries the child's traceback as text
        ├── WorkloadMemoryError        it ran out of memory
        ├── WorkloadHungError          no step within the time limit
        └── WorkloadKilledError        its process was killed by a signal

Every message says what failed, with which input, and what to do, in one line (``SyncFoundError``
takes several). Messages are safe to print whatever the input held: a file name with a newline or an
escape sequence cannot forge a line or control the terminal.
"""

from __future__ import annotations

from perfkit.base.printable import printable


class PerfkitError(Exception):
    """Base class of every exception that perfkit raises on purpose; catch it to catch them all.

    The message says what failed, with which input, and what to do. The subclasses are in
    :mod:`perfkit.base.errors`.
    """

    def __str__(self) -> str:
        return printable(super().__str__())

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of its own traceback."""
        from perfkit.base.short_traceback import short_traceback

        return short_traceback(self)


class UsageError(PerfkitError, ValueError):
    """An invalid flag, argument or value."""


class SettingError(UsageError):
    """An unknown or impossible setting of a Lab or sweep."""


class MissingError(PerfkitError):
    """A missing package, program or device; the message says how to get it."""


class MissingNameError(MissingError, AttributeError):
    """A name of perfkit that needs a missing package: for ``hasattr``, it is not there."""


class RecordError(PerfkitError):
    """A recorded result that cannot be read, or was edited by hand."""


class TraceError(PerfkitError):
    """A file or byte string that is not a (complete enough) Kineto trace."""


class ProfilerBusyError(PerfkitError):
    """Another profiler is already running in this process."""


class MeasurementError(PerfkitError):
    """A measurement that cannot be made, or cannot be trusted at all."""


class StoreError(PerfkitError):
    """A store of runs that is in use, damaged, read-only, or another workload's or machine's."""


class SyncFoundError(PerfkitError, AssertionError):
    """Code under ``perfkit.no_syncs`` would make the host wait for a GPU.

    The message has a line for each place and one for the fix, so a test report shows it all.

    Attributes:
        syncs: the waits found, each a :class:`perfkit.synclint.find.SyncLine`.
    """

    def __init__(self, message: str, syncs: object = ()) -> None:
        super().__init__(message)
        self.syncs = syncs

    def __str__(self) -> str:
        return printable(AssertionError.__str__(self), lines=True)


class WorkloadError(PerfkitError):
    """The user's workload did not run.

    Attributes:
        traceback_text: the child's traceback as plain text; empty if there is none.
    """

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


class WorkloadNotPortableError(WorkloadError):
    """The workload cannot be sent to the child process; the message names the culprit."""


class WorkloadEmptyError(WorkloadError):
    """The workload yielded no step."""


class WorkloadFailedError(WorkloadError):
    """The workload raised an exception."""


class WorkloadMemoryError(WorkloadError):
    """The workload ran out of memory."""


class WorkloadHungError(WorkloadError):
    """No step came within the time limit."""


class WorkloadKilledError(WorkloadError):
    """The workload's process was killed by a signal."""
