"""The outputs that a seed decides equal the frozen ones, which ``make.py`` wrote."""

from pathlib import Path

import numpy as np
import pytest

import golddiff
from tests.frozen.cases import CASES, Problem

ROUNDING = 2.0**-24  # relative rounding error of float32
# The frozen outputs of Optimal are up to 4e-6 off (sigma 0.34), since they used float32 values.
# Now nearly tied images are weighed in float64, and the error is 2e-7.
OPTIMAL_ERROR = 5e-6
# Further tolerances: k-means and samplers round at every step.
FITTED = {
    "mixture": 1e-4,
    "patches": 1e-4,
    "network-like": 1e-4,
    "sample wiener ddim": 1e-5,
    "sample wiener heun": 1e-5,
    "sample optimal ddim": 1e-5,
}


@pytest.fixture(scope="module")
def frozen():
    """The frozen arrays, by the names of their cases and parts."""
    with np.load(Path(__file__).parent / "digits.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def problem(frozen, tmp_path_factory):
    store = golddiff.ImageStore.build("digits", tmp_path_factory.mktemp("frozen") / "digits")
    return Problem(store, frozen["levels"], frozen["seeds"])


def tolerance(problem, case):
    """The largest difference between outputs, in units of x0, that rounding explains.

    Float32 outputs differ by 1e-6. Logits near the largest are about D/2 (D squared differences of
    sigma^2, over 2 sigma^2), and another order of summation changes them by float32 rounding. The
    output changes by the mean change of its logits times the images' mutual distance, about 0.5.
    """
    exact = OPTIMAL_ERROR if "optimal" in case else 0
    return FITTED.get(case, 0) + 1e-6 + ROUNDING * problem.store.d / 2 * 0.5 + exact


# Fits also run with the rounding of other processors.
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[pytest.mark.kernels] if c in FITTED else []) for c in CASES],
)
def test_outputs_equal_the_frozen_ones(problem, frozen, case):
    """Within float32 rounding, as derived in :func:`tolerance`: 2e-6."""
    outputs = {f"{case}/{part}": values for part, values in CASES[case](problem).items()}
    assert outputs.keys() == {name for name in frozen if name.startswith(f"{case}/")}
    for name, values in outputs.items():
        # Relative for noise levels and starting noise, which are larger than images.
        limit = tolerance(problem, case) * np.maximum(1, np.abs(frozen[name]))
        assert (np.abs(values - frozen[name]) <= limit).all(), name
