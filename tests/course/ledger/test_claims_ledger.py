from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from perfkit import show
from perfkit.course.ledger.claims import claims
from perfkit.course.ledger.ledger import STATUSES, Row, ledger, status_of
from perfkit.course.ledger.recording import Figure, FigureKind
from perfkit.course.ledger.records import Record, Records
from perfkit.course.ledger.show_claims import ledger_document
from tests.course.ledger.made_records import GPU, SOMEWHERE, here, made

# Counted in the course's list of claims: A1-A18, B1-B15, C1-C16, D1-D8, E1-E8.
IDS = [
    f"{letter}{n}"
    for letter, last in (("A", 18), ("B", 15), ("C", 16), ("D", 8), ("E", 8))
    for n in range(1, last + 1)
]
ALL_TAUGHT = dict.fromkeys(IDS, ("a lesson",))
NOTEBOOKS = Path(__file__).resolve().parents[3] / "notebooks"
LESSONS = {path.name[:2] for path in NOTEBOOKS.glob("[0-9][0-9]-*.ipynb")}


def row_of(claim: str, *records: Record, taught: bool = True) -> Row:
    found = ledger(Records(records), ALL_TAUGHT if taught else {})
    return next(row for row in found.rows if row.claim.id == claim)


def test_every_claim_is_there_once_and_whole() -> None:
    assert list(claims()) == IDS
    for claim in claims().values():
        assert claim.technique
        assert claim.measured
        assert claim.where
        assert set(claim.where) <= {"cpu", "gpu", "multi"}
        assert claim.lessons
    assert {lesson for c in claims().values() for lesson in c.lessons} == LESSONS


def test_nothing_holds_without_a_record() -> None:
    for taught in (None, {}, ALL_TAUGHT):
        found = ledger(Records(), taught)
        assert len(found.rows) == len(IDS)
        assert {row.status for row in found.rows} <= {
            "not recorded", "needs a GPU", "needs several GPUs", "not yet taught",
        }  # fmt: skip
        assert all(row.headline is None for row in found.rows)
        assert "holds" not in found.counts()


@pytest.mark.parametrize(
    ("claim", "status"),
    [("A1", "not recorded"), ("A9", "not recorded"), ("C8", "needs a GPU"),
     ("A13", "needs several GPUs")],
)  # fmt: skip
def test_without_a_record_it_says_what_is_missing(claim: str, status: str) -> None:
    assert row_of(claim).status == status
    assert row_of(claim, taught=False).status == "not yet taught"


def test_a_record_of_this_machine_says_here() -> None:
    assert row_of("A9", made(device=here())).status == "holds here"
    assert row_of("A9", made(device=here(), holds=False)).status == "does not hold here"


def test_a_record_of_another_machine_says_where() -> None:
    row = row_of("A9", made())
    assert row.status == "holds"
    said = " ".join(ledger(Records((made(),)), ALL_TAUGHT).to_text().split())
    assert f"counted on {SOMEWHERE}, 2026-01-02" in said
    timed = made(figures={"ratio": Figure(2.0, "×", 1.9, 2.1)})
    said = " ".join(ledger(Records((timed,)), ALL_TAUGHT).to_text().split())
    assert f"recorded on {SOMEWHERE}, 2026-01-02" in said
    assert row_of("A9", made(holds=False)).status == "does not hold"


def test_this_machine_s_record_decides_and_the_other_is_told() -> None:
    own = made(device=here(), holds=False, figures={"bytes_ratio": Figure(1.0, "×")})
    newer = made(when="2027-01-01T00:00:00+00:00")
    row = row_of("A9", newer, own)
    assert row.status == "does not hold here"
    assert row.records == (own, newer)
    assert row.headline == Figure(1.0, "×")


def test_of_other_machines_the_newest_decides() -> None:
    old = made(holds=False)
    new = made(device=GPU, type="cuda", gpus=1, when="2027-01-01T00:00:00+00:00")
    assert row_of("A9", old, new).status == "holds"


