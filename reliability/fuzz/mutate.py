"""Damage done to bytes: flipped, cut, swollen, repeated, spliced with another input."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

Mutation = Callable[[random.Random, bytes], bytes]

# Where lengths, counts and signs go wrong.
INTERESTING = (0, 1, 7, 8, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
MOST = 1 << 20  # bytes of an input


def mutated(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """One to six kinds of damage, one after the other."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        data = rng.choice(_WAYS)(rng, data, others)
    return data[:MOST]


def flip(rng: random.Random, data: bytes) -> bytes:
    """One to eight bytes changed, a bit or all of each."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if out:
            at = _place(rng, out)
            out[at] = (
                out[at] ^ (1 << rng.randrange(8)) if rng.random() < 0.5 else rng.randrange(256)
            )
    return bytes(out)


def _place(rng: random.Random, data: bytes | bytearray) -> int:
    """Headers and trailers decide more than what lies between, so half of the time there."""
    n = len(data)
    where = rng.random()
    if where < 0.3:
        return rng.randrange(min(n, 64))
    if where < 0.5:
        return n - 1 - rng.randrange(min(n, 64))
    return rng.randrange(n)


def _flip(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return flip(rng, data)


def _number(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A binary number replaced by one at the edge of what fits."""
    size, code = rng.choice(((1, "B"), (2, "H"), (4, "I"), (8, "Q")))
    if len(data) < size:
        return data
    at = min(_place(rng, data), len(data) - size)
    value = rng.choice(INTERESTING) & (2 ** (8 * size) - 1)
    return data[:at] + struct.pack(rng.choice("<>") + code, value) + data[at + size :]


def _digits(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A decimal number in text replaced by another."""
    places = [i for i, byte in enumerate(data[:4096]) if 48 <= byte <= 57]
    if not places:
        return data
    at = rng.choice(places)
    new = rng.choice((b"-1", b"0", b"1e999", b"NaN", b"99999999999999999999", b"null", b"65537"))
    return data[:at] + new + data[at + 1 :]


def _cut(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _remove(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.randint(1, 64) :]


def _insert(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randint(1, 16)) + data[at:]


def _repeat(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    part = data[at : at + rng.randint(1, 256)]
    return data[:at] + part * rng.randint(2, 9) + data[at:]


def _splice(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others) if others else data
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


_WAYS = (_flip, _flip, _flip, _number, _number, _digits, _cut, _remove, _insert, _repeat, _splice)
