"""A short version of ``make fuzz``: a few damaged inputs for every reader."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from reliability.fuzz.campaign import Tally, all_targets, table
from reliability.fuzz.drawn import damaged
from reliability.fuzz.target import Examiner

SLOW = {
    *("diffusers network", "published network", "training state", "own network", "EDM pickle"),
    "recorded figures",
}
TARGETS = all_targets()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_damaged_input_is_read_or_refused(target, tmp_path):
    threads, slow = torch.get_num_threads(), target.name in SLOW
    examiner = Examiner(target, tmp_path / "input")

    @settings(
        max_examples=6 if slow else 30,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged(target, examiner.seeds))
    def read(data):
        outcome = examiner.examine(data)
        assert not outcome.found, outcome

    read()
    torch.set_num_threads(threads)


def test_table_counts_outcomes_per_target_and_in_total():
    a, b = Tally(), Tally()
    a.outcomes.update({"read": 2, "refused": 3})
    b.outcomes.update({"read": 1, "raised": 4})
    _, _, *rows = (line.strip("| ").split() for line in table({"a": a, "b": b}).splitlines())
    assert ["".join(row) for row in rows] == ["a|5|2|3|0", "b|5|1|0|4", "all|10|3|3|4"]
