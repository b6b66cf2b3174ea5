"""Importing one module of a peer's checkout, with stand-ins for what a step does not use."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from golddiff.estimators.registry import MethodSettings, default_mask_threshold
from golddiff.noise import ddim_scheduler, sigma_of_alpha
from golddiff.store.images import ImageStore
from golddiff.supports.paper import PaperSchedule
from golddiff.system.errors import ArgumentError


@contextlib.contextmanager
def imported(root: Path, module: str, stubs: Mapping[str, Sequence[str]]) -> Iterator[Any]:
    """The module of a checkout; afterwards ``sys.path`` and ``sys.modules`` are as before.

    Args:
        root: folder to import from.
        module: dotted name.
        stubs: modules that it imports but that a step does not need (downloads, plots, networks),
            and the names that are imported from each.

    Raises:
        ArgumentError: it cannot be imported.
    """
    before = dict(sys.modules)
    # A module of this name that came from elsewhere would be taken for theirs.
    for name in [n for n in sys.modules if n.split(".")[0] == module.split(".")[0]]:
        del sys.modules[name]
    sys.path.insert(0, str(root))
    try:
        for name, names in stubs.items():
            sys.modules[name] = _stub(name, names)
        try:
            found = import_module(module)
        except Exception as error:
            raise ArgumentError(
                f"peer: {module} of {root} cannot be imported ({type(error).__name__}: {error})"
            ) from error
        yield found
    finally:
        sys.path.remove(str(root))
        for name in set(sys.modules) - set(before):
            # Packages without an __init__.py have no file.
            theirs = name.split(".")[0] == module.split(".")[0]
            if theirs or name in stubs or _lies_in(root, sys.modules[name]):
                del sys.modules[name]
        sys.modules.update(before)


def _lies_in(root: Path, module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(root)


def _stub(name: str, names: Sequence[str]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []  # modules below it are found among the stubs
    for attribute in names:
        setattr(module, attribute, object)
    return module


def vp_timestep(peer: str, sigma: float) -> int:
    """The timestep of the VP process (1,000 steps, linear betas) whose noise level is sigma.

    Raises:
        ArgumentError: the peer runs at those only, and sigma is none of them.
    """
    alphas = ddim_scheduler(10, clip=True).alphas_cumprod
    levels = [sigma_of_alpha(float(alpha)) for alpha in alphas]
    nearest = min(range(len(levels)), key=lambda t: abs(levels[t] - sigma))
    if abs(levels[nearest] - sigma) > 1e-6 * sigma:
        raise ArgumentError(
            f"levels: got {sigma:g}, but {peer} runs at the noise levels of 1,000 VP timesteps "
            f"only; the nearest is {levels[nearest]!r}"
        )
    return nearest


def check_square(store: ImageStore, whose: str) -> None:
    """Raise ArgumentError where a store's images are not square."""
    if len(store.shape) != 3 or store.shape[1] != store.shape[2]:
        raise ArgumentError(f"store: got shape {store.shape}, {whose} takes square images")


def threshold_of(settings: MethodSettings, store: ImageStore) -> float:
    """The mask threshold given, or the released code's."""
    given = settings.mask_threshold
    return default_mask_threshold(store.shape) if given is None else given


def released_schedule(settings: MethodSettings) -> PaperSchedule:
    """The released code's golden subsets, of the sizes given; or the text's, where that is set."""
    given = settings.given()
    sizes: dict[str, Any] = {name: given[name] for name in ("k_min", "k_max") if name in given}
    return PaperSchedule(variant=settings.variant or "released", **sizes)


def factor_of(store: ImageStore) -> tuple[torch.Tensor, ...]:
    """Eigenvectors, eigenvalues, eigenvectors transposed and mean, as both codes keep them."""
    factor = store.factor()
    vectors, spectrum, mean = (
        torch.from_numpy(a).float() for a in (factor.eigenvectors, factor.eigenvalues, factor.mean)
    )
    return vectors, spectrum, vectors.T, mean


def bundle(store: ImageStore, batches: Any) -> type:
    """What both codes read of a data set."""
    shape = {"resolution": store.shape[1], "in_channels": store.shape[0]}
    return type("Bundle", (), {"name": "benchmark", "dataloader": batches, **shape})
