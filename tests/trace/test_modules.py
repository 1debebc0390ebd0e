"""Time by module and by source line, where frames or stacks were recorded."""

from __future__ import annotations

from simulated_traces import ENGINE, Simulated, cpu_training

from perfkit.trace import load, modules, source_lines


def _frames() -> Simulated:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.host("train.py(10): train_step", 0, 900, "python_function")
    sim.host("nn.Module: Net_0", 10, 300, "python_function")
    sim.host("/x/lib/python3.11/site-packages/torch/nn/modules/linear.py(120): forward", 20, 90,
             "python_function")  # fmt: skip
    sim.host("nn.Module: Linear_0", 20, 80, "python_function")
    external = sim.host("aten::linear", 30, 50, **{"Sequence number": 5})
    sim.device("gemm", 100, 70, sim.call("cudaLaunchKernel", 35, 5, external))
    sim.host("model.py(7): forward", 200, 100, "python_function")
    sim.host("aten::relu", 210, 20)
    sim.host(
        "autograd::engine::evaluate_function: AddmmBackward0", 500, 100, tid=ENGINE,
        **{"Sequence number": 5},
    )  # fmt: skip
    external = sim.host("aten::mm", 520, 40, tid=ENGINE)
    correlation = sim.call("cudaLaunchKernel", 530, 5, external, tid=ENGINE)
    sim.device("gemm", 600, 140, correlation)
    sim.host("helper.py(3): looks", 320, 10, "python_function")  # and calls no operator
    sim.host(
        "autograd::engine::evaluate_function: OtherBackward0", 800, 30, tid=ENGINE,
        **{"Sequence number": 99},
    )  # fmt: skip
    return sim


def test_ops_belong_to_the_innermost_module_backward_too() -> None:
    found = {m.name: m for m in modules(load(_frames().json())).modules}
    linear = found["Linear_0"]
    assert (linear.count, linear.host_us, linear.backward_us) == (1, 150, 100)
    assert linear.device_us == 70 + 140
    assert found["Net_0"].host_us == 20
    assert found[""].host_us == 30  # of a forward pass that is not on record


def test_modules_that_are_called_or_work_in_the_steps_are_listed() -> None:
    sim = Simulated()
    sim.host("nn.Module: Early_0", 50, 200, "python_function")  # goes on into the step
    sim.step(0, 100, 900)
    sim.host("aten::relu", 150, 40)
    sim.host("nn.Module: Identity_0", 400, 10, "python_function")
    sim.host("nn.Module: Late_0", 2_000, 50, "python_function")
    sim.host("aten::relu", 2_010, 20)
    found = modules(load(sim.json())).modules
    assert [(m.name, m.count, m.host_us) for m in found] == [
        ("Early_0", 0, 40), ("Identity_0", 1, 0),
    ]  # fmt: skip


def test_ops_belong_to_the_innermost_line_that_is_the_users() -> None:
    found = source_lines(load(_frames().json()))
    assert not found.of_calls
    lines = {(s.file, s.line, s.function): s for s in found.lines}
    line = lines["train.py", 10, "train_step"]
    assert (line.host_us, line.device_us) == (50, 70)
    assert lines["model.py", 7, "forward"].count == 1
    assert len(lines) == 2


def test_recorded_stacks_give_the_lines_of_calls() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    inside_torch = "/x/site-packages/torch/nn/functional.py(9): linear"
    stack = f"{inside_torch};train.py(46): main;train.py(60): <module>"
    sim.host("aten::linear", 10, 100, **{"Call stack": stack})
    sim.host("aten::addmm", 20, 60, **{"Call stack": stack})
    found = source_lines(load(sim.json()))
    (line,) = found.lines
    assert found.of_calls
    assert (line.file, line.line, line.function, line.count, line.host_us) == (
        "train.py", 46, "main", 2, 100,
    )  # fmt: skip


def test_without_frames_there_is_no_answer() -> None:
    trace = load(cpu_training(2).json())
    assert modules(trace).modules == ()
    assert source_lines(trace).lines == ()
    assert "not recorded" in str(modules(trace))
    assert "not recorded" in str(source_lines(trace))
