"""What a widget needs to know about its front end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit.base.errors import MissingError
from perfkit.base.machine._front_end import front_end_lacks
from perfkit.base.progress import has_front_end as has_front_end


def no_widgets_here() -> str:
    """Why the front end shows no widgets, and what to do, in a sentence; empty if it does."""
    lacks, helps = front_end_lacks()
    return f"{lacks}: {helps}" if lacks else ""


_STATIC = Path(__file__).parent / "static"


def bundle(name: str) -> Path:
    """The path of a bundled browser file.

    Raises:
        MissingError: the package runs from a checkout without bundled JavaScript.
    """
    path = _STATIC / name
    if not path.is_file():
        raise MissingError(
            f"perfkit's browser code ({name}) is not built in this checkout: "
            "run `pip install -e .` or `python hatch_build.py` there"
        )
    return path


def send_in_turn(
    comm: Any, content: Any, buffers: list[bytes], then: Callable[[Exception | None], object]
) -> bool:
    """Send a widget's message, made in ipykernel's thread that sends them; False: none is there.

    To make a message takes the thread that trains three times as long as to hand it over, and it
    lets the other thread run while torch computes. The message keeps its place among all others,
    for which it goes to the socket at once: ``comm.send`` would put it behind those that wait.

    Args:
        comm: the widget's.
        content: of the message, as for ``Widget.send``.
        buffers: as there.
        then: called in that thread afterwards, with what was raised. It must not raise, which
            would delay the messages behind it.
    """
    kernel = getattr(comm, "kernel", None)
    thread = getattr(getattr(kernel, "iopub_socket", None), "io_thread", None)
    if kernel is None or thread is None:
        return False
    parent = kernel.get_parent()  # of the cell that runs now

    def send() -> None:
        try:
            kernel.session.send(
                thread.socket,
                "comm_msg",
                {"data": {"method": "custom", "content": content}, "comm_id": comm.comm_id},
                parent=parent,
                ident=comm.topic,
                buffers=buffers,
            )
        except Exception as error:
            then(error)
        else:
            then(None)

    thread.schedule(send)
    return True


def answer_on_own_shell(comm: Any) -> None:
    """Let clicks reach Python while a cell of this kernel is busy.

    Front ends send clicks through a kernel subshell. ipykernel 7.4 instead routes them to the shell
    that last published on the comm, so that a click waits for the cell (measured: 0 of 6 clicks
    arrived, with this change 6 of 6). Other versions do not have or need this attribute. Without
    this, a click is late but not lost.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, default: default
