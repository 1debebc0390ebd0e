"""Watch real operations on CPU tensors and note those for which a GPU's host would wait.

Two modes look at the same code from two heights. The dispatch mode sees every operator, those
of the backward pass too; the function mode sees what leaves no operator behind on a CPU
(``.tolist()``, ``.cpu()``) and how the user had spelled it. Whether a value would be on the
GPU at all is decided at the end, when all connections are known.
"""

from __future__ import annotations

import bisect
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from perfkit.base import torch_compat
from perfkit.base.arguments import check_instance
from perfkit.base.device import accelerators, here
from perfkit.base.errors import UsageError
from perfkit.base.ignored_warnings import ignore_warnings
from perfkit.base.instrument import Instrument
from perfkit.base.stand_in import stand_in
from perfkit.base.uninterrupted import Uninterrupted
from perfkit.memory.crossings import is_positions
from perfkit.synclint.connections import Connections, Spot
from perfkit.synclint.rules import API_READS, rule_of
from perfkit.synclint.sites import Site, is_literal_cpu, library_between, run_by_autograd, site_of

if TYPE_CHECKING:
    from perfkit.synclint.reality import Tracer

_TO_HOST, _TO_DEVICE = "cpu", "cuda"  # methods of a tensor
_Tensor = torch.Tensor
_NO_LABEL: AbstractContextManager[Any] = nullcontext()
_MODULE_FILE = sys.modules["torch.nn.modules.module"].__file__

