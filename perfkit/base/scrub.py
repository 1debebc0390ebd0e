"""Remove private data from everything that is meant to be shared.

There is one scrubber, and everything written for sharing goes through it: pages, files from
``.save()``, ``to_markdown()``, saved traces, a Lab's buttons, records of claims, and the output of
the magics' ``-T`` and ``-D``. ``scrub=False`` keeps everything. What stays on your machine is not
scrubbed: what you see in the notebook, and the store of a sweep, which it needs to resume.

Removed from all text (names, call stacks, captured output, metadata, paths):

* user names: in home paths of Linux, macOS and Windows, and then in any other path and file name;
  before an ``@``; and the name and home of the user who runs perfkit, also as a word;
* host names: this machine's, whatever follows ``user@``, names that end in ``.local``,
  ``.internal``, ``.lan``, ``.corp`` or a cloud's domain, private IPv4 and IPv6 addresses, MAC
  addresses, serial numbers (UUIDs) of GPUs;
* e-mail addresses, credentials in URLs, private keys;
* tokens: of the services that ``_TOKENS`` lists, JSON web tokens, bearer headers, signatures in
  URLs, bare keys of AWS and Weights & Biases, and the value of anything called password, secret,
  token, api key, access key, account key or signature, also as ``--password value``;
* environment dumps: mappings of environment variables, and three or more ``NAME=value`` in a row;
  the raw bytes of a trace from torch, which may contain any of this.

It cannot recognise what looks like ordinary text: names of projects, models, data sets and
functions, a person's name in a folder that is not a home, a token of unknown form under an innocent
name, public host names and addresses, comments in source lines. Check what you share.

The forms of the tokens are those published by their services. A library such as detect-secrets
finds lines that contain a secret; here the secret must go and the line must stay, and user and host
names must go too. Version 1.5 knows tokens of Hugging Face, NVIDIA, Databricks or Anthropic only by
their randomness, which a hash in a path has as well, and it brings a YAML and an HTTP library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import getpass
import itertools
import math
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, TypeVar

USER, HOST, HOME, SECRET = "[user]", "[host]", "[home]", "[secret]"
EMAIL, ENVIRONMENT = "[email]", "[environment]"

T = TypeVar("T")

_NO_TEXT = frozenset({int, float, bool, type(None)})

# Names shared by many machines reveal nothing, and they are ordinary words.
_ANYBODY = frozenset(
    {
        "root",
        "user",
        "users",
        "admin",
        "ubuntu",
        "debian",
        "ec2-user",
        "jovyan",
        "runner",
        "docker",
        "container",
        "vagrant",
        "nobody",
        "app",
        "dev",
        "test",
        "work",
        "home",
        "data",
        "python",
        "torch",
        "cuda",
        "gpu",
        "cpu",
        "host",
        "node",
        "linux",
        "localhost",
        "localdomain",
        "model",
        "train",
        "build",
        "default",
        "shared",
        "public",
        "main",
        "master",
        "worker",
    }
)

_NAME = r"[^\s/\\:;,\"'<>()\[\]{}|?*]+"
_HOME_PATH = re.compile(
    rf"(?P<stem>(?:/home|/Users|/export/home|[A-Za-z]:\\+Users)[/\\]+)(?P<name>{_NAME})"
)

_ENV_KEYS = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "PWD",
        "OLDPWD",
        "SHELL",
        "LANG",
        "HOSTNAME",
        "TERM",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "SSH_CLIENT",
        "SSH_CONNECTION",
        "MAIL",
        "XDG_RUNTIME_DIR",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
    }
)
_ENV_NAMES = frozenset(
    {"env", "environ", "environment", "env_vars", "envvars", "environment_variables"}
)

_TOKENS = (
    r"gh[pousr]_[A-Za-z0-9]{20,}",  # GitHub
    r"github_pat_[A-Za-z0-9_]{20,}",
    r"gl(?:pat|ptt|rt|dt|cbt)-[A-Za-z0-9_.-]{16,}",  # GitLab
    r"hf_[A-Za-z0-9]{20,}",  # Hugging Face
    r"sk-(?:ant-|proj-|or-)?[A-Za-z0-9_-]{20,}",  # OpenAI, Anthropic, OpenRouter
    r"(?:gsk_|xai-|pplx-)[A-Za-z0-9]{20,}",  # Groq, xAI, Perplexity
    r"r8_[A-Za-z0-9]{20,}",  # Replicate
    r"nvapi-[A-Za-z0-9_-]{20,}",  # NVIDIA
    r"dapi[0-9a-f]{32}(?:-\d)?",  # Databricks
    r"wandb_v\d_[A-Za-z0-9_]{20,}",  # Weights & Biases
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",  # AWS
    r"AIza[A-Za-z0-9_-]{30,}",  # Google
    r"ya29\.[A-Za-z0-9_-]{20,}",
    r"GOCSPX-[A-Za-z0-9_-]{20,}",
    r"[srp]k_(?:live|test)_[A-Za-z0-9]{10,}",  # Stripe
    r"whsec_[A-Za-z0-9+/=]{20,}",
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"xapp-[A-Za-z0-9-]{20,}",
    r"(?<=hooks\.slack\.com/services/)[A-Za-z0-9/]{20,}",
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",  # SendGrid
    r"do[opr]_v1_[0-9a-f]{40,}",  # DigitalOcean
    r"hvs\.[A-Za-z0-9_-]{20,}",  # Vault
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",  # JSON web token
    r"npm_[A-Za-z0-9]{30,}",
    r"pypi-[A-Za-z0-9_-]{30,}",
)
_CALLED = (
    r"(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|account[_-]?key|"
    r"credential|private[_-]?key|signature|authorization)"
)
_FLAG = rf"--?[\w-]*{_CALLED}(?![a-z])[\w-]*"
# Quoted, or long with a digit in it: `token = self.embed(x)` is code, not a secret.
_VALUE = r"(?:\"[^\"]{4,}\"|'[^']{4,}'|(?=[A-Za-z+/_.~-]*\d)[A-Za-z0-9+/_.~=-]{8,})"

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.S
        ),
        SECRET,
    ),
    (re.compile(r"(?:\b[A-Z][A-Z0-9_]{2,}=[^\s;]*(?:[\s;\x00]+|$)){3,}"), ENVIRONMENT),
    (
        re.compile(r"(?:['\"][A-Z][A-Z0-9_]{2,}['\"]\s*:\s*(?:'[^']*'|\"[^\"]*\")\s*,?\s*){3,}"),
        ENVIRONMENT,
    ),
    (re.compile(r"\b(?:" + "|".join(_TOKENS) + ")"), SECRET),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/_.~=-]{12,}"), rf"\1 {SECRET}"),
    (re.compile(r"(?i)([?&](?:sig|signature|X-Amz-Signature)=)[^&\s\"']{8,}"), rf"\1{SECRET}"),
    (re.compile(r"(?i)\b(WANDB_API_KEY\W+)[0-9a-f]{32,}"), rf"\1{SECRET}"),
    (re.compile(r"(://)[^\s/@:]+(?::[^\s/@]*)?@"), rf"\1{SECRET}@"),
    (
        re.compile(rf"(?i)(\b[\w-]*{_CALLED}(?![a-z])[\w-]*[\"']?\s*[=:]\s*){_VALUE}"),
        rf"\1{SECRET}",
    ),
    # a command-line argument: `--token x`, also as the list ['--token', 'x']; a number is a
    # setting, unless it is a password
    (
        re.compile(
            rf"(?i)((?<![\w-]){_FLAG}[\"']?(?:\s*[,=]\s*|\s+)[\"']?)"
            rf"(?!-|\[|(?<!passwd )(?<!password )[\d.]+(?![\w.]))[^\s\"',;\]]+"
        ),
        rf"\1{SECRET}",
    ),
    (re.compile(r"(?i)(\b[\w-]*passw(?:or)?d[\w-]*[=:])[^\s\"',;&\[]+"), rf"\1{SECRET}"),
    (
        re.compile(r"\b((?:HOSTNAME|SLURMD_NODENAME|HOST|NODE_NAME)[=:]\s*)[^\s,;\[\]\"']+"),
        rf"\1{HOST}",
    ),
    (re.compile(r"\b((?:USER|LOGNAME|USERNAME|SUDO_USER)[=:]\s*)[^\s,;\[\]\"']+"), rf"\1{USER}"),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b"), EMAIL),
    (re.compile(r"\b[\w.-]+@[A-Za-z][\w.-]*\b"), f"{USER}@{HOST}"),
    (re.compile(r"\bGPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4,12}){4}\b"), "GPU-[serial]"),
    (re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b"), "[mac]"),
    (
        re.compile(
            r"(?<![\d.])(?:10(?:\.\d{1,3}){3}|192\.168(?:\.\d{1,3}){2}"
            r"|172\.(?:1[6-9]|2\d|3[01])(?:\.\d{1,3}){2}|169\.254(?:\.\d{1,3}){2}"
            r"|100\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7])(?:\.\d{1,3}){2})(?![\d.])"
        ),
        HOST,
    ),
    (  # unique local and link-local
        re.compile(
            r"(?i)(?<![\w:.])(?:f[cd][0-9a-f]{2}|fe[89ab][0-9a-f])(?::[0-9a-f]{0,4}){2,7}"
            r"(?:%\w+)?(?![\w:])"
        ),
        HOST,
    ),
    (re.compile(r"\bip-\d{1,3}(?:-\d{1,3}){3}\b"), HOST),
    (
        re.compile(
            r"\b[A-Za-z0-9][\w-]*(?:\.[\w-]+)*\.(?:local|internal|lan|corp|intranet"
            r"|amazonaws\.com|cloudapp\.net|googleusercontent\.com)\b"
        ),
        HOST,
    ),
)


# 40 characters of base64: an AWS secret key, or by chance a name; 40 of hex: a key of Weights &
# Biases, or a commit.
_BASE64_KEY = re.compile(r"(?<![\w+/=.-])[A-Za-z0-9+/]{40}(?![\w+/=.-])")
_HEX_KEY = re.compile(r"(?<![\w/@.+-])[0-9a-f]{40}(?![\w.-])")
_COMMIT = re.compile(r"(?i)(?:commit|git|sha|rev|hash|version|checkout|digest)[\w ]*\W{0,4}$")
_LEAST_ENTROPY = 4.4  # bits a character: a random key has 4.7 and more, a name of words 4.2

# A path, or something with a file ending.
_FILE = re.compile(
    r"[^\s\"'<>|(),;=]*(?:[/\\][^\s\"'<>|(),;=]*|\.(?:py|ipynb|jsonl?|gz|log|txt|csv|tsv|pt|pth|md|"
    r"html|ya?ml|toml|ini|cfg|sh|zip|tar|npy|npz|parquet|db|ckpt|safetensors|pkl|out|err|svg|png)\b)"
)
_LIBRARY = re.compile(r"(?:site|dist)-packages[/\\]")


class Scrubber:
    """Knows which names to remove, and learns more from the home paths that it sees.

    Args:
        users: user names in addition to those in home paths.
        here: also remove this machine's host name and the user's name and home.
    """

    def __init__(
        self, users: Iterable[str] = (), hosts: Iterable[str] = (), *, here: bool = True
    ) -> None:
        self._users = {name for name in users if name}
        self._hosts = {name for name in hosts if name}
        self._learned: set[str] = set()
        self._homes: set[str] = set()
        if here:
            self._know_this_machine()
        self._compile()

    def text(self, text: str) -> str:
        """``text`` without what this module's docstring lists."""
        for home in self._homes:
            text = text.replace(home, HOME)
        text = _HOME_PATH.sub(rf"\g<stem>{USER}", text)
        for pattern, put in _RULES:
            text = pattern.sub(put, text)
        text = _BASE64_KEY.sub(_unless_a_name, text)
        text = _HEX_KEY.sub(_unless_a_commit, text)
        if self._in_names is not None and self._in_names.search(text):
            text = _FILE.sub(self._without_users, text)
        for found, put in (
            (self._in_paths, USER),
            (self._user_words, USER),
            (self._host_words, HOST),
        ):
            if found is not None:
                text = found.sub(put, text)
        return text

    def scrub(self, value: T) -> T:
        """A copy of a trace, result, mapping or list with all text scrubbed.

        Anything that is not text, or a dataclass, mapping, list, tuple or set of text, stays
        unchanged; bytes become empty.
        """
        before = len(self._learned)
        self._walk(value, functools.cache(self._learn))
        if len(self._learned) > before:
            self._compile()
        # a trace repeats the same texts
        result: T = self._walk(value, functools.cache(self.text))
        return result

    def _know_this_machine(self) -> None:
        # a container may have no entry for its user
        with contextlib.suppress(OSError, KeyError, ImportError):
            self._users.add(getpass.getuser())
        home = os.path.expanduser("~")  # noqa: PTH111
        if home.count(os.sep) >= 2:
            self._homes.add(home)
            self._users.add(os.path.basename(home))  # noqa: PTH119
        host = socket.gethostname()
        self._hosts |= {host, host.split(".")[0]}

    def _without_users(self, file: re.Match[str]) -> str:
        own = _LIBRARY.split(file[0], maxsplit=1)[0]  # torch's adam.py is not a user's file
        said = own if self._in_names is None else self._in_names.sub(USER, own)
        return said + file[0][len(own) :]

    def _compile(self) -> None:
        names = self._learned | self._users
        self._in_names = _pattern(names, r"(?<![A-Za-z0-9])(?:{})(?![A-Za-z0-9])")
        self._in_paths = _pattern(self._learned | self._users, r"(?<=[/\\])(?:{})(?=[/\\]|$)")
        self._user_words = _pattern(self._users, r"(?<![\w.-])(?:{})(?![\w-])")
        self._host_words = _pattern(self._hosts, r"(?<![\w-])(?:{})(?![\w-])")

    def _learn(self, text: str) -> str:
        for found in _HOME_PATH.finditer(text):
            self._learned.add(found["name"])
        return text

    def _walk(self, value: Any, do: Callable[[str], str]) -> Any:
        if type(value) in _NO_TEXT:  # most of a trace
            return value
        if isinstance(value, str):
            return do(value)
        if isinstance(value, bytes | bytearray):
            return b""
        if isinstance(value, PurePath):
            return type(value)(do(str(value)))
        if isinstance(value, Mapping):
            return self._mapping(value, do)
        if isinstance(value, list | set | frozenset) or type(value) is tuple:
            found = [self._walk(x, do) for x in value]
            if isinstance(value, list | tuple):
                _clear_arguments(found)
            return type(value)(found)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, do)
        return value

    def _mapping(self, value: Mapping[Any, Any], do: Callable[[str], str]) -> Any:
        if len(_ENV_KEYS.intersection(value)) >= 3:
            return {ENVIRONMENT: ENVIRONMENT}
        result = {}
        for key, item in value.items():
            if isinstance(key, str) and key.lower() in _ENV_NAMES:
                result[key] = ENVIRONMENT
            elif isinstance(item, str) and isinstance(key, str) and _is_secret(key):
                result[key] = SECRET
            else:
                result[do(key) if isinstance(key, str) else key] = self._walk(item, do)
        return result

    def _dataclass(self, value: Any, do: Callable[[str], str]) -> Any:
        changed = {}
        for f in dataclasses.fields(value):
            if f.init:
                item = getattr(value, f.name)
                # the folders of a file name people and projects
                item = PurePath(item).name if f.metadata.get("share") == "file name" else item
                changed[f.name] = self._walk(item, do)
        return dataclasses.replace(value, **changed)


