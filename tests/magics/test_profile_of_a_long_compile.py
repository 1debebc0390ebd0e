"""Code whose first torch.compile lasts longer than is recorded runs as it would without perfkit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import perfkit
from perfkit.advice.profiling import profile
from tests.left_running import assert_nothing_runs
from tests.magics.conftest import Notebook

_BACKEND_S = 0.3
# The first is over while torch.compile reads the code, the last one in the backend, or after it.
_MAX_SECONDS = (0.02, 0.1, 0.2, 0.3, 0.5)


def _by_function(step: Callable[[], Any], max_seconds: float, kit: Notebook) -> None:
    perfkit.profile(step, max_seconds=max_seconds)


def _by_block(step: Callable[[], Any], max_seconds: float, kit: Notebook) -> None:
    with perfkit.profile(max_seconds=max_seconds):
        step()


def _by_magic(step: Callable[[], Any], max_seconds: float, kit: Notebook) -> None:
    defaults: Any = profile.__kwdefaults__
    before = defaults["max_seconds"]
    defaults["max_seconds"] = max_seconds
    kit.ns["step"] = step
    try:
        shown = kit.run("%torchprof step()")
    finally:
        defaults["max_seconds"] = before
    if shown.error is not None:
        raise shown.error


class _Net(nn.Module):  # torch.compile does not compile torch's own modules in place
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).sum()  # type: ignore[no-any-return]


def _function(net: nn.Module, backend: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.compile(lambda x: net(x), backend=backend)


def _compiled_in_place(net: nn.Module, backend: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    net.compile(backend=backend)
    return net


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [_function, _compiled_in_place])
@pytest.mark.parametrize("profiled", [_by_function, _by_block, _by_magic])
def test_a_deadline_anywhere_in_a_compile_leaves_the_code_alone(
    notebook: Notebook, compiled: Any, profiled: Any
) -> None:
    notebook.shell.run_line_magic("load_ext", "perfkit")
    for max_seconds in _MAX_SECONDS:
        torch.compiler.reset()

        def backend(graph: Any, _: Any) -> Any:
            for _ in range(40):  # Python runs meanwhile, as it does in a real one
                time.sleep(_BACKEND_S / 40)
            return graph.forward

        net = _Net()
        x = torch.rand(2, 4)
        expected = net(x)
        results: list[Any] = []
        run = compiled(net, backend)
        profiled(
            lambda run=run, x=x, results=results: results.append(run(x)), max_seconds, notebook
        )
        for result in results:
            torch.testing.assert_close(result, expected)
        assert results
        assert_nothing_runs()
        assert not torch.nn.modules.module._global_forward_pre_hooks
    torch.compiler.reset()
