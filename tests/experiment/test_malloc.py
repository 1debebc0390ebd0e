"""Finding an allocator: the file name is not enough, it must work in a program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit import show
from perfkit.base.errors import SettingError
from perfkit.base.machine import facts
from perfkit.experiment import CATALOGUE
from perfkit.experiment.settings import _malloc, check_values, resolve

linux = pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD works on Linux only")
compiles = pytest.mark.skipif(shutil.which("cc") is None, reason="makes a library with cc")


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(_malloc, "_FOLDERS", ())
    _malloc._found.cache_clear()
    yield
    _malloc._found.cache_clear()


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Makes a library that the loader finds, with one function."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    def make(name, function):
        source = tmp_path / "source.c"
        source.write_text(f"int {function}(void) {{ return 0; }}\n")
        target = tmp_path / name
        subprocess.run(["cc", "-shared", "-fPIC", "-o", target, source], check=True)
        return target

    return make


@linux
@pytest.mark.parametrize("name", ["jemalloc", "tcmalloc"])
def test_none_there_says_which_package(name):
    found = _malloc.find(name)
    assert found.path is None
    assert f"lib{name} is not found on this machine" in found.reason
    assert "apt-get install" in found.reason
    with pytest.raises(SettingError, match="not available on this machine: lib"):
        check_values(resolve(["malloc"]), {"malloc": name}, facts())


def test_elsewhere_it_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "works on Linux only" in _malloc.find("jemalloc").reason


@linux
@compiles
def test_a_library_that_serves_is_found_and_put_in_front(library, monkeypatch):
    path = str(library("libjemalloc.so.2", "mallctl"))
    assert _malloc.find("jemalloc") == _malloc.Library(path, None)
    assert _malloc.environment("jemalloc") == {"LD_PRELOAD": path}
    monkeypatch.setenv("LD_PRELOAD", "/lib/libother.so /x/libtcmalloc.so.4")
    assert _malloc.environment("jemalloc") == {"LD_PRELOAD": f"{path}:/lib/libother.so"}


@linux
@compiles
def test_a_library_of_another_kind_is_not_taken(library):
    path = library("libjemalloc.so.2", "something_else")
    found = _malloc.find("jemalloc")
    assert found.path is None
    assert f"{path} does not serve as malloc" in found.reason
    assert "mallctl" in found.reason


@linux
def test_a_file_that_is_no_library_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    (tmp_path / "libtcmalloc_minimal.so.4").write_text("no library")
    found = _malloc.find("tcmalloc")
    assert found.path is None
    assert "does not serve as malloc" in found.reason


@linux
@compiles
def test_a_path_that_the_variable_cannot_name_is_not_taken(library, tmp_path, monkeypatch):
    inner = tmp_path / "a b"
    inner.mkdir()
    library("libjemalloc.so.2", "mallctl").rename(inner / "libjemalloc.so.2")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(inner))
    assert "is not found" in _malloc.find("jemalloc").reason


@linux
def test_the_system_malloc_takes_out_another(monkeypatch):
    assert _malloc.environment("system") == {}
    monkeypatch.setenv("LD_PRELOAD", "/x/libjemalloc.so.2:/lib/libother.so")
    assert _malloc.environment("system") == {"LD_PRELOAD": "/lib/libother.so"}
    monkeypatch.setenv("LD_PRELOAD", "/x/libjemalloc.so.2")
    assert _malloc.environment("system") == {"LD_PRELOAD": ""}


def seen_in_the_process(s):
    print("MAPS", [one for one in Path("/proc/self/maps").read_text().split() if "lib" in one])
    yield 1


seen_in_the_process.__module__ = "__main__"


@pytest.mark.slow
@linux
@compiles
@pytest.mark.parametrize("name", ["jemalloc", "tcmalloc"])
def test_it_is_in_the_process_of_the_run_and_only_there(library, session, name):
    path = library(f"lib{name}.so.2", _malloc._OWN_SYMBOL[name])
    one = session(seen_in_the_process, ["malloc"])
    assert str(path) in one.run(malloc=name).output
    assert str(path) not in one.run(malloc="system").output
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert CATALOGUE["malloc"].takes_effect == "process"


@linux
def test_keep_is_glibc_with_its_variables_and_refused_elsewhere(monkeypatch):
    monkeypatch.setattr(_malloc.platform, "libc_ver", lambda: ("glibc", "2.36"))
    assert _malloc.why_not("keep") is None
    found = _malloc.environment("keep")
    assert found["MALLOC_MMAP_MAX_"] == "0"
    assert "LD_PRELOAD" not in found
    monkeypatch.setenv("LD_PRELOAD", "/x/libjemalloc.so.2")
    assert _malloc.environment("keep")["LD_PRELOAD"] == ""  # glibc's is wanted, not jemalloc
    monkeypatch.setattr(_malloc.platform, "libc_ver", lambda: ("", ""))
    assert "glibc's" in _malloc.why_not("keep")
    with pytest.raises(SettingError, match="not available on this machine"):
        check_values(resolve(["malloc"]), {"malloc": "keep"}, facts())
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "glibc's" in _malloc.why_not("keep")


def new_memory_in_each_step(s):
    import torch

    while True:
        made = torch.ones(12_000_000)  # 48 MB, above what glibc's own threshold may rise to
        del made
        yield 1


new_memory_in_each_step.__module__ = "__main__"


@pytest.mark.slow
@linux
def test_page_faults_of_a_step_are_counted_and_keep_has_none(session):
    if _malloc.why_not("keep"):
        pytest.skip("needs glibc")
    one = session(new_memory_in_each_step, ["malloc"], seconds=2)
    system, keep = one.run(malloc="system"), one.run(malloc="keep")
    huge_pages = 48_000_000 / 2**21  # the fewest, where the system gives huge ones
    assert system.faults_per_step >= huge_pages - 1
    assert keep.faults_per_step < system.faults_per_step / 10
    assert len(keep.page_faults) == keep.n_steps
    assert "page faults a step" in str(keep)
    assert "page faults" in show.text([system, keep])
    assert os.environ.get("MALLOC_MMAP_MAX_") is None  # only that process had it
