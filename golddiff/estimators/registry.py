"""The registry of methods by name, for the command line, the figures and the demo."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast

from golddiff.system.errors import ArgumentError

if TYPE_CHECKING:
    from golddiff.denoiser import Denoiser
    from golddiff.estimators.golden import GoldDiff
    from golddiff.store.images import ImageStore, StoreOrPath


DEFAULT_METHOD = "recommended"
# Methods that need neither the covariance nor masks.
NO_COVARIANCE = ("optimal", "scfdm", "nearest", "pspc-square")


def _setting(help: str, panel: str | None = "Advanced") -> Any:
    """A dataclass field, default None, with its help text for the command line."""
    return field(default=None, metadata={"help": help, "panel": panel})


@dataclass(frozen=True)
class MethodSettings:
    """Settings of the methods; None means the default of the method or of the data.

    Each field's help text documents it. Kamb's ``patch_size`` may also be (sigma, size) pairs.
    """

    novelty: float | None = _setting(
        "Method recommended: novelty of the pictures, from 0 (copies of training images) to 1 (as "
        "new as unseen images of the same kind); default 0.7.",
        panel=None,
    )
    mask_threshold: float | None = _setting(
        "PCA: mask threshold, 0 to 1; default 0.02, or 0.03 for 32 x 32 RGB."
    )
    weighting: str | None = _setting(
        "PCA: ss (the exact softmax; default) or wss (the mean over batches of 256 images)."
    )
    patch_size: int | str | tuple[tuple[float, int], ...] | None = _setting(
        "Kamb: side of a patch in pixels (odd), the name of a calibration, or the JSON of golddiff "
        "oracle patch-sizes; default: from the data. PSPC-Square: side in pixels; default: the "
        "authors' sizes for CIFAR-10."
    )
    boundary: str | None = _setting("Kamb: rule at borders: zeros (default), circular or none.")
    variant: str | None = _setting("GoldDiff's schedule: released (default) or text (the paper).")
    k_min: int | float | None = _setting(
        "GoldDiff: subset size at low noise, a count (100) or fraction (0.05, 1/20); default 1/20."
    )
    k_max: int | float | None = _setting("GoldDiff: subset size at high noise; default 1/10.")
    m_min: int | float | None = _setting("--variant text: candidates at high noise; default 1/10.")
    m_max: int | float | None = _setting("--variant text: candidates at low noise; default 1/4.")
    tol: float | None = _setting(
        "Adaptive methods: allowed RMSE to the full scan, for pixels from -1 to 1; default 0.02."
    )
    smoothing: float | None = _setting(
        "SCFDM: standard deviation of the smoothing noise, for pixels from -1 to 1; default 0.1."
    )

    def given(self) -> dict[str, object]:
        """The settings that are not None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def of(self, method: str) -> MethodSettings:
        """The settings that apply to a method; the others become None."""
        others = self.given().keys() - METHODS[method].settings
        return replace(self, **dict.fromkeys(others))


@dataclass(frozen=True)
class Method:
    """One method and its constructor.

    Attributes:
        title: name shown in figures.
        maker: (store, **settings) -> denoiser, or its location "module:name" (with a leading dot
            for a module of this package), imported at the first use because it imports torch.
        names: for each setting of the method (and "seed"), the maker's argument name.
        subsets: "golden" (the paper's schedule) or "adaptive"; None: the maker's own denoiser.
        has_sources: whether its output is a weighted sum of training images.
    """

    title: str
    maker: Callable[..., Denoiser] | str
    names: Mapping[str, str]
    subsets: str | None = None
    has_sources: bool = True

    @property
    def settings(self) -> frozenset[str]:
        """The names of the settings that apply to the method."""
        own = frozenset(self.names) - {"seed"}
        return own | _SUBSET_SETTINGS[self.subsets] if self.subsets else own

    @property
    def kind(self) -> Callable[..., Any]:
        """The maker, imported if it is a location."""
        if not isinstance(self.maker, str):
            return self.maker
        location = f"{__package__}{self.maker}" if self.maker[0] == "." else self.maker
        return resolve_name(location)

    def make(self, store: ImageStore, settings: MethodSettings, seed: int) -> Denoiser:
        """Build the method's denoiser over a store."""
        base = self.base(store, settings, seed)
        return base if self.subsets is None else over(self.subsets, base, settings, seed)

    def base(self, store: Any, settings: MethodSettings, seed: int = 0) -> Denoiser:
        """Build the denoiser over all images, without subsets."""
        values = settings.given() | {"seed": seed}
        if "mask_threshold" in self.names:
            values.setdefault("mask_threshold", default_mask_threshold(store.shape))
        arguments = {self.names[name]: values[name] for name in values if name in self.names}
        return self.kind(store, **arguments)


