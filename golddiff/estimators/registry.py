"""The methods by name, as the command line, the figures and the demo call them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from golddiff.system.errors import ArgumentError

if TYPE_CHECKING:
    from golddiff.denoiser import Denoiser
    from golddiff.estimators.golden import GoldDiff
    from golddiff.store.images import ImageStore, StoreOrPath


DEFAULT_METHOD = "recommended"
# The methods that need no masks either.
NO_COVARIANCE = ("optimal", "scfdm", "nearest", "pspc-square")


def _setting(help: str, panel: str | None = "Advanced") -> Any:
    """A setting with its help on the command line."""
    return field(default=None, metadata={"help": help, "panel": panel})


@dataclass(frozen=True)
class MethodSettings:
    """Settings of the methods; None is the default of the method, or of the data.

    The help of each is its documentation. Kamb also takes pairs (sigma, size).
    """

    novelty: float | None = _setting(
        "How new, by recommended: 0 gives training images again, 1 pictures as new as another of "
        "the same kind; default 0.7.",
        panel=None,
    )
    mask_threshold: float | None = _setting(
        "PCA: mask threshold, 0 to 1; default 0.02, or 0.03 for 32 x 32 RGB."
    )
    weighting: str | None = _setting("PCA: ss (exact; default) or wss.")
    patch_size: int | str | tuple[tuple[float, int], ...] | None = _setting(
        "Kamb: an odd number, the name of a calibration, or the JSON of golddiff oracle "
        "patch-sizes; default: from the data. PSPC-Square: a number; default: its authors' for "
        "CIFAR-10."
    )
    boundary: str | None = _setting("Kamb: zeros (default), circular or none.")
    variant: str | None = _setting("The paper's schedule: released (as its code; default) or text.")
    k_min: int | float | None = _setting(
        "Smallest subset: a count (100) or a fraction (0.05, 1/20); default 1/20."
    )
    k_max: int | float | None = _setting("Largest subset; default 1/10.")
    m_min: int | float | None = _setting("Fewest screened, with --variant text; default 1/10.")
    m_max: int | float | None = _setting("Most screened, with --variant text; default 1/4.")
    tol: float | None = _setting("Adaptive methods: RMSE to the full scan, default 0.02.")
    smoothing: float | None = _setting(
        "SCFDM: noise of its copies, in units of pixels -1 to 1; default 0.1."
    )

    def given(self) -> dict[str, object]:
        """The settings that are not None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def of(self, method: str) -> MethodSettings:
        """Those that a method has."""
        others = self.given().keys() - METHODS[method].settings
        return replace(self, **dict.fromkeys(others))


@dataclass(frozen=True)
class Method:
    """One method, and how it is made.

    Attributes:
        title: in pictures.
        maker: (store, **settings) -> denoiser; or where it is, "module:name", a module of this
            folder with a dot before it: imported when it is used, since torch comes with it.
        names: of each setting that it takes ("seed" is one), what its maker calls it.
        subsets: "golden" by the paper's schedule, "adaptive"; None: what the maker makes.
        has_sources: whether its output is a weighted sum of training images.
    """

    title: str
    maker: Callable[..., Denoiser] | str
    names: Mapping[str, str]
    subsets: str | None = None
    has_sources: bool = True

    @property
    def settings(self) -> frozenset[str]:
        """The settings that it takes."""
        own = frozenset(self.names) - {"seed"}
        return own | _OF_SUBSETS[self.subsets] if self.subsets else own

    @property
    def kind(self) -> Callable[..., Any]:
        """What makes it, imported."""
        if not isinstance(self.maker, str):
            return self.maker
        place = f"{__package__}{self.maker}" if self.maker[0] == "." else self.maker
        found: Callable[..., Any] = resolve_name(place)
        return found

    def make(self, store: ImageStore, settings: MethodSettings, seed: int) -> Denoiser:
        """The method over a store."""
        made = self.base(store, settings, seed)
        return made if self.subsets is None else over(self.subsets, made, settings, seed)

    def base(self, store: Any, settings: MethodSettings, seed: int = 0) -> Denoiser:
        """The same over all images."""
        given = settings.given() | {"seed": seed}
        if "mask_threshold" in self.names:
            given.setdefault("mask_threshold", default_mask_threshold(store.shape))
        made: Denoiser = self.kind(
            store, **{self.names[one]: given[one] for one in given if one in self.names}
        )
        return made


class _NoImages:
    """In place of a training set, where a method is made only to have its settings checked."""

    shape, d, posterior = (3, 8, 8), 192, None


