"""Messages on a byte stream: eight bytes of length, then msgpack."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

_LENGTH = struct.Struct("<Q")
# A length beyond this is a torn stream and no message.
_MOST_BYTES = 1 << 34


def encode(message: dict[str, Any]) -> bytes:
    """One message, ready to be written."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Collects bytes as they come and gives back whole messages; a torn last one stays inside."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take more bytes; return the messages that are complete now.

        Raises:
            ValueError: what came is no stream of messages.
        """
        self._buffer += data
        messages: list[dict[str, Any]] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > _MOST_BYTES:
                raise ValueError(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            messages.append(msgspec.msgpack.decode(body, type=dict[str, Any]))
        return messages
