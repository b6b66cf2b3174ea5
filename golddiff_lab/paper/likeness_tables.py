"""The paper's tables of likeness to networks: their rows, columns and settings.

Tables 2 and 7 (main, mnist), 3 (imagenet), 4 (edm), 5 (orthogonality), 6 (wss).
"""

from __future__ import annotations

from golddiff.estimators.registry import MethodSettings
from golddiff_lab.paper.datasets import DATA_SETS, DataSet
from golddiff_lab.paper.likeness import Column, Row
from golddiff_lab.paper.tables import LikenessTable


def golden_settings(data: DataSet) -> MethodSettings:
    """Settings of the released GoldDiff: its schedule and mask threshold, exact weights."""
    return MethodSettings(mask_threshold=data.golden_threshold, weighting="ss", variant="released")


def _golden_biased(data: DataSet) -> MethodSettings:
    return MethodSettings(mask_threshold=data.golden_threshold, weighting="wss", variant="released")


def _pca(data: DataSet) -> MethodSettings:
    """Settings of Lukoianov's PCA: batch-averaged weights and their mask threshold."""
    return MethodSettings(mask_threshold=data.pca_threshold, weighting="wss")


def _unbiased(data: DataSet) -> MethodSettings:
    return MethodSettings(mask_threshold=data.pca_threshold, weighting="ss")


def _kamb(data: DataSet) -> MethodSettings:
    """The authors' calibrated patch sizes if there are any, else sizes from the data."""
    return MethodSettings(patch_size=data.kamb)


def _released(data: DataSet) -> MethodSettings:
    return MethodSettings(variant="released")


def _released_kamb(data: DataSet) -> MethodSettings:
    return MethodSettings(variant="released", patch_size=data.kamb)


def _smoothed(data: DataSet) -> MethodSettings:
    """Lukoianov et al.'s smoothing for MNIST; for other data they use 0.1, the default."""
    return MethodSettings(smoothing=1.0)


OPTIMAL = Row("Optimal", "optimal")
WIENER = Row("Wiener", "wiener")
KAMB = Row("Kamb", "kamb", _kamb)
PCA = Row("PCA", "pca", _pca)
PCA_UNBIASED = Row("PCA (Unbiased)", "pca", _unbiased)
GOLDDIFF = Row("GoldDiff", "golddiff-pca", golden_settings)
RECOMMENDED = Row("Network-like (ours)", "network-like")  # not in the paper
ALL = (OPTIMAL, WIENER, KAMB, PCA, GOLDDIFF)
GOLDDIFF_LESS_PCA = (GOLDDIFF.title, PCA.title)

SETTINGS_NOTE = (
    "Settings: PCA is Lukoianov's (weights averaged over batches of 256, where theirs are 512 for "
    "MNIST, Fashion-MNIST and CIFAR-10, worth 0.005 to 0.012 on 5,000 of MNIST; mask threshold "
    "0.005 for MNIST and Fashion-MNIST, 0.05 for CIFAR-10, 0.02 otherwise); GoldDiff is the "
    "released code's (its schedule, exact weights, threshold 0.03 for CIFAR-10 and CelebA, 0.04 "
    "for AFHQ, 0.02 otherwise); Kamb has its authors' patch sizes where they calibrated any."
)
CONDITIONAL_NOTE = (
    "Conditional: the classes in turn; each image is denoised over its class alone, and compared "
    "with a class-conditional network (`--oracle imagenet-conditional=PATH`)."
)
PAIRING_NOTE = (
    "The authors compare two samplers from the same unit noise: the analytical side runs 10 "
    "DDIM steps, the network EDM's own 10 Heun steps (sigma 80 to 0.002, 19 calls). The fair "
    "pairing runs Heun on both sides; the paper has no figures for it. Checkpoints: "
    "`--oracle cifar10-edm-vp=PATH`, `-edm-ve`, `afhq-edm-vp`, `afhq-edm-ve`."
)

MAIN_COLUMNS = (
    Column("CIFAR-10", "cifar10", "CIFAR-10"),
    Column("CelebA-HQ", "celeba-hq", "CelebA-HQ"),
    Column("AFHQv2", "afhq", "AFHQ"),
)
MNIST_COLUMNS = (
    Column("MNIST", "mnist", "MNIST"),
    Column("Fashion-MNIST", "fashion-mnist", "Fashion-MNIST"),
)
# Not in the picture grid, where Optimal would show training images, which are faces of people.
CELEBA = Column("CelebA, in place of CelebA-HQ", "celeba", None)
GOLDEN_COLUMNS = (
    *MAIN_COLUMNS[1:],
    CELEBA,
    *(
        Column(f"{title} (not in the paper's table)", data, None)
        for title, data in (
            ("CIFAR-10", "cifar10"), ("MNIST", "mnist"), ("Fashion-MNIST", "fashion-mnist"),
        )
    ),
)  # fmt: skip


