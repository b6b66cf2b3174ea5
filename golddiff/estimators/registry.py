"""The methods by name, as the command line, the figures and the demo call them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golddiff.system.errors import ArgumentError

if TYPE_CHECKING:
    from golddiff.denoiser import Denoiser, Estimator
    from golddiff.estimators.golden import GoldDiff
    from golddiff.store.images import ImageStore
    from golddiff.supports.adaptive import AdaptiveSchedule


DEFAULT_METHOD = "recommended"
# The methods that need no masks either.
NO_COVARIANCE = ("optimal", "scfdm", "nearest", "pspc-square")


@dataclass(frozen=True)
class MethodSettings:
    """Settings of the methods; None is the default of the method, or of the data.

    Attributes:
        novelty: of recommended, 0 (copies) to 1; default 0.7.
        mask_threshold: of PCA; default :func:`default_mask_threshold`.
        weighting: of PCA, "ss" or "wss".
        patch_size: of Kamb: odd, the name of one of its authors' calibrations, or (sigma, size)
            pairs; of PSPC-Square: a number.
        boundary: of Kamb: "zeros", "circular" or "none".
        variant: of the schedule: "released" (default here: it reproduces the paper's figures) or
            "text".
        k_min, k_max, m_min, m_max: of the schedule; int a count, float a fraction of the images.
        tol: of the adaptive schedule: RMSE to the full scan, in units of x0.
        smoothing: of SCFDM: standard deviation of its copies' noise, in units of x0; default 0.1.
    """

    mask_threshold: float | None = None
    weighting: str | None = None
    patch_size: int | str | tuple[tuple[float, int], ...] | None = None
    boundary: str | None = None
    variant: str | None = None
    k_min: int | float | None = None
    k_max: int | float | None = None
    m_min: int | float | None = None
    m_max: int | float | None = None
    tol: float | None = None
    novelty: float | None = None
    smoothing: float | None = None

    def given(self) -> dict[str, object]:
        """The settings that are not None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Method:
    """One method: its title in pictures, the settings it takes, and how it is made.

    Its output has sources where it is a weighted sum of training images.
    """

    title: str
    settings: frozenset[str]
    make: Callable[[ImageStore, MethodSettings, int], Denoiser]
    has_sources: bool = True


def default_mask_threshold(shape: tuple[int, ...]) -> float:
    """The released code's: 0.03 for CIFAR-10's shape (3, 32, 32), 0.02 for others."""
    return 0.03 if shape == (3, 32, 32) else 0.02


def check_method(name: str, settings: MethodSettings) -> None:
    """Raise where ``name`` is no method, or is given a setting that it does not have.

    Raises:
        ArgumentError: says which methods there are, or which have the setting.
    """
    method = method_named(name)
    for setting in settings.given():
        if setting not in METHODS[method].settings:
            having = ", ".join(other for other in METHODS if setting in METHODS[other].settings)
            raise ArgumentError(f"{setting}: does not apply to method {method}, only to {having}")
    if settings.novelty is not None and not 0 <= settings.novelty <= 1:
        raise ArgumentError(f"novelty: got {settings.novelty}, expected a number from 0 to 1")
    for setting in ("m_min", "m_max"):
        if getattr(settings, setting) is not None and settings.variant != "text":
            raise ArgumentError(f"{setting}: applies to variant 'text' only")


def method_named(given: str) -> str:
    """A method's name, whatever its case and with _ for -.

    Raises:
        ArgumentError: no such method; suggests the nearest.
    """
    name = str(given).strip().lower().replace("_", "-")
    if name in METHODS:
        return name
    near = get_close_matches(name, METHODS, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ArgumentError(f"method: got {given!r}, expected one of {', '.join(METHODS)}{hint}")


def create(
    name: str,
    store: ImageStore | str | Path,
    settings: MethodSettings | None = None,
    seed: int = 0,
    **given: Any,
) -> Denoiser:
    """A method by its name, exactly as the command line builds it.

    Args:
        name: one of ``METHODS`` here, such as "recommended" or "golddiff-pca".
        store: the training set, or the folder of a store.
        settings: what differs from the defaults.
        seed: of the images that a golden subset draws at random.
        given: the same by name: the attributes of :class:`MethodSettings`, such as ``novelty`` or
            ``mask_threshold``.

    Raises:
        ArgumentError: no such method, or a setting that it does not have or allow; the covariance
            and masks, where they are not made yet, would take more memory than there is.
    """
    from golddiff.store.images import opened  # torch comes with it
    from golddiff.store.needs import check_images

    known = [field.name for field in fields(MethodSettings)]
    for setting in given:
        if setting not in known:
            raise ArgumentError(f"{setting}: no method has it; expected some of {', '.join(known)}")
    settings = replace(settings or MethodSettings(), **given)
    check_method(name, settings)
    method, training_set = method_named(name), opened(store)
    if not training_set.factors.is_kept():
        needed = memory_needed(method, settings)
        what = f"the covariance and masks of {method} for"
        check_images(training_set.n, training_set.shape, needed, what)
    return METHODS[method].make(training_set, settings, seed)


def memory_needed(name: str, settings: MethodSettings) -> Callable[[int, int], float]:
    """Bytes of memory that a method takes for n images of d values, besides parts of the images."""
    from golddiff.store.factors import FEW
    from golddiff.store.needs import covariance_bytes, mask_bytes
    from golddiff.store.statistics import LARGE

    if any(base in name for base in NO_COVARIANCE) or settings.patch_size is not None:
        return lambda n, d: 0.0
    if name == "recommended":
        return lambda n, d: mask_bytes(min(n, FEW) if d > LARGE else n, d)
    return covariance_bytes if name == "wiener" else mask_bytes


def _optimal(store: ImageStore, settings: MethodSettings, seed: int) -> Estimator:
    from golddiff.estimators.optimal import Optimal

    return Optimal(store)


def _scfdm(store: ImageStore, settings: MethodSettings, seed: int) -> Estimator:
    from golddiff.estimators.scfdm import SCFDM

    return SCFDM(store, 0.1 if settings.smoothing is None else settings.smoothing)


def _nearest(store: ImageStore, settings: MethodSettings, seed: int) -> Denoiser:
    from golddiff.estimators.nearest_image import NearestImage

    return NearestImage(store)


def _wiener(store: ImageStore, settings: MethodSettings, seed: int) -> Denoiser:
    from golddiff.estimators.wiener import Wiener

    return Wiener(store)


def _kamb(store: ImageStore, settings: MethodSettings, seed: int) -> Estimator:
    from golddiff.estimators.kamb import Kamb

    return Kamb(store, settings.patch_size, settings.boundary or "zeros")


def _pca(store: ImageStore, settings: MethodSettings, seed: int) -> Estimator:
    from golddiff.estimators.pca import PCA

    threshold = settings.mask_threshold
    return PCA(
        store,
        default_mask_threshold(store.shape) if threshold is None else threshold,
        settings.weighting or "ss",
    )


def _pspc_square(store: ImageStore, settings: MethodSettings, seed: int) -> Estimator:
    from golddiff.estimators.pspc import PSPCSquare

    return PSPCSquare(store, settings.patch_size)  # type: ignore[arg-type]  # checked there


def _pspc_flex(store: ImageStore, settings: MethodSettings, seed: int) -> Estimator:
    from golddiff.estimators.pspc import PSPCFlex

    return PSPCFlex(store)


def golden(base: Estimator, settings: MethodSettings, seed: int) -> GoldDiff:
    """``base`` over the golden subsets of the paper's schedule, "released" unless set."""
    from golddiff.estimators.golden import GoldDiff
    from golddiff.supports.paper import PaperSchedule

    names = ("k_min", "k_max", "m_min", "m_max")
    sizes = {name: value for name, value in settings.given().items() if name in names}
    schedule = PaperSchedule(variant=settings.variant or "released", **sizes)  # type: ignore[arg-type]
    return GoldDiff(base, schedule, seed)


def _golden(
    make: Callable[[ImageStore, MethodSettings, int], Estimator],
) -> Callable[[ImageStore, MethodSettings, int], Denoiser]:
    return lambda store, settings, seed: golden(make(store, settings, seed), settings, seed)


def _adaptive(
    make: Callable[[ImageStore, MethodSettings, int], Estimator],
) -> Callable[[ImageStore, MethodSettings, int], Denoiser]:
    def made(store: ImageStore, settings: MethodSettings, seed: int) -> Denoiser:
        from golddiff.estimators.golden import GoldDiff

        return GoldDiff(make(store, settings, seed), _adaptive_schedule(settings.tol), seed)

    return made


def _adaptive_schedule(tol: float | None) -> AdaptiveSchedule:
    from golddiff.supports.adaptive import AdaptiveSchedule

    return AdaptiveSchedule() if tol is None else AdaptiveSchedule(tol)


_OF_PCA = frozenset({"mask_threshold", "weighting"})
_OF_KAMB = frozenset({"patch_size", "boundary"})
_OF_SCFDM = frozenset({"smoothing"})
_OF_SQUARE = frozenset({"patch_size"})
_OF_ADAPTIVE = frozenset({"tol"})
_OF_SCHEDULE = frozenset({"variant", "k_min", "k_max", "m_min", "m_max"})


def _recommended(store: ImageStore, settings: MethodSettings, seed: int) -> Denoiser:
    from golddiff.estimators.dial import recommended

    given = {} if settings.novelty is None else {"novelty": settings.novelty}
    return recommended(store, **given, seed=seed)


def _network_like(store: ImageStore, settings: MethodSettings, seed: int) -> Denoiser:
    from golddiff.estimators.network_like import network_like

    return network_like(store, seed)


METHODS = {
    "recommended": Method("Recommended", frozenset({"novelty"}), _recommended),
    "network-like": Method("Network-like", frozenset(), _network_like, has_sources=False),
    "optimal": Method("Optimal", frozenset(), _optimal),
    "wiener": Method("Wiener", frozenset(), _wiener, has_sources=False),
    "nearest": Method("Nearest image", frozenset(), _nearest),
    "scfdm": Method("SCFDM", _OF_SCFDM, _scfdm),
    "kamb": Method("Kamb", _OF_KAMB, _kamb),
    "pca": Method("PCA", _OF_PCA, _pca),
    "pspc-square": Method("PSPC-Square", _OF_SQUARE, _pspc_square),
    "pspc-flex": Method("PSPC-Flex", frozenset(), _pspc_flex),
    "golddiff-optimal": Method("GoldDiff (Optimal)", _OF_SCHEDULE, _golden(_optimal)),
    "golddiff-scfdm": Method("GoldDiff (SCFDM)", _OF_SCHEDULE | _OF_SCFDM, _golden(_scfdm)),
    "golddiff-kamb": Method("GoldDiff (Kamb)", _OF_SCHEDULE | _OF_KAMB, _golden(_kamb)),
    "golddiff-pca": Method("GoldDiff (PCA)", _OF_SCHEDULE | _OF_PCA, _golden(_pca)),
    "golddiff-pspc-square": Method(
        "GoldDiff (PSPC-Square)", _OF_SCHEDULE | _OF_SQUARE, _golden(_pspc_square)
    ),
    "golddiff-pspc-flex": Method("GoldDiff (PSPC-Flex)", _OF_SCHEDULE, _golden(_pspc_flex)),
    "adaptive-optimal": Method("Adaptive (Optimal)", _OF_ADAPTIVE, _adaptive(_optimal)),
    "adaptive-scfdm": Method("Adaptive (SCFDM)", _OF_ADAPTIVE | _OF_SCFDM, _adaptive(_scfdm)),
    "adaptive-kamb": Method("Adaptive (Kamb)", _OF_ADAPTIVE | _OF_KAMB, _adaptive(_kamb)),
    "adaptive-pca": Method("Adaptive (PCA)", _OF_ADAPTIVE | _OF_PCA, _adaptive(_pca)),
    "adaptive-pspc-square": Method(
        "Adaptive (PSPC-Square)", _OF_ADAPTIVE | _OF_SQUARE, _adaptive(_pspc_square)
    ),
    "adaptive-pspc-flex": Method("Adaptive (PSPC-Flex)", _OF_ADAPTIVE, _adaptive(_pspc_flex)),
}

# What the demo and the studio show: an adaptive method's pictures are those of its full scan.
SHOWN = {name: method for name, method in METHODS.items() if not name.startswith("adaptive-")}