class _NoImages:
    """A stand-in for a training set, to check a method's settings by its constructor."""

    shape, d, posterior = (3, 8, 8), 192, None


_SUBSET_SETTINGS = {
    "golden": frozenset({"variant", "k_min", "k_max", "m_min", "m_max"}),
    "adaptive": frozenset({"tol"}),
}


def default_mask_threshold(shape: tuple[int, ...]) -> float:
    """The released code's threshold: 0.03 for the shape of CIFAR-10, (3, 32, 32), else 0.02."""
    return 0.03 if shape == (3, 32, 32) else 0.02


def check_method(name: str, settings: MethodSettings) -> None:
    """Check that ``name`` is a method and that the settings apply to it and are in range.

    Raises:
        ArgumentError: the message lists the methods, those with the setting, or its range.
    """
    method = method_named(name)
    for setting in settings.given():
        if setting not in METHODS[method].settings:
            allowed = ", ".join(other for other in METHODS if setting in METHODS[other].settings)
            raise ArgumentError(f"{setting}: does not apply to method {method}, only to {allowed}")
    if settings.novelty is not None:
        from golddiff.system.arguments import check_novelty  # imports torch: not for --help

        check_novelty(settings.novelty)
    for setting in ("m_min", "m_max"):
        if getattr(settings, setting) is not None and settings.variant != "text":
            raise ArgumentError(f"{setting}: applies to variant 'text' only")
    for least, most in (("k_min", "k_max"), ("m_min", "m_max")):
        low, high = getattr(settings, least), getattr(settings, most)
        if None not in (low, high) and type(low) is type(high) and low > high:
            raise ArgumentError(f"{least}: got {low}, expected at most {most}, which is {high}")
    if settings.given().keys() & METHODS[method].names.keys() - {"novelty"}:
        METHODS[method].base(_NoImages(), settings)
    subsets = METHODS[method].subsets
    if subsets and settings.given().keys() & _SUBSET_SETTINGS[subsets]:
        schedule(subsets, settings)


def check_methods(
    methods: Sequence[str], settings: MethodSettings, others: Collection[str] = ()
) -> None:
    """:func:`check_method` for several methods, each with the settings that apply to it.

    Args:
        methods: names of methods, all different.
        settings: each must apply to at least one method or be among ``others``.
        others: names of settings that the caller uses itself.
    """
    for i, method in enumerate(methods):
        if method in methods[:i]:
            raise ArgumentError(f"method: got {method} twice")
        check_method(method, settings.of(method))
    for setting in settings.given():
        if setting not in others and not any(setting in METHODS[m].settings for m in methods):
            check_method(methods[0], MethodSettings(**{setting: getattr(settings, setting)}))


def method_named(given: str) -> str:
    """The canonical name of a method, from any case and with - or _.

    Raises:
        ArgumentError: no such method; the message suggests the nearest name.
    """
    name = _canonical(given)
    if name in METHODS:
        return name
    matches = get_close_matches(name, METHODS, 1)
    hint = f"; did you mean {matches[0]}?" if matches else ""
    raise ArgumentError(f"method: got {given!r}, expected one of {', '.join(METHODS)}{hint}")


def _canonical(name: str) -> str:
    return str(name).strip().lower().replace("_", "-")


def create(
    name: str,
    store: StoreOrPath,
    settings: MethodSettings | None = None,
    seed: int = 0,
    **given: Any,
) -> Denoiser:
    """Build a method by name, exactly as the command line does.

    Args:
        name: a key of ``METHODS``, such as "recommended" or "golddiff-pca".
        store: the training set, or the folder of a store.
        settings: settings that differ from the defaults.
        seed: seed of the random draws of golden subsets.
        given: further settings by name, as attributes of :class:`MethodSettings`, such as
            ``novelty`` or ``mask_threshold``.

    Raises:
        ArgumentError: no such method; a setting that does not apply or is out of range; or too
            little memory to compute the covariance and masks, if they are not saved yet.
    """
    from golddiff.store.images import opened  # imports torch

    known = [field.name for field in fields(MethodSettings)]
    for setting in given:
        if setting not in known:
            raise ArgumentError(f"{setting}: no method has it; expected one of {', '.join(known)}")
    if not isinstance(cast(object, settings), MethodSettings | None):
        got = type(settings).__name__
        raise ArgumentError(f"settings: got {got}, expected MethodSettings, or tol=0.05 and so on")
    settings = replace(settings or MethodSettings(), **given)
    check_method(name, settings)
    method, training_set = method_named(name), opened(store)
    check_memory(method, training_set, settings)
    return METHODS[method].make(training_set, settings, seed)


