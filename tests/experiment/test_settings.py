from __future__ import annotations

import copy
import os
import pickle
from dataclasses import replace

import cloudpickle
import numpy as np
import pytest
import torch

from perfkit.base.errors import SettingError
from perfkit.base.machine import facts
from perfkit.base.machine._capabilities import Capability
from perfkit.base.machine._gpu import Gpu
from perfkit.experiment.settings import (
    CATALOGUE,
    Settings,
    check_values,
    resolve,
    setting,
)


def machine(*, gpu=False, compiler=True, cores=4, bf16=True):
    gpus = (Gpu(0, "NVIDIA H200", 2**37, (9, 0), "580", "NVML"),) if gpu else ()
    capabilities = (
        Capability("gpu", gpu, "one is there" if gpu else "no GPU driver answers"),
        Capability("compile", compiler, "no C++ compiler is found", "install g++"),
        *(Capability(name, gpu or (bf16 and name == "bf16"), "x") for name in ("bf16", "fp16")),
        Capability("tf32", gpu, "x"),
    )
    return replace(facts(), gpus=gpus, capabilities=capabilities, cores=cores)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_workers", -1),
        ("num_workers", 10_000),
        ("num_workers", True),
        ("num_workers", 1.5),
        ("batch_size", 0),
        ("batch_size", "abc"),
        ("batch_size", float("nan")),
        ("prefetch_factor", 0),
        ("pin_memory", 1),
        ("pin_memory", "yes"),
        ("precision", "fp8"),
        ("threads", 0),
        ("threads", None),
    ],
)
def test_absurd_values_are_refused_in_one_line(name, value):
    with pytest.raises(SettingError, match=f"{name}={value!r} is not valid: it takes") as caught:
        CATALOGUE[name].check(value)
    assert "\n" not in str(caught.value)


def test_numpy_numbers_become_plain_ones():
    assert type(CATALOGUE["num_workers"].check(np.int64(2))) is int
    assert CATALOGUE["pin_memory"].check(np.bool_(True)) is True


def test_without_a_gpu():
    here = machine(gpu=False)
    assert "no GPU driver answers" in CATALOGUE["pin_memory"].unavailable(True, here)
    assert CATALOGUE["pin_memory"].unavailable(False, here) is None
    told = {
        v: CATALOGUE["precision"].unavailable(v, here) for v in ("fp32", "tf32", "bf16", "fp16")
    }
    assert told["fp32"] is None
    assert told["bf16"] is None
    assert "NVIDIA" in told["tf32"]
    assert "bf16 on a CPU" in told["fp16"]


def test_with_a_gpu_everything_is_available():
    here = machine(gpu=True)
    for one in CATALOGUE.values():
        if one.name in ("malloc", "world_size"):  # these ask for more than a GPU
            continue
        assert [one.unavailable(value, here) for value in one.values] == [None] * len(one.values)


def test_compile_without_a_compiler_says_how_to_get_one():
    here = machine(compiler=False)
    assert "install g++" in CATALOGUE["compile"].unavailable(True, here)
    assert CATALOGUE["compile"].unavailable(False, here) is None


def test_more_workers_than_cores_work_with_a_note():
    here = machine(cores=2)
    assert CATALOGUE["num_workers"].unavailable(8, here) is None
    assert "8 workers share 2 cores" in CATALOGUE["num_workers"].note(8, here)
    assert CATALOGUE["num_workers"].note(2, here) is None


def test_emulated_bf16_works_with_a_note():
    assert CATALOGUE["precision"].note("bf16", machine(bf16=False)) == "x"
    assert CATALOGUE["precision"].note("bf16", machine(bf16=True)) is None


def test_own_setting_in_one_line():
    one = setting("augment", [False, True])
    assert (one.control, one.default, one.label) == ("checkbox", False, "augment")
    assert setting("crop_size", [64, 128, 224], default=128).control == "slider"
    assert setting("crop_size", [64, 128, 224]).label == "crop size"
    assert setting("store", ["files", "ram"]).control == "menu"
    assert setting("depth", range(1, 4)).values == (1, 2, 3)
    assert setting("depth", np.arange(2)).values == (0, 1)


