"""The old name of :mod:`perfkit.show`, until everything says the new one."""

from perfkit.show import brief, html, mime_bundle, text, whole_page

__all__ = ["brief", "html", "mime_bundle", "text", "whole_page"]
