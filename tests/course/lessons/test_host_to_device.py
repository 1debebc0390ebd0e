"""Lesson 06: the exercise, the simulated device, and what its claims are judged by."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy as np
import pytest
import torch

from perfkit.base.errors import UsageError
from perfkit.course.kit.claim import claim
from perfkit.course.ledger.settle import Settled
from perfkit.course.lessons.lesson_06_host_to_device import measured
from perfkit.course.lessons.lesson_06_host_to_device.lesson import (
    MEAN,
    STD,
    far_device,
    prepare_batch,
    scenes,
)
from perfkit.course.lessons.lesson_06_host_to_device.transfers import (
    Rates,
    SimulatedTransfers,
    draw,
    feed,
    late_read,
    refilled,
)
from perfkit.memory.crossings import crossings

NOTEBOOK = Path(__file__).resolve().parents[3] / "notebooks" / "06-host-to-device.ipynb"


def _prepare(pictures: Any, masks: Any, device: Any) -> Any:
    pictures = pictures.to(device).permute(0, 3, 1, 2).float()
    mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
    std = torch.tensor(STD, device=device).view(1, 3, 1, 1)
    return (pictures / 255 - mean) / std, masks.to(device).long()


def _floats_first(pictures: Any, masks: Any, device: Any) -> Any:
    return _prepare(pictures.float(), masks, device)


def _one_call(pictures: Any, masks: Any, device: Any) -> Any:
    done, masks = _prepare(pictures.to(device, torch.float32), masks, device)
    return done, masks


def _no_permute(pictures: Any, masks: Any, device: Any) -> Any:
    done, masks = _prepare(pictures, masks, device)
    return done.permute(0, 2, 3, 1), masks


def _there_and_back(pictures: Any, masks: Any, device: Any) -> Any:
    done, masks = _prepare(pictures, masks, device)
    return done, masks.cpu().to(device)


def _stays(pictures: Any, masks: Any, device: Any) -> Any:
    return _prepare(pictures, masks, "cpu")


def _not_normalised(pictures: Any, masks: Any, device: Any) -> Any:
    return pictures.to(device).permute(0, 3, 1, 2).float() / 255, masks.to(device).long()


def _in_place(pictures: Any, masks: Any, device: Any) -> Any:
    done = _prepare(pictures, masks, device)
    pictures.zero_()
    return done


def _folded_constants(pictures: Any, masks: Any, device: Any) -> Any:
    """Also right: 255 goes into the constants, and the layout stays channels-last."""
    scale = torch.tensor([1 / (255 * s) for s in STD], device=device)
    shift = torch.tensor([m / s for m, s in zip(MEAN, STD, strict=True)], device=device)
    pixels = pictures.to(device, non_blocking=True).to(torch.float32) * scale - shift
    return pixels.permute(0, 3, 1, 2), masks.to(device, non_blocking=True).to(torch.int64)


@functools.cache
def _constants(device: Any) -> Any:
    return [torch.tensor(x, device=device).view(1, 3, 1, 1) for x in (MEAN, STD)]


def _constants_once(pictures: Any, masks: Any, device: Any) -> Any:
    mean, std = _constants(device)
    there = pictures.to(device).permute(0, 3, 1, 2)
    return [there.float().div_(255).sub_(mean).div_(std), masks.to(device).type(torch.long)]


def _channel_by_channel(pictures: Any, masks: Any, device: Any) -> Any:
    """Also right, and sends no constant: Python's numbers go along with the kernels."""
    there = pictures.to(device).float() / 255
    channels = [(there[..., c] - MEAN[c]) / STD[c] for c in range(3)]
    return torch.stack(channels, 1), masks.to(device).long()


def _in_double(pictures: Any, masks: Any, device: Any) -> Any:
    done, masks = _prepare(pictures, masks, device)
    return done.double(), masks


def _masks_in_32_bits(pictures: Any, masks: Any, device: Any) -> Any:
    return _prepare(pictures, masks, device)[0], masks.to(device).int()


def _sides_swapped(pictures: Any, masks: Any, device: Any) -> Any:
    done, masks = _prepare(pictures, masks, device)
    return done.transpose(2, 3), masks


def _colours_swapped(pictures: Any, masks: Any, device: Any) -> Any:
    done, masks = _prepare(pictures, masks, device)
    return done.flip(1), masks


def _by_256(pictures: Any, masks: Any, device: Any) -> Any:
    mean, std = _constants(device)
    return (pictures.to(device).permute(0, 3, 1, 2) / 256 - mean) / std, masks.to(device).long()


def _sent_twice(pictures: Any, masks: Any, device: Any) -> Any:
    pictures.to(device)
    return _prepare(pictures, masks, device)


@pytest.mark.parametrize(
    "answer", [_prepare, _folded_constants, _constants_once, _channel_by_channel]
)
@pytest.mark.slow
def test_every_right_answer_passes(answer: Callable[..., Any]) -> None:
    assert repr(prepare_batch.check(answer)).startswith("Done")


