"""A small network, and the check that a file is refused and runs nothing."""

import pytest

from golddiff import load_oracle as load_edm
from golddiff.system.errors import CheckpointError
from tests.oracles.edm.make import SMALLEST, make_network, pickled
from tests.oracles.edm.watch import watched


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    made = make_network(side=2, channels=1, **SMALLEST)
    path = tmp_path_factory.mktemp("plain") / "network.pkl"
    path.write_bytes(pickled(made))
    load_edm(path)  # whatever is imported on first use is imported now
    return made


@pytest.fixture
def refused(tmp_path, network, monkeypatch):
    """refused(bytes, name): the file is refused, the message gives the name, nothing runs."""
    monkeypatch.chdir(tmp_path)  # where the plants would leave PROOF
    proof, path = tmp_path / "PROOF", tmp_path / "network.pkl"

    def check(data, name, what="asks for "):
        path.write_bytes(data)
        with watched() as events, pytest.raises(CheckpointError) as caught:
            load_edm(path)
        assert f"{what}{name}" in str(caught.value)
        assert events == []
        assert not proof.exists()

    return check
