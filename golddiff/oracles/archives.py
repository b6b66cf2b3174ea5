"""What ``torch.save`` wrote, looked through before torch reads it: its reader can be crashed."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO

import torch

from golddiff.errors import CheckpointError, SourceError
from golddiff.sources.guards import check_unpacked
from golddiff.system.pickle_scan import scan

# torch takes for a zip archive what begins like one, and everything else for pickles in a row:
# a magic number, a version, the sizes of words, the values, and the names of their storages.
ZIP, PICKLES = b"PK\x03\x04", 5


def check_archive(path: Path) -> None:
    """Look through the pickles of a checkpoint before torch reads it.

    Raises:
        CheckpointError: it unpacks to far more than it holds, or would crash the reader.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(ZIP)) == ZIP:
                file.seek(0)
                _check_zip(path, file)
            else:
                file.seek(0)
                for _ in range(PICKLES):
                    scan(file)
    except SourceError as error:
        raise CheckpointError(str(error)) from None
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{path} is damaged or truncated: it cannot be read ({reason})"
        ) from error


def _check_zip(path: Path, file: IO[bytes]) -> None:
    # With torch's own reader: it takes names in any case, and finds the table of members
    # otherwise than Python's, so that two archives in one file would be told apart by nobody.
    archive = torch._C.PyTorchFileReader(file)
    if hasattr(archive, "get_record_size"):
        unpacked = sum(archive.get_record_size(name) for name in archive.get_all_records())
    else:  # an older torch
        with zipfile.ZipFile(path) as members:
            unpacked = sum(member.file_size for member in members.infolist())
    check_unpacked(str(path), path.stat().st_size, unpacked)
    scan(archive.get_record("data.pkl"))
