"""The work of an operator: by hand, against torch's own results, and what is not guessed."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from perfkit.limit import counters
from perfkit.limit.arguments import arguments
from perfkit.limit.call import Work
from perfkit.limit.flops import FORMULAS, counted
from perfkit.limit.operator_kinds import COMPOSITE, NOTHING
from perfkit.limit.roofline import least
from perfkit.limit.roofs import Roofs
from perfkit.limit.work import is_known, work

_KINETO = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "c10::BFloat16",
    torch.float16: "c10::Half",
    torch.int64: "long int",
    torch.int32: "int",
    torch.int8: "signed char",
    torch.bool: "bool",
    torch.float8_e4m3fn: "c10::Float8_e4m3fn",
}


def of(name: str, *args: Any, values: Any = (), **more: Any) -> Work | None:
    """The work of a call, its arguments as a trace records them."""
    dims, types = [], []
    for a in args:
        if isinstance(a, torch.Tensor):
            dims.append(list(a.shape))
            types.append(_KINETO[a.dtype])
        elif isinstance(a, list) and a and isinstance(a[0], torch.Tensor):
            dims.append([list(t.shape) for t in a])
            types.append("TensorList")
        else:
            dims.append([])
            types.append("Scalar")
    found = arguments(json.dumps(dims), ",".join(types))
    return work(f"aten::{name}", found, list(values), **more)


def bytes_of(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def known(name: str, *args: Any, **more: Any) -> Work:
    found = of(name, *args, **more)
    assert found is not None
    return found


A, B = torch.rand(6, 4), torch.rand(4, 5)


def test_products() -> None:
    one = known("mm", A, B)
    assert (one.family, one.flops, one.dtype) == ("matrix product", 2 * 6 * 4 * 5, "float32")
    assert (one.read_bytes, one.written_bytes) == (bytes_of(A, B), bytes_of(A @ B))
    bias = torch.rand(5)
    added = known("addmm", bias, A, B)
    assert added.read_bytes == bytes_of(bias, A, B)
    x, y = torch.rand(3, 6, 4), torch.rand(3, 4, 5)
    assert known("bmm", x, y).n_bytes == bytes_of(x, y, x @ y)
    half = known("mm", A.bfloat16(), B.bfloat16())
    assert (half.dtype, 2 * half.n_bytes) == ("bfloat16", one.n_bytes)
    eight = known("_scaled_mm", A.to(torch.float8_e4m3fn), B.to(torch.float8_e4m3fn))
    assert (eight.dtype, 4 * eight.read_bytes) == ("float8", one.read_bytes)
    assert 2 * eight.written_bytes == one.written_bytes  # the sum has 16 bits


@pytest.mark.parametrize(
    ("name", "added", "dtype"),
    [
        ("_int_mm", (), torch.int8),
        ("_scaled_mm", (), torch.bfloat16),
        ("_addmm_activation", (torch.rand(5),), torch.float32),
        ("baddbmm", (torch.rand(3, 6, 1),), torch.float32),
    ],
)
def test_products_read_what_they_multiply_and_what_they_add(
    name: str, added: tuple[torch.Tensor, ...], dtype: torch.dtype
) -> None:
    batch = (3,) if name == "baddbmm" else ()
    a, b = torch.zeros(*batch, 6, 4, dtype=dtype), torch.zeros(*batch, 4, 5, dtype=dtype)
    one = known(name, *added, a, b)
    assert one.flops == math.prod(batch) * 2 * 6 * 4 * 5
    assert one.read_bytes == bytes_of(a, b, *added)


@pytest.mark.parametrize("name", ["addmm", "baddbmm"])
def test_a_product_is_in_the_format_of_its_factors_and_its_result_in_that_of_what_is_added(
    name: str,
) -> None:
    """As with ``out_dtype``: factors of 16 bits, a sum of 32."""
    batch = (3,) if name == "baddbmm" else ()
    added = torch.zeros(*batch, 6, 5)
    a, b = torch.zeros(*batch, 6, 4).bfloat16(), torch.zeros(*batch, 4, 5).bfloat16()
    one = known(name, added, a, b)
    assert one.dtype == "bfloat16"
    assert (one.read_bytes, one.written_bytes) == (bytes_of(added, a, b), bytes_of(added))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("add", (A, A)),
        ("add", (A, torch.rand(4))),
        ("add", (torch.rand(6, 1), A)),
        ("mul", (A, torch.rand(()))),
        ("eq", (A, A)),
        ("gt", (A, 0)),
        ("where", (A > 0.5, A, A)),
        ("where", (A > 0.5, torch.rand(()), torch.rand(()))),
        ("exp", (A,)),
        ("addcmul", (A, A, A)),
        ("add", (A.double(), A)),
        ("mul", (A.bfloat16(), A)),
        ("native_dropout_backward", (A, A > 0.5, 2.0)),
        ("_softmax", (A, 1, False)),
        ("cumsum", (A, 0)),
        ("native_layer_norm", (A, [4], None, None, 1e-5)),
    ],
)
def test_bytes_are_those_of_inputs_and_result(name: str, args: tuple[Any, ...]) -> None:
    result = getattr(torch.ops.aten, name)(*args)
    first = result if isinstance(result, torch.Tensor) else result[0]
    one = known(name, *args)
    assert one.read_bytes == bytes_of(*(a for a in args if isinstance(a, torch.Tensor)))
    assert one.written_bytes == bytes_of(first)
    assert one.flops == one.least_flops == 0


def test_in_place_writes_its_first_argument() -> None:
    one = known("add_", A, A)
    assert (one.read_bytes, one.written_bytes) == (2 * bytes_of(A), bytes_of(A))
    assert known("zero_", A).n_bytes == known("fill_", A).n_bytes == bytes_of(A)
    copied = known("copy_", A.bfloat16(), A)
    assert (copied.read_bytes, copied.written_bytes) == (bytes_of(A), bytes_of(A) // 2)


def test_convolution_and_its_backward() -> None:
    x, w = torch.rand(2, 3, 8, 8), torch.rand(16, 3, 3, 3)
    out = torch.nn.functional.conv2d(x, w, stride=2, padding=1)
    told = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    one = known("convolution", x, w, None, [2], [1], [1], False, [0], 1, values=told)
    flops = 2 * out.numel() * 3 * 9
    assert (one.flops, one.n_bytes) == (flops, bytes_of(x, w, out))
    # an older trace does not tell the stride: not known, unless its backward pass shows the output
    assert of("convolution", x, w, None) is None
    assert known("convolution", x, w, None, output=tuple(out.shape)) == one
    back = ["", "", "", "[16]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    both = known("convolution_backward", out, x, w, values=[*back, "[True, True, False]"])
    assert (both.flops, both.n_bytes) == (2 * flops, bytes_of(out, x, w, x, w))
    first = known("convolution_backward", out, x, w, values=[*back, "[False, True, False]"])
    assert (first.flops, first.n_bytes) == (flops, bytes_of(out, x, w))
    other = known("convolution_backward", out, x, w, values=[*back, "[True, False, False]"])
    assert (other.flops, other.read_bytes, other.written_bytes) == (
        flops, bytes_of(out, w), bytes_of(x),
    )  # fmt: skip
    assert known("convolution_backward", out, x, w, values=back) == both
    told[6] = "True"
    turned = known("convolution", x, w.transpose(0, 1), None, values=told)
    assert turned.written_bytes == 0  # not known
    output = (2, 16, 17, 17)
    assert known("convolution", x, w.transpose(0, 1), None, values=told, output=output) == turned
    old = known("cudnn_convolution_backward", x, out, w)  # until torch 1.11
    assert (old.flops, old.read_bytes, old.written_bytes) == (
        both.flops, both.read_bytes, both.written_bytes,
    )  # fmt: skip


def test_attention_and_what_a_causal_mask_skips() -> None:
    q = torch.rand(2, 4, 8, 16)
    values = ["", "", "", "0.", "True", "", ""]
    name = "_scaled_dot_product_flash_attention_for_cpu"
    one = known(name, q, q, q, 0.0, True, values=values)
    assert one.flops == 4 * 2 * 4 * 8 * 8 * 16
    # 8 · 9 / 2 of 64 scores are needed
    assert one.least_flops == one.flops * 36 / 64
    full = known(name, q, q, q, 0.0, False, values=["", "", "", "0.", "False", "", ""])
    assert full.least_flops == full.flops
    assert full.n_bytes == 4 * bytes_of(q)


@pytest.mark.parametrize(("n_queries", "n_keys"), [(3, 6), (6, 3)])
def test_a_causal_mask_of_other_lengths_hides_what_torch_hides(n_queries: int, n_keys: int) -> None:
    """It counted as none: the lower bound was longer than the kernel's."""
    mask = torch.ones(n_queries, n_keys).tril()  # as torch's reference has it
    q, k = torch.rand(2, 4, n_queries, 16), torch.rand(2, 4, n_keys, 16)
    seen = k[:, :, : int(mask.any(0).sum())]
    name = "_scaled_dot_product_efficient_attention"
    one = known(name, q, k, k, values=["", "", "", "", "", "0.", "True", ""])
    assert one.least_flops == pytest.approx(one.flops * mask.mean().item())
    assert one.read_bytes == bytes_of(q, seen, seen)
    values = ["True" if at == "is_causal" else "" for at in SCHEMAS[f"{name}_backward"]]
    back = known(f"{name}_backward", q, q, k, k, values=values)
    assert back.least_flops == pytest.approx(back.flops * mask.mean().item())
    assert back.read_bytes == bytes_of(q, q, q, seen, seen)
    assert back.written_bytes == bytes_of(q, k, k)


