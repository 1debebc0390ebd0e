"""The catalogue's data settings: how data is stored, loaded and sent."""

from __future__ import annotations

from perfkit.experiment.settings import _rules
from perfkit.experiment.settings._setting import Setting

# Larger sizes are typing errors, not experiments: torch would try to start 10,000 processes, or
# allocate until the machine swaps.
_MOST_WORKERS = 256
_MOST_PREFETCH = 64

_SAME_BATCHES = "The same batches in the same order."
_GPU = "a CUDA GPU"

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "storage",
        "where the data is stored",
        ("files", "encoded", "decoded", "memmap"),
        "files",
        "menu",
        "rebuild",
        "Files on disk, their bytes in RAM, decoded pixels in RAM, or one memory-mapped file.",
        numerics="none",
        numerics_note="The same samples, where the decoded copy is exact.",
    ),
    Setting(
        "num_workers",
        "DataLoader workers",
        (0, 1, 2, 4, 8),
        0,
        "slider",
        "rebuild",
        "Processes that load and decode batches in the background; 0 loads them in the step.",
        numerics="none",
        numerics_note="The same batches; random transforms draw different numbers in each worker.",
        applied_by="loader_kwargs",
        _accept=_rules.whole_number(0, _MOST_WORKERS),
        _hint=_rules.more_than_cores("workers"),
    ),
    Setting(
        "prefetch_factor",
        "batches ahead, per worker",
        (1, 2, 4, 8),
        2,
        "slider",
        "rebuild",
        "How many batches each worker prepares ahead. Has no effect without workers.",
        numerics="none",
        numerics_note=_SAME_BATCHES,
        applied_by="loader_kwargs",
        _accept=_rules.whole_number(1, _MOST_PREFETCH),
    ),
    Setting(
        "persistent_workers",
        "keep workers between epochs",
        (False, True),
        False,
        "checkbox",
        "rebuild",
        "Workers stay alive between epochs instead of restarting. Needs workers.",
        numerics="none",
        numerics_note="The same batches; what a dataset remembers stays in its workers.",
        applied_by="loader_kwargs",
        _accept=_rules.flag,
    ),
    Setting(
        "in_order",
        "batches in order",
        (False, True),
        True,
        "checkbox",
        "rebuild",
        "When off, a batch that is ready may overtake one that is still loading.",
        numerics="changes what is learnt",
        numerics_note="When off, the order of the batches depends on timing: no two runs agree.",
        applied_by="loader_kwargs",
        _accept=_rules.flag,
    ),
    Setting(
        "collate",
        "samples of unequal length",
        ("default", "pad", "bucket", "pad_to_max"),
        "default",
        "menu",
        "rebuild",
        "Samples are stacked, padded to the batch's longest, grouped by length first, or padded "
        "to the longest of all.",
        numerics="changes what is learnt",
        numerics_note="Grouping changes which samples meet; padding counts unless it is masked.",
    ),
    Setting(
        "uint8",
        "send images as bytes",
        (False, True),
        False,
        "checkbox",
        "rebuild",
        "Images travel as uint8, a quarter of float32, and become float32 on the device.",
        numerics="none",
        numerics_note="The same division by 255, done later.",
        applied_by="as_sent",
        _accept=_rules.flag,
    ),
    Setting(
        "pin_memory",
        "pinned memory",
        (False, True),
        False,
        "checkbox",
        "rebuild",
        "Batches are in page-locked memory, from which a GPU can copy in the background.",
        numerics="none",
        numerics_note="The same bytes.",
        needs=_GPU,
        applied_by="loader_kwargs",
        _accept=_rules.flag,
        _need=_rules.cuda_when_on("pinned memory serves copies to a GPU"),
    ),
    Setting(
        "non_blocking",
        "copy without waiting",
        (False, True),
        False,
        "checkbox",
        "step",
        "The step goes on while a batch is copied to the GPU. Has no effect without pinning.",
        numerics="none",
        numerics_note="To the device, the same bytes; from it, wrong ones if read too early.",
        needs=_GPU,
        applied_by="to_device",
        _accept=_rules.flag,
        _need=_rules.cuda_when_on("without a GPU there is no copy to wait for"),
    ),
)
