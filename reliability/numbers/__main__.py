"""``python -m reliability.numbers``: 20,000 cases; reports the largest error of each path."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from golddiff.system.markdown import markdown_table
from reliability.numbers.paths import PATHS
from reliability.numbers.run import Report, compare

PART = 500
HEADER = ["path", "cases", "near", "far", "the worst case"]


def main() -> int:
    """Run the check; return 1 if an error is above its tolerance."""
    parser = argparse.ArgumentParser(prog="python -m reliability.numbers", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=PATHS, action="append")
    parser.add_argument("--out", type=Path, default=Path("numbers.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    report, start, seed = Report(), time.perf_counter(), args.seed
    while report.cases < args.cases:
        compare(min(PART, args.cases - report.cases), seed, report, args.only)
        seed += 1
        args.out.write_text(json.dumps(asdict(report), indent=1) + "\n", "utf-8")
        print(f"{report.cases:,} cases, {time.perf_counter() - start:.0f} s", flush=True)
    rows = [
        [name, f"{worst.cases:,}", f"{worst.near:.1e}", f"{worst.far:.1e}", worst.where]
        for name, worst in sorted(report.paths.items())
    ]
    print("\n".join(markdown_table(HEADER, rows)), flush=True)
    findings = [name for name, worst in report.paths.items() if worst.found]
    print(f"{report.cases:,} cases, findings: {', '.join(findings) or 'none'}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
