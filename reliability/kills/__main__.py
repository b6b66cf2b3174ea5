"""``python -m reliability.kills``: 300 SIGKILLs over all jobs; prints what came of them."""

from __future__ import annotations

import os

# A fork has the threads of its parent only by name.
os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

from reliability.kills.harness import killed
from reliability.kills.jobs import jobs


def main() -> int:
    """Arguments: how many kills, the seed, and where the figures go."""
    parser = argparse.ArgumentParser(prog="python -m reliability.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append")
    parser.add_argument("--out", type=Path, default=Path("kills.json"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [job for job in jobs() if asked.only is None or job.name in asked.only]
    told = {}
    for job in chosen:
        with tempfile.TemporaryDirectory() as place:
            result = killed(job, -(-asked.kills // len(chosen)), asked.seed, Path(place))
        told[job.name] = asdict(result)
        asked.out.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
        print(
            f"{job.name}: {result.kills} kills in {result.rounds} rounds ({result.late} late), "
            f"{result.seconds:.2f} s uninterrupted, {len(result.failures)} failures",
            flush=True,
        )
        for failure in result.failures:
            print(failure, flush=True)
    return 1 if any(one["failures"] for one in told.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
