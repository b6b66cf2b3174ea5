"""``python -m reliability.fuzz``: the long run; goes on where it was stopped."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
from pathlib import Path

# A fork has the threads of its parent only by name.
os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

from reliability.fuzz.campaign import Tally, all_targets, load, save, table
from reliability.fuzz.worker import WAYS, part

PART = 5_000  # inputs of one process, at most
FEWEST = 0.01  # of all inputs, for any reader
# Of all inputs, by reader: slower readers get fewer, 1 where not named.
SHARES = {
    "diffusers network": 0.0,
    "published network": 0.0,
    "training state": 0.0,
    "recorded figures": 0.0,
    "pipeline": 0.2,
    "own network": 0.4,
    "EDM pickle": 0.5,
    "index": 0.5,
    "store": 0.7,
}
NEEDS = {"coverage": "atheris", "hypothesis": "hypothesis"}  # what chooses inputs


def main() -> int:
    """Give every reader its share; 1 where anything was found."""
    parser = argparse.ArgumentParser(prog="python -m reliability.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=200_000, help="of all readers together")
    parser.add_argument("--out", type=Path, default=Path("fuzz.json"), help="counts and findings")
    parser.add_argument("--only", action="append", help="a reader; may be given several times")
    parser.add_argument("--part", type=int, default=PART, help="inputs of one process, at most")
    parser.add_argument("--table", action="store_true", help="print what was counted so far")
    asked = parser.parse_args()
    if asked.table:
        print(table(load(asked.out)))
        return 0
    ways = [way for way in WAYS if importlib.util.find_spec(NEEDS.get(way, "golddiff"))]
    if "coverage" in ways:
        from reliability.fuzz.guided import instrument

        instrument()
    else:
        print("atheris is not installed: inputs are not chosen by coverage")
    names = [target.name for target in all_targets()]
    if asked.only:
        unknown = sorted(set(asked.only) - set(names))
        if unknown:
            parser.error(f"--only: {unknown[0]!r} is none of {', '.join(names)}")
        names = asked.only
    tallies = load(asked.out)
    wanted = _wanted(names, asked.inputs)
    beside = asked.out.absolute().with_name(f".{asked.out.stem}-part")
    broken: set[str] = set()  # their sound inputs are not read: there is nothing to damage
    while left := [n for n in names if n not in broken and _done(tallies, n) < wanted[n]]:
        for name in left:
            done = _done(tallies, name)
            size = min(asked.part, math.ceil(wanted[name] / len(ways)))
            # In turn: they find different things.
            way = ways[done // size % len(ways)]
            more = part(name, min(size, wanted[name] - done), done, beside, way)
            if more.outcomes == {"died": 1}:
                broken.add(name)
            _merge(tallies.setdefault(name, Tally()), more)
            save(asked.out, tallies)
            tally = tallies[name]
            print(
                f"{name}, {way}: {tally.inputs:,} of {wanted[name]:,}, {dict(tally.outcomes)}",
                flush=True,
            )
    print(table(tallies))
    return 1 if any(tally.findings for tally in tallies.values()) else 0


def _wanted(names: list[str], inputs: int) -> dict[str, int]:
    """How many inputs each reader gets."""
    total = max(sum(SHARES.get(name, 1.0) for name in names), 1e-9)
    fewest = math.ceil(FEWEST * inputs)
    return {name: max(fewest, math.ceil(inputs * SHARES.get(name, 1.0) / total)) for name in names}


def _done(tallies: dict[str, Tally], name: str) -> int:
    return tallies[name].inputs if name in tallies else 0


def _merge(tally: Tally, more: Tally) -> None:
    tally.outcomes.update(more.outcomes)
    tally.seconds += more.seconds
    for key, found in more.findings.items():
        tally.findings.setdefault(key, found)


if __name__ == "__main__":
    sys.exit(main())
