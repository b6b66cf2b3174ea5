"""Full and read-only disks: real file systems, mounted in a child process only."""

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
    from golddiff.supports.index import image_index
    from golddiff.supports.index.image_index import Index
    from golddiff.store.images import ImageStore

    disk = sys.argv[1]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "x", disk], check=True)
    pixels = np.random.default_rng(0).integers(0, 256, (1500, 12, 12), dtype=np.uint8)
    no_check = lambda *arguments: None

    def fill(left):
        state = os.statvfs(disk)
        with open(disk + "/filler", "wb") as file:
            file.write(bytes(state.f_bavail * state.f_bsize - left))

    @contextlib.contextmanager
    def reported():
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


def run(code, folder):
    text = textwrap.dedent(HEAD) + textwrap.dedent(code)
    command = ["unshare", "-rm", sys.executable, "-c", text, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_full_and_read_only_disks(tmp_path):
    """A foreseen shortage is refused before the work, any other one is reported.

    Later work succeeds, and a store on a read-only disk can be read and sampled from.
    """
    output = run(
        """
        fill(200_000)
        with reported():  # pixels and proxies need more
            ImageStore.build(pixels, disk + "/s")
        store_build.check_disk = no_check
        with reported():
            ImageStore.build(pixels, disk + "/s")
        print(sorted(os.listdir(disk)))
        os.remove(disk + "/filler")
        store = ImageStore.build(pixels, disk + "/s")
        image_index.check_disk, image_index.PIECE = no_check, 60_000
        fill(12_000)  # the index's numbers are 18 kB
        with reported():
            Index.build(store)
        with reported(), atomic_write("out", store.path / "page.json") as path:
            path.write_bytes(bytes(300_000))
        print(sorted(p.name for p in store.path.iterdir() if p.suffix in ("", ".json")))
        os.remove(disk + "/filler")
        Index.build(store).check_contents()
        store.verify()
        images = sample(Optimal(store), 2, steps=3).images
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with reported():
            ImageStore.build(pixels, disk + "/other")
        with reported():
            Index.build(ImageStore.open(disk + "/s"))
        with reported(), atomic_write("out", store.path / "page.json"):
            pass
        repeated = sample(Optimal(ImageStore.open(disk + "/s")), 2, steps=3).images
        print(bool((repeated == images).all()))
        """,
        tmp_path,
    )
    assert "needs about" in output[0]
    assert "B free" in output[0]
    assert "the disk is full" in output[1]
    assert "left nothing behind" in output[1]
    assert output[2] == "['filler']"
    assert "index: the disk is full" in output[3]
    assert "left nothing behind" in output[3]
    assert "cannot be written (No space left on device)" in output[4]
    assert output[5] == "['manifest.json']"
    assert "cannot write" in output[6]
    assert all("Read-only file system" in line for line in output[6:9])
    assert output[9] == "True"


def test_weights_and_training_states_on_a_full_disk(tmp_path):
    """Write errors inside safetensors and torch are reported in the same way."""
    output = run(
        """
        from pathlib import Path
        from golddiff_lab.training.run import save, start
        from golddiff_lab.training.settings import TrainSettings
        from golddiff_lab.training.writing import write_weights

        settings = TrainSettings(channels=32, multipliers=(1,), blocks=1)
        store = ImageStore.build(pixels[:9, :8, :8], disk + "/s")
        run = start(store, Path(disk) / "none", settings)
        fill(100_000)
        with reported():
            save(run, store, Path(disk) / "run")
        with reported():
            write_weights(Path(disk) / "weights.safetensors", run.network, {})
        print(sorted(os.listdir(disk)), os.listdir(disk + "/run"))
        """,
        tmp_path,
    )
    assert all("cannot be written (No space left on device)" in line for line in output[:2])
    assert output[2] == "['filler', 'run', 's'] []"
