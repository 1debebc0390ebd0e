"""Messages on a byte stream: a marker, the length in eight bytes, then msgpack."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

_HEAD = struct.Struct("<4sQ")
# Nothing that others write into the pipe begins like this.
_MARK = b"\xf7pk\n"


class NotAMessageError(ValueError):
    """The stream holds something other than messages: someone else has written to it."""


def encode(message: dict[str, Any]) -> bytes:
    """Encode one message."""
    body = msgspec.msgpack.encode(message)
    return _HEAD.pack(_MARK, len(body)) + body


class Frames:
    """Collects bytes and returns whole messages; an incomplete last one waits for the rest."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Add bytes and return the messages that are now complete.

        Raises:
            NotAMessageError: something else was written to the stream.
        """
        self._buffer += data
        messages: list[dict[str, Any]] = []
        while len(self._buffer) >= _HEAD.size:
            mark, length = _HEAD.unpack_from(self._buffer)
            if mark != _MARK:
                raise NotAMessageError(f"a message begins with {mark!r}")
            end = _HEAD.size + length
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            try:
                messages.append(msgspec.msgpack.decode(body, type=dict[str, Any]))
            except msgspec.DecodeError as error:
                raise NotAMessageError(str(error)) from error
        return messages
