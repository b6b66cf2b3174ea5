"""A short version of ``make fuzz``: a few damaged inputs for every reader."""

import random

import pytest
import torch

from reliability.fuzz.campaign import Tally, all_targets, table
from reliability.fuzz.target import Examiner

SLOW = {
    *("diffusers network", "published network", "training state", "own network"),
    "recorded figures",
}
TARGETS = all_targets()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_damaged_input_is_read_or_refused(target, tmp_path):
    threads, rng = torch.get_num_threads(), random.Random(0)
    examiner = Examiner(target, tmp_path / "input")
    for _ in range(6 if target.name in SLOW else 30):
        data = target.damage(rng, rng.choice(examiner.seeds), examiner.seeds)
        outcome = examiner.examine(data)
        assert not outcome.found, outcome
    torch.set_num_threads(threads)


def test_table_counts_outcomes_per_target_and_in_total():
    a, b = Tally(), Tally()
    a.outcomes.update({"read": 2, "refused": 3})
    b.outcomes.update({"read": 1, "raised": 4})
    _, _, *rows = (line.strip("| ").split() for line in table({"a": a, "b": b}).splitlines())
    assert ["".join(row) for row in rows] == ["a|5|2|3|0", "b|5|1|0|4", "all|10|3|3|4"]
