"""What stays of a widget in a saved notebook: an output below it, which the live widget hides."""

from __future__ import annotations


def staying(name: str, html: str) -> str:
    """The HTML of that output.

    It hides the front end's message about a widget without a kernel: JupyterLab puts "Error
    displaying widget: model not found" above. A live widget contains elements, that text does not.

    Args:
        name: the class by which the widget finds the output: ``pk-static-`` and an id.
        html: what stays.
    """
    before = f".jp-OutputArea-child:has(+ .jp-OutputArea-child .{name})"
    hidden = f"{before} .jupyter-widgets:not(:has(*)) {{ display: none; }}"
    return f'<style>{hidden}</style><div class="{name}">{html}</div>'
