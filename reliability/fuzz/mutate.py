"""Mutations of bytes: flip, cut, insert, repeat, splice with another input."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

Mutation = Callable[[random.Random, bytes], bytes]

# Boundary values of lengths, counts and signs.
INTERESTING = (0, 1, 7, 8, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
MAX_BYTES = 1 << 20  # of an input


def mutated(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Apply one to six random mutations."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        data = rng.choice(_KINDS)(rng, data, others)
    return data[:MAX_BYTES]


def flip(rng: random.Random, data: bytes) -> bytes:
    """Change one to eight bytes, each in one bit or entirely."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if out:
            i = _position(rng, out)
            out[i] = out[i] ^ (1 << rng.randrange(8)) if rng.random() < 0.5 else rng.randrange(256)
    return bytes(out)


def _position(rng: random.Random, data: bytes | bytearray) -> int:
    """A random position, half of the time in the header or trailer, which matter most."""
    n = len(data)
    region = rng.random()
    if region < 0.3:
        return rng.randrange(min(n, 64))
    if region < 0.5:
        return n - 1 - rng.randrange(min(n, 64))
    return rng.randrange(n)


def _flip(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return flip(rng, data)


def _number(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Replace a binary number by a boundary value."""
    size, code = rng.choice(((1, "B"), (2, "H"), (4, "I"), (8, "Q")))
    if len(data) < size:
        return data
    start = min(_position(rng, data), len(data) - size)
    value = rng.choice(INTERESTING) & (2 ** (8 * size) - 1)
    return data[:start] + struct.pack(rng.choice("<>") + code, value) + data[start + size :]


def _digits(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Replace a digit in text by another number."""
    positions = [i for i, byte in enumerate(data[:4096]) if 48 <= byte <= 57]
    if not positions:
        return data
    start = rng.choice(positions)
    new = rng.choice((b"-1", b"0", b"1e999", b"NaN", b"99999999999999999999", b"null", b"65537"))
    return data[:start] + new + data[start + 1 :]


def _cut(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _remove(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.randint(1, 64) :]


def _insert(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.randbytes(rng.randint(1, 16)) + data[start:]


def _repeat(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    part = data[start : start + rng.randint(1, 256)]
    return data[:start] + part * rng.randint(2, 9) + data[start:]


def _splice(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others) if others else data
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


_KINDS = (_flip, _flip, _flip, _number, _number, _digits, _cut, _remove, _insert, _repeat, _splice)
