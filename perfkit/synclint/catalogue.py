"""Why each operation makes the host wait for the GPU, and what to write instead.

``slow``, ``instead`` and ``alike`` are code, and the tests run them: the first is reported
under its rule, the other two are not. ``alike`` is what a reader could take for the same thing
and need not change. Which CUDA kernels read back to the host was looked up in torch's sources
(``aten/src/ATen/native/cuda``: ``.item()``, ``.cpu()`` and stream synchronisations) and in the
notes of ``torch.linalg``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

#: Entries of copies from the host to the device.
COPIES = frozenset(
    {"copy_to_device", "index_list", "index_tensor", "load_to_device", "tensor_to_device"}
)
#: Entries of functions that are called in order to wait; each device has its own.
EXPLICIT = ("synchronize", "empty_cache")


@dataclass(frozen=True)
class Entry:
    """One way to make the host wait.

    Attributes:
        op: the operation, as the reader wrote it.
        why: what the host waits for.
        instead: code that does without, a comment first where one is needed.
        slow: code that is reported under this rule; empty where it needs more than a line.
        alike: code that looks the same and does not wait; empty if there is none.
    """

    op: str
    why: str
    instead: str
    slow: str = ""
    alike: str = ""


_VALUE = "the host needs the number itself, so it waits until the GPU has computed it"
_SHAPE = "the result's size depends on the data: the host waits to learn how much to allocate"
_COPY_TO = (
    "without pinned memory and non_blocking=True the host waits for the copy, which comes after "
    "all that was queued before it"
)
_COPY = "a copy to the host waits until the GPU has finished everything queued before it"

_ENTRIES: dict[str, Entry] = {
    "item": Entry(
        op="Tensor.item",
        why=_VALUE,
        instead="# keep it on the device, read the sum once, after the loop\n"
        "total = total + loss.detach()",
        slow="total = total + loss.item()",
        alike="n = loss.numel()",
    ),
    "float": Entry(
        op="float(tensor)",
        why=_VALUE,
        instead="total = total + loss.detach()  # float(total) once, after the loop",
        slow="total = total + float(loss.detach())",
        alike="y = x.float()",
    ),
    "int": Entry(
        op="int(tensor)",
        why=_VALUE,
        instead="total = total + (x.argmax(1) == target).sum()  # int(total) once, after the loop",
        slow="total = total + int((x.argmax(1) == target).sum())",
        alike="y = x.int()",
    ),
    "largest": Entry(
        op="int(tensor.max())",
        why="the host waits for the largest value to know a size",
        instead="n = 6  # a size you know, of classes, nodes or graphs: set before the loop\n"
        "# and pass it on: dim_size=n, num_nodes=n or size=n of what looks for it otherwise\n"
        "counts = x.new_zeros(n).scatter_add_(0, target, x[:, 0])",
        slow="n = int(target.max()) + 1",
        alike="n = int(max(target.shape)) + 1",
    ),
    "loops_of_graph": Entry(
        op="edge_index[:, mask]",
        why="where a graph's own loops are looked for, the host waits to learn how many there are",
        instead="# once, before the loop: transform=T.AddSelfLoops() of the data set\n"
        "# then GCNConv(…, add_self_loops=False); the same edges in every step: cached=True",
    ),
    "bool": Entry(
        op="bool(tensor)",
        why="Python must know the answer before it can go on, so it waits for the GPU",
        instead="loss = torch.where(loss > 100, loss * 0.5, loss)  # both sides, no question asked",
        slow="if loss > 100:\n    loss = loss * 0.5",
        alike="if x.shape[0] > 100:\n    loss = loss * 0.5",
    ),
    "any": Entry(
        op="bool(tensor.any())",
        why="Python must know the answer before it can go on, so it waits for the GPU",
        instead="# weigh with the mask: where none is true it adds nothing\n"
        "loss = loss + torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)\n"
        "# or remember it, and ask once, after the loop\n"
        "bad = ~torch.isfinite(loss)  # bad |= … in the steps that follow",
        slow="if mask.any():\n    loss = loss * 0.5",
        alike="if any(size > 100 for size in x.shape):\n    loss = loss * 0.5",
    ),
    "builtin": Entry(
        op="max() and min() of Python",
        why="Python compares the elements one by one and waits for the GPU at every comparison",
        instead="top = x[:, 0].max()",
        slow="top = max(x[:, 0])",
        alike="top = max(x.shape)",
    ),
    "contains": Entry(
        op="value in tensor",
        why="Python must know the answer before it can go on, so it waits for the GPU",
        instead="found = (target == 2).any()  # stays a tensor on the device",
        slow="found = 2 in target",
        alike="found = 2 in target.shape",
    ),
    "tolist": Entry(
        op="Tensor.tolist",
        why=_COPY,
        instead="# loop over what is known beforehand, not over what is in the tensor\n"
        "for c in range(6):\n    loss = loss + (target == c).float().mean()",
        slow="for c in target.tolist():\n    loss = loss + c",
        alike="sizes = list(x.shape)",
    ),
    "cpu": Entry(
        op="Tensor.cpu",
        why=_COPY,
        instead="kept = x.detach()  # collect on the device; one .cpu() for all, after the loop",
        slow="kept = x.detach().cpu()",
        alike="y = torch.ones(3).cpu()",
    ),
    "numpy": Entry(
        op="Tensor.numpy",
        why=_COPY,
        instead="m = x.detach().mean(0)  # compute with torch; convert once, after the loop",
        slow="m = x.detach().numpy().mean(0)",
        alike="y = torch.ones(3).numpy()",
    ),
    "print": Entry(
        op="print or format of a tensor",
        why="the digits must be on the host, so it waits until the GPU has computed them",
        instead='text = f"step with {tuple(x.shape)}"  # values every 100 steps, or after the loop',
        slow='text = f"loss {loss:.3f}"',
        alike='text = f"shape {x.shape}, {x.dtype}"',
    ),
    "save": Entry(
        op="torch.save",
        why=_COPY,
        instead="snapshot = x.detach().clone()  # stays on the device; write it between epochs",
        slow="torch.save(x.detach(), io.BytesIO())",
        alike="torch.save(torch.ones(3), io.BytesIO())",
    ),
    "nonzero": Entry(
        op="torch.nonzero",
        why=_SHAPE,
        instead="s = torch.where(mask, x, 0.0).sum()  # the mask itself, not where it is true",
        slow="i = torch.nonzero(mask)",
        alike="n = torch.count_nonzero(mask)",
    ),
    "where": Entry(
        op="torch.where(condition)",
        why=_SHAPE,
        instead="y = torch.where(mask, x, 0.0)  # with three arguments",
        slow="rows, columns = torch.where(mask)",
        alike="y = torch.where(mask, x, -x)",
    ),
    "unique": Entry(
        op="torch.unique",
        why=_SHAPE,
        instead="# whole numbers from 0 to 5 here: a fixed number of classes has a fixed shape\n"
        "counts = torch.zeros(6, dtype=torch.long, device=x.device).scatter_add_(\n"
        "    0, target, torch.ones_like(target))\n"
        "present = counts > 0",
        slow="classes = torch.unique(target)",
        alike="ordered = torch.sort(target).values",
    ),
    "masked_select": Entry(
        op="torch.masked_select",
        why=_SHAPE,
        instead="mean = torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)",
        slow="mean = torch.masked_select(x, mask).mean()",
        alike="y = x.masked_fill(mask, 0.0)",
    ),
    "index": Entry(
        op="x[mask]",
        why="a boolean index is a hidden nonzero: the host waits to learn how many are true",
        instead="# weigh with the mask, or mark what to leave out: cross_entropy(..., ignore_index)"
        "\nmean = torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)",
        slow="mean = x[mask].mean()",
        alike="y = x[repeats]  # of whole numbers",
    ),
    "index_put": Entry(
        op="x[mask] = tensor",
        why="a boolean index is a hidden nonzero: the host waits to learn how many are true",
        instead="y = torch.where(mask, x * 2, x)",
        slow="y = x.detach().clone()\ny[mask] = y[mask] * 2",
        alike="y = x.detach().clone()\ny[mask] = 0.0",
    ),
    "index_put_value": Entry(
        op="x[mask] = tensor",
        why="with a tensor for its value the boolean index is a hidden nonzero; with a plain "
        "number it is a masked_fill",
        instead="y = torch.where(mask, x.mean(), x)",
        slow="y = x.detach().clone()\ny[mask] = y.mean()",
        alike="y = x.detach().clone()\ny[mask] = -1.0",
    ),
    "element": Entry(
        op="x[i] = number",
        why="one element, or those at an index tensor, get the number by a copy from the host, "
        "which waits; a row or a slice is filled on the GPU",
        instead="y = x.detach().clone()\ny[0, 1] = y.new_full((), 5.0)  # made on the device",
        slow="y = x[0].detach().clone()\ny[0] = 5.0",
        alike="y = x.detach().clone()\ny[0] = 5.0\ny[:, 1] = 0",
    ),
    "masked_fill": Entry(
        op="masked_fill with a tensor for its value",
        why="the value is read to the host before the fill",
        instead="y = torch.where(mask, x.mean(), x)",
        slow="y = x.masked_fill(mask, x.mean())",
        alike="y = x.masked_fill(mask, 0.0)",
    ),
    "masked_scatter": Entry(
        op="masked_scatter",
        why="the gradient of what is scattered is a masked_select: its size depends on the data",
        instead="places = (mask.flatten().cumsum(0) - 1).clamp(min=0)  # n-th true: n-th of x\n"
        "y = torch.where(mask, x.take(places).view_as(x0), x0)",
        slow="y = x0.masked_scatter(mask, x)\ny.sum().backward()",
        alike="y = x.masked_scatter(mask, x0)  # no gradient for what is scattered",
    ),
    "index_fill": Entry(
        op="index_fill with a tensor for its value",
        why="the value is read to the host before the fill",
        instead="rows = target[:1]\ny = x.index_copy(0, rows, x.mean().expand(1, x.shape[1]))",
        slow="y = x.index_fill(0, target[:1], x.mean())",
        alike="y = x.index_fill(0, target[:1], 0.0)",
    ),
    "repeat_interleave": Entry(
        op="repeat_interleave without output_size",
        why="the host waits for the sum of the repeats to know the size of the result",
        instead="# the sum is often known: here each row counts as many as the batch holds\n"
        "y = torch.repeat_interleave(x, repeats, dim=0, output_size=8)",
        slow="y = torch.repeat_interleave(x, repeats, dim=0)",
        alike="y = torch.repeat_interleave(x, 2, dim=0)",
    ),
    "one_hot": Entry(
        op="one_hot without num_classes",
        why="the host waits for the largest class to know the size of the result",
        instead="y = F.one_hot(target, num_classes=6)",
        slow="y = F.one_hot(target)",
        alike="y = F.one_hot(target, 6)",
    ),
    "slice": Entry(
        op="a tensor as an index or bound",
        why="the host waits for the number: positions of a slice are kept on the host",
        instead="# keep the size, mask what is beyond\n"
        "keep = torch.arange(x.shape[0], device=x.device) < n\n"
        "y = torch.where(keep[:, None], x, 0)",
        slow="y = x[:n]",
        alike="y = x[: x.shape[0] // 2]",
    ),
    "index_number": Entry(
        op="a tensor where Python needs an index",
        why=_VALUE,
        instead="for i in range(x.shape[0]):\n    loss = loss + (i < n) * 1.0",
        slow="for i in range(n):\n    loss = loss + 1.0",
        alike="for i in range(x.shape[0]):\n    loss = loss + 1.0",
    ),
    "prod": Entry(
        op="backward of prod or cumprod",
        why="the gradient has another formula if there are zeros, so the host asks for them",
        instead="# of positive numbers, in float32 or more\ny = x0.abs().log().sum().exp()",
        slow="y = x.abs().prod()\ny.backward()",
        alike="y = x.abs().sum()\ny.backward()",
    ),
    "number": Entry(
        op="a tensor where a number is needed",
        why="the size or number is an argument of the launch, so the host waits to know it",
        instead="y = torch.arange(x.shape[0], device=x.device) * (n / n)",
        slow="y = torch.arange(n)",
        alike="y = torch.arange(len(x), device=x.device)",
    ),
    "equal": Entry(
        op="torch.equal",
        why="it returns a Python bool, for which the host waits",
        instead="# a tensor; look at it when the step is over; of two of one shape\n"
        "same = (x == x0).all()",
        slow="same = torch.equal(x, x0)",
        alike="same = torch.eq(x, x0)",
    ),
    "allclose": Entry(
        op="torch.allclose",
        why="it returns a Python bool, for which the host waits",
        instead="close = torch.isclose(x, x0).all()  # a tensor; look at it when the step is over",
        slow="close = torch.allclose(x, x0)",
        alike="close = torch.isclose(x, x0)",
    ),
    "histc": Entry(
        op="torch.histc without min and max",
        why="the host waits for the smallest and largest value to place the bins",
        instead="# a range that you know: what lies beyond it is not counted\n"
        "h = torch.histc(x, bins=10, min=-3, max=3)",
        slow="h = torch.histc(x, bins=10)",
        alike="h = torch.histc(x, 10, -1, 1)",
    ),
    "bincount": Entry(
        op="torch.bincount",
        why="the host waits for the smallest and largest value, even if minlength is given",
        instead="# all below 6 here, from 0 on\n"
        "counts = torch.zeros(6, dtype=torch.long, device=x.device).scatter_add_(\n"
        "    0, target, torch.ones_like(target))",
        slow="counts = torch.bincount(target, minlength=6)",
        alike="counts = (target[:, None] == torch.arange(6, device=target.device)).sum(0)",
    ),
    "segment_reduce": Entry(
        op="torch.segment_reduce with lengths",
        why="it looks whether the lengths are valid, and the host waits for the answer",
        instead='y = torch.segment_reduce(x, "sum", lengths=repeats[:2], unsafe=True)  # no look',
        slow='y = torch.segment_reduce(x, "sum", lengths=repeats[:2])',
    ),
    "sorter": Entry(
        op="torch.searchsorted with sorter",
        why="it looks whether the sorter's positions are valid, and the host waits for the answer",
        instead="y = torch.searchsorted(x.sort(1).values, x)",
        slow="y = torch.searchsorted(x, x, sorter=x.argsort(1))",
        alike="y = torch.searchsorted(x, x)",
    ),
    "cov": Entry(
        op="torch.cov, torch.corrcoef",
        why="it looks, on the device, whether there are enough samples to divide by",
        instead="centred = x - x.mean(1, keepdim=True)\ny = centred @ centred.T / (x.shape[1] - 1)",
        slow="y = torch.cov(x)",
        alike="y = x.var(1)",
    ),
    "isin": Entry(
        op="torch.isin with many test elements",
        why="from a certain size on it sorts and calls unique, whose size the host waits for",
        instead="# a table of what is asked for, whole numbers from 0 to 99 in both: a look-up for "
        "each\n"
        "table = torch.zeros(100, dtype=torch.bool, device=many.device)\n"
        "table.index_fill_(0, many, True)\n"
        "hit = table[target]",
        slow="hit = torch.isin(target, many)",
        alike="hit = torch.isin(target, many[:3])",
    ),
    "to_sparse": Entry(
        op="to_sparse, coalesce",
        why=_SHAPE,
        instead="y = x.detach()  # left dense: computing with zeros needs no size",
        slow="y = x.detach().to_sparse()",
    ),
    "tensor_of_tensors": Entry(
        op="torch.tensor([tensor, …])",
        why="it reads every element to the host and copies them back",
        instead="y = torch.stack([loss, loss * 2]).detach()",
        slow="d = loss.detach()\ny = torch.tensor([d, d * 2])",
        alike="y = torch.tensor([1.0, 2.0])",
    ),
    "linalg": Entry(
        op="torch.linalg function that checks its result",
        why="the host waits for the error code of the decomposition",
        instead="# the _ex form returns the error code as a tensor\n"
        "inverse, info = torch.linalg.inv_ex(square)",
        slow="inverse = torch.linalg.inv(square)",
        alike="product = torch.linalg.multi_dot([square, square])",
    ),
    "matrix_exp": Entry(
        op="torch.matrix_exp",
        why="the norm is copied to the host to choose how many terms are computed",
        instead="# a fixed number of terms, where the norm is known to be small\n"
        "one = torch.eye(5, dtype=square.dtype, device=square.device)\n"
        "y = one + square @ (one + square @ (one + square / 3) / 2)",
        slow="y = torch.matrix_exp(square)",
        alike="y = torch.matrix_power(square, 3)",
    ),
    "normal": Entry(
        op="torch.normal with a tensor for std",
        why="it looks whether all of std is positive, and the host waits for the answer",
        instead="y = (x + x0.abs() * torch.randn_like(x)).detach()",
        slow="y = torch.normal(x.detach(), x0.abs())",
        alike="y = torch.normal(x.detach(), 1.0)",
    ),
    "dropout_seed": Entry(
        op="an LSTM, GRU or RNN with dropout",
        why="in training, cuDNN's dropout needs a seed that is drawn on the GPU and read back: at "
        "the first call in a process, and at the next one after the generator's seed or state was "
        "set",
        instead="pass  # it needs no seed in each step: torch.manual_seed() once, before the loop",
        slow="rnn = torch.nn.GRU(5, 4, 2, dropout=0.1).to(x.device)\ntorch.manual_seed(0)\n"
        "y = rnn(x)[0]",
        alike="rnn = torch.nn.GRU(5, 4, 2).to(x.device)\ntorch.manual_seed(0)\ny = rnn(x)[0]",
    ),
    "distribution": Entry(
        op="a torch.distributions object with argument checks",
        why="it looks whether all of its arguments are valid, and the host waits for the answer",
        instead="scale = torch.ones_like(x)  # a plain number would be copied to the device\n"
        "y = torch.distributions.Normal(x, scale, validate_args=False).rsample()",
        slow="y = torch.distributions.Normal(x, x.abs()).rsample()",
        alike="y = torch.distributions.Normal(x.shape[0], 1.0).rsample()",
    ),
    "clip_grad": Entry(
        op="clip_grad_norm_(…, error_if_nonfinite=True)",
        why="to raise an error it must know the norm, and the host waits for it",
        instead="norm = torch.nn.utils.clip_grad_norm_([weight], 1.0)  # a tensor; check it later",
        slow="torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)",
        alike="torch.nn.utils.clip_grad_norm_([weight], 1.0)",
    ),
    "grad_scaler": Entry(
        op="GradScaler.step",
        why="it must know whether a gradient overflowed before it lets the optimizer step: once "
        "a step is the price of float16",
        instead="# bfloat16 has the range of float32 and needs no scaler\n"
        "with torch.autocast(x.device.type, dtype=torch.bfloat16):\n    y = x @ x.T",
    ),
    "get_scale": Entry(
        op="GradScaler.get_scale",
        why=_VALUE,
        instead="pass  # ask for the scale every 100 steps, or after the loop",
        slow='scaler = torch.amp.GradScaler("cpu")\n'
        "loss2 = scaler.scale(loss)\nscale = scaler.get_scale()",
    ),
    "ctc": Entry(
        op="ctc_loss",
        why="its kernel takes the lengths from the host: it copies them to the GPU and waits, and "
        "where they are on the GPU it waits for them first",
        instead="pass  # no form is free of waits; lengths as lists save those for the lengths",
        slow="y = F.ctc_loss(paths, labels, lengths, label_lengths)",
        alike="y = F.nll_loss(paths[0], labels[0]).backward()",
    ),
    "synchronize": Entry(
        op="torch.cuda.synchronize",
        why="it waits for everything that is queued: that is what it is for",
        instead="pass  # leave it out of the step; time with torch.cuda.Event",
    ),
    "wait_for_stream": Entry(
        op="synchronize of an event or a stream",
        why="it waits for everything that was queued before: that is what it is for",
        instead="pass  # a stream waits for another on the GPU itself: stream.wait_event(event)",
    ),
    "empty_cache": Entry(
        op="torch.cuda.empty_cache",
        why="it waits, gives the memory back to the driver, and the next step asks for it again",
        instead="pass  # leave it out; PYTORCH_ALLOC_CONF=expandable_segments:True where memory "
        "is fragmented",
    ),
    "copy_to_host": Entry(
        op="host_tensor.copy_(device_tensor)",
        why=_COPY,
        instead="kept = x.detach().clone()  # collect on the device; one copy, after the loop",
        slow="buffer = torch.ones(4, 5).cpu().clone()\nbuffer.copy_(x.detach())",
    ),
    "copy_to_device": Entry(
        op="a blocking copy to the device",
        why=_COPY_TO,
        instead="# a batch: DataLoader(…, pin_memory=True), then .to(device, non_blocking=True)\n"
        "# a new tensor: make it on the device\n"
        "y = torch.arange(5.0, device=x.device) * x",
        slow="y = torch.arange(5.0).to(x.device) * x",
        alike="y = torch.arange(5.0, device=x.device) * x",
    ),
    "tensor_to_device": Entry(
        op="torch.tensor(…, device=…)",
        why=_COPY_TO,
        instead="# what never changes: once, before the loop; a single number: on the device\n"
        "y = x * torch.full((1,), 2.0, device=x.device)",
        slow="y = x * torch.tensor([2.0], device=x.device)",
        alike="y = x * 2.0",
    ),
    "index_list": Entry(
        op="a list or an array as an index",
        why="the positions are copied to the device, and " + _COPY_TO,
        instead="# positions that never change: once, before the loop, on the device\n"
        "y = x[torch.arange(0, 4, 2, device=x.device)]  # or a slice: x[::2]",
        slow="y = x[[0, 2]]",
        alike="y = x[0:3:2]",
    ),
    "index_tensor": Entry(
        op="an index tensor on the host",
        why="the positions are copied to the device, and " + _COPY_TO,
        instead="# make the positions where they are used\n"
        "y = x[torch.randperm(4, device=x.device)]",
        slow="i = torch.randperm(4)\ny = x[i]",
        alike="i = torch.randperm(4).tolist()\ny = x[i[0] : i[0] + 1]",
    ),
    "load_to_device": Entry(
        op="torch.load(…, map_location=device)",
        why="each tensor of the file is copied to the device, and " + _COPY_TO,
        instead="pass  # load it once, before the loop",
        slow="file = io.BytesIO()\ntorch.save(torch.ones(3), file)\nfile.seek(0)\n"
        "y = torch.load(file, map_location=x.device)",
        alike="file = io.BytesIO()\ntorch.save(torch.ones(3), file)\nfile.seek(0)\n"
        'y = torch.load(file, map_location="cpu")',
    ),
    "other": Entry(
        op="an operation whose result depends on the data",
        why="torch tags it data_dependent_output or dynamic_output_shape: the host waits",
        instead="# keep the shape fixed and mask\ny = torch.where(mask, x, 0.0)",
    ),
}

#: Every rule by its name.
CATALOGUE: Mapping[str, Entry] = MappingProxyType(_ENTRIES)
