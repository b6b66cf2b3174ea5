"""GoldDiff: training-free, analytical diffusion. Names load when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from golddiff.adaptive.schedule import AdaptiveSchedule as AdaptiveSchedule
    from golddiff.attribution import Attribution as Attribution
    from golddiff.attribution import PixelSources as PixelSources
    from golddiff.attribution import pixel_sources as pixel_sources
    from golddiff.denoisers.blend import Blend as Blend
    from golddiff.denoisers.golddiff import GoldDiff as GoldDiff
    from golddiff.denoisers.kamb import Kamb as Kamb
    from golddiff.denoisers.mixture import GaussianMixture as GaussianMixture
    from golddiff.denoisers.optimal import Optimal as Optimal
    from golddiff.denoisers.patches import PatchMixture as PatchMixture
    from golddiff.denoisers.pca import PCA as PCA
    from golddiff.denoisers.recommended import recommended as recommended
    from golddiff.denoisers.wiener import Wiener as Wiener
    from golddiff.diffusers import AnalyticUNet as AnalyticUNet
    from golddiff.errors import ArgumentError as ArgumentError
    from golddiff.errors import CheckpointError as CheckpointError
    from golddiff.errors import ClusterError as ClusterError
    from golddiff.errors import GoldDiffError as GoldDiffError
    from golddiff.errors import SourceError as SourceError
    from golddiff.errors import StoreError as StoreError
    from golddiff.evaluation.compare import Evaluation as Evaluation
    from golddiff.evaluation.compare import evaluate as evaluate
    from golddiff.oracles.load import load_oracle as load_oracle
    from golddiff.report import write_report as write_report
    from golddiff.samplers import State as State
    from golddiff.samplers import steps as steps
    from golddiff.sampling import Samples as Samples
    from golddiff.sampling import sample as sample
    from golddiff.schedules import PaperSchedule as PaperSchedule
    from golddiff.store import ImageStore as ImageStore

_HOMES = {
    "AdaptiveSchedule": "adaptive.schedule",
    "AnalyticUNet": "diffusers",
    "ArgumentError": "errors",
    "Attribution": "attribution",
    "Blend": "denoisers.blend",
    "GaussianMixture": "denoisers.mixture",
    "CheckpointError": "errors",
    "ClusterError": "errors",
    "Evaluation": "evaluation.compare",
    "GoldDiff": "denoisers.golddiff",
    "GoldDiffError": "errors",
    "ImageStore": "store",
    "Kamb": "denoisers.kamb",
    "Optimal": "denoisers.optimal",
    "PCA": "denoisers.pca",
    "PaperSchedule": "schedules",
    "PatchMixture": "denoisers.patches",
    "PixelSources": "attribution",
    "Samples": "sampling",
    "SourceError": "errors",
    "State": "samplers",
    "StoreError": "errors",
    "Wiener": "denoisers.wiener",
    "cluster": "cluster",
    "diffusers": "diffusers",
    "load_oracle": "oracles.load",
    "evaluate": "evaluation.compare",
    "metrics": "metrics",
    "pixel_sources": "attribution",
    "recommended": "denoisers.recommended",
    "sample": "sampling",
    "steps": "samplers",
    "write_report": "report",
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
