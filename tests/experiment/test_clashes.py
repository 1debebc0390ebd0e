"""Settings that do not work together: refused with a reason, or noted as without effect."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.base.errors import SettingError
from perfkit.base.machine import facts
from perfkit.base.machine._capabilities import Capability
from perfkit.base.machine._gpu import Gpu
from perfkit.experiment import CATALOGUE, setting
from perfkit.experiment.settings import check_values, clash, conflicts, resolve

ALL = tuple(CATALOGUE.values())


def machine(*, n_gpus=0, cores=4):
    gpus = tuple(Gpu(i, "NVIDIA H200", 2**37, (9, 0), "580", "NVML") for i in range(n_gpus))
    names = ("gpu", "compile", "bf16", "fp16", "tf32")
    capabilities = tuple(Capability(name, bool(n_gpus), "no GPU driver answers") for name in names)
    return replace(facts(), gpus=gpus, capabilities=capabilities, cores=cores)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"deterministic": True, "cudnn_benchmark": True}, "another run may choose others"),
        ({"fused": True, "foreach": True}, "torch refuses both"),
        ({"cuda_graphs": True, "collate": "pad"}, "these batches change"),
        ({"cuda_graphs": True, "collate": "bucket"}, "these batches change"),
        ({"cuda_graphs": True, "accumulate": 2}, "accumulate=1"),
        ({"cuda_graphs": True, "precision": "fp16"}, "gradient scaler"),
        ({"cuda_graphs": True, "checkpointing": True}, "random state"),
        ({"cuda_graphs": True, "compile": "reduce-overhead"}, "both would capture"),
        ({"cuda_graphs": True, "compile": "max-autotune"}, "both would capture"),
        ({"cuda_graphs": True, "world_size": 2}, "world_size=1"),
    ],
)
def test_refused_together_but_not_alone(values, words):
    settings = resolve(list(values))
    here = machine(n_gpus=2)
    with pytest.raises(SettingError, match=words) as caught:
        check_values(settings, values, here)
    assert all(name in str(caught.value) for name in values)
    for name, value in values.items():
        assert check_values(settings, {name: value}, here)[name] == value


def test_own_settings_of_other_names_never_clash():
    own = (setting("graphs", [True]), setting("accumulations", [4]))
    assert clash(own, {"graphs": True, "accumulations": 4}) is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_workers": 0, "persistent_workers": True}, "persistent_workers has no effect"),
        ({"num_workers": 0, "prefetch_factor": 4}, "prefetch_factor has no effect"),
        ({"num_workers": 0, "in_order": False}, "in_order has no effect"),
        ({"num_workers": 0, "affinity": "apart"}, "affinity='apart' has no effect"),
        ({"affinity": "apart"}, "one core for all loader workers"),
        ({"affinity": "one", "threads": 2}, "2 threads share one core"),
        ({"non_blocking": True, "pin_memory": False}, "memory that is not pinned"),
        ({"world_size": 1, "bucket_cap_mb": 1}, "bucket_cap_mb has no effect"),
        ({"fused": True, "foreach": False}, "foreach off has no effect"),
        ({"world_size": 2}, "those of rank 0 of 2"),
    ],
)
def test_without_effect_is_told_and_runs(values, words):
    settings = resolve(list(values))
    here = machine(n_gpus=0 if "world_size" in values else 1)
    assert check_values(settings, values, here) == values
    (told,) = conflicts(settings, values, here)
    assert words in told


def test_with_effect_nothing_is_told():
    here = machine()
    with_workers = {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True}
    assert conflicts(resolve(list(with_workers)), with_workers, here) == ()
    defaults = {one.name: one.default for one in ALL} | {"threads": 1}
    assert conflicts(ALL, defaults, here) == ()


def test_allocator_options_of_this_process_are_told(monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    (told,) = conflicts(resolve(["alloc_conf"]), {"alloc_conf": "default"}, machine())
    assert "PYTORCH_ALLOC_CONF=max_split_size_mb:64 of this process stays" in told


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("precision", "fp16", "fp16 training needs a GPU"),
        ("precision", "tf32", "NVIDIA"),
        ("pin_memory", True, "serves copies to a GPU"),
        ("non_blocking", True, "no copy to wait for"),
        ("cuda_graphs", True, "work for a GPU"),
        ("compile", "reduce-overhead", "CUDA graphs"),
        ("cudnn_benchmark", True, "NVIDIA GPUs"),
        ("alloc_conf", "expandable_segments:True", "GPU memory"),
    ],
)
def test_without_a_gpu_the_reason_names_it(name, value, words):
    with pytest.raises(SettingError, match="not available on this machine") as caught:
        check_values(resolve([name]), {name: value}, machine())
    assert words in str(caught.value)
    assert "no GPU driver answers" in str(caught.value)
    assert CATALOGUE[name].unavailable(CATALOGUE[name].default, machine()) is None


def test_processes_need_a_gpu_each_where_there_are_some():
    one = CATALOGUE["world_size"]
    assert (
        one.unavailable(2, machine(n_gpus=1)) == "2 processes need 2 GPUs, and this machine has 1"
    )
    assert one.unavailable(2, machine(n_gpus=2)) is None
    assert one.note(2, machine(n_gpus=2, cores=1)) is None
    assert (
        one.note(4, machine(cores=2)) == "4 processes share 2 cores: those that compute take turns"
    )
    assert one.unavailable(2, replace(machine(), torch=None)) == "torch is not installed"


def test_processes_without_gloo(monkeypatch):
    import torch.distributed

    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    assert "built without gloo" in CATALOGUE["world_size"].unavailable(2, machine())


def test_one_core_cannot_be_shared_out():
    one = CATALOGUE["affinity"]
    assert "two cores" in one.unavailable("apart", machine(cores=1))
    assert one.unavailable("one", machine(cores=1)) is None


any_value = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.binary(),
    st.lists(st.integers(), max_size=2), st.sampled_from([v for one in ALL for v in one.values]),
)  # fmt: skip
their_values = st.fixed_dictionaries(
    {}, optional={one.name: st.sampled_from(one.values) for one in ALL}
)


@given(their_values, st.integers(0, 4), st.integers(1, 8))
def test_any_combination_of_offered_values_resolves_or_is_refused(values, n_gpus, cores):
    _resolves_or_is_refused(values, machine(n_gpus=n_gpus, cores=cores))


@pytest.mark.slow
@given(st.dictionaries(st.one_of(st.sampled_from(list(CATALOGUE)), st.text()), any_value))
def test_any_values_at_all_resolve_or_are_refused(values):
    _resolves_or_is_refused(values, machine(n_gpus=1))


def _resolves_or_is_refused(values, here):
    names = [name for name in values if name in CATALOGUE]
    try:
        chosen = check_values(resolve(names), values, here)
    except SettingError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert said.isprintable()
        return
    assert set(chosen) == set(values)
    assert clash(resolve(names), chosen) is None
    assert all(isinstance(note, str) for note in conflicts(resolve(names), chosen, here))
    assert check_values(resolve(names), chosen, here) == chosen
