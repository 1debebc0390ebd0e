"""What torch.compile did is part of a profile; backend "eager" needs no compiler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from perfkit.advice.profiling import profile

# torch.compile itself looks at .grad of what is in the middle of a graph
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The .grad attribute"),
    # with a GPU, torch.compiler.reset() is the first to import what says this
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
]


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class _Careless(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.n = 0

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        torch._dynamo.graph_break()
        return y.sin()


class _Counting(_Careless):
    def forward(self, x: Any) -> Any:
        self.n += 1
        return self.layer(x) * self.n


def _training(model: torch.nn.Module, n: int) -> Any:
    run = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(steps=2, warmup=1) as found:
        for _ in range(n):
            optimizer.zero_grad()
            run(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    return found.result


def test_a_line_that_ends_a_graph_is_in_the_profile() -> None:
    found = _training(_Careless(), 6)
    line = _Careless.forward.__code__.co_firstlineno + 2
    assert found.compiled.n_graphs == 2
    assert [one.place for one in found.compiled.breaks] == [f"test_profile_compiled.py:{line}"]
    said = " ".join(found.to_text().split())
    assert "torch.compile: 2 graphs compiled in" in said
    assert "1 line ends a graph" in said
    assert f"test_profile_compiled.py:{line}" in said
    assert found.to_dict()["compiled"]["n_graphs"] == 2


def test_that_torch_compile_gave_up_is_in_the_profile() -> None:
    found = _training(_Counting(), 14)
    assert len(found.compiled.given_up) == 1
    assert "compile-gave-up" in {one.rule for one in found.diagnosis.findings}
    said = " ".join(found.to_text().split())
    assert "compiled again 7 times; then given up: test_profile_compiled.py:" in said
    assert "has paid" not in said


def test_a_profile_of_code_that_compiles_nothing_says_nothing_of_it() -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

    found = profile(step, steps=2, warmup=1)
    assert found.compiled is None
    assert "torch.compile:" not in found.to_text()


def test_code_that_is_profiled_again_and_again_is_compiled_once() -> None:
    """What a profile saw compiled, torch compiles with its hook; after eight times it gives up."""
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    net = torch.nn.Linear(8, 8)
    run = torch.compile(lambda x: net(x).sum(), backend=backend)
    kept = []
    for _ in range(9):
        with profile(steps=1, warmup=0) as found:
            run(torch.ones(4, 8))
        kept.append(found)
    assert len(graphs) == 1
