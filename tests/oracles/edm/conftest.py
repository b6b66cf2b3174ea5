"""Fixtures: a small network, and a check that a file is refused and runs no code."""

import pytest

from golddiff import load_oracle as load_edm
from golddiff.system.errors import CheckpointError
from reliability.fuzz.watch import FORBIDDEN, watched
from tests.oracles.edm.make import SMALLEST, make_network, pickled

# The reader of these files imports, compiles and looks up nothing by name.
NOTHING = (*FORBIDDEN, "import", "compile", "pickle.find_class", "sys._getframe")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    small = make_network(side=2, channels=1, **SMALLEST)
    path = tmp_path_factory.mktemp("plain") / "network.pkl"
    path.write_bytes(pickled(small))
    load_edm(path)  # imports on first use must not count as events later
    return small


@pytest.fixture
def refused(tmp_path, network, monkeypatch):
    """refused(data, name): loading fails with ``name`` in the message, and no code runs."""
    monkeypatch.chdir(tmp_path)  # planted commands would write PROOF here
    proof, path = tmp_path / "PROOF", tmp_path / "network.pkl"

    def check(data, name, prefix="asks for "):
        path.write_bytes(data)
        with watched(tmp_path, NOTHING) as events, pytest.raises(CheckpointError) as caught:
            load_edm(path)
        assert f"{prefix}{name}" in str(caught.value)
        assert events == []
        assert not proof.exists()

    return check
