"""Lesson 03: what the exercise accepts and refuses, its helpers, and when its claims hold."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from perfkit.base.errors import MeasurementError, MissingError, UsageError
from perfkit.course.kit.claim import claim
from perfkit.course.kit.images import ImageSet, make_images
from perfkit.course.ledger.recording import Outcome
from perfkit.course.lessons.lesson_03_storage_and_formats import vector_code
from perfkit.course.lessons.lesson_03_storage_and_formats.exercise import count_calls, table_once
from perfkit.course.lessons.lesson_03_storage_and_formats.phases import Phases, time_phases
from perfkit.course.lessons.lesson_03_storage_and_formats.pictures import (
    Arm,
    break_even,
    draw_arms,
    draw_break_even,
    draw_gains,
    draw_pages,
)
from perfkit.course.lessons.lesson_03_storage_and_formats.tables import (
    NUMBERS,
    SHOPS,
    make_table,
    missing,
    write_table,
)
from perfkit.course.lessons.lesson_03_storage_and_formats.worker_pages import (
    WorkerPages,
    worker_pages,
)
from perfkit.measure.compare import compare
from perfkit.measure.summary import summarize

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _right(frame: pandas.DataFrame) -> Parts:
    numbers = torch.tensor(frame[NUMBERS].fillna(0).to_numpy())
    shops = torch.tensor(frame["shop"].astype("category").cat.codes.to_numpy("int64"))
    return numbers, shops, torch.tensor(frame["label"].to_numpy("int64"))


def _by_rows(frame: pandas.DataFrame) -> Parts:
    order = sorted(SHOPS)
    rows = [frame.iloc[i] for i in range(len(frame))]
    numbers = torch.tensor([[row[name] for name in NUMBERS] for row in rows], dtype=torch.float32)
    shops = torch.tensor([order.index(row["shop"]) for row in rows])
    return numbers.nan_to_num(0), shops, torch.tensor([int(row["label"]) for row in rows])


def _with_gaps(frame: pandas.DataFrame) -> Parts:
    _, shops, labels = _right(frame)
    return torch.tensor(frame[NUMBERS].to_numpy()), shops, labels


def _as_met(frame: pandas.DataFrame) -> Parts:
    numbers, _, labels = _right(frame)
    return numbers, torch.tensor(pandas.factorize(frame["shop"])[0]), labels


def _columns_reversed(frame: pandas.DataFrame) -> Parts:
    numbers, shops, labels = _right(frame)
    return numbers.flip(1), shops, labels


def _zero_labels(frame: pandas.DataFrame) -> Parts:
    numbers, shops, labels = _right(frame)
    return numbers, shops, torch.zeros_like(labels)


def _arrays(frame: pandas.DataFrame) -> tuple[Any, ...]:
    return tuple(part.numpy() for part in _right(frame))


def _in_double(frame: pandas.DataFrame) -> Parts:
    numbers, shops, labels = _right(frame)
    return numbers.double(), shops, labels


def _transposed(frame: pandas.DataFrame) -> Parts:
    numbers, shops, labels = _right(frame)
    return numbers.T, shops, labels


def _with_numpy(frame: pandas.DataFrame) -> list[torch.Tensor]:
    numbers = np.nan_to_num(frame[NUMBERS].to_numpy(np.float32))
    _, shops = np.unique(frame["shop"].to_numpy(str), return_inverse=True)
    labels = frame["label"].to_numpy().astype(np.int64)
    return [torch.from_numpy(np.array(part)) for part in (numbers, shops, labels)]


def _column_by_column(frame: pandas.DataFrame) -> Parts:
    columns = [torch.tensor(frame[name].to_numpy(), dtype=torch.float32) for name in NUMBERS]
    codes = frame["shop"].map({name: i for i, name in enumerate(sorted(SHOPS))})
    labels = torch.as_tensor(frame["label"].to_numpy(copy=True)).long()
    return torch.stack(columns, 1).nan_to_num(0), torch.tensor(codes.to_numpy("int64")), labels


def _through_lists(frame: pandas.DataFrame) -> Parts:
    numbers = torch.tensor(frame[NUMBERS].values.tolist()).nan_to_num(0)
    shops = torch.tensor(pandas.Categorical(frame["shop"]).codes).long()
    return numbers, shops, torch.tensor(frame["label"].tolist())


def _by_tuples(frame: pandas.DataFrame) -> Parts:
    _, shops, labels = _right(frame)
    rows = [list(row) for row in frame[NUMBERS].itertuples(index=False)]
    return torch.tensor(rows, dtype=torch.float32).nan_to_num(0), shops, labels


def _by_apply(frame: pandas.DataFrame) -> Parts:
    numbers, _, labels = _right(frame)
    order = sorted(SHOPS)
    shops = frame["shop"].apply(lambda name: order.index(name))
    return numbers, torch.tensor(shops.to_numpy("int64")), labels


def _labels_in_32_bits(frame: pandas.DataFrame) -> Parts:
    numbers, shops, labels = _right(frame)
    return numbers, shops, labels.int()


@pytest.mark.parametrize("answer", [_right, _with_numpy, _column_by_column, _through_lists])
def test_every_right_answer_passes(answer: Callable[[pandas.DataFrame], Any]) -> None:
    assert repr(table_once.check(answer)).startswith("Done")


def test_a_right_answer_passes_with_its_facts() -> None:
    said = repr(table_once.check(_right))
    assert said.startswith("Done")
    assert "(660, 8) float32" in said
    assert "30.9 KiB" in said  # 660 x (8 x 4 + 8 + 8) bytes


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda frame: None, "returns nothing yet"),
        (lambda frame: _right(frame)[0], "return three tensors"),
        (_arrays, "numbers must be a torch tensor, got ndarray"),
        (_transposed, "must have the shape (60, 8)"),
        (_in_double, "numbers must be torch.float32, not torch.float64"),
        (_with_gaps, "still has gaps"),
        (_columns_reversed, "in that order"),
        (_as_met, "alphabetical order: east 0, north 1, south 2, west 3"),
        (_zero_labels, "labels is not what the column label holds"),
        (_by_rows, "something is called for each row"),
        (_by_tuples, "something is called for each row"),
        (_by_apply, "something is called for each row"),
        (_labels_in_32_bits, "labels must be torch.int64, not torch.int32"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(
    answer: Callable[[pandas.DataFrame], Any], reason: str
) -> None:
    said = " ".join(repr(table_once.check(answer)).split())
    assert said.startswith("Not yet")
    assert reason in said


def test_the_last_hint_can_be_typed_in_as_it_is() -> None:
    hints = [table_once.hint() for _ in range(3)][-1].items
    names: dict[str, Any] = {"torch": torch, "NUMBERS": NUMBERS}
    names["frame"] = make_table(60, gaps=True)
    numbers, codes, shops = hints[-1].split("; ")[:3]
    for line in (numbers, codes, f"shops = {shops}"):
        exec(line, names)
    right = _right(make_table(60, gaps=True))
    assert torch.equal(names["numbers"], right[0])
    assert torch.equal(names["shops"], right[1])


def test_show_tells_shapes_and_calls() -> None:
    said = repr(table_once.show(_right))
    assert "numbers: shape (60, 8) of torch.float32" in said
    assert "function calls for 60 rows" in said


def test_an_answer_that_fails_leaves_no_profile_function() -> None:
    before = sys.getprofile()
    said = repr(table_once.check(lambda frame: frame["no such column"]))
    assert "KeyError" in said
    assert sys.getprofile() is before


def test_calls_are_counted_python_and_built_in() -> None:
    def three() -> int:
        return len("a") + abs(-1)

    result, calls = count_calls(three)
    assert result == 2
    # three(), len(), abs(), and the setprofile that ends the count
    assert calls == 4


def test_a_table_is_the_same_each_time_and_comes_back_from_its_files(tmp_path: Path) -> None:
    frame = make_table(200)
    pandas.testing.assert_frame_equal(frame, make_table(200))
    files = write_table(frame, tmp_path)
    pandas.testing.assert_frame_equal(pandas.read_parquet(files.parquet), frame)
    pandas.testing.assert_frame_equal(pandas.read_feather(files.arrow), frame)
    # text forgets the width of a number
    assert pandas.read_csv(files.csv)["x0"].dtype == np.float64
    assert make_table(200, gaps=True)[NUMBERS].isna().to_numpy().any()
    with pytest.raises(UsageError, match="at least one row"):
        make_table(0)


def test_what_is_missing_is_told_with_its_remedy() -> None:
    assert missing("json", "numpy") == ""
    said = missing("json", "no_such_package")
    assert "no_such_package not installed" in said
    assert "pip install no_such_package" in said


def test_phases_are_chained_and_shared_out() -> None:
    seen: list[int] = []

    def last(value: int) -> None:
        seen.append(value)

    found = time_phases({"double": lambda v: 2 * v, "more": lambda v: v + 1, "last": last}, [1, 5])
    assert seen == [3, 3, 11]  # the first item once beforehand
    assert sum(found.shares.values()) == pytest.approx(1)
    assert [one.n for one in found.times.values()] == [2, 2, 2]
    assert [line.split()[0] for line in repr(found).splitlines()[2:]] == ["double", "more", "last"]
    with pytest.raises(UsageError):
        time_phases({}, [1])


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")
@pytest.mark.slow
def test_workers_copy_a_list_of_small_objects_and_share_a_tensor() -> None:
    records = [b"%0400d" % i for i in range(8_000)]
    rows = torch.tensor(np.frombuffer(b"".join(records), np.uint8)).view(-1, 400)
    pages = worker_pages({"list": (records, rows.nbytes), "tensor": (rows, rows.nbytes)})
    assert len(pages.grown["list"]) == 2
    assert pages.per_worker("list") > 0.9 * rows.nbytes
    assert pages.per_worker("tensor") < 0.05 * rows.nbytes
    assert "own pages" in repr(pages)
    with pytest.raises(UsageError, match="at least two workers"):
        worker_pages({}, workers=1)


class _Deadly:
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> bytes:
        if index > 10:
            raise SystemExit(1)
        return b"x"


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")
def test_a_worker_that_dies_is_told_and_leaves_no_process() -> None:
    import multiprocessing

    with pytest.raises(MeasurementError, match="died"):
        worker_pages({"deadly": (_Deadly(), 20)})
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_vector_code_is_switched_off_in_a_process_of_its_own(tmp_path: Path) -> None:
    file = make_images(tmp_path, n=1, size=(160, 120)).files[0]
    work = next(one for one in vector_code.WORKS if one.name == "torch resize")
    with work.running(file, vector=False) as without, work.running(file, vector=True) as with_it:
        without()
        with_it()
        assert without.level in ("DEFAULT", "NO AVX")
        assert with_it.level == torch.backends.cpu.get_cpu_capability()


def test_pillow_decodes_to_the_same_pixels_without_vector_code(tmp_path: Path) -> None:
    file = make_images(tmp_path, n=1, size=(160, 120)).files[0]
    work = vector_code.WORKS[0]
    with work.running(file, vector=False) as without, work.running(file, vector=True) as with_it:
        assert without.digest == with_it.digest


def test_work_that_fails_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "no.jpg"
    broken.write_bytes(b"this is no picture")
    with (
        pytest.raises(MeasurementError, match=r"Pillow decode: its process ended.*identify"),
        vector_code.WORKS[0].running(broken, vector=True),
    ):
        pass
    absent = vector_code.Work("nothing", "no_such_package", {"A": "1"})
    with pytest.raises(MissingError, match="no_such_package"), absent.running(broken, vector=True):
        pass


def test_pictures_carry_their_words() -> None:
    found = compare(lambda: sum(range(2000)), lambda: sum(range(10)), budget_s=0.05)
    arms = [Arm("files", 0, 5_000_000), Arm("tensor", 20_000_000, 0, found)]
    for figure, words in (
        draw_arms(arms, pictures=32, per_call=2),
        draw_gains({"a": found}, "times as fast"),
        draw_break_even(2.0, 0.5, 3.0),
    ):
        assert words
        assert "measured here" in figure.get_supxlabel(), "where its figures come from"
    sure = SimpleNamespace(ratio=2.0, low=1.9, high=2.1, different=True)
    alike = SimpleNamespace(ratio=1.0, low=0.98, high=1.02, different=False)
    unsteady = SimpleNamespace(ratio=1.2, low=0, high=math.inf, different=False)
    for gains, grey in (
        ({"a": sure}, []),
        ({"a": sure, "b": alike}, ["grey: no difference seen"]),
        ({"b": alike, "c": unsteady}, ["grey: no difference seen or too unsteady to tell"]),
    ):
        figure, _ = draw_gains(gains, "times as fast")
        assert [t.get_text() for one in figure.legends for t in one.get_texts()] == grey
    pages = WorkerPages(
        {"list": 2**20, "tensor": 2**20}, {"list": (2**19, 2**20), "tensor": (0, 0)}
    )
    assert "list: 1.00 MiB, 768 KiB copied; tensor: 1.00 MiB, 0 B copied" in draw_pages(pages)[1]
    with pytest.raises(UsageError):
        draw_pages(WorkerPages({}, {}))
    assert "19.1 MiB held" in draw_arms(arms, pictures=32, per_call=2)[1]
    assert "after 2.0 epochs" in draw_break_even(2.0, 0.5, 3.0)[1]
    assert "never pays" in draw_break_even(0.5, 2.0, 3.0)[1]
    assert break_even(1.0, 1.0, 1.0) == float("inf")
    with pytest.raises(UsageError):
        draw_arms(arms[:1], pictures=32, per_call=2)
    with pytest.raises(UsageError):
        draw_gains({}, "nothing")


def _outcome(name: str, *measured: Any, **named: Any) -> Outcome:
    settled = claim(name).settle(*measured, **named)
    assert settled.outcome is not None, settled.why
    return settled.outcome


def _ratio(low: float, high: float) -> Any:
    return SimpleNamespace(
        ratio=(low + high) / 2 if high < float("inf") else 1.5,
        low=low,
        high=high,
        different=not low <= 1 <= high,
        a=summarize([0.2] * 6),
        b=summarize([1e-4] * 6),
    )


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    return make_images(tmp_path, n=2, size=(64, 48))


@pytest.mark.parametrize(("train_ms", "holds"), [(20.0, True), (100.0, False)])
def test_a2_shares_add_up(images: ImageSet, train_ms: float, holds: bool) -> None:
    times = {"read": 4.0, "decode": 40.0, "resize": 30.0, "augment": 6.0, "train": train_ms}
    phases = Phases({name: summarize([ms] * 6) for name, ms in times.items()})
    found = _outcome("A2", phases, None, images=images, batch=4)
    assert found.holds is holds
    shares = [found.figures[f"{n}_share"].value for n in ("read", "decode", "transform", "train")]
    assert sum(shares) == pytest.approx(100)
    assert found.figures["decode"].value == 10.0  # of one picture
    assert found.figures["transform"].value == 9.0
    assert "cold_read" not in found.figures
    cold = _outcome("A2", phases, [2.0] * 6, images=images, batch=4)
    assert cold.figures["cold_read"].value == 2.0
    assert "instead of 1" in cold.sentence


@pytest.mark.parametrize(
    ("decoded", "holds"), [((9, 11), True), ((0.95, 1.0), False), ((0.5, 9), None)]
)
def test_a3_counts_bytes(decoded: tuple[float, float], holds: bool | None) -> None:
    found = _outcome(
        "A3",
        {"encoded": _ratio(0.9, 1.1), "decoded": _ratio(*decoded), "mapped": _ratio(8, 9)},
        _ratio(1000, 3000),
        encoded_bytes=60_000,
        decoded_bytes=600_000,
        cold_ms=None,
        own={"list": 1.0, "tensor": 0.1},
    )
    assert found.holds is holds
    figures = found.figures
    assert figures["imagenet_encoded"].value < 248 < figures["imagenet_decoded_256"].value
    assert figures["warm_file"].value == 0.2
    assert figures["list_item"].value == pytest.approx(100)  # ns
    assert figures["own_of_list"].value == 1.0
    # a ratio whose interval holds 1 is not told as a gain
    assert "no difference seen" in found.sentence
    assert "10.0 times the bytes" in found.sentence


@pytest.mark.parametrize(("timed", "pays"), [((8, 12), True), ((0.5, 0.6), False)])
def test_a6_counts_pixels_and_bytes(
    images: ImageSet, timed: tuple[float, float], pays: bool
) -> None:
    found = _outcome(
        "A6",
        _ratio(*timed),
        images,
        images.files[:1],
        size=(32, 24),
        online_s=1.0,
        once_s=0.9,
    )
    assert found.holds is pays
    assert found.figures["pixels_ratio"].value == 4
    one = images.files[0].stat().st_size
    assert found.figures["bytes_ratio"].value == images.total_bytes / one
    assert ("break_even" in found.figures) == pays
    assert pays or "does not pay" in found.sentence


@pytest.mark.parametrize(("same", "holds"), [(True, True), (False, False)])
def test_a7_takes_the_same_row(same: bool, holds: bool) -> None:
    found = _outcome("A7", _ratio(20, 30), [300, 2], same)
    assert found.holds is holds
    assert (found.figures["frame_calls"].value, found.figures["tensor_calls"].value) == (300, 2)


def test_c13_counts_bytes(tmp_path: Path) -> None:
    files = write_table(make_table(2_000), tmp_path)
    ways = ("CSV, 2 columns", "Parquet, all columns", "Parquet, 2 columns")
    against_csv = {name: _ratio(3, 4) for name in (*ways, "Arrow, all columns", "Arrow, mapped")}
    found = _outcome("C13", against_csv, files, 1_000, 0)
    assert found.holds
    assert found.figures["csv_bytes"].value == files.csv.stat().st_size
    assert found.figures["parquet_bytes"].value < found.figures["csv_bytes"].value
    assert found.figures["mapped_allocates"].value == 0
    against_csv["Parquet, all columns"] = _ratio(0.5, 4)
    assert _outcome("C13", against_csv, files, 1_000, 0).holds is None


@pytest.mark.parametrize("name", ["A7", "C13"])
def test_a_table_that_cannot_be_had_leaves_its_claims_open(name: str) -> None:
    settled = claim(name).settle()
    assert settled.missing
    assert "pip install pandas" in settled.why


@pytest.mark.parametrize(
    ("decode", "said"),
    [
        ((1.5, 1.7), "Pillow decodes a JPEG 1.6 times as fast"),
        ((0.9, 1.1), "Pillow decodes a JPEG with no difference seen"),
        ((0.6, 1.7), "Pillow decodes a JPEG too unsteadily to tell (0.60 to 1.70 times as fast)"),
        ((0.0, float("inf")), "Pillow decodes a JPEG with too few measurements to tell"),
    ],
)
def test_c14_tells_no_gain_that_was_not_seen(decode: tuple[float, float], said: str) -> None:
    found = _outcome(
        "C14",
        {"Pillow decode": _ratio(*decode), "torch resize": _ratio(2, 3)},
        {"Pillow decode": True, "torch resize": False},
        level="AVX2",
    )
    assert said in found.sentence
    assert found.holds  # the headline decides
    assert found.headline == "torch_resize_ratio"
    assert found.figures["pillow_decode_same"].value == 1
    assert found.figures["torch_resize_same"].value == 0
