"""Import one module of a peer's checkout, with stubs for dependencies that a step does not use."""

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
from golddiff.noise import timestep_sigmas
from golddiff.store.images import ImageStore
from golddiff.supports.paper import PaperSchedule
from golddiff.system.errors import ArgumentError


@contextlib.contextmanager
def imported(root: Path, module: str, stubs: Mapping[str, Sequence[str]]) -> Iterator[Any]:
    """Import a module of a checkout, then restore ``sys.path`` and ``sys.modules``.

    ``stubs`` are modules that it imports but that a step does not need (downloads, plots,
    networks), with the names that are imported from each.
    """
    before = dict(sys.modules)
    # Otherwise a loaded module of the same name from elsewhere would be used.
    for name in [n for n in sys.modules if n.split(".")[0] == module.split(".")[0]]:
        del sys.modules[name]
    sys.path.insert(0, str(root))
    try:
        for name, names in stubs.items():
            sys.modules[name] = _stub(name, names)
        try:
            imported_module = import_module(module)
        except Exception as error:
            raise ArgumentError(
                f"peer: {module} of {root} cannot be imported ({type(error).__name__}: {error})"
            ) from error
        yield imported_module
    finally:
        sys.path.remove(str(root))
        for name in set(sys.modules) - set(before):
            # Compare names too, because packages without an __init__.py have no file.
            same_package = name.split(".")[0] == module.split(".")[0]
            if same_package or name in stubs or _is_under(root, sys.modules[name]):
                del sys.modules[name]
        sys.modules.update(before)


def _is_under(root: Path, module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(root)


def _stub(name: str, names: Sequence[str]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []  # makes it a package, whose submodules may be stubs too
    for attribute in names:
        setattr(module, attribute, object)
    return module


def vp_timestep(peer: str, sigma: float) -> int:
    """The timestep of the VP process (1,000 steps, linear betas) whose noise level is sigma."""
    levels = timestep_sigmas()
    nearest = min(range(len(levels)), key=lambda t: abs(levels[t] - sigma))
    if abs(levels[nearest] - sigma) > 1e-6 * sigma:
        raise ArgumentError(
            f"levels: got {sigma:g}, but {peer} runs at the noise levels of 1,000 VP timesteps "
            f"only; the nearest is {levels[nearest]!r}"
        )
    return nearest


def check_square(store: ImageStore, whose: str) -> None:
    """Raise ArgumentError if a store's images are not square."""
    if len(store.shape) != 3 or store.shape[1] != store.shape[2]:
        raise ArgumentError(f"store: got shape {store.shape}, {whose} takes square images")


def threshold_of(settings: MethodSettings, store: ImageStore) -> float:
    """The mask threshold of the settings, or the released code's default."""
    threshold = settings.mask_threshold
    return default_mask_threshold(store.shape) if threshold is None else threshold


def released_schedule(settings: MethodSettings) -> PaperSchedule:
    """The released code's schedule, or the text's if set, with the subset sizes of the settings."""
    options = settings.given()
    sizes: dict[str, Any] = {name: options[name] for name in ("k_min", "k_max") if name in options}
    return PaperSchedule(variant=settings.variant or "released", **sizes)


def factor_of(store: ImageStore) -> tuple[torch.Tensor, ...]:
    """Eigenvectors, eigenvalues, transposed eigenvectors and mean, the format of both codes."""
    factor = store.factor()
    vectors, spectrum, mean = (
        torch.from_numpy(a).float() for a in (factor.eigenvectors, factor.eigenvalues, factor.mean)
    )
    return vectors, spectrum, vectors.T, mean


def bundle(store: ImageStore, batches: Any) -> type:
    """A data set with the attributes that both codes use."""
    shape = {"resolution": store.shape[1], "in_channels": store.shape[0]}
    return type("Bundle", (), {"name": "benchmark", "dataloader": batches, **shape})
