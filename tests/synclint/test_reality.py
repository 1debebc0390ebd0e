"""Prediction against what a trace shows, on a played GPU and on a real one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from perfkit.base.errors import MissingError
from perfkit.base.words import fmt_ms
from perfkit.course.kit.real_waits import check_syncs
from perfkit.synclint.find import AS_PREDICTED, NOT_PREDICTED, NOT_SEEN
from perfkit.synclint.reality import lint


def test_agreement_and_both_kinds_of_difference(gpu: Any) -> None:
    gpu.traces = {"aten::_local_scalar_dense": "Memcpy DtoH (Device -> Pageable)", "aten::ones": ""}
    net = nn.Linear(3, 2)

    def step() -> None:
        y = net(torch.randn(4, 3))
        y.sum().item()
        y.tolist()
        torch.ones(1, device=y.device)
        torch.cuda.empty_cache()

    check = check_syncs(step)
    assert check.is_measured
    assert [s.code for s in check.of(AS_PREDICTED)] == [
        "y.sum().item()",
        "torch.cuda.empty_cache()",
    ]
    assert [s.code for s in check.of(NOT_SEEN)] == ["y.tolist()"]
    assert [s.code for s in check.of(NOT_PREDICTED)] == ["torch.ones(1, device=y.device)"]
    assert "pinned memory" in check.of(NOT_PREDICTED)[0].why
    said = check.to_text()
    waited = fmt_ms(sum(one.waited_ms or 0.0 for one in check))
    assert said.startswith("The host waited on 3 lines.")
    assert (
        f"The host waited on 3 lines ({waited} in all, while watched): "
        "2 as predicted, 1 not predicted, 1 predicted but not seen."
    ) in " ".join(said.split())
    assert check.provenance.kind == "measured here"
    outcomes = [one["outcome"] for one in json.loads(json.dumps(check.to_dict()))["syncs"]]
    assert outcomes == [AS_PREDICTED, NOT_SEEN, NOT_PREDICTED, AS_PREDICTED]
    assert "(predicted but not seen)" in said
    assert "pk-report" in check._repr_html_()


def test_the_sentence_has_no_part_that_counts_nothing(gpu: Any) -> None:
    gpu.traces = {"aten::_local_scalar_dense": "", "aten::cumsum": ""}
    net = nn.Linear(3, 2)
    said = check_syncs(lambda: net(torch.randn(4, 3)).sum().item()).to_text()
    assert said.startswith("The host waited on 1 line.")
    assert "in all, while watched): 1 as predicted." in " ".join(said.split())

    def not_as_predicted() -> None:
        torch.ones(3).cumsum(0)
        torch.ones(4).equal(net(torch.randn(4, 3)).detach()[:, 0])

    said = " ".join(check_syncs(not_as_predicted).to_text().split())
    assert "while watched): 1 not predicted, 1 predicted but not seen." in said


def test_without_a_trace_it_only_predicts_and_says_why(gpu: Any) -> None:
    net = nn.Linear(3, 2)
    found = lint(lambda: net(torch.randn(4, 3)).sum().item())
    assert not found.is_measured
    assert len(found) == 1
    assert "no calls of the CUDA runtime" in found.warnings[-1]
    with pytest.raises(MissingError, match="no calls of the CUDA runtime"):
        check_syncs(lambda: net(torch.randn(4, 3)).sum().item())


def test_without_a_gpu_it_says_what_to_use_instead() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(MissingError, match="find_syncs predicts"):
        check_syncs(lambda: None)
    assert not lint(lambda: None).is_measured


@pytest.mark.gpu
@pytest.mark.parametrize("send", [lambda x: x.cuda(), lambda x: x.to("cuda")])
def test_a_batch_that_is_sent_is_predicted_whatever_the_spelling(
    send: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    net = nn.Linear(3, 2).cuda()
    x, target = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])

    def step() -> None:
        nn.functional.cross_entropy(net(send(x)), send(target)).backward()

    check = check_syncs(step, net)
    assert sum(one.count for one in check.of(AS_PREDICTED)) == 2
    assert not check.of(NOT_PREDICTED)
    assert not check.of(NOT_SEEN)


@pytest.mark.gpu
def test_a_copy_to_a_device_in_a_variable_is_known_by_where_it_goes() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    x, host, here = torch.randn(4, 3, device="cuda"), torch.device("cpu"), torch.device("cuda")

    def step() -> None:
        x.to(here)
        x.to(host)

    check = check_syncs(step)
    assert [one.code for one in check.of(AS_PREDICTED)] == ["x.to(host)"]
    assert len(check.of(AS_PREDICTED)) == len(check)


@pytest.mark.gpu
def test_a_step_that_uses_no_tensor_on_the_gpu_has_nothing_to_compare() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    x = torch.randn(4)
    with pytest.raises(MissingError, match="used no tensor on the GPU"):
        check_syncs(lambda: x.sum().item())


@pytest.mark.gpu
def test_a_copy_into_a_tensor_of_the_other_side_is_predicted() -> None:
    """As before the replay of a CUDA graph: nothing says of ``data`` that it is on the host."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    static, kept, one = torch.zeros(4, 3, device="cuda"), torch.zeros(4, 3), torch.tensor(2.0)

    def step() -> None:
        data = torch.rand(4, 3)
        static.copy_(data)
        static[0, 0].copy_(one)
        static.copy_(data.pin_memory(), non_blocking=True)
        kept.copy_(static)

    check = check_syncs(step)
    copies = ["static.copy_(data)", "static[0, 0].copy_(one)", "kept.copy_(static)"]
    assert [one.code for one in check.of(AS_PREDICTED)] == copies
    assert len(check.of(AS_PREDICTED)) == len(check)


@pytest.mark.gpu
def test_on_a_real_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    net = nn.Linear(3, 2).cuda()
    x = torch.randn(4, 3, device="cuda")

    def step() -> None:
        y = net(x)
        y[y > 0].sum().backward()
        y.sum().item()
        y.detach().cpu()

    check = check_syncs(step)
    assert len(check.of(AS_PREDICTED)) == 3
    assert not check.of(NOT_SEEN)
    assert not check.of(NOT_PREDICTED)