def _schemas() -> dict[str, list[str]]:
    """The names of the arguments of torch's own operators."""
    names = {n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")}
    bases = {name.partition("::")[2].partition(".")[0] for name in names}
    packets = {base: getattr(torch.ops.aten, base) for base in bases & set(counters._BY_NAME)}
    return {
        base: [one.name for one in getattr(packet, packet.overloads()[0])._schema.arguments]
        for base, packet in packets.items()
    }


SCHEMAS = _schemas()


def test_names_are_torchs_own_and_none_of_a_family_is_left_out() -> None:
    # until torch 1.11
    assert set(counters._BY_NAME) - set(SCHEMAS) == {"cudnn_convolution_backward"}
    for part, n_names in (("upsample_", 24), ("_pad", 12)):
        assert len([name for name in SCHEMAS if part in name]) == n_names


@pytest.mark.parametrize(
    "name", sorted(n for n, at in SCHEMAS.items() if "is_causal" in at and "scaled_dot" in n)
)
def test_a_causal_mask_is_read_where_torch_has_it(name: str) -> None:
    q = torch.rand(2, 4, 8, 16)
    values = ["True" if one == "is_causal" else "" for one in SCHEMAS[name]]
    more = [q, q, q] if name.endswith("_backward") else []
    found = known(name, q, q, q, *more, values=values)
    assert found.flops == (10 if more else 4) * 2 * 4 * 8 * 8 * 16
    assert found.least_flops == found.flops * 36 / 64


@pytest.mark.parametrize("name", sorted(n for n in SCHEMAS if n.endswith("norm_backward")))
def test_gradients_of_a_normalization_are_those_asked_for(name: str) -> None:
    x, weight = torch.rand(6, 4), torch.rand(4)
    order = SCHEMAS[name]
    args = [{"weight": weight}.get(one, None if at > 1 else x) for at, one in enumerate(order)]
    is_large = any(part in name for part in ("layer", "rms"))  # as large as a sample: it counts
    for asked in ([True, False, False], [True, True, False], [False, True, True]):
        values = [str(asked) if one == "output_mask" else "" for one in order]
        found = known(name, *args, values=values)
        assert found.read_bytes == 2 * bytes_of(x) + is_large * bytes_of(weight)
        told = asked if "output_mask" in order else [True]
        written = told[0] * bytes_of(x) + is_large * sum(told[1:]) * bytes_of(weight)
        assert found.written_bytes == written
    assert known(name, *args).written_bytes == bytes_of(x)  # nobody says what was asked for


def test_embedding_reads_the_rows_it_needs() -> None:
    weight, index = torch.rand(1000, 8), torch.zeros(3, 5, dtype=torch.int64)
    one = known("embedding", weight, index)
    assert one.n_bytes == 2 * 15 * 8 * 4 + 15 * 8
    grad = torch.rand(3, 5, 8)
    back = known("embedding_dense_backward", grad, index, values=["", "", "1000", "-1", "False"])
    assert (back.read_bytes, back.written_bytes) == (bytes_of(grad, index), bytes_of(weight))
    assert of("embedding_dense_backward", grad, index) is None
    chosen = known("index_select", weight, 0, index[0], values=["", "0", ""])
    assert chosen.n_bytes == 2 * 5 * 8 * 4 + 5 * 8
    again = known("index_select", weight[:2], 0, index[0], values=["", "0", ""])
    assert again.read_bytes == 2 * 8 * 4 + 5 * 8


def test_optimizers() -> None:
    p, q = torch.rand(10), torch.rand(3, 3)
    some = [p, q]
    adam = known("_fused_adamw_", some, some, some, some, list_dtype="float32")
    assert (adam.read_bytes, adam.written_bytes) == (4 * bytes_of(*some), 3 * bytes_of(*some))
    sgd = known("_fused_sgd_", some, some, [], list_dtype="float32")
    assert (sgd.read_bytes, sgd.written_bytes) == (2 * bytes_of(*some), bytes_of(*some))
    each = known("_foreach_addcmul_", some, some, some, list_dtype="bfloat16")
    assert each.n_bytes == 4 * bytes_of(*some) // 2
    # traces do not tell the dtype of lists
    assert of("_fused_adamw_", some, some, some, some) is None


@pytest.mark.parametrize(
    "name", ["sort", "topk", "_cudnn_rnn", "index_put_", "copy", "_foreach_max", "no_such_operator"]
)
def test_unknown_operators_are_not_guessed(name: str) -> None:
    assert of(name, A) is None
    assert not is_known(f"aten::{name}")


def test_an_operator_is_one_of_three_kinds() -> None:
    assert not NOTHING & COMPOSITE
    assert not [name for name in NOTHING | COMPOSITE if is_known(f"aten::{name}")]
    assert is_known("aten::add_")
    assert not is_known("mine::add_")
    assert all(map(is_known, FORMULAS))


def test_pointwise_operators_are_torchs_own() -> None:
    """torch tags them; what it does not tag is named here, with what it is."""
    from perfkit.limit.operator_kinds import POINTWISE

    backward = {n for n in POINTWISE if n.endswith("_backward")}
    # leaky_relu is tagged in 2.13, and not yet in 2.11
    untagged = {"floor_divide", "hardswish", "leaky_relu", "mish", "tril", "triu"}
    untagged.add("log_sigmoid_backward")
    for name in POINTWISE - backward - untagged:
        packet = getattr(torch.ops.aten, name)
        tags = {tag for o in packet.overloads() for tag in getattr(packet, o).tags}
        assert torch.Tag.pointwise in tags, name


@given(
    st.sampled_from(["add", "mm", "bmm", "addmm", "convolution", "copy_", "cat", "embedding",
                     "_softmax", "native_layer_norm", "sum", "_fused_adam_", "gather",
                     "_scaled_dot_product_flash_attention", "convolution_backward"]),
    st.lists(st.one_of(st.none(), st.lists(st.integers(-2, 5), max_size=4), st.integers(),
                       st.lists(st.lists(st.integers(0, 3), max_size=2), max_size=2)), max_size=6),
    st.lists(st.sampled_from(["float", "Scalar", "TensorList", "long int", "", "nonsense"]),
             max_size=6),
    st.lists(st.text(max_size=5), max_size=12),
)  # fmt: skip
def test_damaged_shapes_are_no_work(
    name: str, dims: list[Any], types: list[str], values: list[str]
) -> None:
    found = work(f"aten::{name}", arguments(json.dumps(dims), ",".join(types)), values)
    assert found is None or (found.n_bytes >= 0 and found.flops >= 0)


PAIR = torch.rand(2, 5)
INDEX = torch.zeros(2, 3, dtype=torch.int64)
IMAGES, SMALLER = torch.rand(2, 3, 8, 8), torch.rand(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("name", "args", "values"),
    [
        ("add", (A, torch.rand(3, 4)), []),
        ("convolution_backward", (SMALLER, torch.rand(()), IMAGES), []),
        ("upsample_nearest2d", (IMAGES,), ["", "[16]", "", ""]),
        ("upsample_nearest2d", (IMAGES,), ["", "[16, -16]", "", ""]),
        ("reflection_pad2d", (IMAGES,), ["", "[-9, 0, 0, 0]"]),
        ("_fused_adam_", ([A, A], [A, A], [A, A], [A]), []),
        ("_fused_adam_", ([A], [A], [A]), []),
    ],
)
def test_shapes_that_do_not_fit_each_other_are_no_work(
    name: str, args: tuple[Any, ...], values: list[str]
) -> None:
    assert of(name, *args, values=values, list_dtype="float32") is None


def test_a_division_by_nothing_is_no_work() -> None:
    """It raised into whoever asked about a damaged trace."""
    empty = torch.rand(2, 4, 0, 16)
    causal = ["", "", "", "0.", "True"]
    name = "_scaled_dot_product_flash_attention_for_cpu"
    assert of(name, empty, empty, empty, values=causal) is None
    shapes = [[1, 3, 8, 8], [4, 3, 3, 3], []]
    options = ["", "", "", "[0, 0]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    assert counted("aten::convolution", shapes, options) is None
    # nor is what would be less than nothing, or without end
    options[3] = "[1, 1]"
    assert counted("aten::convolution", [[1, 3, 8, 1], [4, 3, 5, 5], []], options) is None
    assert counted("aten::mm", [[math.inf, 2], [2, 3]], []) is None


ROOFS = Roofs("a device", {"float32": 1e12}, ((2**20, 4e11), (2**30, 1e11)), "measured here")


def test_roofline_takes_the_longer_of_arithmetic_and_memory() -> None:
    heavy = Work("matrix product", 2e9, 2e9, 500_000, 500_000, "float32")
    assert least(heavy, ROOFS).us == pytest.approx(2000)
    assert least(heavy, ROOFS).bound == "arithmetic"
    light = Work("elementwise", 0, 0, 2**29, 2**29, "float32")
    assert least(light, ROOFS).us == pytest.approx(2**30 / 1e11 * 1e6)
    assert least(light, ROOFS).bound == "memory"
    assert least(dataclasses.replace(light, flops=1e6, least_flops=1e6), ROOFS).bound == "memory"
    # without a product it has no format, and lacks no rate of one
    for dtype in ("float32", "int64"):
        one = least(dataclasses.replace(light, dtype=dtype), ROOFS)
        assert (one.form, one.is_partial) == ("", False)
    in_cache = Work("elementwise", 0, 0, 2**19, 2**19, "float32")
    assert least(in_cache, ROOFS).us == pytest.approx(2**20 / 4e11 * 1e6)
    causal = Work("attention", 2e9, 1e9, 0, 0, "float32")
    assert least(causal, ROOFS).us == pytest.approx(1000)
    assert least(causal, ROOFS).arithmetic_us == pytest.approx(2000)


def test_updates_in_place_have_a_rate_and_a_set_of_their_own() -> None:
    """A fused AdamW took 0.32 of its "least" time: it moves seven tensors, and has four."""
    updates = ((2**20, 8e11), (2**30, 2e11))
    roofs = dataclasses.replace(ROOFS, updates=updates)
    adam = Work("optimizer", 0, 0, 2**20, 3 * 2**18, "float32", 3 * 2**18)
    assert adam.working_set_bytes == 2**20
    assert least(adam, roofs).us == pytest.approx(7 * 2**18 / 8e11 * 1e6)
    assert least(adam, ROOFS).us == pytest.approx(7 * 2**18 / 4e11 * 1e6)  # peaks of before
    elsewhere = dataclasses.replace(adam, updated_bytes=0)
    assert elsewhere.working_set_bytes == 7 * 2**18
    larger = dataclasses.replace(roofs, memory=((2**20, 4e11), (7 * 2**18, 1e11)))
    assert least(elsewhere, larger).us == pytest.approx(7 * 2**18 / 1e11 * 1e6)
    huge = Work("optimizer", 0, 0, 2**31, 2**31, "float32", 2**31)
    assert least(huge, roofs).us == pytest.approx(2**32 / 2e11 * 1e6)


@pytest.mark.parametrize(
    ("name", "dims", "updated"),
    [
        ("aten::mul_", "[[1024], []]", 4096),
        ("aten::mul", "[[1024], [1024]]", 0),
        ("aten::zero_", "[[1024]]", 0),
        ("aten::copy_", "[[1024], [1024]]", 0),
    ],
)
def test_what_is_read_and_written_in_place_is_one_tensor(
    name: str, dims: str, updated: int
) -> None:
    types = ",".join(["float"] * len(json.loads(dims)))
    found = work(name, arguments(dims, types))
    assert found is not None
    assert found.updated_bytes == updated


def test_only_products_of_float32_are_computed_in_tf32() -> None:
    rates = {"float32": 1e12, "tf32": 8e12, "bfloat16": 9e12}
    with_it = dataclasses.replace(ROOFS, flop_per_s=rates)
    for dtype, is_tf32, form in (
        ("float32", True, "tf32"),
        ("float32", False, "float32"),
        ("bfloat16", True, "bfloat16"),
    ):
        assert with_it.format_for(dtype, tf32=is_tf32) == form
    assert ROOFS.format_for("float32", tf32=True) == "float32"
    assert ROOFS.format_for("bfloat16", tf32=True) is None


def test_a_format_without_a_rate_is_bound_by_its_bytes_alone() -> None:
    found = least(Work("matrix product", 2e9, 2e9, 2**20, 0, "float64"), ROOFS)
    assert found.is_partial
    assert (found.bound, found.arithmetic_us) == ("memory", 0.0)


@pytest.mark.parametrize(
    ("dims", "types", "shapes"),
    [
        ("[[0, 3]]", "float", [(0, 3)]),  # an empty batch is a tensor
        ("[[2, -1]]", "float", [None]),
        ("[[2, null]]", "float", [None]),
        ("[2]", "float", [None]),
        ("[[2], [3]]", "float", [(2,), None]),  # fewer types than shapes
        ("[[[2], [0]]]", "TensorList", [[(2,), (0,)]]),
        ("[[[2], [-1]]]", "TensorList", [None]),
        ("[2]", "TensorList", [None]),
    ],
)
def test_only_a_shape_makes_a_tensor(dims: str, types: str, shapes: list[Any]) -> None:
    found = arguments(dims, types)
    for one in ("3", '{"a": 1}', "null"):
        with pytest.raises(ValueError, match="shapes are not a list"):
            arguments(one, types)
    assert [
        None if one is None else [t.shape for t in one] if isinstance(one, list) else one.shape
        for one in found
    ] == shapes


def test_a_list_has_the_dtype_that_was_recorded_if_it_is_one() -> None:
    for told, dtype in (
        ("TensorList[float32]", "float32"),
        ("TensorList[x]", ""),
        ("TensorList", ""),
    ):
        ((one,),) = arguments("[[[2]]]", told)
        assert (one.shape, one.dtype) == ((2,), dtype)
    both = arguments("[[[2]], [[2]]]", "TensorList[bfloat16],TensorList[bfloat16]")
    found = work("aten::_foreach_add_", both, list_dtype="float32")
    assert found is not None
    assert (found.n_bytes, found.dtype) == (3 * 2 * 2, "bfloat16")


# --- by hand, and as torch counts them ----------------------------------------------------------

ONE = bytes_of(A)
SOME = [A, torch.rand(3, 3)]
ALL = bytes_of(*SOME)
TARGET = torch.zeros(6, dtype=torch.int64)

#: operator, its arguments, bytes read, written, and of these updated in place
BYTES: list[tuple[str, tuple[Any, ...], int, int, int]] = [
    ("elu_backward", (A, 1.0, 1.0, 1.0, False, A), 2 * ONE, ONE, 0),
    ("exp", (A, A.double()), ONE, 2 * ONE, 0),  # `out=` is not read
    ("addcmul", (A, A, A, A.double()), 3 * ONE, 2 * ONE, 0),
    ("native_dropout", (A, 0.5, True), ONE, ONE + A.numel(), 0),
    ("cat", (SOME, 0), ALL, ALL, 0),
    ("_foreach_zero_", (SOME,), 0, ALL, 0),
    ("_foreach_copy_", (SOME, SOME), ALL, ALL, 0),
    ("_foreach_add_", (SOME, SOME), 2 * ALL, ALL, ALL),
    ("_foreach_add", (SOME, SOME), 2 * ALL, ALL, 0),
    ("_foreach_mul_", (SOME, torch.rand(())), ALL + 4, ALL, ALL),
    ("_foreach_norm", (SOME, 2), ALL, 0, 0),
    ("sum", (A,), ONE, 0, 0),
    ("max", (A,), ONE, 0, 0),
    ("max", (A, 1, False), ONE, 0, 0),
    ("max", (A, A), 2 * ONE, ONE, 0),
    ("max", (A, torch.rand(())), ONE, 0, 0),  # where the result goes
    ("mse_loss", (A, A, 1), 2 * ONE, 0, 0),
    ("nll_loss_forward", (A, TARGET), 6 * 4 + 6 * 8, 0, 0),
    ("nll_loss_backward", (A[0, 0], A, TARGET), 4 + 6 * 8, ONE, 0),
    ("gather", (A, 0, INDEX), 6 * 4 + 6 * 8, 6 * 4, 0),
    ("embedding", (PAIR, INDEX), 2 * 5 * 4 + 6 * 8, 6 * 5 * 4, 0),  # some rows more than once
    ("gather", (PAIR[:, 0], 0, INDEX[0]), 2 * 4 + 3 * 8, 3 * 4, 0),
    ("_softmax_backward_data", (A, A, 1), 2 * ONE, ONE, 0),
    ("max_pool2d_with_indices", (IMAGES,), bytes_of(IMAGES), 0, 0),
    ("avg_pool2d_backward", (SMALLER, IMAGES), bytes_of(SMALLER), bytes_of(IMAGES), 0),
    ("_amp_foreach_non_finite_check_and_unscale_", (SOME,), ALL, ALL, ALL),
]  # fmt: skip


@pytest.mark.parametrize("call", BYTES, ids=lambda call: call[0])
def test_what_an_operator_moves(call: tuple[str, tuple[Any, ...], int, int, int]) -> None:
    name, args, read, written, updated = call
    found = known(name, *args, list_dtype="float32")
    assert (found.read_bytes, found.written_bytes, found.updated_bytes) == (read, written, updated)
    assert (found.flops, found.dtype) == (0, "float32")


def test_flash_attention_called_by_itself_is_of_whole_sequences() -> None:
    q, k = torch.rand(2, 8, 4, 16).half(), torch.rand(2, 6, 4, 16).half()
    found = known("_flash_attention_forward", q, k, k)
    assert found.flops == 2 * 2 * 4 * 8 * 6 * 32
    assert found.least_flops == found.flops / 2  # a causal mask may skip so many
    assert (found.read_bytes, found.written_bytes) == (bytes_of(q, k, k), bytes_of(q))
    assert of("_flash_attention_forward", q[0], k[0], k[0]) is None


@pytest.mark.parametrize(
    ("transposed", "stride", "padding", "dilation"),
    [
        (False, [2, 1], [1, 0], [1, 2]),
        (False, [1, 1], [0, 0], [1, 1]),
        (True, [2, 2], [1, 1], [1, 1]),
    ],
)
def test_convolutions_count_as_torch_counts_them(
    transposed: bool, stride: list[int], padding: list[int], dilation: list[int]
) -> None:
    x = torch.rand(2, 3, 9, 8, requires_grad=True)
    weight = torch.rand(*((3, 4) if transposed else (4, 3)), 3, 3, requires_grad=True)
    options = [stride, padding, dilation, transposed, [0, 0], 1]
    with FlopCounterMode(display=False) as forward:
        out = torch.convolution(x, weight, None, *options)
    shapes = [list(x.shape), list(weight.shape)]
    told = [str(one) for one in options]
    flops = counted("aten::convolution", [*shapes, []], ["", "", "", *told])
    assert flops == forward.get_total_flops()
    if stride == dilation == [1, 1]:  # one number is for each dimension
        for one, none in (("[1]", "[0]"), ("1", "0")):
            inputs = ["", "", "", one, none, one, *told[3:]]
            assert counted("aten::convolution", [*shapes, []], inputs) == flops
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    both = backward.get_total_flops()

    def of_backward(*mask: str) -> float | None:
        values = ["", "", "", "[0]", *told, *mask]
        return counted("aten::convolution_backward", [list(out.shape), *shapes], values)

    assert of_backward() == of_backward("[True, True, False]") == both
    assert of_backward("[False, True, False]") == of_backward("[True, False, True]") == both / 2
    assert of_backward("[False, False, True]") == 0
