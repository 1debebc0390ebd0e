"""An example of what GPUs cost by the hour: dated, with its source, and never a default.

Prices are of the user's contract and of the day. These show how far two offers of the same chip
lie apart, and they are stale when you read them.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The day on which the vendors' pages were read, and who published what was read there.
READ_ON = "2026-11-09"
READ_BY = "github.com/datareceipts/data-receipts, 109-gpu-pricing"


@dataclass(frozen=True)
class ExamplePrice:
    """One offer, on demand.

    Attributes:
        device: name of its data sheet (:mod:`perfkit.limit.datasheet`).
        usd_per_hour: of one GPU; where an instance has several, its price over their number.
        vendor: who asks for it, and for what.
    """

    device: str
    usd_per_hour: float
    vendor: str


EXAMPLE_PRICES = (
    ExamplePrice("A100 40GB", 2.74, "AWS p4d.24xlarge (8 of them), us-east-1"),
    ExamplePrice("A100 80GB SXM", 3.43, "AWS p4de.24xlarge (8 of them), us-east-1"),
    ExamplePrice("A100 80GB SXM", 1.79, "RunPod, Secure Cloud"),
    ExamplePrice("A100 80GB PCIe", 3.67, "Azure NC24ads A100 v4, eastus"),
    ExamplePrice("H100 SXM", 6.88, "AWS p5.48xlarge (8 of them), us-east-1"),
    ExamplePrice("H100 SXM", 3.99, "RunPod, Secure Cloud"),
    ExamplePrice("H100 PCIe", 2.89, "RunPod, Secure Cloud"),
    ExamplePrice("H100 NVL", 6.98, "Azure NC40ads H100 v5, eastus"),
)