def _imagenet(data: str, steps: int, *, conditional: bool) -> Column:
    group = f"{'conditional' if conditional else 'unconditional'}, {steps} steps"
    return Column(
        f"{DATA_SETS[data].title}, {group}",
        data,
        # The paper has no numbers for the substitute data set.
        group if data == "imagenet" else None,
        f"{data}-conditional" if conditional else data,
        steps,
        conditional=conditional,
    )


def _edm(network: str, data: str, title: str) -> tuple[Column, Column]:
    oracle, named = f"{data}-edm-{network}", f"EDM-{network.upper()}, {title}"
    return (
        Column(f"{named}, the authors' pairing", data, named, oracle,
               oracle_sampler="heun"),
        Column(f"{named}, Heun on both sides", data, None, oracle,
               sampler="heun"),
    )  # fmt: skip


_TIMED = ("MSE", "r2", "Time")
_OURS_TOO = (GOLDDIFF_LESS_PCA, (RECOMMENDED.title, GOLDDIFF.title))
_BOTH_PCA = (GOLDDIFF_LESS_PCA, (GOLDDIFF.title, PCA_UNBIASED.title))

MAIN = LikenessTable(
    "tab:main_results_1", (*MAIN_COLUMNS, CELEBA), (*ALL, RECOMMENDED), (*_TIMED, "Memory"),
    _OURS_TOO, (SETTINGS_NOTE,),
)  # fmt: skip
MNIST = LikenessTable(
    "tab:main_comparison_mnist", MNIST_COLUMNS, MAIN.rows, MAIN.metrics, _OURS_TOO,
    (SETTINGS_NOTE,),
)  # fmt: skip
IMAGENET = LikenessTable(
    "tab:pca_results_large",
    tuple(
        _imagenet(data, steps, conditional=conditional)
        for data in ("imagenet", "imagenet64-100")
        for steps in (10, 100)
        for conditional in (False, True)
    ),
    (PCA, PCA_UNBIASED, GOLDDIFF), _TIMED, _BOTH_PCA, (SETTINGS_NOTE, CONDITIONAL_NOTE),
)  # fmt: skip
EDM = LikenessTable(
    "tab:more_nn",
    tuple(
        column
        for network in ("vp", "ve")
        for data, title in (("cifar10", "CIFAR-10"), ("afhq", "AFHQ"))
        for column in _edm(network, data, title)
    ),
    ALL, differences=(GOLDDIFF_LESS_PCA,), notes=(SETTINGS_NOTE, PAIRING_NOTE),
)  # fmt: skip
ORTHOGONALITY = LikenessTable(
    "tab:orthogonal", GOLDEN_COLUMNS,
    (
        OPTIMAL, Row("Optimal + GoldDiff", "golddiff-optimal", _released),
        KAMB, Row("Kamb + GoldDiff", "golddiff-kamb", _released_kamb),
    ),
    _TIMED, (("Optimal + GoldDiff", "Optimal"), ("Kamb + GoldDiff", "Kamb")),
)  # fmt: skip
WSS = LikenessTable(
    "tab:ablation", GOLDEN_COLUMNS,
    (
        Row("GoldDiff + WSS", "golddiff-pca", _golden_biased),
        Row("GoldDiff + SS", "golddiff-pca", golden_settings),
    ),
    differences=(("GoldDiff + SS", "GoldDiff + WSS"),),
)  # fmt: skip
# Other estimators from the literature, beside the paper's estimators that they vary.
FIELD = LikenessTable(
    None,
    (Column("MNIST", "mnist", None), Column("CIFAR-10", "cifar10", None)),
    (
        Row("Nearest image", "nearest"),
        OPTIMAL,
        Row("SCFDM, smoothing 0.1", "scfdm"),
        Row("SCFDM, smoothing 1", "scfdm", _smoothed),
        Row("GoldDiff (SCFDM), smoothing 1", "golddiff-scfdm", _smoothed),
        Row("PSPC-Square", "pspc-square"),
        Row("PSPC-Flex", "pspc-flex"),
        Row("GoldDiff (PSPC-Square)", "golddiff-pspc-square", _released),
        Row("GoldDiff (PSPC-Flex)", "golddiff-pspc-flex", _released),
        GOLDDIFF,
    ),
    _TIMED,
    (
        ("SCFDM, smoothing 1", "Optimal"),
        ("GoldDiff (SCFDM), smoothing 1", "SCFDM, smoothing 1"),
        ("PSPC-Square", GOLDDIFF.title),
        ("PSPC-Flex", GOLDDIFF.title),
        ("GoldDiff (PSPC-Square)", GOLDDIFF.title),
        ("GoldDiff (PSPC-Flex)", GOLDDIFF.title),
    ),
)
