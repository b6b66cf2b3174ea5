"""A small file system that is full, and one that is read-only: real ones, seen by a child alone."""

import shutil
import subprocess
import sys
import textwrap

import pytest

HEAD = """
    import contextlib, os, subprocess, sys
    import numpy as np
    from golddiff import Optimal, sample
    from golddiff.store import build as store_build
    from golddiff.system.errors import GoldDiffError
    from golddiff.system.files import atomic_write
    from golddiff.supports.index import Index
    from golddiff.supports.index import indexing as index_build
    from golddiff.store.images import ImageStore

    place = sys.argv[1]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "x", place], check=True)
    pixels = np.random.default_rng(0).integers(0, 256, (1500, 12, 12), dtype=np.uint8)
    uncheck = lambda *arguments: None

    def fill(left):
        state = os.statvfs(place)
        with open(place + "/filler", "wb") as file:
            file.write(bytes(state.f_bavail * state.f_bsize - left))

    @contextlib.contextmanager
    def told():
        try:
            yield
            print("ended well")
        except GoldDiffError as error:
            print(error)
"""


def mounts():
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs x /mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not mounts(), reason="file systems cannot be mounted here")


def lines(code, folder):
    text = textwrap.dedent(HEAD) + textwrap.dedent(code)
    command = ["unshare", "-rm", sys.executable, "-c", text, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_a_full_and_a_read_only_disk(tmp_path):
    """Refused before the work where it is foreseen; else told, and the work goes on after.

    What lies where nothing can be written is read and sampled from.
    """
    said = lines(
        """
        fill(200_000)
        with told():  # pixels and proxies take more
            ImageStore.build(pixels, place + "/s")
        store_build.check_disk = uncheck
        with told():
            ImageStore.build(pixels, place + "/s")
        print(sorted(os.listdir(place)))
        os.remove(place + "/filler")
        store = ImageStore.build(pixels, place + "/s")
        index_build.check_disk, index_build.PIECE = uncheck, 60_000
        fill(12_000)  # the index's numbers are 18 kB
        with told():
            Index.build(store)
        with told(), atomic_write("out", store.path / "page.json") as path:
            path.write_bytes(bytes(300_000))
        print(sorted(p.name for p in store.path.iterdir() if p.suffix in ("", ".json")))
        os.remove(place + "/filler")
        Index.build(store).verify()
        store.verify()
        images = sample(Optimal(store), 2, steps=3).images
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        with told():
            ImageStore.build(pixels, place + "/other")
        with told():
            Index.build(ImageStore.open(place + "/s"))
        with told(), atomic_write("out", store.path / "page.json"):
            pass
        again = sample(Optimal(ImageStore.open(place + "/s")), 2, steps=3).images
        print(bool((again == images).all()))
        """,
        tmp_path,
    )
    assert "needs about" in said[0]
    assert "B free" in said[0]
    assert "the disk is full" in said[1]
    assert "left nothing behind" in said[1]
    assert said[2] == "['filler']"
    assert "index: the disk is full" in said[3]
    assert "left nothing behind" in said[3]
    assert "cannot be written (No space left on device)" in said[4]
    assert said[5] == "['manifest.json']"
    assert "cannot write" in said[6]
    assert all("Read-only file system" in line for line in said[6:9])
    assert said[9] == "True"


def test_weights_and_training_states_on_a_full_disk(tmp_path):
    """A file that safetensors or torch writes itself ends in an error of its own."""
    said = lines(
        """
        from pathlib import Path
        from golddiff_lab.training.run import save, start
        from golddiff_lab.training.settings import TrainSettings
        from golddiff_lab.training.writing import write_weights

        settings = TrainSettings(channels=32, multipliers=(1,), blocks=1)
        store = ImageStore.build(pixels[:9, :8, :8], place + "/s")
        run = start(store, Path(place) / "none", settings)
        fill(100_000)
        with told():
            save(run, store, Path(place) / "run")
        with told():
            write_weights(Path(place) / "weights.safetensors", run.network, {})
        print(sorted(os.listdir(place)), os.listdir(place + "/run"))
        """,
        tmp_path,
    )
    assert all("cannot be written (No space left on device)" in line for line in said[:2])
    assert said[2] == "['filler', 'run', 's'] []"
