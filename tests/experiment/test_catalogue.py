"""The description of every setting."""

from __future__ import annotations

import dataclasses

import pytest

from perfkit.base import lessons
from perfkit.base.errors import SettingError
from perfkit.experiment import Setting, Settings
from perfkit.experiment.settings import setting
from perfkit.experiment.settings.catalogue import CATALOGUE


def test_the_catalogue_is_whole():
    assert set(CATALOGUE) == {
        "storage", "num_workers", "prefetch_factor", "persistent_workers", "in_order", "collate",
        "uint8", "pin_memory", "non_blocking",
        "batch_size", "accumulate", "set_to_none", "loss", "precision", "channels_last", "compile",
        "cuda_graphs", "fused", "foreach", "checkpointing",
        "threads", "affinity", "malloc", "alloc_conf", "cudnn_benchmark", "deterministic",
        "world_size", "bucket_cap_mb",
    }  # fmt: skip


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_setting_says_what_it_is(name):
    one = CATALOGUE[name]
    assert one.name == name
    assert one.label
    assert one.help.endswith(".")
    assert one.numerics in ("none", "rounding", "changes what is learnt")
    assert one.numerics_note.endswith(".")
    assert one.takes_effect in ("step", "rebuild", "process")
    assert one.applied_by in ("perfkit", "workload") or callable(getattr(Settings, one.applied_by))


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_default_and_value_is_taken_as_it_is(name):
    one = CATALOGUE[name]
    assert one.default in one.values
    assert len({repr(v) for v in one.values}) == len(one.values) > 0
    for value in one.values:
        assert one.check(value) is value
    for wrong in (object(), None, "no such value", float("nan"), [1], -1):
        with pytest.raises(SettingError, match=f"^{name}=.* is not valid: it takes "):
            one.check(wrong)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_setting_is_no_helper(name):
    """``settings.name`` must give the value."""
    assert not hasattr(Settings, name)
    assert getattr(Settings({name: 7}), name) == 7


def test_only_a_setting_of_a_fresh_program_has_an_environment():
    for one in CATALOGUE.values():
        assert (one.environment is not None) is (one.takes_effect == "process"), one.name
    assert CATALOGUE["alloc_conf"].environment("default") == {}
    assert CATALOGUE["alloc_conf"].environment("max_split_size_mb:64") == {
        "PYTORCH_ALLOC_CONF": "max_split_size_mb:64"
    }


def test_a_value_that_a_machine_may_lack_says_what_it_needs():
    needy = {name for name, one in CATALOGUE.items() if one.needs}
    unasked = Setting("x", "x", (1,), 1, "menu", "step")._need
    assert needy == {name for name, one in CATALOGUE.items() if one._need is not unasked}


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("default", True),
        ("expandable_segments:True,garbage_collection_threshold:0.8", True),
        ("roundup_power2_divisions:[256:1,512:2,>:8]", True),
        ("", False),
        ("expandable_segments", False),
        ("a:b c", False),
        ("a:b,,c:d", False),
        ("a:b\nc:d", False),
        ("a:b\n", False),
        ("a:\x00", False),
        ("a:" + "b" * 2000, False),
    ],
)
def test_allocator_options_have_the_form_of_the_variable(value, taken):
    if taken:
        assert CATALOGUE["alloc_conf"].check(value) == value
    else:
        with pytest.raises(SettingError):
            CATALOGUE["alloc_conf"].check(value)


def test_what_a_reader_is_told(monkeypatch):
    monkeypatch.setattr(lessons, "_courses", lambda: (lambda kind, name: f"{kind}-{name}",))
    told = CATALOGUE["malloc"].about()
    assert told.startswith(CATALOGUE["malloc"].help)
    assert "fresh program" in told
    assert told.endswith("Lesson setting-malloc.")
    assert "Results: Products keep" in CATALOGUE["precision"].about()
    monkeypatch.setattr(lessons, "_courses", lambda: ())
    assert told.removesuffix(" Lesson setting-malloc.") == CATALOGUE["malloc"].about()
    bare = dataclasses.replace(CATALOGUE["storage"], help="")
    assert bare.about() == ""


def test_a_value_that_only_the_workload_reads_can_be_declared():
    with pytest.raises(SettingError, match=r"perfkit\.setting\('storage', \[\.\.\.\]\)"):
        CATALOGUE["storage"].check("packed")
    assert setting("storage", ["files", "packed"]).check("packed") == "packed"
    with pytest.raises(SettingError) as caught:
        CATALOGUE["num_workers"].check(-1)
    assert "perfkit.setting" not in str(caught.value)