def test_own_setting_takes_exactly_its_values():
    one = setting("store", ["files", "ram"])
    with pytest.raises(SettingError, match="it takes one of 'files', 'ram'"):
        one.check("ssd")
    number = setting("n", [0, 1, 2])
    with pytest.raises(SettingError):
        number.check(True)


def test_a_catalogue_name_keeps_its_rule():
    one = setting("batch_size", [32, 96])
    assert one.values == (32, 96)
    assert one.default == 32
    with pytest.raises(SettingError):
        setting("batch_size", [0, 32])


def test_a_declared_catalogue_setting_takes_the_workloads_own_values():
    one = setting("storage", ["files", "ram"], default="ram")
    assert (one.values, one.default) == (("files", "ram"), "ram")
    with pytest.raises(SettingError, match="it takes one of 'files', 'ram'"):
        one.check("memmap")


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("not a name", [1], "cannot be called"),
        ("class", [1], "cannot be called"),
        ("keys", [1], "means something else"),
        ("device", [1], "means something else"),
        ("_x", [1], "means something else"),
        ("x", [], "no values"),
        ("x", "abc", "must be a list"),
        ("x", 3, "must be a list"),
        ("x", [1, 1], "appears twice"),
        ("x", [object()], "cannot be a value"),
        ("x", [1.0, float("inf")], "inf cannot be a value, because a store"),
        ("x", [float("nan")], "nan cannot be a value, because a store"),
        ("x", range(10**9), "more than 1000"),
    ],
)
def test_own_settings_that_cannot_be(name, values, words):
    with pytest.raises(SettingError, match=words):
        setting(name, values)


def test_resolve_names_the_nearest():
    with pytest.raises(SettingError, match="did you mean 'num_workers'"):
        resolve(["num_worker"])
    with pytest.raises(SettingError, match="given twice"):
        resolve(["fused", setting("fused", [False, True])])
    with pytest.raises(SettingError, match="must be a list"):
        resolve("fused")
    with pytest.raises(SettingError, match="is not a setting"):
        resolve([3])
    with pytest.raises(SettingError, match=r"must be a list, .* to choose the values"):
        resolve({"num_workers": [0, 1]})


def test_check_values_fills_in_defaults_and_refuses_the_rest():
    settings = resolve(["num_workers", setting("augment", [False, True])])
    here = machine()
    assert check_values(settings, {"num_workers": 2}, here) == {"num_workers": 2, "augment": False}
    with pytest.raises(SettingError, match="did you mean 'augment'"):
        check_values(settings, {"augmnt": True}, here)
    with pytest.raises(SettingError, match=r"add it to settings=\[…\]"):
        check_values(settings, {"batch_size": 8}, here)
    with pytest.raises(SettingError, match="not available on this machine"):
        check_values(resolve(["pin_memory"]), {"pin_memory": True}, here)


def test_settings_read_as_mapping_and_as_attributes():
    s = Settings({"num_workers": 2}, fused=True)
    assert s["num_workers"] == s.num_workers == 2
    assert dict(s) == {"num_workers": 2, "fused": True}
    assert "num_workers" in dir(s)
    assert "batch_size" not in s
    assert s.get("batch_size", 7) == 7
    assert not hasattr(s, "batch_sise")


def test_a_misspelt_setting_names_the_nearest():
    s = Settings(num_workers=2)
    with pytest.raises(SettingError, match="did you mean 'num_workers'") as caught:
        s.num_wrokers  # noqa: B018
    assert not str(caught.value).startswith(("'", '"'))
    with pytest.raises(SettingError, match="not declared here: add it"):
        s["batch_size"]
    with pytest.raises(SettingError, match="fixed"):
        s.num_workers = 3


@pytest.mark.parametrize("travel", [copy.copy, copy.deepcopy])
def test_settings_can_be_copied(travel):
    assert travel(Settings(a=1)) == Settings(a=1)


@pytest.mark.parametrize("module", [pickle, cloudpickle])
def test_settings_travel(module):
    assert dict(pickle.loads(module.dumps(Settings(a=1, b=None)))) == {"a": 1, "b": None}