def test_of_other_machines_a_gpu_decides_where_the_claim_is_about_one() -> None:
    gpu = made(device=GPU, type="cuda", gpus=1)
    cpu = made(holds=False, when="2027-01-01T00:00:00+00:00")
    assert row_of("A9", gpu, cpu).status == "holds"
    gpu = made("A1", device=GPU, type="cuda", gpus=1)
    cpu = made("A1", holds=False, when="2027-01-01T00:00:00+00:00")
    assert row_of("A1", gpu, cpu).status.startswith("does not hold")


def test_two_lessons_on_one_device_must_both_hold() -> None:
    first = made("A16", lesson="01")
    second = made("A16", lesson="08", holds=False, figures={"ratio": Figure(1.0, "×")})
    row = row_of("A16", first, second)
    assert row.status == "does not hold"
    assert row.headline == Figure(1.0, "×")


def test_the_gpu_part_that_is_not_recorded_is_told_beside_the_cpu_status() -> None:
    row = row_of("A9", made(device=here()))
    assert row.not_recorded == ("gpu",)
    found = ledger(Records((made(device=here()),)), ALL_TAUGHT)
    assert "GPU part (transfer) not recorded" in " ".join(found.to_text().split())
    both = made(device=GPU, type="cuda", gpus=1)
    assert row_of("A9", made(device=here()), both).not_recorded == ()
    assert row_of("A9", both).not_recorded == ("cpu",)


def test_several_gpus_are_recorded_only_by_several() -> None:
    processes = made("A13", lesson="15", device=here())
    assert row_of("A13", processes).status == "holds here, as tested"
    assert row_of("A13", processes).not_recorded == ("multi",)
    one = made("A13", lesson="15", device=GPU, type="cuda", gpus=1)
    assert row_of("A13", one).not_recorded == ("multi",)
    two = made("A13", lesson="15", device=GPU, type="cuda", gpus=2)
    assert row_of("A13", two).not_recorded == ()


def test_a_larger_machine_with_that_processor_is_not_here() -> None:
    there = made(device=here(), machine=f"{here()}, 4096 cores, 755 GiB")
    row = row_of("A9", there)
    assert row.status == "holds"
    assert there.source(there.outcome.figures["bytes_ratio"]) == f"counted on {here()}"
    # this machine's own one counts, also if it is older and says something else
    own = made(device=here(), holds=False, when="2025-01-02T03:04:05+00:00")
    assert row_of("A9", there, own).status == "does not hold here"
    ratio = Figure(1.8, "×", 1.7, 1.9)
    assert own.source(ratio) == "recorded here"
    assert there.source(ratio) == f"recorded on {here()}"


def test_a_gpu_by_that_name_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        name = GPU
        type = "cuda"

    class Machine:
        cpu = "Some CPU"
        gpus = (Gpu(),)

    monkeypatch.setattr("perfkit.course.ledger.records.facts", Machine)
    assert row_of("C8", made("C8", device=GPU, type="cuda", gpus=1)).status == "holds here"
    # a processor that happens to have the GPU's name is none of ours
    assert row_of("C8", made("C8", device=GPU, type="cpu")).status == "holds"


