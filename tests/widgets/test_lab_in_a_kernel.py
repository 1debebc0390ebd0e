"""A Lab in a kernel without a browser: what a saved notebook and its HTML page show."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

pytestmark = pytest.mark.slow

CELLS = [
    """
import torch
def train(s):
    layer = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    while True:
        for _ in range(s["repeat"]):
            layer(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        yield 4
import perfkit
lab = perfkit.Lab(train, [perfkit.setting("repeat", [1, 20])], seconds=1, title="<tiny>")
lab
""",
    "first = lab.run(); second = lab.run(repeat=20); print(first.state, second.state, lab)",
    "lab.close(); lab.close()",
]


def test_the_picture_and_the_table_stay() -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(book, timeout=120, kernel_name="python3").execute()
    widget, static = book.cells[0].outputs
    assert widget.data["text/plain"] == "Lab('<tiny>', settings=['repeat'])"
    assert "repeat 1 → 20" in static.data["text/plain"]
    assert 'src="data:image/png;base64,' in static.data["text/html"]
    said = "".join(out.text for out in book.cells[1].outputs)
    assert said.startswith("done done Lab('<tiny>'")
    page, _ = HTMLExporter(embed_images=True).from_notebook_node(book)
    assert 'alt="&lt;tiny&gt;: step time' in page
    assert "repeat 1 → 20" in page
