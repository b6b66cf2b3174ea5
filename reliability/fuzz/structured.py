"""Damage behind the checksums: containers taken apart, hurt within, and put together soundly.

Bytes flipped at random mostly stop at the first checksum or length. These reach what lies behind.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import struct
import warnings
import zipfile
import zlib
from typing import Any

from reliability.fuzz.mutate import INTERESTING, flip

PNG = b"\x89PNG\r\n\x1a\n"


def png_chunks(rng: random.Random, data: bytes) -> bytes:
    """A chunk of a PNG changed, its CRC made right again."""
    if not data.startswith(PNG):
        return flip(rng, data)
    chunks, at = [], 8
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    if not chunks:
        return data
    hurt = rng.randrange(len(chunks))
    kind, body = chunks[hurt]
    if kind == b"IHDR" and rng.random() < 0.5 and len(body) >= 8:
        sizes = [rng.choice((0, 1, 4, 4000, 100_000, 2**31 - 1)) for _ in range(2)]
        body = struct.pack(">II", *sizes) + body[8:]
    elif kind == b"IDAT" and rng.random() < 0.5:
        body = zlib.compress(rng.randbytes(rng.choice((0, 1, 60, 5000))))
    else:
        body = flip(rng, body)
    chunks[hurt] = (kind, body)
    if rng.random() < 0.2:
        rng.shuffle(chunks)
    out = [PNG]
    for kind, body in chunks:
        sealed = struct.pack(">I", zlib.crc32(kind + body))
        out.append(struct.pack(">I", len(body)) + kind + body + sealed)
    return b"".join(out)


def zip_members(rng: random.Random, data: bytes) -> bytes:
    """Members of a zip archive changed, renamed, doubled or compressed otherwise."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except Exception:
        return flip(rng, data)
    if not members:
        return data
    at = rng.randrange(len(members))
    name, body = members[at]
    way = rng.randrange(6)
    if way <= 2:
        body = json_values(rng, body) if body[:1] == b"{" else flip(rng, body)
    elif way == 3:
        name = rng.choice(("../" + name, "/etc/passwd", "x\\..\\" + name, name * 40, "a\x00b", "."))
    elif way == 4:
        members.append((name, body))
    else:
        body = rng.choice((b"", body * 40, bytes(200_000)))
    members[at] = (name, body)
    kind = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", kind) as archive:
        warnings.simplefilter("ignore")
        for name, body in members:
            archive.writestr(name, body)
    return out.getvalue()


def gzip_inside(rng: random.Random, data: bytes) -> bytes:
    """What a gzip file holds changed, and compressed again."""
    try:
        body = gzip.decompress(data)
    except Exception:
        return flip(rng, data)
    return gzip.compress(flip(rng, body), 1, mtime=0)


def json_values(rng: random.Random, data: bytes) -> bytes:
    """A value of a JSON text replaced, taken out or moved."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return flip(rng, data)
    return json.dumps(_hurt(rng, body)).encode()


def sealed_json(rng: random.Random, data: bytes) -> bytes:
    """A value of a manifest replaced, and its digest made right again: no secret is in it."""
    try:
        body = json.loads(data)
        body.pop("digest")
        body = _hurt(rng, body)
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
        body["digest"] = hashlib.sha256(canonical.encode()).hexdigest()
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return flip(rng, data)
    return json.dumps(body).encode()


def safetensors_header(rng: random.Random, data: bytes) -> bytes:
    """The header of a safetensors file changed, its length made right again."""
    if len(data) < 8:
        return data
    (length,) = struct.unpack("<Q", data[:8])
    header, rest = data[8 : 8 + length], data[8 + length :]
    try:
        body = json.loads(header)
    except (ValueError, RecursionError):
        return flip(rng, data)
    told = body.get("__metadata__", {}) if isinstance(body, dict) else {}
    if told and rng.random() < 0.6:
        name = rng.choice(sorted(told))
        told[name] = json_values(rng, str(told[name]).encode()).decode("utf-8", "replace")
    else:
        body = _hurt(rng, body)
    if rng.random() < 0.2:
        rest = flip(rng, rest)
    new = json.dumps(body).encode()
    return struct.pack("<Q", len(new)) + new + rest


ODD: tuple[Any, ...] = (
    *(None, True, "", "x", "../../x", "/etc/passwd", [], {}, [1], -1, -1.5, 1e308, 0),
    *INTERESTING,
    *("float32", "uint8", "NaN", [[]], {"a": 1}, "golddiff-store", 2**70),
)


def _hurt(rng: random.Random, body: Any) -> Any:
    """One value, anywhere in a JSON body, replaced."""
    if isinstance(body, dict) and body and rng.random() < 0.93:
        name = rng.choice(sorted(body))
        if rng.random() < 0.08:
            del body[name]
        elif rng.random() < 0.05:
            body[str(rng.choice(ODD))] = body.pop(name)
        else:
            body[name] = _hurt(rng, body[name])
        return body
    if isinstance(body, list) and body and rng.random() < 0.8:
        at = rng.randrange(len(body))
        if rng.random() < 0.1:
            body.append(body[at])
        else:
            body[at] = _hurt(rng, body[at])
        return body
    if type(body) is int and rng.random() < 0.4:
        return body + rng.choice((-1, 1, -body, body, 64))
    return rng.choice(ODD)
