"""The catalogue's step settings: batch, precision, model, optimizer, memory."""

from __future__ import annotations

from typing import Any

from perfkit.base.device import here
from perfkit.experiment.settings import _rules
from perfkit.experiment.settings._rules import on
from perfkit.experiment.settings._setting import Setting

_MOST_BATCH = 1_048_576
_MOST_PARTS = 65_536

_OTHER_KERNELS = "Different kernels add in a different order."
_GPU = "a CUDA GPU"
_COMPILE_MODES = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

_VARYING = ("pad", "bucket")
_GRAPHED_MODES = ("reduce-overhead", "max-autotune")


def _allow_tf32(precision: Any) -> None:
    import torch

    if here().has_tf32:
        tf32 = precision != "fp32"
        # fp32 means fp32: by default cuDNN's convolutions would use TF32
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "batch_size",
        "batch size",
        (8, 16, 32, 64, 128, 256),
        32,
        "menu",
        "rebuild",
        "Samples per step. It changes what is learnt per step: compare samples/s.",
        numerics="changes what is learnt",
        numerics_note="Each update averages over more samples, and there are fewer updates.",
        applied_by="loader_kwargs",
        _accept=_rules.whole_number(1, _MOST_BATCH),
    ),
    Setting(
        "accumulate",
        "batches per update",
        (1, 2, 4, 8, 16),
        1,
        "menu",
        "step",
        "Gradients of several batches add up to those of one large batch, in the memory of one.",
        numerics="changes what is learnt",
        numerics_note="One update for several batches; as the large batch up to rounding, except "
        "for layers that average over the batch.",
        applied_by="training_step",
        _accept=_rules.whole_number(1, _MOST_PARTS),
    ),
    Setting(
        "set_to_none",
        "gradients to None",
        (False, True),
        True,
        "checkbox",
        "step",
        "zero_grad lets go of the gradients; off, it fills them with zeros and keeps them.",
        numerics="none",
        numerics_note="The same sums; a parameter that gets no gradient is left alone, where zeros "
        "would let momentum and weight decay move it.",
        applied_by="zero_grad_kwargs",
        _accept=_rules.flag,
    ),
    Setting(
        "loss",
        "loss",
        ("loop", "vectorised"),
        "loop",
        "menu",
        "rebuild",
        "A loss with a Python loop over its parts, or the same in a few operators.",
        numerics="rounding",
        numerics_note="The same sum in a different order.",
    ),
    Setting(
        "precision",
        "precision",
        ("fp32", "tf32", "bf16", "fp16"),
        "fp32",
        "menu",
        "rebuild",
        "Number format of the model's arithmetic; fp32 here means without TF32.",
        numerics="rounding",
        numerics_note="Products keep 10 bits (tf32, fp16) or 7 (bf16) of 23; fp16 with a scaler.",
        needs="tf32 and fp16: a CUDA GPU that has them",
        applied_by="autocast",
        _accept=_rules.one_of(("fp32", "tf32", "bf16", "fp16")),
        _need=_rules.precision_here,
        _hint=_rules.bf16_speed,
        _apply=_allow_tf32,
    ),
    Setting(
        "channels_last",
        "channels last",
        (False, True),
        False,
        "checkbox",
        "rebuild",
        "Images and filters are stored pixel by pixel (NHWC) instead of plane by plane.",
        numerics="rounding",
        numerics_note=_OTHER_KERNELS,
        applied_by="prepare",
        _accept=_rules.flag,
    ),
    Setting(
        "compile",
        "torch.compile",
        (False, True, *_COMPILE_MODES),
        False,
        "menu",
        "rebuild",
        "Compiles the model in its first steps, which take long; on, or one of torch's modes.",
        numerics="rounding",
        numerics_note="Fused operators round less often.",
        needs="a C++ compiler with Python's headers; on a GPU triton; reduce-overhead: a CUDA GPU",
        applied_by="prepare",
        _accept=_rules.flag_or(*_COMPILE_MODES),
        _need=_rules.compile_mode_here,
    ),
    Setting(
        "cuda_graphs",
        "CUDA graphs",
        (False, True),
        False,
        "checkbox",
        "rebuild",
        "A whole step is captured once and started with one call; all batches need one shape.",
        numerics="none",
        numerics_note="The same kernels; an incomplete last batch is dropped.",
        needs=_GPU,
        applied_by="training_step",
        _accept=_rules.flag,
        _need=_rules.cuda_when_on("a CUDA graph is a list of work for a GPU"),
        _refused=(
            (
                lambda v: on(v, "cuda_graphs") and v.get("collate") in _VARYING,
                "cuda_graphs and collate pad or bucket: a graph replays the shapes that it was "
                "captured with, and these batches change; use collate='pad_to_max'",
            ),
            (
                lambda v: on(v, "cuda_graphs") and v.get("accumulate", 1) > 1,
                "cuda_graphs and accumulate: the captured step always updates, so nothing would "
                "be accumulated; set accumulate=1",
            ),
            (
                lambda v: on(v, "cuda_graphs") and v.get("precision") == "fp16",
                "cuda_graphs and precision='fp16': the gradient scaler asks the GPU in each step "
                "whether to update, which cannot be captured; use bf16",
            ),
            (
                lambda v: on(v, "cuda_graphs") and on(v, "checkpointing"),
                "cuda_graphs and checkpointing: recomputing restores the random state, which "
                "cannot be captured; switch one off",
            ),
            (
                lambda v: on(v, "cuda_graphs") and v.get("compile") in _GRAPHED_MODES,
                "cuda_graphs and compile='reduce-overhead' or 'max-autotune': both would capture "
                "the same step; use compile=True",
            ),
            (
                lambda v: on(v, "cuda_graphs") and v.get("world_size", 1) > 1,
                "cuda_graphs and world_size: perfkit's captured step does not wait for other "
                "processes; set world_size=1",
            ),
        ),
    ),
    Setting(
        "fused",
        "fused optimizer",
        (False, True),
        False,
        "checkbox",
        "rebuild",
        "One kernel updates all parameters (SGD, Adam, AdamW, Adagrad).",
        numerics="rounding",
        numerics_note="The same update, rounded in different places.",
        applied_by="optimizer_kwargs",
        _accept=_rules.flag,
        _refused=(
            (
                lambda v: on(v, "fused") and v.get("foreach") is True,
                "fused and foreach: an optimizer has one implementation, and torch refuses both; "
                "switch one off",
            ),
        ),
    ),
    Setting(
        "foreach",
        "foreach optimizer",
        ("auto", False, True),
        "auto",
        "menu",
        "rebuild",
        "A few kernels update many parameters at a time; off, each one by itself.",
        numerics="rounding",
        numerics_note="The same update, rounded in different places.",
        applied_by="optimizer_kwargs",
        _accept=_rules.flag_or("auto"),
    ),
    Setting(
        "checkpointing",
        "recompute activations",
        (False, True),
        False,
        "checkbox",
        "rebuild",
        "Activations are computed a second time in the backward pass instead of being kept.",
        numerics="none",
        numerics_note="The same numbers, dropout included; layers that count batches count twice.",
        applied_by="prepare",
        _accept=_rules.flag,
    ),
)
