"""Modules that are called from outside of any other: when such a forward pass begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from perfkit.base import torch_compat
from perfkit.base.instrument import Instrument
from perfkit.base.stand_in import CallEnd


class OuterCalls:
    """Watches the thread that starts it.

    The hook goes while a module runs, so that its cost does not grow with the model, and while a
    batch is fetched, whose transforms may be modules.
    """

    def __init__(self, instrument: Instrument) -> None:
        self._instrument = instrument
        self.open: Any = None
        self._forget()

    def _forget(self) -> None:
        # a cycle would keep the hook, whose number the next one is to have
        self._begins = self._ends = self._put_on = self._put_end = self._take_end = nothing
        self._undo = nothing
        self.pause: Callable[[], object] = nothing
        self._thread_id = 0

    def start(self, begins: Callable[[Any, Any], None], ends: Callable[[], None]) -> None:
        """Begin, in this thread.

        ``begins`` gets no inputs of what is compiled; ``ends`` comes later where a module raised.
        """
        import torch

        hook = self._instrument.hook
        self._begins, self._ends = begins, ends
        self._is_tracing = torch_compat.jit_tracing_reader()
        self._graph_task = torch_compat.graph_task_id_reader()
        self._thread_id = get_ident()
        begun, compiles = self._module_begins, torch.compiler.is_compiling

        def before(module: Any, args: Any) -> None:
            if not compiles():  # torch.compile may look through it
                begun(module, args)

        self._put_on, self.pause = torch_compat.module_hook_switch(before)
        self._put_end, self._take_end = torch_compat.forward_end_switch(self._module_ended)
        self._undo = torch_compat.watch_compiled_modules(hook(self._compiled_begins))
        self._put_on()

    def go_on(self) -> None:
        if self._thread_id and self.open is None:
            self._put_on()

    def stop(self) -> None:
        self._thread_id = 0
        self.close()
        self.pause()
        self._undo()
        self._forget()

    def close(self) -> None:
        """The module that runs has ended, maybe by raising."""
        hooks, self.open = self.open, None
        if hooks is not None:
            self._take_end(hooks)
            self._ends()
            if self._thread_id:
                self._put_on()

    def close_what_raised(self) -> None:
        """As :meth:`close`, unless the module still runs."""
        if self.open is not None and not torch_compat.forward_runs(self.open):
            self.close()

    def _module_begins(self, module: Any, args: Any) -> None:
        if get_ident() != self._thread_id or self._is_tracing() or self._graph_task() >= 0:
            return  # what is traced, or computed again for a backward pass
        if self._instrument.failure is None:
            try:
                self.pause()
                self.open = self._put_end(module)
                self._begins(module, args)
            except Exception as error:
                self._instrument.caught(error, "the begin of a forward pass")

    def _module_ended(self) -> None:
        if get_ident() == self._thread_id:
            try:
                self.close()
            except Exception as error:
                self._instrument.caught(error, "the end of a forward pass")

    def _compiled_begins(self, module: Any) -> CallEnd | None:
        if get_ident() != self._thread_id or not self.pause():  # it warns of hooks
            return None
        self._begins(module, ())
        return self._instrument.hook(self._compiled_ended)

    def _compiled_ended(self, _: Any) -> None:
        self._ends()
        self.go_on()


def nothing(*_: Any) -> Any:
    return None
