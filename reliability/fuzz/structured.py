"""Mutations within containers, which are unpacked, damaged inside, and repacked correctly.

Flipped bytes rarely pass the first checksum or length; these mutations reach the code behind it.
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
    """Change a chunk of a PNG and correct its CRC."""
    if not data.startswith(PNG):
        return flip(rng, data)
    chunks, start = [], 8
    while start + 12 <= len(data):
        (length,) = struct.unpack(">I", data[start : start + 4])
        chunks.append((data[start + 4 : start + 8], data[start + 8 : start + 8 + length]))
        start += 12 + length
    if not chunks:
        return data
    index = rng.randrange(len(chunks))
    kind, body = chunks[index]
    if kind == b"IHDR" and rng.random() < 0.5 and len(body) >= 8:
        sizes = [rng.choice((0, 1, 4, 4000, 100_000, 2**31 - 1)) for _ in range(2)]
        body = struct.pack(">II", *sizes) + body[8:]
    elif kind == b"IDAT" and rng.random() < 0.5:
        body = zlib.compress(rng.randbytes(rng.choice((0, 1, 60, 5000))))
    else:
        body = flip(rng, body)
    chunks[index] = (kind, body)
    if rng.random() < 0.2:
        rng.shuffle(chunks)
    out = [PNG]
    for kind, body in chunks:
        crc = struct.pack(">I", zlib.crc32(kind + body))
        out.append(struct.pack(">I", len(body)) + kind + body + crc)
    return b"".join(out)


def zip_members(rng: random.Random, data: bytes) -> bytes:
    """Change, rename or duplicate a member of a zip archive; repack it with any compression."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except Exception:
        return flip(rng, data)
    if not members:
        return data
    index = rng.randrange(len(members))
    name, body = members[index]
    choice = rng.randrange(6)
    if choice <= 2:
        body = json_values(rng, body) if body[:1] == b"{" else flip(rng, body)
    elif choice == 3:
        name = rng.choice(("../" + name, "/etc/passwd", "x\\..\\" + name, name * 40, "a\x00b", "."))
    elif choice == 4:
        members.append((name, body))
    else:
        body = rng.choice((b"", body * 40, bytes(200_000)))
    members[index] = (name, body)
    kind = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", kind) as archive:
        warnings.simplefilter("ignore")
        for name, body in members:
            archive.writestr(name, body)
    return out.getvalue()


def gzip_inside(rng: random.Random, data: bytes) -> bytes:
    """Change the contents of a gzip file."""
    try:
        body = gzip.decompress(data)
    except Exception:
        return flip(rng, data)
    return gzip.compress(flip(rng, body), 1, mtime=0)


def json_values(rng: random.Random, data: bytes) -> bytes:
    """Replace, remove, rename or duplicate a value of a JSON text."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return flip(rng, data)
    return json.dumps(_damaged_value(rng, body)).encode()


def sealed_json(rng: random.Random, data: bytes) -> bytes:
    """Change a value of a manifest and correct its digest, which anybody can compute."""
    try:
        body = json.loads(data)
        body.pop("digest")
        body = _damaged_value(rng, body)
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
        body["digest"] = hashlib.sha256(canonical.encode()).hexdigest()
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return flip(rng, data)
    return json.dumps(body).encode()


def safetensors_header(rng: random.Random, data: bytes) -> bytes:
    """Change the header of a safetensors file and correct its length."""
    if len(data) < 8:
        return data
    (length,) = struct.unpack("<Q", data[:8])
    header, rest = data[8 : 8 + length], data[8 + length :]
    try:
        body = json.loads(header)
    except (ValueError, RecursionError):
        return flip(rng, data)
    metadata = body.get("__metadata__", {}) if isinstance(body, dict) else {}
    if metadata and rng.random() < 0.6:
        name = rng.choice(sorted(metadata))
        metadata[name] = json_values(rng, str(metadata[name]).encode()).decode("utf-8", "replace")
    else:
        body = _damaged_value(rng, body)
    if rng.random() < 0.2:
        rest = flip(rng, rest)
    new = json.dumps(body).encode()
    return struct.pack("<Q", len(new)) + new + rest


ODD: tuple[Any, ...] = (
    *(None, True, "", "x", "../../x", "/etc/passwd", [], {}, [1], -1, -1.5, 1e308, 0),
    *INTERESTING,
    *("float32", "uint8", "NaN", [[]], {"a": 1}, "golddiff-store", 2**70),
)


def _damaged_value(rng: random.Random, body: Any) -> Any:
    """Change one value anywhere in a JSON body."""
    if isinstance(body, dict) and body and rng.random() < 0.93:
        name = rng.choice(sorted(body))
        if rng.random() < 0.08:
            del body[name]
        elif rng.random() < 0.05:
            body[str(rng.choice(ODD))] = body.pop(name)
        else:
            body[name] = _damaged_value(rng, body[name])
        return body
    if isinstance(body, list) and body and rng.random() < 0.8:
        index = rng.randrange(len(body))
        if rng.random() < 0.1:
            body.append(body[index])
        else:
            body[index] = _damaged_value(rng, body[index])
        return body
    if type(body) is int and rng.random() < 0.4:
        return body + rng.choice((-1, 1, -body, body, 64))
    return rng.choice(ODD)