def test_a_loaders_own_arguments_hold_where_no_setting_is_declared():
    own = {"batch_size": 32, "shuffle": True, "num_workers": 2, "persistent_workers": True}
    assert Settings().loader_kwargs(**own) == own
    assert Settings(batch_size=8).loader_kwargs(**own) == own | {"batch_size": 8}
    # torch refuses persistent workers where there are none
    alone = Settings(num_workers=0).loader_kwargs(**own)
    assert alone == {"batch_size": 32, "shuffle": True, "num_workers": 0}
    torch.utils.data.DataLoader(torch.zeros(4), **alone)
    # it refuses these there, too
    own = {"num_workers": 2, "timeout": 60, "multiprocessing_context": "spawn"}
    assert Settings().loader_kwargs(**own) == own
    assert Settings(num_workers=0).loader_kwargs(**own) == {"num_workers": 0}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no cores to choose here")
def test_workers_on_their_own_cores_begin_as_yours_do(monkeypatch):
    pinned, begun = [], []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append(pid))
    settings = Settings(affinity="apart", num_workers=1)
    settings.loader_kwargs(worker_init_fn=begun.append)["worker_init_fn"](3)
    assert (pinned, begun) == ([0], [3])
    settings.loader_kwargs()["worker_init_fn"](4)
    assert (pinned, begun) == ([0, 0], [3])


def test_loader_kwargs_leave_out_what_torch_refuses():
    alone = Settings(num_workers=0, prefetch_factor=4, persistent_workers=True, batch_size=3)
    assert alone.loader_kwargs() == {"num_workers": 0, "batch_size": 3}
    torch.utils.data.DataLoader(torch.zeros(4), **alone.loader_kwargs())
    some = Settings(num_workers=1, prefetch_factor=4, persistent_workers=True)
    assert some.loader_kwargs() == dict(some)
    assert Settings(augment=True).loader_kwargs() == {}


def test_optimizer_kwargs_fit_any_optimizer_when_off():
    model = torch.nn.Linear(2, 2)
    torch.optim.RMSprop(model.parameters(), **Settings(fused=False).optimizer_kwargs())
    fused = torch.optim.SGD(model.parameters(), **Settings(fused=True).optimizer_kwargs())
    assert fused.defaults["fused"] is True


def test_autocast_follows_the_precision():
    layer, x = torch.nn.Linear(2, 2), torch.zeros(1, 2)
    layer, x = layer.to(Settings().device), x.to(Settings().device)
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        with Settings(precision=precision).autocast():
            assert layer(x).dtype is dtype
    with Settings().autocast():
        assert layer(x).dtype is torch.float32
    assert not Settings(precision="bf16").grad_scaler().is_enabled()


def test_prepare_lays_out_the_model():
    conv = Settings(channels_last=True).prepare(torch.nn.Conv2d(3, 4, 3))
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)
    plain = Settings(channels_last=False).prepare(torch.nn.Conv2d(3, 4, 3))
    assert not plain.weight.is_contiguous(memory_format=torch.channels_last)
    assert Settings(channels_last=True).memory_format is torch.channels_last
    assert Settings().memory_format is torch.contiguous_format


def test_prepare_compiles_only_when_asked():
    model = torch.nn.Linear(2, 2)
    assert Settings(compile=False).prepare(model) is model
    assert isinstance(Settings().device, torch.device)


@pytest.mark.parametrize(
    ("value", "options"), [(True, {}), ("max-autotune", {"mode": "max-autotune"})]
)
def test_prepare_compiles_in_the_mode(monkeypatch, value, options):
    asked = []

    def compiled(model, **given):
        asked.append(given)
        return model

    monkeypatch.setattr(torch, "compile", compiled)
    model = torch.nn.Linear(2, 2)
    assert Settings(compile=value).prepare(model) is model
    assert asked == [options]


@pytest.mark.parametrize("name", ["mine", "persistent_workers"])
def test_a_ticked_box_is_on_when_on_is_given_first(name):
    made = setting(name, [True, False])
    assert made.control == "checkbox"
    assert made.values == (False, True)  # a box that is ticked is the second
    assert made.default is True
    assert setting(name, [False, True]).default is False
