"""The outputs of every method equal the frozen ones, which ``make.py`` wrote.

Digits run always, CIFAR-10 only with the data packs. Adaptive methods may choose other supports, so
they are compared with the frozen full scan, within their tolerance.
"""

from pathlib import Path

import numpy as np
import pytest

import golddiff
from tests.frozen.cases import ADAPTED, ADAPTIVE, CASES, TOLERANCE, Problem, cifar10, digits

FOLDER = Path(__file__).parent
ROUNDING = 2.0**-24  # relative rounding error of float32
# The frozen outputs of Optimal are up to 4e-6 off (digits, sigma 0.34), since they used float32
# values. Now nearly tied images are weighed in float64, and the error is 2e-7.
OPTIMAL_ERROR = 5e-6
# Further tolerances. Eigenvalues of float32 scatters carry the rounding of the largest one, which
# is not small beside a small sigma^2; k-means and samplers round at every step.
FITTED = {
    "one gaussian": 1e-3,
    "mixture": 1e-4,
    "patches": 1e-4,
    "network-like": 1e-4,
    "sample wiener ddim": 1e-5,
    "sample wiener heun": 1e-5,
    "sample optimal ddim": 1e-5,
}


@pytest.fixture(scope="module")
def problems(request, tmp_path_factory):
    """problems(name): a data set's store with the frozen queries, and its frozen arrays."""
    loaded = {}

    def problem(name):
        if name not in loaded:
            source, labels = (
                digits() if name == "digits" else cifar10(request.getfixturevalue("data_packs"))
            )
            path = tmp_path_factory.mktemp("frozen") / name
            store = golddiff.ImageStore.build(source, path, labels)
            with np.load(FOLDER / f"{name}.npz") as file:
                frozen = {key: file[key] for key in file.files}
            loaded[name] = Problem(name, store, frozen["levels"], frozen["seeds"]), frozen
        return loaded[name]

    return problem


def parts_of(frozen, case):
    """The frozen arrays of one case, by part."""
    return {k.removeprefix(f"{case}/"): v for k, v in frozen.items() if k.startswith(f"{case}/")}


def tolerance(problem, case):
    """The largest difference between outputs, in units of x0, that rounding explains.

    Float32 outputs differ by 1e-6. Logits near the largest are about D/2 (D squared differences of
    sigma^2, over 2 sigma^2), and another order of summation changes them by float32 rounding. The
    output changes by the mean change of its logits times the images' mutual distance, about 0.5.
    """
    exact = OPTIMAL_ERROR if any(name in case for name in ("optimal", "certified")) else 0
    return FITTED.get(case, 0) + 1e-6 + ROUNDING * problem.store.d / 2 * 0.5 + exact


def cases(table):
    """The cases of a table. Fits also run with the rounding of other processors."""
    return [
        pytest.param(name, case, marks=[pytest.mark.kernels] if case in FITTED else [])
        for name in table
        for case in table[name]
    ]


@pytest.mark.parametrize(("name", "case"), cases(CASES))
def test_outputs_equal_the_frozen_ones(problems, name, case):
    """Within float32 rounding, as derived in :func:`tolerance`: 2e-6 on digits."""
    problem, frozen = problems(name)
    expected = parts_of(frozen, case)
    outputs = CASES[name][case](problem)
    assert outputs.keys() == expected.keys()
    if case.startswith("attribution"):
        check_sources(outputs, expected, tolerance(problem, case))
    elif case.startswith("certified"):
        check_bounds(outputs, expected, problem, parts_of(frozen, "optimal")["all"])
    else:
        for part, values in expected.items():
            # Relative for noise levels and starting noise, which are larger than images.
            limit = tolerance(problem, case) * np.maximum(1, np.abs(values))
            assert (np.abs(outputs[part] - values) <= limit).all(), part


def check_bounds(outputs, expected, problem, full):
    """Means equal the frozen ones; bounds hold against the full scan and are no wider."""
    limit = tolerance(problem, "certified")
    assert np.abs(outputs["mean"] - expected["mean"]).max() <= limit
    error = np.abs(outputs["mean"] - full).max(axis=-1)  # at most the error of the whole image
    assert (error <= outputs["bound"] + limit).all()
    assert (outputs["bound"] <= expected["bound"] * (1 + 1e-6) + limit * problem.store.d**0.5).all()


def check_sources(outputs, expected, limit):
    """Weights are equal, and so are sources whose rank no rounding can change."""
    for part, values in expected.items():
        if part.endswith(("sources", "positions")):
            weights = expected[part.replace("sources", "weights").replace("positions", "weights")]
            stable = np.full(weights.shape, True)
            is_apart = -np.diff(weights, axis=1) > 4 * limit * np.maximum(weights[:, 1:], 1e-6)
            stable[:, :-1] &= is_apart
            stable[:, 1:] &= is_apart
            stable[:, -1] = False  # the next weight is unknown
            assert (outputs[part] == values)[stable].all(), part
        else:
            # The effective number is a count, so relative; weights are at most 1.
            scale = np.maximum(1, np.abs(values)) if part.endswith("effective") else 1
            assert (np.abs(outputs[part] - values) <= 4 * limit * scale).all(), part


@pytest.mark.parametrize(("name", "case"), cases(ADAPTIVE))
def test_adaptive_methods_are_within_their_tolerance_of_the_full_scan(problems, name, case):
    """The RMSE of all queries is within the tolerance; that of each level, within twice."""
    problem, frozen = problems(name)
    base, run = ADAPTIVE[name][case]
    full = parts_of(frozen, base)
    for part, values in run(problem).items():
        expected = full[part] if len(values) == 10 else full[part][list(ADAPTED)]
        errors = np.square(values - expected).mean(axis=(1, 2))
        assert np.sqrt(errors.mean()) <= TOLERANCE, part
        assert (np.sqrt(errors) <= 2 * TOLERANCE).all(), part


@pytest.mark.parametrize("name", CASES)
def test_every_frozen_case_is_compared(problems, name):
    _, frozen = problems(name)
    of_cases = {key.split("/")[0] for key in frozen if "/" in key}
    assert of_cases == set(CASES[name])
