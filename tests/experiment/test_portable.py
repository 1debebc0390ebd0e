from __future__ import annotations

import functools
import linecache
import pickle
import threading
import types

import pytest
import torch

from perfkit.base.errors import UsageError, WorkloadNotPortableError
from perfkit.experiment.process import portable


def in_notebook(source: str, filename: str = "/nowhere/cell_1.py", **names):
    """Functions as a notebook defines them: in ``__main__``, from no file."""
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace = {"__name__": "__main__", **names}
    exec(compile(source, filename, "exec"), namespace)
    return namespace


def test_a_notebook_function_travels_with_what_it_uses():
    cell = in_notebook(
        "FACTOR = 3\ndef helper(x):\n    return x * FACTOR\ndef workload(s):\n    yield helper(s)\n"
    )
    again = pickle.loads(portable.pack(cell["workload"]))
    assert list(again(2)) == [6]


def test_a_global_lock_is_named():
    cell = in_notebook("def workload(s):\n    with lock:\n        yield\n", lock=threading.Lock())
    with pytest.raises(WorkloadNotPortableError) as caught:
        portable.pack(cell["workload"])
    told = str(caught.value)
    assert "global 'lock' (a _thread.lock)" in told
    assert "make it inside the workload" in told
    assert "\n" not in told


def test_the_way_through_helpers_objects_and_containers_is_named():
    class Store:
        def __init__(self):
            self.things = {"a": [1, threading.Lock()]}

    cell = in_notebook(
        "def helper():\n    return store\ndef workload(s):\n    yield helper()\n", store=Store()
    )
    with pytest.raises(WorkloadNotPortableError) as caught:
        portable.pack(cell["workload"])
    told = str(caught.value)
    way = ["global 'helper'", "global 'store'", "attribute 'things'", "['a']", "item 1"]
    assert [told.index(part) for part in way] == sorted(told.index(part) for part in way)


def test_closures_partials_methods_and_defaults_are_searched(tmp_path):
    generator = (i for i in range(3))

    def closed(s):
        yield next(generator)

    with pytest.raises(WorkloadNotPortableError, match=r"closure variable 'generator'.*generator"):
        portable.pack(closed)

    with (tmp_path / "x").open("w") as file:

        def taking(s, to=file):
            yield to

        with pytest.raises(WorkloadNotPortableError, match=r"default argument.*open the file"):
            portable.pack(taking)
        with pytest.raises(WorkloadNotPortableError, match="argument 'other' of the partial"):
            portable.pack(functools.partial(lambda s, other: s, other=file))

    class Trainer:
        def __init__(self):
            self.lock = threading.Lock()

        def steps(self, s):
            yield

    with pytest.raises(WorkloadNotPortableError, match="its object → attribute 'lock'"):
        portable.pack(Trainer().steps)


def test_names_in_inner_functions_are_searched():
    cell = in_notebook(
        "def workload(s):\n"
        "    def inner():\n        return [lock for _ in (1,)]\n"
        "    yield inner()\n",
        lock=threading.Lock(),
    )
    with pytest.raises(WorkloadNotPortableError, match="global 'lock'"):
        portable.pack(cell["workload"])


def test_a_live_loader_iterator_is_named():
    import torch

    batches = iter(torch.utils.data.DataLoader(torch.zeros(4)))
    cell = in_notebook("def workload(s):\n    yield next(batches)\n", batches=batches)
    with pytest.raises(WorkloadNotPortableError, match=r"global 'batches'.*inside the workload"):
        portable.pack(cell["workload"])


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (3, "not 3"),
        (None, "not None"),
        (lambda: None, "with one argument"),
        (lambda a, b: None, "with one argument"),
        ((i for i in ()), "not the generator"),
    ],
)
def test_what_is_no_workload(workload, words):
    with pytest.raises(UsageError, match=words):
        portable.check_workload(workload)


def test_callable_objects_and_partials_are_workloads():
    class Trainer:
        def __call__(self, s):
            yield

    portable.check_workload(Trainer())
    portable.check_workload(functools.partial(lambda a, s: None, 1))


def test_sources_of_cells_travel_but_not_of_files():
    cell = in_notebook("def workload(s):\n    yield helper()\n", "/nowhere/cell_2.py")
    other = in_notebook("def helper():\n    return 1\n", "/nowhere/cell_3.py")
    cell["helper"] = other["helper"]
    found = portable.sources(cell["workload"])
    assert set(found) == {"/nowhere/cell_2.py", "/nowhere/cell_3.py"}
    assert found["/nowhere/cell_3.py"][1] == "    return 1\n"

    def in_this_file(s):
        yield

    assert portable.sources(in_this_file) == {}
    assert isinstance(cell["workload"], types.FunctionType)


def test_operators_of_torch_travel_by_name():
    aten = torch.ops.aten
    operators = [aten.convolution.default, aten.add.Tensor, aten.relu, aten]
    assert pickle.loads(portable.pack(functools.partial(list, operators)))() == operators
    # read through a global, cloudpickle also sends torch.ops itself
    source = "def workload(settings):\n    return torch.ops.aten.convolution.default\n"
    packed = portable.pack(in_notebook(source, torch=torch)["workload"])
    assert pickle.loads(packed)(None) is aten.convolution.default


def test_modules_with_a_class_of_their_own_travel_by_name():
    """``self.classes`` beside ``torch`` in one method makes cloudpickle send ``torch.classes``."""
    source = (
        "class Photos:\n"
        "    def __init__(self):\n"
        "        self.classes = ['cat', 'dog']\n"
        "    def __getitem__(self, i):\n"
        "        return torch.tensor(self.classes.index('dog'))\n"
        "data = Photos()\n"
        "def workload(settings):\n"
        "    torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark\n"
        "    return int(data[0])\n"
    )
    packed = portable.pack(in_notebook(source, torch=torch)["workload"])
    assert pickle.loads(packed)(None) == 1


def test_such_a_module_is_the_same_one_after_the_way():
    modules = [torch.classes, torch.ops, torch.backends, torch.backends.cudnn, torch._VF]
    there = pickle.loads(portable.pack(functools.partial(list, modules)))()
    assert all(one is other for one, other in zip(there, modules, strict=True))
