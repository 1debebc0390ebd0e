"""Why each operation makes the host wait for the GPU, and what helps.

The examples are code, and the tests run them: none is reported. Which CUDA kernels read back to the
host was looked up in torch's sources (``aten/src/ATen/native/cuda``: ``.item()``, ``.cpu()`` and
stream synchronisations) and in the notes of ``torch.linalg``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Entries of copies from the host to the device.
COPIES = frozenset({"copy_to_device", "index_list", "index_tensor", "tensor_to_device"})
#: Entries of functions that are called in order to wait; each device has its own.
EXPLICIT = ("synchronize", "empty_cache")
#: Entries of calls that a library makes wait: what helps is said of the call.
OF_THE_CALL = frozenset((
    *EXPLICIT, "clip_grad", "ctc", "distribution", "get_scale", "grad_scaler", "save",
    "wait_for_stream",
))  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One way to make the host wait: what :class:`~perfkit.synclint.find.SyncLine` says of it."""

    op: str
    why: str
    instead: str
    example: str = ""


_VALUE = "the host needs the number itself, so it waits until the GPU has computed it"
_ANSWER = "Python must know the answer before it can go on, so it waits for the GPU"
_BOOL = "it returns a Python bool, for which the host waits"
_SHAPE = "the result's size depends on the data: the host waits to learn how much to allocate"
_MASK = "a boolean index is a hidden nonzero: the host waits to learn how many are true"
_COPY = "a copy to the host waits until the GPU has finished everything queued before it"
_COPY_TO = (
    "without pinned memory and non_blocking=True the host waits for the copy, which comes after "
    "all that was queued before it"
)

_KEEP = (
    "keep it on the device, and read it once, after the loop; where it is shown, or decides what "
    "runs next, read it less often"
)
_LATER = "compare on the device, and look at the answer when the step is over"
_CHOOSE = "choose with torch.where"
_WEIGH = (
    "keep all and weigh with the mask; in a loss, mark what to leave out: "
    "cross_entropy(..., ignore_index)"
)
_MEAN = "mean = torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)"
_CLASSES = "count a fixed number of classes (here 6): that has a fixed shape"
_COUNTS = (
    "counts = torch.zeros(6, dtype=torch.long, device=x.device).scatter_add_(\n"
    "    0, target, torch.ones_like(target))"
)