@pytest.mark.slow
def test_a_right_answer_passes_with_its_facts() -> None:
    said = repr(prepare_batch.check(_prepare))
    assert said.startswith("Done")
    assert "4.02 KiB sent; as float32 and int64 it would be 20.0 KiB" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda *_: None, "returns nothing yet"),
        (lambda *_: 3, "return two things"),
        (lambda pictures, masks, device: (pictures, 1), "must be a torch tensor, got int"),
        (_floats_first, "13.0 KiB were sent; the batch is 4.00 KiB"),
        (_one_call, "13.0 KiB were sent; the batch is 4.00 KiB"),
        (_no_permute, "permute them"),
        (_there_and_back, "came back to the host"),
        (_stays, "must end on the device that was given"),
        (_not_normalised, "divide by 255, subtract MEAN"),
        (_in_double, "takes float32 pictures, not torch.float64"),
        (_masks_in_32_bits, "takes int64 masks, not torch.int32"),
        (_sides_swapped, "the pictures are off by up to"),
        (_colours_swapped, "the pictures are off by up to"),
        (_by_256, "the pictures are off by up to"),
        (_sent_twice, "7.02 KiB were sent"),
        (_in_place, "changes the batch that it was given"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(answer: Callable[..., Any], reason: str) -> None:
    said = " ".join(repr(prepare_batch.check(answer)).split())
    assert said.startswith("Not yet"), said
    assert reason in said


def test_show_tells_what_is_sent() -> None:
    said = repr(prepare_batch.show(_prepare))
    assert "4.02 KiB sent" in said
    assert "(4, 3, 16, 16) of torch.float32" in said


def test_scenes_are_what_a_decoder_leaves() -> None:
    pictures, masks = scenes(2, 8, seed=3)
    assert pictures.shape == (2, 8, 8, 3)
    assert masks.shape == (2, 8, 8)
    assert pictures.dtype == masks.dtype == "uint8"
    assert int(masks.max()) < 21
    again, _ = scenes(2, 8, seed=3)
    assert (pictures == again).all()


def test_the_simulated_device_obeys_its_rules() -> None:
    rates = Rates(pinned=2e9, pageable=1e9, pinning=1e9)  # 4 and 2 ms for 4 MB; 4 ms to pin
    way = {
        name: feed(name, nbytes=4_000_000, compute_ms=10, load_ms=3, rates=rates)[0]
        for name in ("plain", "non_blocking", "pin in the loop", "pinned", "side stream")
    }
    assert way["plain"] == pytest.approx(10 + 4)  # the load hides behind the kernels
    assert way["non_blocking"] == way["plain"]
    assert way["pinned"] == pytest.approx(10 + 2)
    assert way["pin in the loop"] == pytest.approx(10 + 2)  # 3 + 4 of the host hide, too
    assert way["side stream"] == pytest.approx(10)


def test_a_slow_host_bounds_every_way() -> None:
    for way in ("pinned", "side stream"):
        assert feed(way, nbytes=1, compute_ms=1, load_ms=20)[0] == pytest.approx(20)
    in_loop, _ = feed("pin in the loop", nbytes=50_000_000, compute_ms=1, load_ms=20)
    assert in_loop == pytest.approx(30)  # 10 ms to pin


def test_nothing_overlaps_on_one_lane() -> None:
    _, gpu = feed("side stream", nbytes=10**7, compute_ms=1)
    for lane in ("host", "copy engine", "compute"):
        spans = sorted((s.begin_ms, s.end_ms) for s in gpu.spans if s.lane == lane)
        assert spans
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in itertools.pairwise(spans))


def test_a_read_without_a_wait_is_too_early() -> None:
    assert late_read(nbytes=4, wait=False) == "old"
    assert late_read(nbytes=4, wait=True) == "new"


def test_a_buffer_refilled_without_a_wait_sends_the_next_batch() -> None:
    assert refilled(nbytes=4, wait=False) == "the next batch"
    assert refilled(nbytes=4, wait=True) == "this batch"


def _one_ahead(log: list[str]) -> Callable[[list[Any]], Iterator[list[str]]]:
    """The lesson's function, on a torch that only writes down what it is asked to do."""

    class Tensor:
        def __init__(self, name: str) -> None:
            self.name = name

        def to(self, device: str, *, non_blocking: bool) -> Tensor:
            assert device == "cuda"
            assert non_blocking
            log.append(f"copy {self.name}")
            return self

        def record_stream(self, stream: Any) -> None:
            log.append(f"record {self.name} on {stream.name}")

    @contextlib.contextmanager
    def stream(one: Any) -> Iterator[None]:
        log.append(f"on {one.name}")
        yield

    main = SimpleNamespace(
        name="main", wait_stream=lambda s: log.append(f"main waits for {s.name}")
    )
    side = SimpleNamespace(name="side")
    cuda = SimpleNamespace(Stream=lambda: side, current_stream=lambda: main, stream=stream)
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    (source,) = [cell.source for cell in cells if cell.id == "one-ahead"]
    names: dict[str, Any] = {"torch": SimpleNamespace(cuda=cuda), "chain": itertools.chain}
    exec(source, names)  # the cell as it stands in the notebook

    def run(batches: list[Any]) -> Iterator[list[str]]:
        for got in names["one_ahead"]([[Tensor(name) for name in batch] for batch in batches]):
            yield [tensor.name for tensor in got]

    return run