def test_a_simulation_does_not_say_what_a_gpu_does() -> None:
    figures = {"pinned_ratio": Figure(1.8, "×", kind="simulated")}
    simulated = made("C8", device=here(), figures=figures)
    row = row_of("C8", simulated)
    assert row.status == "needs a GPU"
    assert row.not_recorded == ("gpu",)
    assert row.records == (simulated,)
    found = " ".join(ledger(Records((simulated,)), ALL_TAUGHT).to_text().split())
    assert "1.80×; simulated, 2026-01-02; GPU part not recorded" in found
    # nor does one that ran on a GPU's machine; but no GPU is missing any more
    there = made("C8", device=GPU, type="cuda", gpus=1, figures=figures)
    assert row_of("C8", there).status == "not recorded"
    assert row_of("C8", there, taught=False).status == "not yet taught"
    # beside a GPU of another machine, this one's simulation says no more than before
    measured = made(
        "C8", device=GPU, type="cuda", gpus=1, figures={"pinned_ratio": Figure(2.0, "×", 1.9, 2.1)}
    )
    row = row_of("C8", simulated, measured)
    assert row.status == "holds"
    assert row.records == (measured, simulated)
    assert row.not_recorded == ()
    # bytes are counted alike on any machine
    assert row_of("C8", made("C8", device=here())).status == "holds here"
    # of a claim about a CPU, a simulation on one says something, and says that it is one
    assert row_of("A9", made(device=here(), figures=figures)).status == "holds, simulated"


@pytest.mark.parametrize("kind", ["simulated", "predicted"])
def test_a_figure_that_nobody_measured_is_in_the_status(kind: FigureKind) -> None:
    figures = {"ratio": Figure(1.8, "×", 1.7, 1.9, kind)}
    for holds, word in ((True, "holds"), (False, "does not hold")):
        for device in (here(), SOMEWHERE):
            row = row_of("A9", made(device=device, holds=holds, figures=figures))
            assert row.status == f"{word}, {kind}"
    said = " ".join(ledger(Records((made(figures=figures),)), ALL_TAUGHT).to_text().split())
    assert f"1.80× [1.70, 1.90]; {kind}, 2026-01-02" in said
    assert f"A9 holds, {kind}" in said


def test_what_was_tested_instead_is_in_the_status_and_beside_it() -> None:
    assert claims()["C6"].tested["cpu"].startswith("bytes, counted")
    counted = made("C6", device=here())
    row = row_of("C6", counted)
    assert row.status == "holds here, as tested"
    assert row.tested == claims()["C6"].tested["cpu"]
    assert row.to_dict()["as_tested"] == row.tested
    assert row_of("C6", made("C6")).status == "holds, as tested"
    assert row_of("C6", made("C6", holds=False)).status == "does not hold, as tested"
    assert "Tested differently from what the source means: bytes, counted on a device" in " ".join(
        ledger(Records((counted,)), ALL_TAUGHT).to_text().split()
    )
    # on a GPU it is tested as the source means it
    on_gpu = row_of("C6", made("C6", device=GPU, type="cuda", gpus=1))
    assert (on_gpu.status, on_gpu.tested) == ("holds", "")
    # and only what was tested as the source means it gets a mark
    html = show.html(ledger(Records((counted,)), ALL_TAUGHT))
    assert "✓" not in html
    assert "✓" in show.html(ledger(Records((made("C7", device=here()),)), ALL_TAUGHT))


def test_a_record_by_itself_has_the_same_status() -> None:
    simulated = made("C3", device=here(), figures={"r": Figure(9.0, "×", kind="simulated")})
    for record in (simulated, made("C6", device=here()), made("C7", device=here(), holds=False)):
        assert status_of(record) == row_of(record.claim, record).status
    assert status_of(simulated) == "holds, simulated"


def test_parts_that_are_tested_otherwise_are_parts() -> None:
    for claim in claims().values():
        assert set(claim.tested) <= {"cpu", "gpu", "multi"}
        assert all(claim.tested.values())
        assert claim.to_dict()["tested"] == dict(claim.tested)


def test_json_has_every_row_and_its_schema() -> None:
    found = json.loads(json.dumps(ledger(Records((made(),)), {"A9": ["06-x"]}).to_dict()))
    assert found["schema"] == "perfkit.claims/1"
    assert [one["id"] for one in found["claims"]] == IDS
    assert sum(found["counts"].values()) == len(IDS)
    assert {one["status"] for one in found["claims"]} <= set(STATUSES)
    row = next(one for one in found["claims"] if one["id"] == "A9")
    assert row["taught_in"] == ["06-x"]
    assert row["figure"]["value"] == 5.0
    assert row["not_recorded"] == ["gpu"]
    assert row["records"][0]["provenance"]["versions"] == {"torch": "2.13.0"}


