"""Pictures and operators that the tests of restoring share."""

import numpy as np
import torch

from golddiff.estimators import operators

SHAPE = (3, 8, 8)
KNOWN = torch.ones(8, 8, dtype=torch.bool)
KNOWN[2:5, 3:6] = False
OPERATORS = {
    "hole": operators.kept(KNOWN),
    "smaller": operators.smaller(np.int64(2)),
    "grey": operators.grey,
    "blurred": operators.blurred(0.7),
    "both": operators.composed(operators.grey, operators.smaller(4)),
}


def operator_matrix(operator):
    return operator(torch.eye(192).reshape(-1, *SHAPE)).reshape(192, -1).T.double().numpy()