def check_memory(method: str, store: ImageStore, settings: MethodSettings) -> None:
    """Raise if computing a method's covariance and masks, unless saved, needs too much memory."""
    from golddiff.store.needs import check_images

    if not store.factors.is_saved():
        purpose = f"the covariance and masks of {method} for"
        check_images(store.n, store.shape, memory_needed(method, settings), purpose)


def memory_needed(name: str, settings: MethodSettings) -> Callable[[int, int], float]:
    """A function (n, d) -> bytes that a method's covariance and masks take while computed."""
    from golddiff.store.factors import SAMPLE_SIZE
    from golddiff.store.needs import covariance_bytes, mask_bytes
    from golddiff.store.statistics import LARGE

    is_own = str(METHODS[name].maker).startswith(".")  # a registered method may need anything
    if not is_own or any(base in name for base in NO_COVARIANCE) or settings.patch_size is not None:
        return lambda n, d: 0.0
    if name == "recommended":
        return lambda n, d: mask_bytes(min(n, SAMPLE_SIZE) if d > LARGE else n, d)
    return covariance_bytes if name == "wiener" else mask_bytes


def schedule(subsets: str, settings: MethodSettings) -> Any:
    """The adaptive schedule, or the paper's, whose variant is "released" by default."""
    if subsets == "adaptive":
        from golddiff.supports.adaptive import AdaptiveSchedule

        return AdaptiveSchedule() if settings.tol is None else AdaptiveSchedule(settings.tol)
    from golddiff.supports.paper import PaperSchedule

    values: dict[str, Any] = {"variant": "released", **settings.given()}
    allowed = _SUBSET_SETTINGS["golden"]
    return PaperSchedule(**{name: values[name] for name in values if name in allowed})


def over(subsets: str, base: Any, settings: MethodSettings, seed: int) -> GoldDiff:
    """``base`` over golden or adaptive subsets."""
    from golddiff.estimators.golden import GoldDiff

    return GoldDiff(base, schedule(subsets, settings), seed)


METHODS: dict[str, Method] = {}
SHOWN: dict[str, Method] = {}  # by demo and studio; adaptive pictures only repeat the full scan's


def register(
    name: str,
    title: str,
    maker: Callable[..., Denoiser] | str,
    *,
    subsets: bool = True,
    has_sources: bool = True,
    **names: str,
) -> None:
    """Add a method and, for an estimator, its variants over golden and over adaptive subsets.

    Args:
        name: name on the command line; the variants add the prefix ``golddiff-`` or ``adaptive-``.
        title: name shown in figures.
        maker: see :class:`Method`.
        subsets: whether to add the variants; requires an :class:`golddiff.denoiser.Estimator`.
        has_sources: see :class:`Method`.
        names: maps attributes of :class:`MethodSettings`, or seed, to the maker's argument names.
    """
    name = _canonical(name)
    METHODS[name] = SHOWN[name] = Method(title, maker, names, None, has_sources)
    if subsets:
        golden = Method(f"GoldDiff ({title})", maker, names, "golden")
        METHODS[f"golddiff-{name}"] = SHOWN[f"golddiff-{name}"] = golden
        METHODS[f"adaptive-{name}"] = Method(f"Adaptive ({title})", maker, names, "adaptive")


register(
    "recommended", "Recommended", ".dial:recommended", subsets=False,
    novelty="novelty", seed="seed",
)  # fmt: skip
register(
    "network-like", "Network-like", ".network_like:NetworkLike", subsets=False,
    has_sources=False, seed="seed",
)  # fmt: skip
register("wiener", "Wiener", ".wiener:Wiener", subsets=False, has_sources=False)
register("nearest", "Nearest image", ".nearest_image:NearestImage", subsets=False)
register("optimal", "Optimal", ".optimal:Optimal")
register("scfdm", "SCFDM", ".scfdm:SCFDM", smoothing="smoothing")
register("kamb", "Kamb", ".kamb:Kamb", patch_size="patch_sizes", boundary="boundary")
register("pca", "PCA", ".pca:PCA", mask_threshold="mask_threshold", weighting="weighting")
register("pspc-square", "PSPC-Square", ".pspc:PSPCSquare", patch_size="patch_sizes")
register("pspc-flex", "PSPC-Flex", ".pspc:PSPCFlex")