def test_one_ahead_copies_the_next_batch_before_this_one_is_used_and_waits_for_it() -> None:
    log: list[str] = []
    for (got,) in _one_ahead(log)([["a"], ["b"]]):
        log.append(f"use {got}")
    assert log == [
        *("on side", "copy a"),
        *("main waits for side", "record a on main", "on side", "copy b", "use a"),
        *("main waits for side", "record b on main", "use b"),
    ]
    assert list(_one_ahead([])([])) == []


def test_what_the_simulation_cannot_do_is_told() -> None:
    with pytest.raises(UsageError, match="four steps"):
        feed("plain", nbytes=1, compute_ms=1, steps=3)
    with pytest.raises(UsageError, match="no way 'carrier pigeon'"):
        feed("carrier pigeon", nbytes=1, compute_ms=1)  # type: ignore[arg-type]


def test_the_picture_has_a_strip_for_each_run() -> None:
    figure = draw({"one": feed("plain", nbytes=1, compute_ms=1)[1], "two": _busy()})
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["one", "two"]


def _busy() -> SimulatedTransfers:
    gpu = SimulatedTransfers()
    gpu.work(1.0)
    return gpu


def values(settled: Settled) -> dict[str, float]:
    assert settled.outcome is not None, settled.why
    return {name: figure.value for name, figure in settled.outcome.figures.items()}


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TIMED: Any = SimpleNamespace(ratio=2.0, low=1.9, high=2.1)


def test_a9_and_c6_are_judged_by_what_crosses() -> None:
    far = far_device()
    pictures, masks = (torch.from_numpy(array) for array in scenes(32, 512))
    floats = crossings(lambda: (pictures.float().to(far), masks.long().to(far)))
    as_bytes = crossings(lambda: (pictures.to(far), masks.to(far)))
    settled = claim("A9").settle(floats, as_bytes, TIMED)
    assert settled.verdict == "holds here"
    # the figures of the source, to the byte
    assert values(settled)["float_bytes"] == 100_663_296 + 67_108_864
    assert values(settled)["bytes_ratio"] == 5
    assert claim("A9").settle(floats, floats, TIMED).verdict == "does not hold here"
    assert claim("C6").settle(100, 0).verdict == "holds here"
    assert claim("C6").settle(100, 100).verdict == "does not hold here"
    assert values(claim("C6").settle(100, 0, TIMED))["time_ratio"] == 2


def test_c7_is_judged_by_where_the_tensors_are() -> None:
    settled = claim("C7").settle(np.zeros((4, 5), np.uint8), TIMED)
    assert settled.verdict == "holds here"
    assert (values(settled)["copied_bytes"], values(settled)["shared_bytes"]) == (20, 0)


def test_round_trips_are_counted() -> None:
    settled = claim("B6").settle(measured.round_trips(DEVICE, budget_s=0.1))
    value = values(settled)
    parameters = 4 * (1024 * 1024 + 1024 + 1024 * 10 + 10)
    assert settled.verdict == "holds here"
    assert value["right_bytes"] == 4 * 64 * 1024
    # parameters and their gradients, there and back
    assert value["model_bytes"] == value["right_bytes"] + 4 * parameters


def test_b9_is_judged_by_the_bytes_of_each_cut() -> None:
    settled = claim("B9").settle([300, 100, 200])
    assert values(settled) == {"worst_bytes": 300, "best_bytes": 100, "bytes_ratio": 3}
    assert claim("B9").settle([100, 100]).verdict == "does not hold here"


def test_c8_is_simulated_without_a_gpu_and_open_where_the_clock_is_unsteady() -> None:
    settled = claim("C8").settle(measured.overlap("cpu"))
    assert settled.verdict == "holds here"
    assert settled.outcome is not None
    assert {one.kind for one in settled.outcome.figures.values()} == {"simulated"}
    unsteady: Any = SimpleNamespace(ratio=1.1, low=0.6, high=1.9)
    for timed, host_ms, verdict in (
        (TIMED, {True: 2.0, False: 0.1}, "holds here"),
        (TIMED, {True: 2.0, False: 3.0}, "does not hold here"),
        (unsteady, {True: 2.0, False: 0.1}, "not decided"),
    ):
        found = measured.Overlap({}, "", timed, TIMED, host_ms)
        assert claim("C8").settle(found).verdict == verdict
