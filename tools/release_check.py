"""Build the wheel, install it in a clean environment, and type what README and guides say.

Usage: ``make release-check``, or ``python tools/release_check.py [--environment PYTHON] [--small]``
to use an environment where the wheel is installed already, and smaller pictures.

Blocks marked ``sh`` are typed in order, in one folder that holds ``photos/``, ``albums/``,
``outputs/`` and ``photo.jpg``; blocks marked ``python`` run page by page. Blocks marked ``console``
and ``py`` are shown only. Home and cache are fresh, and the Hugging Face hub is never asked.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "release"
EXTRAS = "[studio,cluster]"
GIVEN_UP = 600  # seconds that a command or a page may take
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What a user has: pictures of two kinds. They are patches of two photographs.
PICTURES = """
import sys
from pathlib import Path
import golddiff
from golddiff.system.pictures import to_pixels
from PIL import Image

pixels = to_pixels(golddiff.load("patches", limit=60, size=64).images())
for i, picture in enumerate(map(Image.fromarray, pixels)):
    folders = ["outputs"] if i < 8 else ["photos", f"albums/{'ab'[i % 2]}"]
    for folder in folders:
        Path(folder).mkdir(parents=True, exist_ok=True)
        picture.save(f"{folder}/{i:03d}.png")
picture.save("photo.jpg")
for name in ("old", "damaged", "soft"):
    picture.save(f"{name}.png")
picture.convert("L").save("grey.png")
picture.resize((16, 16)).save("tiny.png")
missing = Image.new("L", picture.size)
missing.paste(255, (4, 4, 12, 12))
missing.save("missing.png")
"""


def main() -> int:
    """Run the whole check; the number of commands that failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environment", type=Path, help="its python; default: a new environment")
    parser.add_argument("--small", action="store_true", help="type --size 32 where 64 stands")
    given = parser.parse_args()
    python = given.environment or installed()
    work = BUILD / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    env = environment(python)
    ran([str(python), "-c", PICTURES], work, env, "pictures to work with")
    failed = []
    for command, folder, shown in commands(work, python):
        typed = [re.sub("--size 64", "--size 32", w) if given.small else w for w in command]
        failed.append(not ran(typed, folder, env, shown))
    failed.append(not studio(python, work, env))
    print(f"{len(failed) - sum(failed)} of {len(failed)} went through")
    return sum(failed)


def installed() -> Path:
    """The python of a new environment that holds the wheel and nothing of the checkout."""
    shutil.rmtree(BUILD, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(BUILD), str(ROOT)], check=True)
    (wheel,) = BUILD.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(BUILD / "env")], check=True)
    python = BUILD / "env" / "bin" / "python"
    pip[0] = str(python)
    pins = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "install", *pins, f"{wheel}{EXTRAS}"], check=True)
    return python


def environment(python: Path) -> dict[str, str]:
    """A fresh home, the environment's commands first, no hub, no checkout on the path."""
    home = BUILD / "home"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    left = {k: v for k, v in os.environ.items() if not k.startswith(("GOLDDIFF_", "PYTHON"))}
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    return {**left, "HOME": str(home), "PATH": path, "HF_HUB_OFFLINE": "1"}


def pages() -> list[Path]:
    """README and the pages that tell what to type, in the order of reading."""
    listed = re.findall(r": ((?:index|guides/|reference/)[\w/-]*(?:\.md)?)$",
                        (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)  # fmt: skip
    names = [name if name.endswith(".md") else f"{name}.md" for name in listed]
    return [ROOT / "README.md", *(ROOT / "docs" / name for name in names)]


def commands(work: Path, python: Path) -> Iterator[tuple[list[str], Path, str]]:
    """Each command and each page's Python: what to run, where, and what to call it."""
    for page in pages():
        name = str(page.relative_to(ROOT))
        code = []
        for kind, text in BLOCK.findall(page.read_text("utf-8")):
            if kind == "python":
                code.append(text)
                continue
            for line in re.sub(r"\\\n\s*", " ", text).splitlines():
                typed = line.split("  #")[0].strip()
                if typed and not typed.startswith("pip install"):  # that is what came before
                    yield ["bash", "-c", typed], work, f"{name}: {typed}"
        if code:
            folder = work / "python" / page.stem
            folder.mkdir(parents=True)
            script = folder / "page.py"
            script.write_text("\n".join(code), "utf-8")
            yield [str(python), str(script)], folder, f"{name}: its Python"


def ran(command: list[str], folder: Path, env: dict[str, str], shown: str) -> bool:
    """Run one command; prints how it went, and what it said where it failed."""
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, timeout=GIVEN_UP, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        code, said = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        code, said = -1, f"not done after {GIVEN_UP} s"
    print(f"{'ok  ' if code == 0 else 'FAIL'} {time.perf_counter() - start:6.1f} s  {shown}")
    if code:
        print("\n".join(f"       {line}" for line in said.splitlines()[-20:]))
    sys.stdout.flush()
    return code == 0


def studio(python: Path, work: Path, env: dict[str, str]) -> bool:
    """Whether the page in the browser answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(python.parent / "golddiff"), "studio", "--no-browser", "--port", str(port)]
    start = time.perf_counter()
    with (work / "studio.log").open("w") as log:
        server = subprocess.Popen(command, cwd=work, env=env, stdout=log, stderr=log)
    answered = False
    try:
        while not answered and server.poll() is None and time.perf_counter() - start < GIVEN_UP:
            time.sleep(0.5)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as page:
                    answered = page.status == 200
            except OSError:
                continue
    finally:
        server.terminate()
        server.wait()
    print(f"{'ok  ' if answered else 'FAIL'} {time.perf_counter() - start:6.1f} s  golddiff studio")
    return answered


if __name__ == "__main__":
    sys.exit(min(main(), 1))
