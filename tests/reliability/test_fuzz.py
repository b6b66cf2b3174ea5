"""A short run of what ``make fuzz`` runs at length: every reader, a few damaged inputs."""

import pytest
import torch

from reliability.fuzz.campaign import all_targets, campaign
from reliability.fuzz.target import Examiner

SLOW = {"diffusers network", "published network", "training state", "own network", "EDM pickle"}
TARGETS = all_targets()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_damaged_input_is_read_or_refused(target, tmp_path):
    threads = torch.get_num_threads()
    tally = campaign(Examiner(target, tmp_path / "input"), 4 if target.name in SLOW else 25, 0)
    torch.set_num_threads(threads)
    assert tally.findings == {}
    assert tally.inputs >= 4