_OF_SUBSETS = {
    "golden": frozenset({"variant", "k_min", "k_max", "m_min", "m_max"}),
    "adaptive": frozenset({"tol"}),
}


def default_mask_threshold(shape: tuple[int, ...]) -> float:
    """The released code's: 0.03 for CIFAR-10's shape (3, 32, 32), 0.02 for others."""
    return 0.03 if shape == (3, 32, 32) else 0.02


def check_method(name: str, settings: MethodSettings) -> None:
    """Raise where ``name`` is no method, or is given a setting that it does not have or allow.

    Raises:
        ArgumentError: says which methods there are, which have the setting, or what it may be.
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
    for least, most in (("k_min", "k_max"), ("m_min", "m_max")):
        low, high = getattr(settings, least), getattr(settings, most)
        if None not in (low, high) and type(low) is type(high) and low > high:
            raise ArgumentError(f"{least}: got {low}, expected at most {most}, which is {high}")
    if settings.given().keys() & METHODS[method].names.keys() - {"novelty"}:
        METHODS[method].base(_NoImages(), settings)
    subsets = METHODS[method].subsets
    if subsets and settings.given().keys() & _OF_SUBSETS[subsets]:
        schedule(subsets, settings)


def check_methods(
    methods: Sequence[str], settings: MethodSettings, others: Collection[str] = ()
) -> None:
    """As :func:`check_method`, of settings given for several methods: each takes those it has.

    Args:
        methods: their names.
        settings: of which at least one method has each.
        others: settings that somebody else has.
    """
    for i, method in enumerate(methods):
        if method in methods[:i]:
            raise ArgumentError(f"method: got {method} twice")
        check_method(method, settings.of(method))
    for setting in settings.given():
        if setting not in others and not any(setting in METHODS[m].settings for m in methods):
            check_method(methods[0], MethodSettings(**{setting: getattr(settings, setting)}))


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
    store: StoreOrPath,
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

    known = [field.name for field in fields(MethodSettings)]
    for setting in given:
        if setting not in known:
            raise ArgumentError(f"{setting}: no method has it; expected some of {', '.join(known)}")
    settings = replace(settings or MethodSettings(), **given)
    check_method(name, settings)
    method, training_set = method_named(name), opened(store)
    check_memory(method, training_set, settings)
    return METHODS[method].make(training_set, settings, seed)


def check_memory(method: str, store: ImageStore, settings: MethodSettings) -> None:
    """Raise where what a method needs of a store, and is not made yet, takes too much memory."""
    from golddiff.store.needs import check_images

    if not store.factors.is_kept():
        what = f"the covariance and masks of {method} for"
        check_images(store.n, store.shape, memory_needed(method, settings), what)


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


def schedule(subsets: str, settings: MethodSettings) -> Any:
    """The paper's schedule, "released" unless set, or the adaptive one."""
    if subsets == "adaptive":
        from golddiff.supports.adaptive import AdaptiveSchedule

        return AdaptiveSchedule() if settings.tol is None else AdaptiveSchedule(settings.tol)
    from golddiff.supports.paper import PaperSchedule

    given: dict[str, Any] = {"variant": "released", **settings.given()}
    return PaperSchedule(**{name: given[name] for name in given if name in _OF_SUBSETS["golden"]})


def over(subsets: str, base: Any, settings: MethodSettings, seed: int) -> GoldDiff:
    """``base`` over golden or adaptive subsets."""
    from golddiff.estimators.golden import GoldDiff

    return GoldDiff(base, schedule(subsets, settings), seed)


METHODS: dict[str, Method] = {}
SHOWN: dict[str, Method] = {}  # by demo and studio: adaptive pictures are those of the full scan


def register(
    name: str,
    title: str,
    maker: Callable[..., Denoiser] | str,
    *,
    subsets: bool = True,
    has_sources: bool = True,
    **names: str,
) -> None:
    """Add a method, and for an estimator the same over golden and over adaptive subsets.

    Args:
        name: as on the command line; ``golddiff-`` and ``adaptive-`` stand before the others.
        title: in pictures.
        maker: see :class:`Method`.
        subsets: whether it is an :class:`golddiff.denoiser.Estimator`, which subsets are for.
        has_sources: see :class:`Method`.
        names: of each of :class:`MethodSettings` that it takes, or seed, what its maker calls it.
    """
    METHODS[name] = SHOWN[name] = Method(title, maker, names, None, has_sources)
    if subsets:
        over = Method(f"GoldDiff ({title})", maker, names, "golden")
        METHODS[f"golddiff-{name}"] = SHOWN[f"golddiff-{name}"] = over
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
