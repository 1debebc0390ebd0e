"""The magics, ``watch`` and a Lab with CUDA's settings in JupyterLab, on the played GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from perfkit.base.machine.played import is_played

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_played(), reason="runs on the played GPU only"),
]

SETUP = """
%load_ext perfkit
import perfkit, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(160, 3, 32, 32), torch.arange(160) % 4)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(512, 4)
).cuda()
optimizer = torch.optim.AdamW(model.parameters())

def step(images, labels):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
    loss.backward()
    optimizer.step()
    return loss
"""
TORCHPROF = """
%%torchprof -n 3
total = 0.0
for images, labels in DataLoader(data, batch_size=16):
    total += step(images, labels).item()
"""
GPUMEM = """
%%gpumem --history
for images, labels in DataLoader(data, batch_size=16):
    step(images, labels)
"""
SYNCLINT = """
%%synclint
images, labels = next(iter(DataLoader(data, batch_size=16)))
loss = step(images, labels)
print(loss)
seen = loss.item()
"""
WATCH = """
for _ in range(4):
    for images, labels in perfkit.watch(DataLoader(data, batch_size=16)):
        step(images, labels)
"""
LAB = """
def train(s):
    model = s.prepare(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(),
                                    nn.Linear(7200, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), **s.optimizer_kwargs())
    update = s.training_step(model, optimizer, nn.functional.cross_entropy)
    while True:
        for images, labels in DataLoader(data, **s.loader_kwargs()):
            yield {"samples": len(labels), "loss": update(images, labels)}

lab = perfkit.Lab(
    train, ["batch_size", "pin_memory", "non_blocking", "cuda_graphs", "precision", "alloc_conf"],
    seconds=3,
)
lab
"""


def test_what_a_reader_with_a_gpu_sees(open_notebook: Callable) -> None:
    cells = [SETUP, TORCHPROF, GPUMEM, SYNCLINT, WATCH, LAB]
    book = open_notebook([cell.strip() for cell in cells], "played-gpu")
    page = book.page
    page.set_viewport_size({"width": 1200, "height": 1700})
    book.run_all()
    for i, name in enumerate(("torchprof", "gpumem", "synclint", "watch"), start=1):
        cell = page.locator(".jp-CodeCell").nth(i)
        cell.scroll_into_view_if_needed()  # JupyterLab renders what is seen
        expect(cell.locator(".jp-OutputArea").first).to_contain_text("played: played GPU")
        book.screenshot(f"played-{name}", f".jp-CodeCell >> nth={i}")

    page.wait_for_selector(".pk-lab")
    page.locator(".pk-lab").scroll_into_view_if_needed()
    page.click(".pk-start")
    book.wait_data(".pk-lab", "d.run === '1' && d.state === 'done'", timeout_s=200)
    page.locator("[data-setting=cuda_graphs] input").check()
    book.wait_data(".pk-lab", "d.run === '2' && d.state === 'done'", timeout_s=200)
    assert page.locator(".pk-errors").inner_text() == ""
    row = page.locator(".pk-runs tr[data-run='2']")
    assert row.locator(".pk-changed > span").inner_text() == "cuda_graphs off → on"
    book.screenshot("played-lab", ".pk-lab")
