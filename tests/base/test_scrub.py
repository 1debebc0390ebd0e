"""Scrubbing removes private data and keeps the trace's content."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfkit.advice.profile import explain
from perfkit.base.scrub import Scrubber, scrub
from perfkit.trace.read.load import load
from tests.simulated_traces import Simulated, cpu_training, gpu_training

# put together here, so that no scanner takes this file for a leak
_TAIL = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
TOKENS = [
    "ghp_" + _TAIL,
    "github_" + "pat_" + _TAIL,
    "hf_" + _TAIL,
    "sk-" + _TAIL,
    "sk-ant-" + _TAIL,
    "AKIA" + "A1B2C3D4E5F6G7H8",
    "xoxb-" + "123456789012-" + _TAIL,
    "eyJ" + "hbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0." + _TAIL,
    "glpat-" + _TAIL,
]


@pytest.fixture
def scrubber() -> Scrubber:
    return Scrubber(users=["carol"], hosts=["trainbox7"], here=False)


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("around", ["{}", "login({!r})", "x={};y", "https://h/?t={}&u=1"])
def test_tokens(scrubber: Scrubber, token: str, around: str) -> None:
    text = scrubber.text(around.format(token))
    assert token not in text
    assert _TAIL not in text
    assert "[secret]" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/bob/proj/train.py(3): step", "/home/[user]/proj/train.py(3): step"),
        ("/Users/bob.b/x.py", "/Users/[user]/x.py"),
        (r"C:\Users\Bob\x.py", r"C:\Users\[user]\x.py"),
        (r"C:\\Users\\Bob\\x.py", r"C:\\Users\\[user]\\x.py"),
        ("/scratch/carol/run", "/scratch/[user]/run"),
        ("started by carol on trainbox7", "started by [user] on [host]"),
        ("trainbox7.example", "[host].example"),
        ("bob@node-12:/data", "[user]@[host]:/data"),
        ("mail bob@example.com now", "mail [email] now"),
        ("https://bob:pw@git.example/x", "https://[secret]@git.example/x"),
        ("password=hunter2", "password=[secret]"),
        ("api_key: 'abcd1234efgh'", "api_key: [secret]"),
        ("Authorization: Bearer abcdefghijklmnop", "Authorization: Bearer [secret]"),
        ("HOSTNAME=gpu-17 rank 3", "HOSTNAME=[host] rank 3"),
        ("listening on 10.1.2.3:29500", "listening on [host]:29500"),
        ("ip-10-0-0-1.ec2.internal", "[host].ec2.internal"),
        ("GPU-12345678-1234-1234-1234-123456789abc", "GPU-[serial]"),
        ("de:ad:be:ef:00:01", "[mac]"),
    ],
)
def test_what_goes(scrubber: Scrubber, text: str, expected: str) -> None:
    if "ec2.internal" in text:  # either rule may take it, none may leave the address
        assert "10-0-0-1" not in scrubber.text(text)
    else:
        assert scrubber.text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "aten::_fused_adamw_",
        "ProfilerStep#12",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >",
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEE",
        "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT",
        "autograd::engine::evaluate_function: AddmmBackward0",
        "token = self.embed(x)",
        "max_tokens=4096",
        "tokenizer.py(31): __call__",
        "signature = inspect.signature(fn)",
        "torch 2.13.0, CUDA 12.4.1, driver 550.54.15",
        "Memcpy HtoD (Pageable -> Device)",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "<built-in method matmul of type object at 0x7f0011223344>",
        "train.py(12): main",
        "/usr/lib/python3/dist-packages/torch/nn/modules/module.py(1): _call_impl",
        "carolina(3): step",
        "nn.Module: Linear_0",
    ],
)
def test_what_stays(scrubber: Scrubber, text: str) -> None:
    assert scrubber.text(text) == text


def test_scrubbing_twice_changes_nothing(scrubber: Scrubber) -> None:
    text = "/home/bob/x bob@node password=hunter2 HOSTNAME=a A1B=1 B2C=2 C3D=3 carol trainbox7"
    once = scrubber.text(text)
    assert scrubber.text(once) == once


@pytest.mark.parametrize(
    "dump",
    [
        "PATH=/bin HOME=/nowhere EDITOR=nano LANG=C",
        "SECRET_THING=1\nOTHER_THING=2\nTHIRD_THING=3\n",
        "{'PATH': '/bin', 'EDITOR': 'nano', 'LANG': 'C'}",
        '{"PATH": "/bin", "EDITOR": "nano", "LANG": "C"}',
    ],
)
def test_environment_dumps_in_text(scrubber: Scrubber, dump: str) -> None:
    text = scrubber.text(f"before {dump}")
    assert text.startswith("before ")
    assert "[environment]" in text
    assert "nano" not in text
    assert "THING" not in text


def test_environments_as_mappings(scrubber: Scrubber) -> None:
    found = scrubber.scrub(
        {
            "env": {"A": "private"},
            "deep": [
                {"PATH": "private", "HOME": "private", "USER": "private", "X": "private"},
                {"PATH": "private", "HOME": "private", "LANG": "private"},
            ],
            "api_token": "private",
            "kept": {"seed": 3, "lr": 0.1, "name": "resnet"},
            "api_key": 3,
            4: "four",
            "two": {"PATH": "data", "HOME": "kitchen", "rooms": 3},
        }
    )
    assert "private" not in json.dumps(found)
    assert found["kept"] == {"seed": 3, "lr": 0.1, "name": "resnet"}
    assert (found["api_key"], found[4]) == (3, "four")
    assert found["two"] == {"PATH": "data", "HOME": "kitchen", "rooms": 3}


def test_a_private_key(scrubber: Scrubber) -> None:
    key = "-----BEGIN " + "RSA PRIVATE KEY-----\nMIIEabc\n-----END " + "RSA PRIVATE KEY-----"
    assert scrubber.text(f"x {key} y") == "x [secret] y"


def test_this_machine_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "dave")
    monkeypatch.setattr("socket.gethostname", lambda: "heron.example")
    monkeypatch.setenv("HOME", "/srv/people/dave")
    known = Scrubber()
    assert (
        known.text("dave ran /srv/people/dave/x.py on heron") == "[user] ran [home]/x.py on [host]"
    )
    assert known.text("heron.example") == "[host]"
    assert Scrubber(here=False).text("dave on heron") == "dave on heron"
    for home, shown in (("/u/dave", "[home]/x.py"), ("/data", "/data/x.py")):
        monkeypatch.setenv("HOME", home)
        assert Scrubber().text(f"{home}/x.py") == shown


@pytest.mark.parametrize("name", ["root", "torch", "gpu", "ab"])
def test_names_that_tell_nothing_are_no_words(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: name)
    monkeypatch.setattr("socket.gethostname", lambda: name)
    assert Scrubber().text(f"{name} is {name}") == f"{name} is {name}"
    assert Scrubber(["eve"]).text(f"{name} is eve") == f"{name} is [user]"


def test_a_user_without_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert Scrubber().text("/home/bob/x") == "/home/[user]/x"


def _hostile_trace() -> Simulated:
    sim = gpu_training(3)
    sim.host("/home/erin/train.py(3): step", 1_100, 50, "python_function")
    sim.host("aten::mm", 1_110, 5, **{"Call stack": "/data/erin/model.py(9): forward"})
    sim.events.append(
        {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {"name": "erin@node9"}}
    )
    return sim


def test_a_trace_and_its_figures(tmp_path: Path) -> None:
    folder = tmp_path / "erin"
    folder.mkdir()
    path = folder / "t.json"
    path.write_bytes(_hostile_trace().json())
    trace = load(path)
    clean = scrub(trace)
    everything = repr((clean.names, clean.stacks, clean.threads, clean.metadata, clean.source))
    assert "erin" not in everything
    assert "node9" not in everything
    # the home path taught the name, which then goes from other paths too
    assert any("/data/[user]/model.py" in s for s in clean.stacks)
    assert (clean.start_us == trace.start_us).all()
    assert (clean.name_id == trace.name_id).all()
    assert any("erin" in n for n in trace.names)  # the original is untouched


def test_a_profile_with_everything_in_it() -> None:
    profile = explain(load(_hostile_trace().json()))
    clean = scrub(profile)
    assert "erin" not in str(clean)
    assert "erin" not in json.dumps(clean.to_dict())
    assert clean.breakdown.shares() == profile.breakdown.shares()
    assert clean.raw == b""


def test_containers_keep_their_types(scrubber: Scrubber) -> None:
    @dataclass(frozen=True)
    class Result:
        path: Path
        names: frozenset[str]
        pair: tuple[str, int]
        nothing: None = None

    made = Result(Path("/home/bob/x"), frozenset({"bob@node1"}), ("/home/bob", 3))
    assert scrubber.scrub(made) == Result(
        Path("/home/[user]/x"), frozenset({"[user]@[host]"}), ("/home/[user]", 3)
    )


def test_an_ordinary_trace_stays_as_it_is() -> None:
    trace = load(cpu_training(3).json())
    clean = scrub(trace)
    assert (clean.names, clean.threads, clean.stacks) == (trace.names, trace.threads, trace.stacks)


MORE_TOKENS = [
    "r8_" + _TAIL,
    "sk_" + "live_" + _TAIL,
    "rk_" + "test_" + _TAIL,
    "dapi" + "0123456789abcdef" * 2,
    "nvapi-" + _TAIL,
    "GOCSPX-" + _TAIL[:28],
    "gsk_" + _TAIL,
    "wandb_" + "v1_" + _TAIL,
    # bare: an AWS secret key, a key of Weights & Biases
    "wJalrXUtnFEMI" + "/K7MDENG+bPxRfiCYz9aQ3LmTv2K"[:27],
    "4f9d1c3b5a" + "7e2f8091d6c4b3a5e7f9021b3c4d5e"[:30],
]


@pytest.mark.parametrize("token", MORE_TOKENS)
@pytest.mark.parametrize("around", ["{}", "login({!r})", "key {} ok", "['--key', '{}']"])
def test_tokens_of_more_services(scrubber: Scrubber, token: str, around: str) -> None:
    text = scrubber.text(around.format(token))
    assert token not in text
    assert "[secret]" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.py --password hunter2 --lr 0.1", "train.py --password [secret] --lr 0.1"),
        ("--password 123456", "--password [secret]"),
        ("train.py --hub-token=abcXYZ --n 3", "train.py --hub-token=[secret] --n 3"),
        ("['--password', 'hunter2', '-n']", "['--password', '[secret]', '-n']"),
        ("AccountName=a;AccountKey=Eby8vdM02xNOcqFl==;E", "AccountName=a;AccountKey=[secret];E"),
        (
            "https://x.blob/y?sv=1&sig=aB3%2Fd9QwErTyUi&se=2",
            "https://x.blob/y?sv=1&sig=[secret]&se=2",
        ),
        ("listening on fd12:3456:789a::1", "listening on [host]"),
        ("fe80::1ff:fe23:4567:890a%eth0", "[host]"),
        ("master 100.101.2.3:29500", "master [host]:29500"),
        ("wrote runs/exp_carol_3/metrics.json", "wrote runs/exp_[user]_3/metrics.json"),
        ("carol-final.ipynb", "[user]-final.ipynb"),
    ],
)
def test_more_of_what_goes(scrubber: Scrubber, text: str, expected: str) -> None:
    assert scrubber.text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "train.py --token-dropout 0.1 --max-tokens 512",
        "train.py --token-dropout=0.1",
        "git_version: 0d62b6bc1a3b8ff0a4a1a1f0f2c9d7e6b5a40312",
        "at commit 0d62b6bc1a3b8ff0a4a1a1f0f2c9d7e6b5a40312",
        "https://github.com/o/r/commit/0d62b6bc1a3b8ff0a4a1a1f0f2c9d7e6b5a40312",
        "Sm80FlashAttentionForwardKernelBf16Hdim64",
        "VectorizedElementwiseKernel4FillFunctor2",  # 40 characters, as an AWS secret key
        "torch::autograd::generated::fd12",
        "dapper.py",
        "carolina_v2.json",
    ],
)
def test_more_of_what_stays(scrubber: Scrubber, text: str) -> None:
    assert scrubber.text(text) == text


def test_a_command_as_a_list(scrubber: Scrubber) -> None:
    command = ["t.py", "--password", "hunter2", "--max-token", "5", "--password", "123456"]
    kept = ["--token", "--lr", 0.1, "--token", "", "--token"]
    assert scrubber.scrub([*command, *kept]) == [
        "t.py",
        "--password",
        "[secret]",
        "--max-token",
        "5",
        "--password",
        "[secret]",
        *kept,
    ]
