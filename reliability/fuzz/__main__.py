"""``python -m reliability.fuzz``: the long run; goes on where it was stopped."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

from reliability.fuzz.campaign import Tally, all_targets, load, save

PART = 2_500  # inputs of one process
SECONDS = 900  # that a process may take; a hang is a finding
# Of all inputs, by reader: slower readers get fewer, 1 where not named.
SHARES = {
    "diffusers network": 0.02,
    "published network": 0.03,
    "training state": 0.05,
    "own network": 0.2,
    "EDM pickle": 0.2,
    "store": 0.2,
    "index": 0.1,
    "parquet": 0.8,
}


def main() -> int:
    """Give every reader its share; 1 where anything was found."""
    parser = argparse.ArgumentParser(prog="python -m reliability.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=200_000, help="of all readers together")
    parser.add_argument("--out", type=Path, default=Path("fuzz.json"), help="counts and findings")
    parser.add_argument("--only", action="append", help="a reader; may be given several times")
    parser.add_argument("--part", type=int, default=PART, help="inputs of one process")
    asked = parser.parse_args()
    names = [target.name for target in all_targets()]
    if asked.only:
        unknown = sorted(set(asked.only) - set(names))
        if unknown:
            parser.error(f"--only: {unknown[0]!r} is none of {', '.join(names)}")
        names = asked.only
    guided = importlib.util.find_spec("atheris") is not None
    if not guided:
        print("atheris is not installed: inputs are not chosen by coverage")
    total = sum(SHARES.get(name, 1.0) for name in names)
    wanted = {name: round(asked.inputs * SHARES.get(name, 1.0) / total + 0.5) for name in names}
    tallies = load(asked.out)
    while left := [name for name in names if _done(tallies, name) < wanted[name]]:
        for name in left:
            done = _done(tallies, name)
            count = min(asked.part, wanted[name] - done)
            # In turn with coverage and without: the two find different things.
            by_coverage = guided and (done // asked.part) % 2 == 0
            _merge(
                tallies.setdefault(name, Tally()), _part(name, count, done, asked.out, by_coverage)
            )
            save(asked.out, tallies)
            tally = tallies[name]
            print(
                f"{name}: {tally.inputs:,} of {wanted[name]:,}, {dict(tally.outcomes)}", flush=True
            )
    inputs = sum(tally.inputs for tally in tallies.values())
    findings = sum(len(tally.findings) for tally in tallies.values())
    print(f"{inputs:,} inputs, {len(tallies)} readers, {findings} findings; {asked.out}")
    return 1 if findings else 0


def _done(tallies: dict[str, Tally], name: str) -> int:
    return tallies[name].inputs if name in tallies else 0


def _part(name: str, count: int, seed: int, out: Path, guided: bool) -> Tally:
    """Inputs in a process of its own; one that dies is a finding, its last input kept."""
    written = out.absolute().with_name(f".{out.stem}-part.json")
    written.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "reliability.fuzz.worker",
        name,
        str(count),
        str(seed),
        str(written),
    ]
    process = subprocess.Popen(
        [*command, *(["--guided"] if guided else [])],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        process_group=0,
    )
    try:
        _, complaints = process.communicate(timeout=SECONDS)
        ended = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, complaints = process.communicate()
        ended = -signal.SIGKILL
    tally = load_one(written)
    if ended != 0:
        last = written.with_suffix(".input")
        data = last.read_bytes() if last.is_file() else b""
        said = complaints.decode("utf-8", "replace")[-600:]
        tally.outcomes["died"] += 1
        tally.findings[f"died-{seed}"] = {
            "kind": "died",
            "detail": f"the process ended with {ended}: {said}",
            "input": data[:65536].hex(),
        }
    return tally


def load_one(path: Path) -> Tally:
    """The tally that a process left."""
    import json

    return Tally.of(json.loads(path.read_text("utf-8"))) if path.is_file() else Tally()


def _merge(tally: Tally, more: Tally) -> None:
    tally.outcomes.update(more.outcomes)
    tally.seconds += more.seconds
    for key, found in more.findings.items():
        tally.findings.setdefault(key, found)


if __name__ == "__main__":
    sys.exit(main())
