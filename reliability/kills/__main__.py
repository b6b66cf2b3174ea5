"""``python -m reliability.kills``: 300 SIGKILLs over all jobs; prints counts and failures."""

from __future__ import annotations

import os

# A forked process has none of its parent's threads.
os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

from reliability.kills.harness import kill_repeatedly
from reliability.kills.jobs import jobs


def main() -> int:
    """Run the check; return 1 if it finds failures."""
    parser = argparse.ArgumentParser(prog="python -m reliability.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append")
    parser.add_argument("--out", type=Path, default=Path("kills.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [job for job in jobs() if args.only is None or job.name in args.only]
    results = {}
    for job in chosen:
        with tempfile.TemporaryDirectory() as folder:
            result = kill_repeatedly(job, -(-args.kills // len(chosen)), args.seed, Path(folder))
        results[job.name] = asdict(result)
        args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        print(
            f"{job.name}: {result.kills} kills in {result.rounds} rounds ({result.late} late), "
            f"{result.seconds:.2f} s uninterrupted, {len(result.failures)} failures",
            flush=True,
        )
        for failure in result.failures:
            print(failure, flush=True)
    return 1 if any(result["failures"] for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