def scrub(value: T) -> T:
    """:meth:`Scrubber.scrub` with this machine's names."""
    return Scrubber().scrub(value)


def _unless_a_name(found: re.Match[str]) -> str:
    """A key of 40 characters is random; a path or a name made of words is not."""
    text = found[0]
    kinds = (str.islower, str.isupper, str.isdigit)
    if not all(any(map(kind, text)) for kind in kinds) or text.count("/") > 3:
        return text
    n = len(text)
    entropy = -sum(k / n * math.log2(k / n) for k in Counter(text).values())
    return SECRET if entropy >= _LEAST_ENTROPY else text


def _unless_a_commit(found: re.Match[str]) -> str:
    before = found.string[max(found.start() - 24, 0) : found.start()]
    return found[0] if _COMMIT.search(before) else SECRET


def _clear_arguments(texts: list[Any]) -> None:
    """Clear the value after ``--password`` in a command given as a list."""
    for i, (flag, value) in enumerate(itertools.pairwise(texts)):
        if not (isinstance(flag, str) and isinstance(value, str) and _is_flag(flag)):
            continue
        if value and not value.startswith("-") and not _is_setting(flag, value):
            texts[i + 1] = SECRET


@functools.lru_cache(maxsize=4096)
def _is_flag(text: str) -> bool:
    return re.fullmatch(rf"(?i){_FLAG}", text) is not None


def _is_setting(flag: str, value: str) -> bool:
    return "passw" not in flag.lower() and re.fullmatch(r"[\d.]+", value) is not None


def _pattern(names: set[str], around: str) -> re.Pattern[str] | None:
    telling = [n for n in names if len(n) >= 3 and n.lower() not in _ANYBODY]
    telling.sort(key=lambda n: (-len(n), n))  # the longest match first
    if not telling:
        return None
    return re.compile(around.format("|".join(map(re.escape, telling))))


@functools.lru_cache(maxsize=4096)
def _is_secret(key: str) -> bool:
    return re.search(rf"(?i){_CALLED}(?![a-z])", key) is not None
