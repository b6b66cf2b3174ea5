"""Loading of datasets from the Hugging Face hub by name."""

from __future__ import annotations

import re
import threading
from typing import Any

from golddiff.system.errors import SourceError, one_line
from golddiff.system.progress import waiting

# Seconds without an answer after which the hub counts as unreachable.
_PATIENCE = 15.0

# What can name a dataset: ``mnist`` or ``user/name``.
NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$")


def load_from_hub(name: str, split: str) -> Any:
    """One split of a dataset, from the hub or from the local cache of earlier downloads."""
    import datasets

    # Without this check, datasets would retry for most of a minute before it gives up.
    reached = _hub_answers(name)
    offline = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = offline or not reached
    try:
        return datasets.load_dataset(name, split=split)
    except Exception as error:
        if not reached:
            raise SourceError(
                f"{name!r} is no file or folder here, and the Hugging Face hub cannot be reached "
                "for a dataset of that name; give the path of a local folder or parquet file, or "
                "a dataset that is in the local hub cache (HF_HUB_OFFLINE=1)"
            ) from error
        raise SourceError(
            f"dataset {name!r}, split {split!r}, cannot be loaded from the Hugging Face hub: "
            + one_line(error)
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = offline


def _hub_answers(name: str) -> bool:
    """Whether the hub answers; SourceError if it answers that it has no such dataset."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    answer: list[Exception | None] = []

    def ask() -> None:
        try:
            HfApi().dataset_info(name, timeout=_PATIENCE)
            answer.append(None)
        except Exception as error:
            answer.append(error)

    # In a thread, because the timeout does not cover the DNS lookup.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    with waiting(f"asking the Hugging Face hub for {name}"):
        thread.join(_PATIENCE)
    error = answer[0] if answer else TimeoutError()
    if isinstance(error, (RepositoryNotFoundError, HFValidationError)):
        raise SourceError(
            f"{name!r} is no file or folder here, and the Hugging Face hub has no public dataset "
            "of that name"
        ) from error
    # After an HTTP error (a gated dataset, a busy hub), loading gives the better message. Any other
    # error means that the hub did not answer.
    return error is None or isinstance(error, HfHubHTTPError)
