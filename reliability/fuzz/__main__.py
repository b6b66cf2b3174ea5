"""``python -m reliability.fuzz``: the long run, which resumes where it was stopped."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
from pathlib import Path

# A forked process has none of its parent's threads.
os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

from reliability.fuzz.campaign import Tally, all_targets, load, save, table
from reliability.fuzz.worker import STRATEGIES, run_part

PART = 5_000  # maximum number of inputs of one process
MIN_SHARE = 0.01  # of all inputs, for every reader
# Relative number of inputs by reader, by default 1: slower readers get fewer.
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


def main() -> int:
    """Give every reader its share of the inputs; return 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m reliability.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=200_000, help="of all readers together")
    parser.add_argument("--out", type=Path, default=Path("fuzz.json"), help="counts and findings")
    parser.add_argument("--only", action="append", help="a reader; may be given several times")
    parser.add_argument("--part", type=int, default=PART, help="inputs of one process, at most")
    parser.add_argument("--table", action="store_true", help="print what was counted so far")
    args = parser.parse_args()
    if args.table:
        print(table(load(args.out)))
        return 0
    strategies = STRATEGIES if importlib.util.find_spec("atheris") else STRATEGIES[1:]
    if "coverage" in strategies:
        from reliability.fuzz.guided import instrument

        instrument()
    else:
        print("atheris is not installed: inputs are not chosen by coverage")
    names = [target.name for target in all_targets()]
    if args.only:
        unknown = sorted(set(args.only) - set(names))
        if unknown:
            parser.error(f"--only: {unknown[0]!r} is none of {', '.join(names)}")
        names = args.only
    tallies = load(args.out)
    goals = _input_counts(names, args.inputs)
    scratch = args.out.absolute().with_name(f".{args.out.stem}-part")
    broken: set[str] = set()  # readers that fail on valid inputs
    while pending := [n for n in names if n not in broken and _done(tallies, n) < goals[n]]:
        for name in pending:
            done = _done(tallies, name)
            size = min(args.part, math.ceil(goals[name] / len(strategies)))
            # Strategies take turns because they find different defects.
            strategy = strategies[done // size % len(strategies)]
            part = run_part(name, min(size, goals[name] - done), done, scratch, strategy)
            if part.outcomes == {"died": 1}:
                broken.add(name)
            _merge(tallies.setdefault(name, Tally()), part)
            save(args.out, tallies)
            tally = tallies[name]
            print(
                f"{name}, {strategy}: {tally.inputs:,} of {goals[name]:,}, {dict(tally.outcomes)}",
                flush=True,
            )
    print(table(tallies))
    return 1 if any(tally.findings for tally in tallies.values()) else 0


def _input_counts(names: list[str], inputs: int) -> dict[str, int]:
    """The number of inputs for each reader."""
    total = max(sum(SHARES.get(name, 1.0) for name in names), 1e-9)
    minimum = math.ceil(MIN_SHARE * inputs)
    return {name: max(minimum, math.ceil(inputs * SHARES.get(name, 1.0) / total)) for name in names}


def _done(tallies: dict[str, Tally], name: str) -> int:
    return tallies[name].inputs if name in tallies else 0


def _merge(tally: Tally, part: Tally) -> None:
    tally.outcomes.update(part.outcomes)
    tally.seconds += part.seconds
    for key, finding in part.findings.items():
        tally.findings.setdefault(key, finding)


if __name__ == "__main__":
    sys.exit(main())
