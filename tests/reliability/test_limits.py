"""A disk that is full, a folder that is read-only, file descriptors that are used up."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from golddiff.store.images import ImageStore


def ends(code, folder):
    """Run code in a process of its own; what it printed."""
    head = f"""
        import resource, signal, errno
        import numpy as np
        from golddiff.system.errors import GoldDiffError
        from golddiff.store.images import ImageStore
        from golddiff.supports.index import Index
        from golddiff.supports.index import indexing as build
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        place = {str(folder)!r}
        pixels = np.random.default_rng(0).integers(0, 256, (12_000, 12, 12), dtype=np.uint8)
    """
    text = textwrap.dedent(head) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_full_disk_leaves_nothing_and_says_so(tmp_path):
    said = ends(
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            ImageStore.build(pixels, place + "/s")
        except GoldDiffError as error:
            print(error)
        ImageStore.build(pixels[:50], place + "/small")
        big = ImageStore.open(place + "/big")
        try:
            Index.build(big)
        except GoldDiffError as error:
            print(error)
        """,
        _with_a_store(tmp_path),
    )  # fmt: skip
    first, second = said.splitlines()
    assert "the disk is full" in first
    assert "the disk is full" in second
    assert not (tmp_path / "s").exists()
    assert not [p for p in tmp_path.iterdir() if "building" in p.name]
    ImageStore.open(tmp_path / "small").verify()


def _with_a_store(folder):
    rng = np.random.default_rng(0)
    ImageStore.build(rng.integers(0, 256, (12_000, 12, 12), dtype=np.uint8), folder / "big")
    return folder


def test_used_up_file_descriptors_are_told(tmp_path):
    said = ends(
        """
        import os
        ImageStore.build(pixels[:2], place + "/first")  # code not read yet could not be read then
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1,) * 2)
        try:
            ImageStore.build(pixels, place + "/s")
        except GoldDiffError as error:
            print(error)
        for descriptor in held:
            os.close(descriptor)
        ImageStore.build(pixels, place + "/s").verify()
        """,
        tmp_path,
    )
    assert "too many files are open" in said
    ImageStore.open(tmp_path / "s").verify()


def test_a_read_only_folder_is_told(tmp_path, monkeypatch):
    """The superuser may write anywhere, so the system's answer is given in its place."""
    import errno
    import tempfile

    def refused(*arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    with pytest.raises(ValueError, match=r"cannot write .* \(Read-only file system\)"):
        ImageStore.build(np.zeros((3, 4, 4), np.uint8), tmp_path / "s")
    assert not (tmp_path / "s").exists()