# operators that unite operands of no dimension too (elsewhere those may stay on the host)
_UNITE_ALL = {"aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_amp_update_scale_"}
# operators whose later operands may be on the host while the first is on the device
_FIRST_ONLY = frozenset(
    {"aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor", "aten::embedding_renorm_"}
)
# packing: position of the lengths among operands and results; torch wants them on the host
_HOST_SECOND = frozenset({"aten::_pack_padded_sequence", "aten::_pad_packed_sequence"})
# backward formulas that look for zeros among the values; while a dispatch mode is active torch
# takes another road there (isTensorSubclassLike in FunctionsManual.cpp), so no operator tells
_LOOKING_BACKWARDS = ("CumprodBackward", "ProdBackward")
# these look at the quantiles asked for, but only on a CPU (quantile_checks in Sorting.cpp, in some
# versions of torch by an operator), and wait for nothing on a GPU
_CHECKED_ON_A_CPU = frozenset({"nanquantile", "quantile"})
# hits that are kept; a step has some, unless Python goes through a tensor element by element
_MOST_HITS = 200_000
# these move to a GPU without waiting although they are not told to on a CPU
_DECIDES_BY_DEVICE = ("fabric/utilities/apply_func.py",)
_INDEXING = {"aten::index.Tensor", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class NotedWait(NamedTuple):
    """A place that makes the host wait, as the watch has noted it.

    Attributes:
        api: name of the Python-level torch function that was running; empty in autograd.
        inside: the line of the library that asked for the value; None if the user did.
        backward: whether it happens when autograd comes back to this line, or in ``.backward()``.
        of_sample: whether a data set did it, as it made a sample.
    """

    site: Site
    entry: str
    api: str
    inside: Site | None
    backward: bool
    of_sample: bool


class _Candidate(NamedTuple):
    """One wait, if it is one: that is known when all connections are."""

    noted: NotedWait
    spots: tuple[Spot, ...]  # of the tensors that must be on the device
    absent: tuple[Spot, ...]  # of those that must not be, because they are copied to it


class _Call(NamedTuple):
    """One call of an overridable torch function that has returned."""

    name: str
    args: Any
    kwargs: Mapping[str, Any]
    frame: FrameType
    result: Any

    @property
    def source(self) -> Any:
        """What it was called with first: the tensor whose method it is."""
        return self.args[0] if self.args else None

    @property
    def is_of_a_module(self) -> bool:
        """``model.to(device)`` and its like: the tensors stay one and the same."""
        return self.frame.f_code.co_filename == _MODULE_FILE


class SyncWatch:
    """Context manager around the code to be looked at; one at a time in a process.

    Args:
        model: whose parameters, buffers and inputs are on the device. By default everything
            that has or needs a gradient, and all modules that run.
        tracer: traces which operators really wait, on a machine with a GPU. Then the process is
            left as it is, because what happens in it is looked at too.

    Attributes:
        ops: sees the operators, unless somebody ends it.
    """

    _active: SyncWatch | None = None
    _claim = threading.Lock()

    def __init__(
        self, model: torch.nn.Module | None = None, *, tracer: Tracer | None = None
    ) -> None:
        check_instance("model", model, torch.nn.Module, "a torch Module, or leave it out")
        self._model = model
        self.tracer = tracer
        self._members = None if model is None else weakref.WeakSet(model.modules())
        self.links = Connections()
        self._candidates: list[_Candidate] = []
        self._seen_modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        # devices that were read off a tensor, by identity: `device=x.device` says "where x is"
        self._devices: dict[int, tuple[Any, Spot | None]] = {}
        self._first_nodes: list[int] = []
        self._forward_lines: list[tuple[int, Site]] = []
        self._node = torch_compat.autograd_node_reader()
        self._sequence = torch_compat.sequence_number_reader()
        self._paused = 0
        self._fetching = 0
        self.instrument = Instrument("the sync lint", switch_off=self._switch_off)
        self._moving = 0
        self._reading = 0
        self._backward = 0
        self._backward_line: Site | None = None
        self._looked_at = -1
        self.saw_gpu = False
        self._is_on_gpu = here().holds  # asked for every tensor of every operator
        self._api = ""
        self._stack = ExitStack()
        self.ops = _OpMode(self)

    # --- life ---------------------------------------------------------------------------

    def __enter__(self) -> SyncWatch:
        try:
            with Uninterrupted(), SyncWatch._claim:
                if SyncWatch._active is not None:
                    raise UsageError(
                        "syncs are already being watched in this process: find_syncs, "
                        "no_syncs and %synclint cannot be nested; leave the outer one first"
                    )
                with self.instrument.guard("starting"):  # the step runs unwatched
                    self._start()
        except BaseException:
            if SyncWatch._active is self:  # Ctrl-C meanwhile
                self._stack.close()
            raise
        return self

    def _start(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._release)
            SyncWatch._active = self
            stack.callback(self._switch_off)  # somebody may have replaced ours, and call it
            if self._model is not None:
                self._seed(self._model)
            before_module = self.instrument.hook(self._before_module)
            handle = register_module_forward_pre_hook(before_module)
            stack.callback(handle.remove)
            fetch = self.instrument.hook(self._fetch)
            stack.callback(torch_compat.watch_loader_iterators(fetch))
            for put_back in _patches(self):
                stack.callback(put_back)
            stack.callback(torch_compat.lengths_as_lists())
            if self.tracer is not None:
                self.tracer.pause = self._unwatched
            stack.callback(self._unwatched_display())
            if "torch._dynamo" in sys.modules:  # compiled code hides its operators from modes
                stack.enter_context(torch.compiler.set_stance("force_eager"))
                # it warns of our own hook, which may well fire twice
                stack.callback(ignore_warnings("Using `torch.compile.*global hooks"))
            api = _ApiMode(self)
            stack.callback(torch_compat.enter_function_mode(api))
            stack.callback(torch_compat.around_backward(lambda: self._in_backward(api)))
            self.ops.__enter__()
            stack.callback(torch_compat.leave_dispatch_mode, self.ops)
            self._stack = stack.pop_all()

    def __exit__(self, *error: object) -> None:
        self.instrument.take_back([self._stack.close])

    def _switch_off(self) -> None:
        self._paused += 1

    @staticmethod
    def _release() -> None:
        SyncWatch._active = None

    @contextmanager
    def _in_backward(self, api: _ApiMode) -> Iterator[None]:
        """A backward pass: hooks and custom functions in it are user code like any other."""
        outer = self._backward_line
        with self.instrument.guard("looking for the line of a backward pass"):
            # one frame for each of the two context managers
            self._backward_line = site_of(sys._getframe(2))
        self._backward += 1
        try:
            with api:
                yield
        finally:
            self._backward -= 1
            self._backward_line = outer

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def _unwatched_display(self) -> Callable[[], None]:
        """A shell that shows the last value of a cell reads it, but the user's code did not."""
        original = sys.displayhook

        def display(value: object) -> None:
            with self._unwatched():
                original(value)

        return stand_in(sys, "displayhook", display)

    def _fetch(self, is_batch: bool, source: Any) -> Callable[[Any], None]:
        """A data loader works on the host, but for what a call puts on the device."""
        self._fetching += is_batch
        self._paused += not is_batch  # for ever in the workers that it forks

        def ended(_: Any) -> None:
            self._fetching -= is_batch
            self._paused -= not is_batch

        return self.instrument.hook(ended)

    def _passes_over(self, name: str, args: Any, kwargs: Mapping[str, Any]) -> bool:
        """Tell whether this is a data loader's work on the host."""
        if not self._fetching or name in _PLACES or kwargs.get("device") is not None:
            return False
        return not self._touches_placed(args, kwargs)

    def _touches_placed(self, args: Any, kwargs: Mapping[str, Any]) -> bool:
        return self.links.touches_placed(_tensors((*args, *kwargs.values())))

    # --- what is on the device ----------------------------------------------------------

    def _seed(self, module: torch.nn.Module) -> None:
        for spot in self._spots((*module.parameters(), *module.buffers())):
            spot.put_on_device()

    def _put_on_host(self, tensor: Any) -> None:
        if (spot := self._spot(tensor)) is not None:
            spot.put_on_host()

    def _spot(self, tensor: Any) -> Spot | None:
        spot = self.links.spot(tensor)
        if spot is not None and self._is_on_gpu(tensor):
            self.saw_gpu = True
            spot.place()
        return spot

    def _spots(self, tensors: Iterable[Any]) -> list[Spot]:
        return [spot for tensor in tensors if (spot := self._spot(tensor)) is not None]

    def _before_module(self, module: torch.nn.Module, inputs: Any) -> None:
        is_other = self._members is not None and module not in self._members
        if self._paused or self._fetching or is_other:
            return
        if module not in self._seen_modules:
            self._seen_modules.add(module)
            self._seed(module)
        if next(module.parameters(), None) is not None:
            for value in inputs:
                if isinstance(value, PackedSequence):
                    self._put_on_host(value.batch_sizes)  # torch insists
            for spot in self._spots(_tensors(inputs)):
                spot.put_on_device()

    # --- noting -------------------------------------------------------------------------

    def hit(
        self,
        entry: str,
        needs: Sequence[Any],
        frame: FrameType | None,
        absent: Sequence[Any] = (),
        api: str | None = None,
    ) -> None:
        """Note that the code at ``frame`` waits if all tensors of ``needs`` are on the device.

        Those of ``absent`` must not be: they are copied there. ``api`` is what was called, where
        the function mode does not see it.
        """
        spots = self._spots(needs)
        if len(spots) < len(needs) or any(spot.on_host for spot in spots):
            return
        if self._fetching and not all(spot.is_placed for spot in spots):
            return
        site, backward = self.line_of(frame)
        if site is None:
            return
        inside = None if backward else library_between(frame)
        if inside is not None and (inside.file, inside.line) == (site.file, site.line):
            inside = None
        api = "" if backward else self._api if api is None else api
        noted = NotedWait(site, entry, api, inside, backward, of_sample=self._fetching > 0)
        if len(self._candidates) < _MOST_HITS:
            self._candidates.append(_Candidate(noted, tuple(spots), tuple(self._spots(absent))))

    def line_of(self, frame: FrameType | None) -> tuple[Site | None, bool]:
        """The user's line that is running, and whether autograd has come back to it.

        What autograd does by itself belongs to the line of the forward pass that it comes from.
        """
        site = site_of(frame)
        # on CUDA the engine works in a thread of its own, which has no user code on its stack
        if self._backward and (site is None or run_by_autograd(frame)):
            return self._forward_line() or self._backward_line or site, True
        return site, False

    def _forward_line(self) -> Site | None:
        """The line of the forward pass that made the autograd node which is running now."""
        node = self._node()
        if node is None:
            return None
        number = node._sequence_nr()
        at = bisect.bisect_right(self._first_nodes, number) - 1
        if at < 0:
            return None
        end, site = self._forward_lines[at]
        return site if number < end else None

    def remember_line(self, first: int, end: int, frame: FrameType) -> None:
        """Autograd nodes ``first`` … ``end - 1`` were made by the user line above ``frame``."""
        site = site_of(frame)
        if site is None or (self._first_nodes and first <= self._first_nodes[-1]):
            return
        self._first_nodes.append(first)
        self._forward_lines.append((end, site))

    def label(
        self, frame: FrameType, args: Any, kwargs: Mapping[str, Any]
    ) -> AbstractContextManager[Any]:
        """Around a call from the line above ``frame``, for the trace."""
        if self.tracer is None or self._paused or (args and self._passes_over("", args, kwargs)):
            return _NO_LABEL
        return self.tracer.label(self.line_of(frame)[0])

    def noted_waits(self) -> list[tuple[NotedWait, int]]:
        """Return what waits, with how often it did, in the order in which it was first seen."""
        self.links.settle()
        return [*Counter(one.noted for one in self._candidates if self._waits(one)).items()]

    def _waits(self, one: _Candidate) -> bool:
        return (
            all(spot.on_device for spot in one.spots)
            and not any(spot.on_device for spot in one.absent)
            and not (one.noted.entry == "index_tensor" and self.links.is_plain_on_device)
        )

    def start_anew(self) -> None:
        """Forget what was noted so far, but not what is on the device."""
        self._candidates.clear()
        if self.tracer is not None:
            self.tracer.begin()

    # --- operators ----------------------------------------------------------------------

    def note_operator(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if self._fetching and not self._touches_placed(args, kwargs):
            return
        rule = rule_of(func)
        name = func.name()
        from_gpu = name == "aten::_to_copy" and self._is_on_gpu(args[0])
        if name == "aten::_to_copy" and from_gpu != self._is_on_gpu(result):
            # the engine's threads on CUDA have no function mode that would have seen `.cpu()`
            if from_gpu and not kwargs.get("non_blocking"):
                self.hit("cpu", args[:1], sys._getframe())
            if from_gpu:
                self._put_on_host(result)
            return
        if rule is not None and not self._reading and self._api not in _CHECKED_ON_A_CPU:
            hit = rule(args, kwargs)
            if hit is not None:
                self.hit(*hit, sys._getframe())
        if self._fetching:  # what comes of a tensor that was put on the device is there, too
            for spot in self._spots(_tensors((result,))):
                spot.place()
        else:
            self._relate(name, args, kwargs, result)
        if self._backward and args:
            self._look_backwards(args)

    def _look_backwards(self, args: Sequence[Any]) -> None:
        node = self._node()
        if node is None or not node.name().startswith(_LOOKING_BACKWARDS):
            return
        number = node._sequence_nr()
        if number != self._looked_at and isinstance(args[0], _Tensor):
            self._looked_at = number
            self.hit("prod", args[:1], sys._getframe())

    def _relate(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if name in _INDEXING:
            self._look_at_positions(args)
            operands = [args[0], *(i for i in args[1] if i is not None and i.dtype is torch.bool)]
            operands += args[2:3]
        elif name in _FIRST_ONLY:
            operands = [args[0]]
        elif name in _HOST_SECOND:
            self._put_on_host(args[1])
            self._put_on_host(result[1])
            operands, result = [args[0]], result[0]
        elif name == "aten::copy_":
            if self._copies(args, kwargs):
                return
            operands = [args[0], args[1]] if args[1].dim() else [args[0]]
        else:
            operands = [*_tensors(args), *_tensors(kwargs.values())] if kwargs else _tensors(args)
        large: list[Spot] = []
        small: list[Spot] = []
        for tensor in operands:
            if (spot := self._spot(tensor)) is None:
                continue
            if self._members is None and tensor.requires_grad:
                spot.put_on_device()
            (large if tensor.dim() else small).append(spot)
        results = self._spots(_tensors((result,)))
        if large:
            together = [*large, *results]
            if name in _UNITE_ALL:
                together += small
        elif len(small) == 1 or (small and results[:1] == small[:1]):  # in place: one device
            together = [*small, *results]
        else:
            for operand in small:
                for spot in results:
                    self.links.feed(operand, spot)
            return
        for spot in together[1:]:
            together[0].join(spot)

    def _copies(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Note a ``copy_`` between the host and the device, and tell whether it is one."""
        target, source = args[:2]
        at, source_at = self._spot(target), self._spot(source)
        to_device, from_device = self._is_on_gpu(target), self._is_on_gpu(source)
        absent = []
        if (from_device and target.device.type == "cpu") or (
            at is not None and source_at is not None and at.on_host
        ):
            entry, needed = "copy_to_host", source
        elif to_device and source.device.type == "cpu":
            entry, needed = "copy_to_device", target
        elif source_at is not None and source_at.on_host and source.dim():
            entry, needed, absent = "copy_to_device", target, [source]
        else:
            return False
        if not (kwargs.get("non_blocking") or (len(args) > 2 and args[2])):
            self.hit(entry, [needed], sys._getframe(), absent)
        return True

    def _look_at_positions(self, args: Sequence[Any]) -> None:
        """Positions that a factory has made on the host are copied to where they are used."""
        for index in args[1]:
            spot = None if index is None or index.dtype is torch.bool else self._spot(index)
            if spot is not None and spot.root.is_plain:
                self.hit("index_tensor", args[:1], sys._getframe(), [index])

    # --- Python-level calls -------------------------------------------------------------

    def begin_call(
        self, name: str, args: Any, kwargs: Mapping[str, Any], frame: FrameType
    ) -> AbstractContextManager[Any] | None:
        """Before a call of a torch function: its label for the trace; None if it counts nothing."""
        if self._passes_over(name, args, kwargs):
            return None
        self._api = name
        # what these call in turn says nothing
        self._moving += name == "ctc_loss" or _moves(name, args, kwargs)
        if name not in API_READS and name != "one_hot":
            return _NO_LABEL
        # printing switches the modes off that would label its operators
        self._reading += 1
        return self.label(frame, args, kwargs)

    def note_call(self, call: _Call, first_node: int) -> Any:
        """What a call means for the host; its result, or a copy where a GPU would make one."""
        name, result, kwargs = call.name, call.result, call.kwargs
        end = self._sequence()
        if end != first_node:
            self.remember_line(first_node, end, call.frame)
        if _moves(name, call.args, kwargs):
            return self._moved(call)
        device = kwargs.get("device")
        if device is not None and isinstance(result, _Tensor):
            spot = self._spot(result)
            if spot is not None and is_literal_cpu(call.frame, device):
                spot.put_on_host()
            elif spot is not None:
                self._told(spot, device)
            if name in _FROM_DATA and device != "meta":
                self.hit("tensor_to_device", [result], call.frame)
        elif name in _FACTORIES and not torch_compat.within_a_device():
            spot = self._spot(result)
            if spot is not None and not self._is_on_gpu(result):
                spot.root.is_plain = True
        note = _NOTES.get(name)
        if note is not None:
            note(self, call)
        return result

    def _told(self, spot: Spot, device: Any) -> None:
        """A call put it there: where another tensor is, if the device was read off that."""
        _, like = self._devices.get(id(device), (None, None))
        if like is None:
            spot.place()
            return
        like.join(spot)
        if like.is_placed:
            spot.place()

    def _read(self, call: _Call) -> None:
        if isinstance(call.source, _Tensor):
            self.hit(API_READS[call.name], [call.source], call.frame)

    def _one_hot(self, call: _Call) -> None:
        # a GPU is asked for the largest class, and only where no number is given; a CPU also
        # for the smallest, and always, to check them
        args, kwargs = call.args, call.kwargs
        classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
        target = args[0] if args else kwargs.get("tensor", kwargs.get("input"))
        if classes == -1 and isinstance(target, _Tensor):
            self.hit("one_hot", [target], call.frame)

    def _item(self, call: _Call) -> None:
        """``x[…]`` and ``x[…] = …``: a list or an array of positions is copied to the device."""
        index = call.args[1] if len(call.args) > 1 else None
        parts = index if isinstance(index, tuple) else (index,)
        if any(map(_is_positions, parts)) and isinstance(call.source, _Tensor):
            self.hit("index_list", [call.source], call.frame)
        elif call.name == "__setitem__" and _sets_by_copy(*call.args):
            self.hit("element", [call.source], call.frame)

    def _new_tensor(self, call: _Call) -> None:
        self._tensor(call)
        data = call.args[1] if len(call.args) > 1 else call.kwargs.get("data")
        if call.kwargs.get("device") is None and not _tensors((data,)):
            self.hit("tensor_to_device", [call.source], call.frame)

    def _tensor(self, call: _Call) -> None:
        data = call.args[-1] if call.args else call.kwargs.get("data")
        if isinstance(data, list | tuple):
            for element in _tensors(data):
                self.hit("tensor_of_tensors", [element], call.frame)

    def _ctc(self, call: _Call) -> None:
        # it moves the lengths to where it needs them, which on a CPU is unknown from a meeting
        first = (*call.args, *call.kwargs.values())[0]
        spot, scores = self._spot(call.result), self._spot(first)
        if spot is not None and scores is not None:
            scores.join(spot)
        if isinstance(first, _Tensor):
            self.hit("ctc", [first], call.frame)

    def _attribute(self, call: _Call) -> None:
        if isinstance(call.result, torch.device) and isinstance(call.source, _Tensor):
            self._devices[id(call.result)] = call.result, self._spot(call.source)

    def _storage(self, call: _Call) -> None:
        caller = call.frame.f_back
        if caller is not None and caller.f_code.co_name == "_reduce_ex_internal":
            self.hit("save", call.args[:1], call.frame)  # pickling: the bytes are written out

    def _moved(self, call: _Call) -> Any:
        target, source = _target(call.args, call.kwargs), call.source
        if isinstance(target, _Tensor):
            self._devices[id(target)] = target, self._spot(target)
        to_host = call.name == _TO_HOST
        if not to_host and call.name != _TO_DEVICE:
            where = target.device if isinstance(target, _Tensor) else torch.device(target)
            to_host = is_literal_cpu(call.frame, target) or (
                self._is_on_gpu(source) and where.type == "cpu"
            )
        spot = self._spot(source)
        if spot is None:
            return call.result
        return self._to_host(call, spot) if to_host else self._to_device(call, spot, target)

    def _to_host(self, call: _Call, spot: Spot) -> Any:
        source, result = call.source, call.result
        if call.is_of_a_module or spot.on_host:  # model.cpu()
            return result
        if not (call.kwargs.get("non_blocking") or (len(call.args) > 3 and call.args[3])):
            self.hit("cpu", [source], call.frame)
        if result is source:
            result = self._copied(source)
        self._put_on_host(result)
        return result

    def _to_device(self, call: _Call, spot: Spot, target: Any) -> Any:
        source, result = call.source, call.result
        # what trains, and a parameter that does not: Keras keeps counters in some
        is_a_models = source.requires_grad or isinstance(source, torch.nn.Parameter)
        is_a_models |= call.is_of_a_module
        if result is source and not is_a_models and not spot.on_device:
            # what the data code has done with it before was done on the host
            result = self._copied(source)
        if (moved := self._spot(result)) is not None:
            self._told(moved, target)
        later = call.kwargs.get("non_blocking") or any(a is True for a in call.args[2:])
        caller = call.frame.f_code.co_filename.replace("\\", "/")
        is_new = source is not result and not self._is_on_gpu(source)
        if is_new and not (later or is_a_models or caller.endswith(_DECIDES_BY_DEVICE)):
            self.hit("copy_to_device", [result], call.frame, [source], api=call.name)
        return result

    def _copied(self, tensor: _Tensor) -> _Tensor:
        """The copy that a GPU would make: from here on the two lead separate lives."""
        with self._unwatched():
            return tensor.clone()


# what these make is where they are told, or else on the host
_FACTORIES = frozenset(
    {"arange", "empty", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "zeros"}
)

# what makes a tensor of Python's data: on the host first, then a copy
_FROM_DATA = frozenset({"as_tensor", "asarray", "tensor"})


def _is_positions(part: Any) -> bool:
    """Tell whether a part of an index is a list or an array of numbers, or is taken like one."""
    is_array = type(part).__module__ == "numpy" and getattr(part, "ndim", 0) > 0 and part.size > 0
    return is_array or is_positions(part)


_NOTES: Mapping[str, Callable[[SyncWatch, _Call], None]] = {
    **dict.fromkeys(API_READS, SyncWatch._read),
    "__get__": SyncWatch._attribute,
    "__getitem__": SyncWatch._item,
    "__setitem__": SyncWatch._item,
    "as_tensor": SyncWatch._tensor,
    "asarray": SyncWatch._tensor,
    "ctc_loss": SyncWatch._ctc,
    "new_tensor": SyncWatch._new_tensor,
    "one_hot": SyncWatch._one_hot,
    "tensor": SyncWatch._tensor,
    "untyped_storage": SyncWatch._storage,
}

# these put a tensor where they are told, or say where one is
_PLACES = frozenset({"__get__", "cuda", "to", "type_as"})


def _target(args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Where ``x.to(…)`` and its like are told to put it."""
    return kwargs.get("device", args[1] if len(args) > 1 else kwargs.get("other"))


def _moves(name: str, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Tell whether this call puts a tensor somewhere, and does not only change its type."""
    if name in ("to", "type_as"):
        return isinstance(_target(args, kwargs), str | int | torch.device | _Tensor)
    if name in ("as_tensor", "asarray"):
        return bool(args) and isinstance(args[0], _Tensor) and kwargs.get("device") is not None
    return name in (_TO_HOST, _TO_DEVICE)


def _tensors(values: Any) -> list[Any]:
    """The tensors among these values and the lists among them."""
    tensors = []
    for value in values:
        if isinstance(value, _Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += _tensors(value)
        elif isinstance(value, dict):
            tensors += _tensors(value.values())
    return tensors


def _sets_by_copy(target: Any, index: Any, value: Any) -> bool:
    """Tell whether ``target[index] = value`` copies a number of the host to the device.

    Seen on an H100: where the target is one element, and where integers on the device choose it.
    """
    if not isinstance(target, _Tensor) or not isinstance(value, int | float | complex):
        return False
    parts = index if isinstance(index, tuple) else (index,)
    chosen = [part for part in parts if isinstance(part, _Tensor) and part.dim()]
    if chosen:
        return not any(part.dtype in (torch.bool, torch.uint8) for part in chosen)
    n_numbers = sum(isinstance(part, int) and not isinstance(part, bool) for part in parts)
    return n_numbers == target.dim() == len(parts)


class _ApiMode(TorchFunctionMode):
    """Sees the calls of torch's Python functions and tensor methods."""

    def __init__(self, watch: SyncWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        watch = self._watch
        kwargs = kwargs or {}
        if watch._paused or watch._moving:
            return func(*args, **kwargs)
        frame, first_node = sys._getframe(1), watch._sequence()
        name = getattr(func, "__name__", "")
        label: AbstractContextManager[Any] | None = None
        before = watch._api, watch._moving, watch._reading
        try:
            try:  # as a guard does, which takes longer
                label = watch.begin_call(name, args, kwargs, frame)
            except Exception as error:
                watch.instrument.fail(error, "looking at a call")
            # no function between: each frame counts against the limit of recursion
            with label or _NO_LABEL:
                result = func(*args, **kwargs)
        finally:
            watch._api, watch._moving, watch._reading = before
        if label is not None:
            try:
                result = watch.note_call(_Call(name, args, kwargs, frame, result), first_node)
            except Exception as error:
                watch.instrument.fail(error, "looking at a call")
        return result


class _OpMode(torch_compat.dispatch_mode_class()):  # type: ignore[misc]
    """Sees every operator, on its way to the kernel.

    In the threads of the autograd engine, where CUDA's backward runs, no frame is below its
    handler: the search for a line starts at its own frame.
    """

    def __init__(self, watch: SyncWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watch, label = self._watch, _NO_LABEL
        if watch.tracer is not None:
            with watch.instrument.guard("looking at an operator"):
                label = watch.label(sys._getframe(), args, kwargs)
        # torch may show the function mode what is on its way to the kernel: there
        # `torch.LongTensor(3)` asks for memory on `device=cpu`, the user for no device
        watch._moving += 1
        try:
            with label:
                result = func(*args, **kwargs)
        finally:
            watch._moving -= 1
        if not (watch._paused or watch._moving):
            try:
                # in a backward pass the function mode is on, and would see our own look
                alone = torch_compat.without_torch_function() if watch._backward else _NO_LABEL
                with alone:
                    watch.note_operator(func, args, kwargs, result)
            except Exception as error:
                watch.instrument.fail(error, "looking at an operator")
        return result


def _patches(watch: SyncWatch) -> Iterator[Callable[[], None]]:
    """Note ``torch.cuda.synchronize()``, ``empty_cache()`` and what else is called to wait.

    Where there is no such device they do nothing, and nothing waits for an event or a stream.
    Yields how to put each function back.
    """
    for device in accelerators():
        owner, names = device.waiting_functions() or (None, ())
        is_here = device.is_available()  # asked now: within the step nothing of ours may fail
        for name in names:
            original = getattr(owner, name) if is_here else lambda *_, **__: None
            api = f"torch.{device.type}.{name}"
            yield stand_in(owner, name, _noting(watch, name, original, api))
    if watch.tracer is not None:
        for kind in here().waitable_types():
            noting = _noting(watch, "wait_for_stream", kind.synchronize)
            yield stand_in(kind, "synchronize", noting)


def _noting(
    watch: SyncWatch, entry: str, original: Callable[..., Any], api: str | None = None
) -> Callable[..., Any]:
    def wait(*args: Any, **kwargs: Any) -> Any:
        frame, label = sys._getframe(1), _NO_LABEL
        with watch.instrument.guard("noting a wait"):
            if not watch._paused:
                watch.hit(entry, (), frame, api=api)
            label = watch.label(frame, args, kwargs)
        with label:
            return original(*args, **kwargs)

    return wait