#: Every rule by its name.
CATALOGUE: Mapping[str, Entry] = {
    "item": Entry("Tensor.item", _VALUE, _KEEP, "total = total + loss.detach()"),
    "float": Entry("float(tensor)", _VALUE, _KEEP, "total = total + loss.detach()"),
    "int": Entry("int(tensor)", _VALUE, _KEEP, "total = total + (x.argmax(1) == target).sum()"),
    "largest": Entry(
        "int(tensor.max())",
        "the host waits for the largest value to know a size",
        "use a size that you know, of classes, nodes or graphs, and pass it on where a library "
        "looks for it: dim_size=n, num_nodes=n, size=n",
        "n = 6  # set before the loop\ncounts = x.new_zeros(n).scatter_add_(0, target, x[:, 0])",
    ),
    "bool": Entry(
        "if tensor",
        _ANSWER,
        "compute both sides and let torch.where choose; else ask less often",
        "loss = torch.where(loss > 100, loss * 0.5, loss)",
    ),
    "any": Entry(
        "bool(tensor.any())",
        _ANSWER,
        "weigh with the mask: where none is true it adds nothing; or remember the answer, and ask "
        "once, after the loop",
        "loss = loss + torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)\n"
        "bad = ~torch.isfinite(loss)  # bad |= … in the steps that follow",
    ),
    "builtin": Entry(
        "max(), min() or sorted() of Python",
        "Python compares the elements one by one and waits for the GPU at every comparison",
        "call the tensor's own method",
        "top = x[:, 0].max()",
    ),
    "contains": Entry(
        "value in tensor",
        _ANSWER,
        "compare on the device; the answer stays a tensor",
        "found = (target == 2).any()",
    ),
    "tolist": Entry(
        "Tensor.tolist",
        _COPY,
        "loop over what is known beforehand, not over what is in the tensor; or keep the tensors, "
        "and read them once, after the loop",
        "for c in range(6):\n    loss = loss + (target == c).float().mean()",
    ),
    "cpu": Entry(
        "Tensor.cpu",
        _COPY,
        "collect on the device, with one .cpu() for all, after the loop; what must have it on the "
        "host, call less often",
        "kept = x.detach()",
    ),
    "numpy": Entry(
        "Tensor.numpy",
        _COPY,
        "compute with torch, and convert once, after the loop",
        "m = x.detach().mean(0)",
    ),
    "print": Entry(
        "print or format of a tensor",
        "the digits must be on the host, so it waits until the GPU has computed them",
        "show values in few steps (every 100), or after the loop",
    ),
    "save": Entry(
        "torch.save",
        _COPY,
        "write it between epochs; a snapshot can stay on the device",
        "snapshot = x.detach().clone()",
    ),
    "nonzero": Entry(
        "torch.nonzero",
        _SHAPE,
        "use the mask itself, not where it is true",
        "s = torch.where(mask, x, 0.0).sum()\nn = torch.count_nonzero(mask)",
    ),
    "where": Entry(
        "torch.where(condition)",
        _SHAPE,
        "give torch.where three arguments",
        "y = torch.where(mask, x, 0.0)",
    ),
    "unique": Entry("torch.unique", _SHAPE, _CLASSES, f"{_COUNTS}\npresent = counts > 0"),
    "masked_select": Entry("torch.masked_select", _SHAPE, _WEIGH, _MEAN),
    "index": Entry("x[mask]", _MASK, _WEIGH, _MEAN),
    "index_put": Entry("x[mask] = tensor", _MASK, _CHOOSE, "y = torch.where(mask, x * 2, x)"),
    "index_put_value": Entry(
        "x[mask] = tensor",
        "with a tensor for its value the boolean index is a hidden nonzero; with a plain "
        "number it is a masked_fill",
        _CHOOSE,
        "y = torch.where(mask, x.mean(), x)",
    ),
    "element": Entry(
        "x[i] = number",
        "one element, or those at an index tensor, get the number by a copy from the host, "
        "which waits; a row or a slice is filled on the GPU",
        "make the number on the device",
        "y = x.detach().clone()\ny[0, 1] = y.new_full((), 5.0)",
    ),
    "masked_fill": Entry(
        "masked_fill with a tensor for its value",
        "the value is read to the host before the fill",
        _CHOOSE,
        "y = torch.where(mask, x.mean(), x)",
    ),
    "masked_scatter": Entry(
        "masked_scatter",
        "the gradient of what is scattered is a masked_select: its size depends on the data",
        "look up the n-th of the source where the n-th of the mask is true",
        "places = (mask.flatten().cumsum(0) - 1).clamp(min=0)\n"
        "y = torch.where(mask, x.take(places).view_as(x0), x0)",
    ),
    "repeat_interleave": Entry(
        "repeat_interleave without output_size",
        "the host waits for the sum of the repeats to know the size of the result",
        "pass output_size: the sum of the repeats is often known",
        "y = torch.repeat_interleave(x, repeats, dim=0, output_size=8)",
    ),
    "one_hot": Entry(
        "one_hot without num_classes",
        "the host waits for the largest class to know the size of the result",
        "pass num_classes",
        "y = F.one_hot(target, num_classes=6)",
    ),
    "slice": Entry(
        "a tensor as an index or bound",
        "the host waits for the number: positions of a slice are kept on the host",
        "keep the size, and mask what is beyond",
        "keep = torch.arange(x.shape[0], device=x.device) < n\n"
        "y = torch.where(keep[:, None], x, 0)",
    ),
    "index_number": Entry(
        "a tensor where Python needs an index",
        _VALUE,
        "use a number that you know; loop as often as there can be, and mask what is beyond",
        "for i in range(x.shape[0]):\n    loss = loss + (i < n) * 1.0",
    ),
    "prod": Entry(
        "backward of prod or cumprod",
        "the gradient has another formula if there are zeros, so the host asks for them",
        "of positive numbers, in float32 or more, add up the logarithms",
        "y = x0.abs().log().sum().exp()",
    ),
    "number": Entry(
        "a tensor where a number is needed",
        "the size or number is an argument of the launch, so the host waits to know it",
        "use a number that you know, set before the loop, and mask what is beyond",
    ),
    "equal": Entry("torch.equal", _BOOL, _LATER, "same = (x == x0).all()"),
    "allclose": Entry("torch.allclose", _BOOL, _LATER, "close = torch.isclose(x, x0).all()"),
    "bincount": Entry(
        "torch.bincount",
        "the host waits for the smallest and largest value, even if minlength is given",
        _CLASSES,
        _COUNTS,
    ),
    "to_sparse": Entry(
        "to_sparse, coalesce", _SHAPE, "leave it dense: computing with zeros needs no size"
    ),
    "tensor_of_tensors": Entry(
        "torch.tensor([tensor, …])",
        "it reads every element to the host and copies them back",
        "stack them",
        "y = torch.stack([loss, loss * 2]).detach()",
    ),
    "linalg": Entry(
        "torch.linalg function that checks its result",
        "the host waits for the error code of the decomposition",
        "call the form that returns the error code as a tensor: inv_ex, cholesky_ex, solve_ex",
        "inverse, info = torch.linalg.inv_ex(square)",
    ),
    "normal": Entry(
        "torch.normal with a tensor for std",
        "it looks whether all of std is positive, and the host waits for the answer",
        "scale a standard normal",
        "y = (x + x0.abs() * torch.randn_like(x)).detach()",
    ),
    "distribution": Entry(
        "a torch.distributions object with argument checks",
        "it looks whether all of its arguments are valid, and the host waits for the answer",
        "say validate_args=False where the distribution is made, and give it tensors: a plain "
        "number would be copied to the device",
        "scale = torch.ones_like(x)\n"
        "y = torch.distributions.Normal(x, scale, validate_args=False).rsample()",
    ),
    "clip_grad": Entry(
        "clip_grad_norm_(…, error_if_nonfinite=True)",
        "to raise an error it must know the norm, and the host waits for it",
        "leave that out, and check the norm that it returns later",
        "norm = torch.nn.utils.clip_grad_norm_([weight], 1.0)",
    ),
    "grad_scaler": Entry(
        "GradScaler.step",
        "it must know whether a gradient overflowed before it lets the optimizer step: once "
        "a step is the price of float16",
        "bfloat16 has the range of float32 and needs no scaler",
        "with torch.autocast(x.device.type, dtype=torch.bfloat16):\n    y = x @ x.T",
    ),
    "get_scale": Entry(
        "GradScaler.get_scale", _VALUE, "ask for the scale every 100 steps, or after the loop"
    ),
    "ctc": Entry(
        "ctc_loss",
        "its kernel takes the lengths from the host: it copies them to the GPU and waits, and "
        "where they are on the GPU it waits for them first",
        "pass the lengths as lists: that saves the waits for them; no form is free of waits",
    ),
    "synchronize": Entry(
        "torch.cuda.synchronize",
        "it waits for everything that is queued: that is what it is for",
        "leave it out of the step; time with torch.cuda.Event",
    ),
    "wait_for_stream": Entry(
        "synchronize of an event or a stream",
        "it waits for everything that was queued before: that is what it is for",
        "let the other stream wait, on the GPU itself: stream.wait_event(event)",
    ),
    "empty_cache": Entry(
        "torch.cuda.empty_cache",
        "it waits, gives the memory back to the driver, and the next step asks for it again",
        "leave it out; where memory is fragmented, PYTORCH_ALLOC_CONF=expandable_segments:True",
    ),
    "copy_to_host": Entry(
        "host_tensor.copy_(device_tensor)",
        _COPY,
        "collect on the device, with one copy, after the loop",
        "kept = x.detach().clone()",
    ),
    "copy_to_device": Entry(
        "a copy to the device",
        _COPY_TO,
        "of a batch: DataLoader(…, pin_memory=True), then .to(device, non_blocking=True); make a "
        "new tensor on the device",
        "y = torch.arange(5.0, device=x.device) * x",
    ),
    "tensor_to_device": Entry(
        "torch.tensor(…, device=…)",
        _COPY_TO,
        "make what never changes once, before the loop, and a single number on the device",
        "y = x * torch.full((1,), 2.0, device=x.device)",
    ),
    "index_list": Entry(
        "a list or an array as an index",
        f"the positions are copied to the device, and {_COPY_TO}",
        "slice, make the positions on the device, or, where they never change, once before the "
        "loop",
        "y = x[torch.arange(0, 4, 2, device=x.device)]",
    ),
    "index_tensor": Entry(
        "an index tensor on the host",
        f"the positions are copied to the device, and {_COPY_TO}",
        "make the positions where they are used",
        "y = x[torch.randperm(4, device=x.device)]",
    ),
    "other": Entry(
        "an operation whose result depends on the data",
        "torch tags it data_dependent_output or dynamic_output_shape: the host waits",
        "keep the shape fixed, and mask",
    ),
}

#: What helps where a data set copies each of its samples to the device, or waits for it.
OF_A_SAMPLE = (
    "leave each sample on the host, and copy the batch, in the loop: DataLoader(…, "
    "pin_memory=True), then .to(device, non_blocking=True)"
)