def test_text_fits_the_terminal_and_names_refused_records(tmp_path: Path) -> None:
    refused = {tmp_path / "A9.json": "A9.json was changed since it was recorded"}
    text = ledger(Records((made(device=here()),), refused), ALL_TAUGHT).to_text()
    assert max(map(len, text.splitlines())) <= 100
    assert "Note: A9.json was changed" in text
    assert "5.00×; counted here, 2026-01-02" in text
    for claim in IDS:
        assert re.search(rf"^ *{claim} ", text, re.MULTILINE)


def test_html_escapes_what_records_say() -> None:
    evil = "<script>alert(1)</script> & \u202e"
    record = made(sentence=evil, device="<b>CPU</b>")
    html = show.html(ledger(Records((record,), {Path("x"): evil}), ALL_TAUGHT))
    assert "<script>" not in html
    assert "<b>CPU" not in html
    assert "\u202e" not in html
    assert html.count("&lt;script&gt;") == 2
    assert all(f'id="claim-{claim}"' in html for claim in IDS)


def test_the_summary_comes_first_and_counts_every_claim() -> None:
    records = (
        made("A9", device=here()),
        made("C6", device=here()),
        made("C7", device=here(), holds=False, sentence="It took as long."),
        made("B6", lesson="06", device=here(), holds=False),
        made("E4", lesson="07", device=GPU, type="cuda", gpus=1),
    )
    found = ledger(Records(records), ALL_TAUGHT)
    document = ledger_document(found)
    counted = {segment.label: segment.value for segment in document.bars[0].segments}
    assert counted["holds"] == 2
    assert counted["holds, with a caveat"] == 1
    assert counted["does not hold"] == 1
    assert counted["does not hold, with a caveat"] == 1
    assert sum(counted.values()) == len(IDS)
    assert document.sentence.startswith(f"{len(IDS)} claims: 3 hold, 2 do not, ")
    assert "2 of the verdicts have a caveat" in document.lines[0]
    fallen, *lessons = document.tables
    assert [row[0] for row in fallen.rows] == ["B6", "C7"]
    assert "It took as long." in found.to_text().partition("Lesson 00")[0]
    assert [table.title for table in lessons] == sorted({table.title for table in lessons})
    told = [name for table in lessons for name in table.anchors]
    assert sorted(told) == sorted(f"claim-{claim}" for claim in IDS)


def test_a_page_opens_with_the_summary_and_folds_the_lessons() -> None:
    records = (made("A9", device=here()), made("C7", device=here(), holds=False))

    found = ledger(Records(records), ALL_TAUGHT)
    page = show.html(found)
    opened = re.findall(r"<details open><summary>([^<(]*)", page)
    assert [title.strip() for title in opened] == ["What does not hold"]
    folded = re.findall(r"<details><summary>(Lesson [^<(]*)", page)
    assert len(folded) == len(LESSONS)
    assert folded[9].strip() == "Lesson 09: precision"
    assert page.index("What does not hold") < page.index("Lesson 00: start here")
    assert "holds here: 1" in page[page.index("Lesson 19") :]  # the words of every status, last
    # a terminal has no folds: everything is in the text
    assert len(re.findall(r"^\s*Lesson \d\d: ", found.to_text(), re.M)) == 20


def test_a_ledger_without_records_has_no_caveat_and_nothing_that_falls() -> None:
    document = ledger_document(ledger(Records(), ALL_TAUGHT))
    assert document.tables[0].rows == ()
    assert "caveat" not in " ".join(document.lines)
    assert "0 hold, 0 do not" in document.sentence
