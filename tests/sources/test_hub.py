import threading

import datasets
import huggingface_hub
import pytest

from golddiff.cli import run
from golddiff.sources import hub, open_source
from golddiff.system.errors import SourceError

from .make import png


class Unreachable:
    def dataset_info(self, *arguments, **options):
        raise ConnectionError("no network")


def dataset_of(count):
    features = datasets.Features({"image": datasets.Image()})
    return datasets.Dataset.from_dict({"image": [{"bytes": png()}] * count}, features=features)


@pytest.fixture
def no_hub(monkeypatch):
    monkeypatch.setattr(huggingface_hub, "HfApi", Unreachable)


@pytest.mark.parametrize("name", ["absent-user/absent-name", "absent-name"])
@pytest.mark.usefixtures("no_hub")
def test_an_unreachable_hub_gives_one_line_with_alternatives(name):
    with pytest.raises(SourceError, match="hub cannot be reached") as caught:
        open_source(name)
    message = str(caught.value)
    assert name in message
    assert "local folder or parquet file" in message
    assert "\n" not in message


def test_hub_requests_time_out(monkeypatch):
    release, answered = threading.Event(), []

    class Silent:
        def dataset_info(self, *arguments, **options):
            release.wait(10)
            answered.append(arguments)

    monkeypatch.setattr(huggingface_hub, "HfApi", Silent)
    monkeypatch.setattr(hub, "_PATIENCE", 0.05)
    with pytest.raises(SourceError, match="hub cannot be reached"):
        open_source("absent-user/absent-name")
    assert not answered
    release.set()


def test_a_name_unknown_to_the_hub_is_refused(monkeypatch):
    class Empty:
        def dataset_info(self, *arguments, **options):
            raise huggingface_hub.errors.HFValidationError("no such name")

    monkeypatch.setattr(huggingface_hub, "HfApi", Empty)
    with pytest.raises(SourceError, match="no public dataset"):
        open_source("absent-user/absent-name")


def test_a_dataset_of_the_hub_is_read(monkeypatch):
    class Known:
        def dataset_info(self, *arguments, **options):
            return None

    def load(name, split):
        assert (name, split) == ("user/name", "test")
        return dataset_of(1)

    monkeypatch.setattr(huggingface_hub, "HfApi", Known)
    monkeypatch.setattr(datasets, "load_dataset", load)
    source = open_source("user/name", split="test")
    assert source.total == 1
    assert source.info.description == "dataset user/name (test)"


def test_novelty_loads_images_of_the_hub_once(monkeypatch):
    loaded = []

    def load(name, split):
        loaded.append(name)
        return dataset_of(2)

    monkeypatch.setattr("golddiff.sources.hub.load_from_hub", load)
    assert run(["novelty", "user/name", "patches", "--size", "8"]) == 0
    assert loaded == ["user/name"]


@pytest.mark.usefixtures("no_hub")
def test_the_local_cache_is_used_when_the_hub_is_unreachable(monkeypatch):
    def load(name, split):
        assert datasets.config.HF_HUB_OFFLINE
        return dataset_of(1)

    before = datasets.config.HF_HUB_OFFLINE
    monkeypatch.setattr(datasets, "load_dataset", load)
    assert open_source("user/name").total == 1
    assert before == datasets.config.HF_HUB_OFFLINE
