"""The public names of ``golddiff``, which ``lazy_loader`` reads when the package is imported."""

from . import cluster as cluster
from . import diffusers as diffusers
from . import errors as errors
from . import metrics as metrics
from .attribution import Attribution as Attribution
from .attribution import PixelSources as PixelSources
from .attribution import pixel_sources as pixel_sources
from .diffusers import AnalyticUNet as AnalyticUNet
from .estimators.dial import recommended as recommended
from .estimators.golden import GoldDiff as GoldDiff
from .estimators.guided import guided as guided
from .estimators.kamb import Kamb as Kamb
from .estimators.mixture import GaussianMixture as GaussianMixture
from .estimators.nearest_image import NearestImage as NearestImage
from .estimators.network_like import network_like as network_like
from .estimators.optimal import Optimal as Optimal
from .estimators.patch_mixture import PatchMixture as PatchMixture
from .estimators.pca import PCA as PCA
from .estimators.pspc import PSPCFlex as PSPCFlex
from .estimators.pspc import PSPCSquare as PSPCSquare
from .estimators.registry import create as create
from .estimators.scfdm import SCFDM as SCFDM
from .estimators.wiener import Wiener as Wiener
from .evaluation.compare import Evaluation as Evaluation
from .evaluation.compare import evaluate as evaluate
from .evaluation.report import write_report as write_report
from .evaluation.restored import restore as restore
from .oracles.load import load_oracle as load_oracle
from .oracles.oracle import Oracle as Oracle
from .samplers import State as State
from .samplers import steps as steps
from .sampling import Samples as Samples
from .sampling import sample as sample
from .store.cache import load as load
from .store.images import ImageStore as ImageStore
from .store.likelihood import log_likelihood as log_likelihood
from .store.novelty import Novelty as Novelty
from .store.novelty import novelty as novelty
from .supports.adaptive import AdaptiveSchedule as AdaptiveSchedule
from .supports.paper import PaperSchedule as PaperSchedule
from .system.errors import ArgumentError as ArgumentError
from .system.errors import CheckpointError as CheckpointError
from .system.errors import ClusterError as ClusterError
from .system.errors import GoldDiffError as GoldDiffError
from .system.errors import SourceError as SourceError
from .system.errors import StoreError as StoreError

__all__ = [
    "PCA",
    "SCFDM",
    "AdaptiveSchedule",
    "AnalyticUNet",
    "ArgumentError",
    "Attribution",
    "CheckpointError",
    "ClusterError",
    "Evaluation",
    "GaussianMixture",
    "GoldDiff",
    "GoldDiffError",
    "ImageStore",
    "Kamb",
    "NearestImage",
    "Novelty",
    "Optimal",
    "Oracle",
    "PSPCFlex",
    "PSPCSquare",
    "PaperSchedule",
    "PatchMixture",
    "PixelSources",
    "Samples",
    "SourceError",
    "State",
    "StoreError",
    "Wiener",
    "__version__",
    "cluster",
    "create",
    "diffusers",
    "errors",
    "evaluate",
    "guided",
    "load",
    "load_oracle",
    "log_likelihood",
    "metrics",
    "network_like",
    "novelty",
    "pixel_sources",
    "recommended",
    "restore",
    "sample",
    "steps",
    "write_report",
]

__version__: str
