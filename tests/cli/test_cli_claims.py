"""``perfkit claims`` and ``perfkit record``, the second one also on a bare server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.cli import main
from perfkit.course.kit._places import clone_folder
from perfkit.course.kit._recorded import recorded_folder, recorded_folders, taught_claims
from perfkit.course.ledger.claims import claims
from perfkit.course.ledger.records import write_record
from tests.course.ledger.made_records import here, made

# What a server has not. The blocker refuses their import as if they were not installed.
ABSENT = (
    "IPython", "ipywidgets", "anywidget", "ipykernel", "traitlets", "matplotlib", "jinja2",
    "markupsafe", "PIL", "pandas", "pyarrow", "cv2", "nbformat", "nbclient", "nbconvert",
    "jupyterlab", "line_profiler", "memory_profiler", "torchvision", "fsspec", "aiohttp",
)  # fmt: skip
BLOCKER = f"""\
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def test_json_lists_every_claim_and_none_holds_without_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["claims", "--json", "--records", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in found["claims"]] == list(claims())
    assert not [one for one in found["claims"] if "hold" in one["status"]]
    taught = {one["id"]: one["status"] for one in found["claims"]}
    assert taught["A1"] == taught["A5"] == taught["C2"] == "not recorded"  # lesson 00 lists them


def test_a_record_shows_in_all_three_forms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, page = tmp_path / "records", tmp_path / "claims.html"
    write_record(made("A1", lesson="00", device=here(), sentence="<i>so</i>"), records)
    assert main(["claims", "--records", str(records), "--html", str(page), "--json"]) == 0
    out, err = capsys.readouterr()
    row = json.loads(out)["claims"][0]  # the page's path does not get into the JSON
    assert str(page) in err
    assert (row["status"], row["figure"]["value"]) == ("holds here, as tested", 5.0)
    html = page.read_text(encoding="utf-8")
    assert "holds here, as tested" in html
    assert "&lt;i&gt;so&lt;/i&gt;" in html
    assert "<script" not in html
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert main(["claims", "--records", str(records)]) == 0
    assert "5.00×, counted here" in capsys.readouterr().out.replace(";", ",")


def test_an_edited_record_is_told_and_does_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_record(made("A1", lesson="00", holds=False), tmp_path)
    path.write_text(path.read_text().replace('"holds": false', '"holds": true'))
    assert main(["claims", "--json", "--records", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["claims"][0]["status"] == "not recorded"
    assert "was changed since it was recorded" in found["refused"][0]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["claims", "--records", "no such folder"], "no folder 'no such folder'"),
        (["claims", "--html", "no such folder/x.html"], "cannot write"),
        (["record", "--claim", "Z9"], "no claim 'Z9'"),
        (["record", "six"], "no lesson 'six'"),
        (["record", "99"], "no such claim; lessons with some: 00"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    err = capsys.readouterr().err.strip()
    assert err.splitlines()[-1].startswith("perfkit: ")
    assert says in err


@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "x"])
def test_a_scale_that_cannot_be(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["record", f"--scale={number}"])
    assert f"argument --scale: {number!r} is not a positive number" in capsys.readouterr().err


def test_help_documents_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["claims", "--help"])
    out = capsys.readouterr().out
    assert "schema perfkit.claims/1" in out
    from perfkit.course.ledger.ledger import ledger
    from perfkit.course.ledger.records import Records

    found = ledger(Records((made(),)), None).to_dict()
    row = next(one for one in found["claims"] if one["records"])
    for key in {*found, *row, *row["records"][0]}:
        assert key in out, f"{key} is not documented"


def test_records_lie_in_the_clone_else_in_the_user_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = Path(__file__).resolve().parents[2]
    monkeypatch.chdir(clone)
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path))
    assert recorded_folder() == clone / "data" / "recorded"
    assert clone / "data" / "recorded" in recorded_folders()
    monkeypatch.setattr("perfkit.course.kit._recorded.clone_folder", lambda: None)
    assert recorded_folder() == tmp_path / "recorded"
    assert recorded_folders() == []
    (tmp_path / "recorded").mkdir()
    assert recorded_folders() == [tmp_path / "recorded"]


def test_a_lesson_teaches_what_its_notebook_lists() -> None:
    taught = taught_claims()
    assert taught is not None
    assert "00-start-here" in taught["A1"]
    assert set(taught) <= set(claims())


@pytest.mark.parametrize("listed", ["null", "5", '"A1"', '[5, ["A1"]]', "[" * 200_000])
def test_a_notebook_that_lists_no_claims_teaches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    text = '{"metadata": {"perfkit": {"claims": %s}}}' % listed  # noqa: UP031
    (tmp_path / "00-start-here.ipynb").write_text(text)
    found = [tmp_path / "00-start-here.ipynb"]
    monkeypatch.setattr("perfkit.course.kit._recorded.lessons", lambda: found)
    assert taught_claims() == {}


@pytest.mark.skipif(sys.platform == "win32", reason="a folder in use cannot be deleted there")
def test_a_deleted_working_directory_and_a_closed_output_are_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert clone_folder() == Path(__file__).resolve().parents[2]
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["claims"]) == 0


@pytest.fixture
def bare_server(tmp_path: Path) -> Path:
    """A folder that hides those packages from every Python that has it on its path."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    return tmp_path


def on_a_server(folder: Path, *code: str) -> subprocess.CompletedProcess[str]:
    import os

    before = filter(None, [os.environ.get("PYTHONPATH")])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *before])}
    return subprocess.run(
        [sys.executable, *code], capture_output=True, text=True, env=environment, timeout=120
    )


def test_the_ledger_s_text_and_json_need_no_more(bare_server: Path) -> None:
    code = "import sys; from perfkit.cli import main; sys.exit(main(sys.argv[1:]))"
    for form in ([], ["--json"]):
        done = on_a_server(bare_server, "-c", code, "claims", *form)
        assert done.returncode == 0, done.stderr
        assert "A17" in done.stdout


@pytest.mark.parametrize("name", ["IPython", "PIL.Image", "jinja2"])
def test_the_server_is_bare(bare_server: Path, name: str) -> None:
    done = on_a_server(bare_server, "-c", f"import {name}")
    assert "ModuleNotFoundError" in done.stderr


@pytest.mark.slow
def test_criteria_can_be_read_where_nothing_more_is_installed(bare_server: Path) -> None:
    code = "from perfkit.course.ledger.criteria import criteria; assert criteria()"
    done = on_a_server(bare_server, "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_record_where_no_notebook_can_run_says_what_to_install(bare_server: Path) -> None:
    code = "import sys; from perfkit.cli import main; sys.exit(main(sys.argv[1:]))"
    done = on_a_server(bare_server, "-c", code, "record", "00", "--out", str(bare_server / "out"))
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""  # nothing was tried, so nothing is counted
    wanted = "running a lesson needs nbclient, which is not installed: pip install '.[lab]' in"
    assert done.stderr.startswith(f"perfkit: {wanted}")
    assert done.stderr.count("\n") == 1
