"""System limits: full disks, read-only folders, too many open files."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from golddiff.store.images import ImageStore


def run(code, folder):
    """The output of code that runs in a child process."""
    head = f"""
        import resource, signal, errno
        import numpy as np
        from golddiff.system.errors import GoldDiffError
        from golddiff.store.images import ImageStore
        from golddiff.supports.index import image_index
        from golddiff.supports.index.image_index import Index
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        folder = {str(folder)!r}
        pixels = np.random.default_rng(0).integers(0, 256, (12_000, 12, 12), dtype=np.uint8)
    """
    text = textwrap.dedent(head) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_too_many_open_files_and_a_full_disk_leave_nothing_behind(tmp_path):
    output = run(
        """
        import os
        ImageStore.build(pixels[:2], folder + "/first")  # imports all modules first
        descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(descriptors) + 1, before[1]))
        try:
            ImageStore.build(pixels, folder + "/s")
        except GoldDiffError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in descriptors:
            os.close(descriptor)
        ImageStore.build(pixels, folder + "/big").verify()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            ImageStore.build(pixels, folder + "/s")
        except GoldDiffError as error:
            print(error)
        ImageStore.build(pixels[:50], folder + "/small")
        big = ImageStore.open(folder + "/big")
        try:
            Index.build(big)
        except GoldDiffError as error:
            print(error)
        """,
        tmp_path,
    )  # fmt: skip
    files, first, second = output.splitlines()
    assert "Too many open files" in files
    assert "the disk is full" in first
    assert "the disk is full" in second
    assert not (tmp_path / "s").exists()
    assert not [p for p in tmp_path.iterdir() if "building" in p.name]
    ImageStore.open(tmp_path / "small").verify()


def test_read_only_folder_is_reported(tmp_path, monkeypatch):
    """The error is simulated, because root may write anywhere."""
    import errno
    import tempfile

    def refused(*arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    with pytest.raises(ValueError, match=r"cannot write .* \(Read-only file system\)"):
        ImageStore.build(np.zeros((3, 4, 4), np.uint8), tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
@pytest.mark.parametrize(("stdout", "status"), [("/dev/full", 2), ("| true", 1)])
def test_results_are_written_although_nobody_reads_the_output(tmp_path, stdout, status):
    """Regression: a command that could not print ended before it wrote its files."""
    command = f"{sys.executable} -m golddiff index digits s --limit 20 --json a.json"
    target = stdout if stdout.startswith("|") else f"> {stdout}"
    done = subprocess.run(
        ["bash", "-c", f"{command} {target}; exit ${{PIPESTATUS[0]}}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, ImageStore.open(tmp_path / "s").n) == (status, 20)
    assert json.loads((tmp_path / "a.json").read_text())["n"] == 20
    expected = "golddiff: standard output: No space left on device\n" if status == 2 else ""
    assert done.stderr == expected


def test_without_a_folder_for_compiled_loops_they_go_into_a_temporary_one(tmp_path):
    """Regression: a traceback where neither the package nor the home folder can be written."""
    code = """
        from pathlib import Path
        from numba.core import caching
        del caching.CacheImpl._locator_classes[1:]  # all but the one of NUMBA_CACHE_DIR
        import os
        import numba, numpy as np
        from golddiff.kernels import TEMPORARY
        os.environ["NUMBA_CAPTURED_ERRORS"] = "new_style"
        numba.njit(lambda a: a)(1)  # reads the environment again
        from golddiff.kernels import draw_weights
        one = np.ones(16, np.float32)
        print(draw_weights.weight_sums(one, one[0], one[0])[0], *Path(TEMPORARY.name).iterdir())
    """
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    total, folder = done.stdout.split()
    assert (float(total), Path(folder).exists()) == (16, False)
    assert "NUMBA_CACHE_DIR names one" in done.stderr


def test_a_later_run_in_a_process_does_not_fail_of_an_earlier_one_s_output(tmp_path):
    """Regression: once a run's output had no reader, every later run of the process failed."""
    code = """
        import io, os, sys
        from golddiff.cli import run
        kept, read = os.dup(1), os.pipe()
        os.dup2(read[1], 1), os.close(read[0]), os.close(read[1])
        first = run(["index", "moons", "moons.store", "--limit", "20"])
        sys.stdout = io.StringIO()
        os.write(kept, f"{first} {run(['info', 'moons.store'])}".encode())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "1 0"
