"""Take out of a trace or a report what is nobody's business, before it is shared.

Removed, wherever text stands (names, call stacks, thread and process names, metadata, paths):

* names of users: in home paths of Linux, macOS and Windows, then in any other path; before an
  ``@``; and the name and home of whoever runs perfkit here, wherever they stand as a word;
* names of hosts: this machine's, whatever follows ``user@``, names that end in ``.local``,
  ``.internal``, ``.lan``, ``.corp`` or a cloud's domain, private IPv4 addresses, MAC addresses,
  serial numbers (UUIDs) of GPUs;
* e-mail addresses, credentials in URLs, private keys;
* tokens: of GitHub, GitLab, Hugging Face, OpenAI, Anthropic, AWS, Google, Slack, Weights &
  Biases, JSON web tokens, bearer headers, and the value of whatever is called password,
  secret, token, api key, access key or signature;
* environment dumps: mappings of environment variables, and three or more ``NAME=value`` in a
  row; the bytes of a trace as torch wrote it, in which any of this may stand.

It cannot know what looks like ordinary text: names of projects, models, data sets and functions,
a person's name in a folder that is no home, a token without a known shape under an innocent
name, public host names and addresses, comments in source lines. Look at what you share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import getpass
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, TypeVar

from perfkit.trace.columns import Trace

__all__ = ["Scrubber", "scrub"]

USER, HOST, HOME, SECRET = "[user]", "[host]", "[home]", "[secret]"
EMAIL, ENVIRONMENT = "[email]", "[environment]"

T = TypeVar("T")

_NO_TEXT = frozenset({int, float, bool, type(None)})

# Names that many machines share tell nothing, and as words they stand in ordinary text.
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
    r"gh[pousr]_[A-Za-z0-9]{20,}",
    r"github_pat_[A-Za-z0-9_]{20,}",
    r"glpat-[A-Za-z0-9_-]{16,}",
    r"hf_[A-Za-z0-9]{20,}",
    r"sk-(?:ant-|proj-)?[A-Za-z0-9_-]{20,}",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    r"AIza[A-Za-z0-9_-]{30,}",
    r"ya29\.[A-Za-z0-9_-]{20,}",
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    r"npm_[A-Za-z0-9]{30,}",
    r"pypi-[A-Za-z0-9_-]{30,}",
)
_CALLED = (
    r"(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|credential|"
    r"private[_-]?key|signature|authorization)"
)
# Quoted, or long with a digit in it: `token = self.embed(x)` is code, no secret.
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
    (re.compile(r"(?i)\b(WANDB_API_KEY\W+)[0-9a-f]{32,}"), rf"\1{SECRET}"),
    (re.compile(r"(://)[^\s/@:]+(?::[^\s/@]*)?@"), rf"\1{SECRET}@"),
    (
        re.compile(rf"(?i)(\b[\w-]*{_CALLED}(?![a-z])[\w-]*[\"']?\s*[=:]\s*){_VALUE}"),
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
            r"|172\.(?:1[6-9]|2\d|3[01])(?:\.\d{1,3}){2})(?![\d.])"
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


class Scrubber:
    """Knows which names to take out; learns more from the home paths that it sees.

    Args:
        users: names of users beside those that home paths tell.
        hosts: names of hosts.
        here: also this machine's own: its host name, and the user's name and home.
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
        """``text`` without what this module's head lists."""
        for home in self._homes:
            text = text.replace(home, HOME)
        text = _HOME_PATH.sub(rf"\g<stem>{USER}", text)
        for pattern, put in _RULES:
            text = pattern.sub(put, text)
        for found, put in (
            (self._in_paths, USER),
            (self._user_words, USER),
            (self._host_words, HOST),
        ):
            if found is not None:
                text = found.sub(put, text)
        return text

    def scrub(self, value: T) -> T:
        """A copy of a trace, result, mapping or list in which every text is scrubbed.

        What is no text, and no dataclass, mapping, list, tuple or set of texts, stays as it is;
        bytes become empty.
        """
        before = len(self._learned)
        self._walk(value, functools.cache(self._learn))
        if len(self._learned) > before:
            self._compile()
        # in a trace the same texts come again and again
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

    def _compile(self) -> None:
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
            return type(value)(self._walk(x, do) for x in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, do)
        return value

    def _mapping(self, value: Mapping[Any, Any], do: Callable[[str], str]) -> Any:
        if len(value) >= 3 and len(_ENV_KEYS.intersection(value)) >= 3:
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
        changed = {
            f.name: self._walk(getattr(value, f.name), do)
            for f in dataclasses.fields(value)
            if f.init
        }
        if isinstance(value, Trace):  # folders above a trace are names of people and projects
            changed["source"] = do(PurePath(value.source).name)
        return dataclasses.replace(value, **changed)


def scrub(value: T) -> T:
    """:meth:`Scrubber.scrub` with what is known of this machine."""
    return Scrubber().scrub(value)


def _pattern(names: set[str], around: str) -> re.Pattern[str] | None:
    telling = [n for n in names if len(n) >= 3 and n.lower() not in _ANYBODY]
    telling.sort(key=lambda n: (-len(n), n))  # the longest that fits
    if not telling:
        return None
    return re.compile(around.format("|".join(map(re.escape, telling))))


@functools.lru_cache(maxsize=4096)
def _is_secret(key: str) -> bool:
    return re.search(rf"(?i){_CALLED}(?![a-z])", key) is not None
