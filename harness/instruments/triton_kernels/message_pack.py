"""Decode MessagePack (github.com/msgpack/msgpack, spec.md), as LLVM writes a code object's metadata."""

from __future__ import annotations

import struct
from typing import Any

CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}

NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h",
    0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
"""The first byte of a number: its layout for `struct`."""

SIZED = {
    0xC4: (">B", "bytes"), 0xC5: (">H", "bytes"), 0xC6: (">I", "bytes"),
    0xD9: (">B", "text"), 0xDA: (">H", "text"), 0xDB: (">I", "text"),
    0xDC: (">H", "list"), 0xDD: (">I", "list"), 0xDE: (">H", "map"), 0xDF: (">I", "map"),
}  # fmt: skip
"""The first byte of what has a size: the layout of that size, and the kind."""


def unpacked(data: bytes) -> Any:
    """Return the value; raises ValueError on a type that is no part of JSON's, or where data ends early."""
    try:
        return _value(data, 0)[0]
    except (IndexError, struct.error) as error:
        raise ValueError("the MessagePack data end early") from error


def _value(data: bytes, at: int) -> tuple[Any, int]:
    """Return the value that begins at a byte, and where the next begins."""
    first = data[at]
    if first < 0x80 or first >= 0xE0:
        return (first if first < 0x80 else first - 0x100), at + 1
    if first in CONSTANTS:
        return CONSTANTS[first], at + 1
    if first in NUMBERS:
        return struct.unpack_from(NUMBERS[first], data, at + 1)[0], at + 1 + struct.calcsize(NUMBERS[first])
    if first in SIZED:
        layout, kind = SIZED[first]
        return _sized(
            data, at + 1 + struct.calcsize(layout), struct.unpack_from(layout, data, at + 1)[0], kind
        )
    if first < 0xC0:
        kind, mask = ("map", 0x0F) if first < 0x90 else ("list", 0x0F) if first < 0xA0 else ("text", 0x1F)
        return _sized(data, at + 1, first & mask, kind)
    raise ValueError(f"MessagePack type {first:#x} is not known here")


def _sized(data: bytes, at: int, size: int, kind: str) -> tuple[Any, int]:
    """Return a text, bytes, a list or a map of `size` elements that begins at a byte, and where it ends."""
    if kind in ("text", "bytes"):
        if at + size > len(data):
            raise IndexError(size)
        found = data[at : at + size]
        return (found.decode() if kind == "text" else found), at + size
    elements = []
    for _ in range(size * (2 if kind == "map" else 1)):
        element, at = _value(data, at)
        elements.append(element)
    return (dict(zip(elements[::2], elements[1::2], strict=True)) if kind == "map" else elements), at
