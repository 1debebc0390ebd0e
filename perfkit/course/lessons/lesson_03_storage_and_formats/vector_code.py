"""The same work with and without vector code, in separate processes, by a switch.

At start-up, libraries choose the widest vector code that the processor has; an environment variable
can disable it. Which switch works for which library was tested with the wheels of Pillow 13,
simplejpeg 1.9, OpenCV 5.0 and torch 2.13 (x86-64): see each work's ``remark``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfkit.base.errors import MeasurementError, MissingError
from perfkit.base.line_child import EndedError, LineChild

_JPEG = {"JSIMD_FORCENONE": "1"}  # libjpeg-turbo's switch
# OpenCV's names for what to disable; it only reports a name that it does not know.
_OPENCV = {
    "OPENCV_CPU_DISABLE": "AVX512-SKX,AVX512-COMMON,AVX2,FMA3,AVX,FP16,SSE4.2,SSE4.1,SSSE3,NEON"
}
_SWITCHES = ("JSIMD_FORCENONE", "OPENCV_CPU_DISABLE", "OPENCV_IPP", "ATEN_CPU_CAPABILITY")


@dataclass(frozen=True)
class Running:
    """A process that is ready for the work; a call runs it once and waits.

    Attributes:
        digest: SHA-256 of the result's bytes.
        level: the level that torch reports (``"AVX2"``, ``"DEFAULT"`` …); empty without torch.
    """

    digest: str
    level: str
    _again: Callable[[], None]

    def __call__(self) -> None:
        self._again()


@dataclass(frozen=True)
class Work:
    """Work that a library can do with or without vector code.

    Attributes:
        name: library and work.
        package: the package that must be importable.
        switch: environment that disables the vector code.
        reaches: whether the switch affected this work in the tested wheel.
        remark: a further remark.
    """

    name: str
    package: str
    switch: Mapping[str, str]
    reaches: bool = True
    remark: str = ""

    @property
    def installed(self) -> bool:
        """Whether its library is installed."""
        return importlib.util.find_spec(self.package) is not None

    @contextlib.contextmanager
    def running(self, file: Path, *, vector: bool) -> Iterator[Running]:
        """A process that does this work on a JPEG file, with or without vector code.

        Raises:
            MissingError: the library is not installed.
            MeasurementError: the process ended instead of doing its work.
        """
        if not self.installed:
            raise MissingError(f"{self.name}: {self.package} is not installed here")
        environment = {k: v for k, v in os.environ.items() if k not in _SWITCHES}
        if not vector:
            environment |= self.switch
        program = "perfkit.course.lessons.lesson_03_storage_and_formats._vector_program"
        child = LineChild("-m", program, self.name, str(file), env=environment)

        def again() -> None:
            try:
                child.ask("again")
            except EndedError as error:
                raise MeasurementError(f"{self.name}: its process ended: {error}") from None

        try:
            told = child.hear()
            yield Running(told["digest"], told["level"], again)
        except EndedError as error:
            raise MeasurementError(f"{self.name}: its process ended: {error}") from None
        finally:
            child.end()


#: All works that the lesson tries.
WORKS = (
    Work("Pillow decode", "PIL", _JPEG),
    Work("simplejpeg decode", "simplejpeg", _JPEG),
    Work(
        "OpenCV decode",
        "cv2",
        _JPEG | _OPENCV,
        reaches=False,
        remark="OpenCV's copy of libjpeg-turbo is built without the switch",
    ),
    Work("OpenCV blur", "cv2", _OPENCV),
    Work(
        "OpenCV resize",
        "cv2",
        {"OPENCV_IPP": "disabled"} | _OPENCV,
        remark="cubic, by Intel's IPP, which OPENCV_CPU_DISABLE does not reach",
    ),
    Work("torch resize", "torch", {"ATEN_CPU_CAPABILITY": "default"}),
)
