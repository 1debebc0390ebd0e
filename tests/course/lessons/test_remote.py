"""Lesson 05: the store on loopback, the exercise, and when its claims hold."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

pytest.importorskip("aiohttp")
pytest.importorskip("fsspec")

import aiohttp
import fsspec

from perfkit.base.errors import MeasurementError, MissingError, UsageError
from perfkit.course.kit.claim import claim
from perfkit.course.ledger.recording import Outcome
from perfkit.course.lessons.lesson_05_remote_data import lesson as lesson_05
from perfkit.course.lessons.lesson_05_remote_data.lesson import (
    SAMPLE_BYTES,
    decode,
    make_samples,
    pack,
    read_through,
    unpack,
)
from perfkit.course.lessons.lesson_05_remote_data.pictures import Way, draw_ways
from perfkit.course.lessons.lesson_05_remote_data.store import Counts, Store
from perfkit.measure.compare import compare


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "far"
    made.mkdir()
    return made


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with Store(folder, latency_ms=0) as made:
        yield made
    assert not psutil.pid_exists(made.pid)


@pytest.fixture
def http() -> Any:
    return fsspec.filesystem("http")


# --- samples and shards ---------------------------------------------------------------------------


def test_samples_are_made_alike_and_decoded(folder: Path) -> None:
    keys = make_samples(folder, 5, seed=1)
    assert keys == ["00000.bin", "00001.bin", "00002.bin", "00003.bin", "00004.bin"]
    data = (folder / keys[2]).read_bytes()
    make_samples(folder, 5, seed=1)
    assert (folder / keys[2]).read_bytes() == data
    picture, label = decode(data)
    assert picture.shape == (3, 64, 64)
    assert picture.dtype == torch.uint8
    top, left = divmod(label, 2)
    quarters = picture.float().mean(0).view(2, 32, 2, 32).mean((1, 3))
    assert quarters.argmax() == 2 * top + left


def test_a_half_sample_is_no_sample() -> None:
    with pytest.raises(UsageError, match="12,289 bytes, but got 6,144"):
        decode(bytes(SAMPLE_BYTES // 2))


def test_shards_hold_every_sample_once(folder: Path) -> None:
    keys = make_samples(folder, 5)
    shards = pack(folder, keys, per_shard=2)
    assert shards == ["shard-000.tar", "shard-001.tar", "shard-002.tar"]
    found = [pair for shard in shards for pair in unpack((folder / shard).read_bytes())]
    assert found == [(key, (folder / key).read_bytes()) for key in keys]
    with pytest.raises(UsageError, match="at least one sample"):
        pack(folder, keys, per_shard=0)


# --- the store ------------------------------------------------------------------------------------


def test_it_counts_requests_and_bytes(store: Store, folder: Path, http: Any) -> None:
    (folder / "a b.bin").write_bytes(b"0123456789")
    url = store.url("a b.bin")
    assert http.cat_file(url) == b"0123456789"
    assert store.counts() == Counts(1, 10)
    assert http.cat_file(url, 2, 5) == b"234"
    assert store.counts() == Counts(2, 13)
    assert store.count(lambda: http.cat_file(url)) == Counts(1, 10)
    assert http.info(url)["size"] == 10  # HEAD: a request without a body
    assert store.counts() == Counts(4, 23)


def test_it_is_on_loopback_only(store: Store) -> None:
    assert store.address.startswith("http://127.0.0.1:")
    listening = {
        c.laddr.ip
        for c in psutil.Process(store.pid).net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_it_gives_nothing_from_outside_its_folder(store: Store, folder: Path, http: Any) -> None:
    (folder.parent / "secret").write_text("not yours")
    (folder / "link").symlink_to(folder.parent / "secret")
    for key in ("nothing", "link", "%2e%2e/secret", "..%2fsecret"):
        with pytest.raises(FileNotFoundError):
            http.cat_file(f"{store.address}/{key}")
    assert store.counts().bytes == 0


def test_each_request_waits_for_itself(folder: Path, http: Any) -> None:
    keys = make_samples(folder, 8)
    with Store(folder, latency_ms=100) as store:
        begin = time.perf_counter()
        http.cat_file(store.url(keys[0]))
        assert time.perf_counter() - begin >= 0.1
        store.set_latency(0)
        assert store.latency_ms == 0
        assert "0 ms added" in repr(store)
        assert len(http.cat([store.url(key) for key in keys])) == 8


def test_it_refuses_when_it_is_told_to(store: Store, folder: Path, http: Any) -> None:
    url = store.url(make_samples(folder, 1)[0])
    store.fail(2, after=1)
    http.cat_file(url)
    for _ in range(2):
        with pytest.raises(aiohttp.ClientResponseError, match="503"):
            http.cat_file(url)
    http.cat_file(url)
    assert store.counts() == Counts(4, 2 * SAMPLE_BYTES, 2)
    store.fail(5)
    store.fail(0)
    http.cat_file(url)
    assert store.counts().failed == 2


def test_it_hangs_up_in_the_middle(store: Store, folder: Path, http: Any) -> None:
    url = store.url(make_samples(folder, 1)[0])
    store.fail(1, how="cut")
    with pytest.raises(aiohttp.ClientPayloadError):
        http.cat_file(url)
    assert store.counts() == Counts(1, SAMPLE_BYTES // 2, 1)
    assert len(http.cat_file(url)) == SAMPLE_BYTES


def test_what_it_cannot_do_is_told(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        Store(tmp_path / "nowhere")
    for latency in (-1, float("nan"), 1e9):
        with pytest.raises(UsageError, match="60,000 ms"):
            store.set_latency(latency)
    with pytest.raises(UsageError, match="count requests"):
        store.fail(-1)
    with pytest.raises(UsageError, match="'explode'"):
        store.fail(1, how="explode")  # type: ignore[arg-type]
    store.close()
    store.close()
    with pytest.raises(UsageError, match="closed"):
        store.counts()
    assert repr(store) == "<Store, closed>"


def test_a_store_whose_process_died_says_so(folder: Path) -> None:
    store = Store(folder)
    psutil.Process(store.pid).kill()
    with pytest.raises(MeasurementError, match="process ended"):
        store.counts()
    assert not psutil.pid_exists(store.pid)


def test_without_aiohttp_it_says_how_to_get_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.base.extras.find_spec", lambda name: None)
    with pytest.raises(MissingError, match="\\[lab\\]"):
        Store(folder)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_it_ends_when_its_parent_is_killed(folder: Path) -> None:
    program = (
        "import sys, time; from perfkit.course.lessons.lesson_05_remote_data.store import Store\n"
        "store = Store(sys.argv[1]); print(store.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        server.wait(20)  # raises where it is still there


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_does_not_end_it(store: Store, folder: Path, http: Any) -> None:
    child = os.fork()
    if child == 0:
        try:
            store.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    (folder / "a").write_bytes(b"a")
    assert http.cat_file(store.url("a")) == b"a"


# --- the exercise ---------------------------------------------------------------------------------


def _right(fetch: Any, folder: Path, key: str) -> Any:
    file = folder / key
    if not file.exists():
        part = folder / f"{key}.{os.getpid()}.part"
        part.write_bytes(fetch(key))
        part.replace(file)
    return file.read_bytes()


def _right_otherwise(fetch: Any, folder: Path, key: str) -> Any:
    try:
        with (folder / key).open("rb") as file:
            return file.read()
    except FileNotFoundError:
        data = fetch(key)
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as part:
        part.write(data)
    os.replace(part.name, folder / key)  # noqa: PTH105 - as readers write it
    return data


def _no_cache(fetch: Any, folder: Path, key: str) -> Any:
    return fetch(key)


def _in_memory() -> Any:
    kept: dict[str, bytes] = {}

    def cached(fetch: Any, folder: Path, key: str) -> Any:
        if key not in kept:
            kept[key] = fetch(key)
        return kept[key]

    return cached


def _in_place(fetch: Any, folder: Path, key: str) -> Any:
    file = folder / key
    if not file.exists():
        file.write_bytes(fetch(key))
    return file.read_bytes()


def _in_place_and_tidy(fetch: Any, folder: Path, key: str) -> Any:
    file = folder / key
    if not file.exists():
        data = fetch(key)
        try:
            with open(file, "wb") as out:  # noqa: PTH123 - as readers write it
                out.write(data)
        except BaseException:
            file.unlink()
            raise
    return file.read_bytes()


def _swallows(fetch: Any, folder: Path, key: str) -> Any:
    try:
        return _right(fetch, folder, key)
    except ConnectionError:
        return b""


def _other_error(fetch: Any, folder: Path, key: str) -> Any:
    try:
        return _right(fetch, folder, key)
    except ConnectionError:
        raise KeyError(key) from None


def _empty_is_missing(fetch: Any, folder: Path, key: str) -> Any:
    file = folder / key
    if file.exists() and file.read_bytes():
        return file.read_bytes()
    file.unlink(missing_ok=True)
    return _right(fetch, folder, key)


def _one_name(fetch: Any, folder: Path, key: str) -> Any:
    return _right(lambda _: fetch(key), folder, "cache")


def _shared_part(fetch: Any, folder: Path, key: str) -> Any:
    file = folder / key
    if not file.exists():
        part = folder / f"{key}.part"
        part.write_bytes(fetch(key))
        part.replace(file)
    return file.read_bytes()


def _one_part_for_all_keys(fetch: Any, folder: Path, key: str) -> Any:
    file = folder / key
    if not file.exists():
        part = folder / "part"
        with open(part, "wb") as out:  # noqa: PTH123 - as readers write it
            out.write(fetch(key))
        os.rename(part, file)  # noqa: PTH104 - as readers write it
    return file.read_bytes()


def _named_after_the_thread(fetch: Any, folder: Path, key: str) -> Any:
    file = folder / key
    if not file.exists():
        part = folder / f"{key}.{threading.get_ident()}"  # the same in every forked worker
        part.write_bytes(fetch(key))
        part.replace(file)
    return file.read_bytes()


def _in_place_by_descriptor(fetch: Any, folder: Path, key: str) -> Any:
    file = folder / key
    if not file.exists():
        data, written = fetch(key), 0
        target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        while written < len(data):
            written += os.write(target, data[written:])
        os.close(target)
    return file.read_bytes()


def _exclusive_and_stuck(fetch: Any, folder: Path, key: str) -> Any:
    """Never returns a half; but what a killed process left bars the sample for ever."""
    file, part = folder / key, folder / f"{key}.part"
    if file.exists():
        return file.read_bytes()
    data = fetch(key)
    try:
        with part.open("xb") as out:
            out.write(data)
    except FileExistsError:
        return data
    part.replace(file)
    return data


def _moved_from_elsewhere(fetch: Any, folder: Path, key: str) -> Any:
    file = folder / key
    if not file.exists():
        with tempfile.NamedTemporaryFile(delete=False) as part:
            part.write(fetch(key))
        shutil.move(part.name, file)
    return file.read_bytes()


def _with_a_lock(fetch: Any, folder: Path, key: str) -> Any:
    import fcntl

    file, part = folder / key, folder / f"{key}.part"
    if not file.exists():
        data = fetch(key)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                part.write_bytes(data)
                part.replace(file)
    return file.read_bytes()


def _linked(fetch: Any, folder: Path, key: str) -> Any:
    file = folder / key
    if not file.exists():
        part = folder / uuid.uuid4().hex
        part.write_bytes(fetch(key))
        with contextlib.suppress(FileExistsError):
            os.link(part, file)
        part.unlink()
    return file.read_bytes()


@pytest.mark.parametrize("answer", [_right, _right_otherwise, _with_a_lock, _linked])
def test_a_right_answer_passes_with_its_facts(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if answer is _with_a_lock:  # the other process waits for as long as it is let
        monkeypatch.setattr(lesson_05, "_RIVAL_S", 0.3)
    said = repr(read_through.check(answer))
    assert said.startswith("Done"), said
    assert "3 requests, and none in the second epoch" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda *_: None, "returns nothing yet"),
        (lambda *_: "text", "got str"),
        (_no_cache, "a.bin (epoch 2) took 1 request:"),
        (_in_memory(), "keep samples in the folder"),
        (_in_place, "killed in the middle of a write"),
        (_in_place_and_tidy, "killed in the middle of a write"),
        (_shared_part, "with os.getpid() in it"),
        (_one_part_for_all_keys, "with os.getpid() in it"),
        (_named_after_the_thread, "with os.getpid() in it"),
        (_in_place_by_descriptor, "killed in the middle of a write"),
        (_exclusive_and_stuck, "is never kept again"),
        (_moved_from_elsewhere, "Write into the same folder"),
        (_swallows, "let errors through"),
        (_other_error, "what came through was KeyError"),
        (_empty_is_missing, "empty.bin (an empty file, epoch 2) took 1 request:"),
        (_one_name, "b.bin holds 768 bytes; you returned 500 others"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(answer: Callable[..., Any], reason: str) -> None:
    said = " ".join(repr(read_through.check(answer)).split())
    assert said.startswith("Not yet"), said
    assert reason in said


def test_the_check_puts_everything_back() -> None:
    before = os.replace, os.rename, os.link
    read_through.check(_shared_part)
    assert (os.replace, os.rename, os.link) == before


def test_show_tells_requests_and_files() -> None:
    said = repr(read_through.show(_right))
    assert "requests: 2" in said
    assert "a.bin (500 B), b.bin (768 B)" in said


# --- the figure, and the claims -------------------------------------------------------------------


def test_the_figure_needs_a_comparison_for_each_other_way() -> None:
    quick = compare(lambda: None, lambda: None, budget_s=0.05)
    figure, words = draw_ways(
        [Way("one by one", 16, 16), Way("a shard", 1, 1, quick)], samples=16, latency_ms=10
    )
    assert len(figure.axes) == 2
    assert "16 requests, 160 ms of latency by arithmetic" in words
    with pytest.raises(UsageError, match="with a comparison"):
        draw_ways([Way("a", 1, 1), Way("b", 1, 1)], samples=1, latency_ms=10)


def ratio(low: float, high: float) -> Any:
    return SimpleNamespace(ratio=(low + high) / 2, low=low, high=high)


def trained(bound_by: str, data_wait: float) -> Any:
    return SimpleNamespace(
        diagnosis=SimpleNamespace(bound_by=bound_by),
        breakdown=SimpleNamespace(shares=lambda: {"data wait": data_wait}),
    )


def outcome(name: str, *measured: Any, **named: Any) -> Outcome:
    settled = claim(name).settle(*measured, latency_ms=10, **named)
    assert settled.outcome is not None, settled.why
    kinds = {figure.unit: figure.kind for figure in settled.outcome.figures.values()}
    assert kinds["×"] in ("simulated", "predicted")  # a sleep sets every time
    assert "10 ms added to each request" in settled.outcome.sentence
    return settled.outcome


@pytest.mark.parametrize(
    ("bound_by", "near_wait", "swapped", "holds"),
    [
        ("data", 0.1, (4.0, 5.0), True),
        ("compute", 0.1, (4.0, 5.0), False),
        ("data", 0.95, (4.0, 5.0), False),
        ("data", 0.1, (0.7, 0.8), False),
        ("data", 0.1, (0.5, 5.0), None),
    ],
)
def test_a4_holds_if_the_old_device_with_a_local_disk_wins(
    bound_by: str, near_wait: float, swapped: tuple[float, float], holds: bool | None
) -> None:
    found = outcome(
        "A4",
        ratio(1.0, 1.1),
        ratio(1.9, 2.0),
        ratio(*swapped),
        trained(bound_by, 0.9),
        trained("compute", near_wait),
        predicted=100 / 90,
    )
    assert found.holds is holds
    assert found.figures["store_predicted_ratio"].kind == "predicted"
    assert found.figures["store_wait_share"].value == 0.9


@pytest.mark.parametrize(("asked", "holds"), [(0, True), (3, False)])
def test_c3_holds_if_the_copy_asks_for_nothing(asked: int, holds: bool) -> None:
    found = outcome("C3", Counts(64, 1), Counts(asked, 1), ratio(90, 110), ratio(4, 6))
    assert found.holds is holds
    exact = {name: f.value for name, f in found.figures.items() if f.kind == "exact"}
    assert exact == {"copy_requests": 64, "epoch_requests": asked}


@pytest.mark.parametrize(
    ("uncached", "cold", "warm", "faster", "holds"),
    [
        (64, 128, 0, (50, 70), True),
        (64, 60, 0, (50, 70), False),
        (64, 128, 1, (50, 70), False),
        (64, 128, 0, (0.95, 1.05), False),
        (64, 128, 0, (0.5, 70), None),
    ],
)
def test_c4_holds_if_a_warm_cache_asks_for_nothing_and_is_faster(
    uncached: int, cold: int, warm: int, faster: tuple[float, float], holds: bool | None
) -> None:
    counts = [Counts(n, 100 * n) for n in (uncached, cold, warm, 8)]
    found = outcome("C4", *counts, ratio(*faster))
    assert found.holds is holds
    assert found.figures["uncached_bytes"].value == 100 * uncached
    assert found.figures["shard_requests"].value == 8
