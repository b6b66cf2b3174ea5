"""GoldDiff: training-free, analytical diffusion. Names load when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from golddiff.attribution import Attribution as Attribution
    from golddiff.attribution import PixelSources as PixelSources
    from golddiff.attribution import pixel_sources as pixel_sources
    from golddiff.diffusers import AnalyticUNet as AnalyticUNet
    from golddiff.estimators.blend import Blend as Blend
    from golddiff.estimators.dial import recommended as recommended
    from golddiff.estimators.golden import GoldDiff as GoldDiff
    from golddiff.estimators.kamb import Kamb as Kamb
    from golddiff.estimators.mixture import GaussianMixture as GaussianMixture
    from golddiff.estimators.network_like import network_like as network_like
    from golddiff.estimators.optimal import Optimal as Optimal
    from golddiff.estimators.patch_mixture import PatchMixture as PatchMixture
    from golddiff.estimators.pca import PCA as PCA
    from golddiff.estimators.registry import create as create
    from golddiff.estimators.wiener import Wiener as Wiener
    from golddiff.evaluation.compare import Evaluation as Evaluation
    from golddiff.evaluation.compare import evaluate as evaluate
    from golddiff.evaluation.report import write_report as write_report
    from golddiff.oracles.load import load_oracle as load_oracle
    from golddiff.oracles.oracle import Oracle as Oracle
    from golddiff.samplers import State as State
    from golddiff.samplers import steps as steps
    from golddiff.sampling import Samples as Samples
    from golddiff.sampling import sample as sample
    from golddiff.store.cache import load as load
    from golddiff.store.images import ImageStore as ImageStore
    from golddiff.store.novelty import Novelty as Novelty
    from golddiff.store.novelty import novelty as novelty
    from golddiff.supports.adaptive import AdaptiveSchedule as AdaptiveSchedule
    from golddiff.supports.paper import PaperSchedule as PaperSchedule
    from golddiff.system.errors import ArgumentError as ArgumentError
    from golddiff.system.errors import CheckpointError as CheckpointError
    from golddiff.system.errors import ClusterError as ClusterError
    from golddiff.system.errors import GoldDiffError as GoldDiffError
    from golddiff.system.errors import SourceError as SourceError
    from golddiff.system.errors import StoreError as StoreError

_HOMES = {
    "AdaptiveSchedule": "supports.adaptive",
    "AnalyticUNet": "diffusers",
    "ArgumentError": "system.errors",
    "Attribution": "attribution",
    "Blend": "estimators.blend",
    "GaussianMixture": "estimators.mixture",
    "CheckpointError": "system.errors",
    "ClusterError": "system.errors",
    "Evaluation": "evaluation.compare",
    "GoldDiff": "estimators.golden",
    "GoldDiffError": "system.errors",
    "ImageStore": "store.images",
    "Kamb": "estimators.kamb",
    "Novelty": "store.novelty",
    "Optimal": "estimators.optimal",
    "Oracle": "oracles.oracle",
    "PCA": "estimators.pca",
    "PaperSchedule": "supports.paper",
    "PatchMixture": "estimators.patch_mixture",
    "PixelSources": "attribution",
    "Samples": "sampling",
    "SourceError": "system.errors",
    "State": "samplers",
    "StoreError": "system.errors",
    "Wiener": "estimators.wiener",
    "cluster": "cluster",
    "create": "estimators.registry",
    "diffusers": "diffusers",
    "load": "store.cache",
    "load_oracle": "oracles.load",
    "evaluate": "evaluation.compare",
    "metrics": "metrics",
    "pixel_sources": "attribution",
    "network_like": "estimators.network_like",
    "novelty": "store.novelty",
    "recommended": "estimators.dial",
    "sample": "sampling",
    "steps": "samplers",
    "write_report": "evaluation.report",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    # torch, numba and diffusers take seconds to import: whoever asks for one name pays for it.
    if name not in _HOMES:
        raise AttributeError(f"module 'golddiff' has no attribute {name!r}")
    module = importlib.import_module(f"golddiff.{_HOMES[name]}")
    value = module if name == _HOMES[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
