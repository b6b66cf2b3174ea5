"""What a GPU would run, without one: the kernels that do the work, assembled for an H200."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="needs Triton: pip install 'golddiff[gpu]'")


def test_masked_kernels_use_the_matrix_units_and_spill_no_registers():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    output = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiled", "masked 2"],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    reports = [json.loads(line) for line in output.splitlines()]
    assert len(reports) == 2
    for report in reports:
        assert report["matrix_units"], report
        assert report["wide_loads"], report
        assert report["spilled"] == 0, report
