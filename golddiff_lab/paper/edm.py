"""EDM's networks as oracles, with the authors' pairing of samplers and with a fair one."""

from __future__ import annotations

from golddiff_lab.paper.context import Context
from golddiff_lab.paper.likeness import Column
from golddiff_lab.paper.methods import ALL, GOLDDIFF_LESS_PCA, SETTINGS_NOTE
from golddiff_lab.paper.page import Page
from golddiff_lab.paper.tables import likeness_page

LABEL = "tab:more_nn"
DATA = {"cifar10": "CIFAR-10", "afhq": "AFHQ"}
NETWORKS = {"vp": "EDM-VP", "ve": "EDM-VE"}
NO_CHECKPOINT = "no checkpoint here"

COLUMNS = tuple(
    column
    for network, network_title in NETWORKS.items()
    for data, data_title in DATA.items()
    for column in (
        Column(
            f"{network_title}, {data_title}, the authors' pairing", data,
            f"{network_title}, {data_title}", f"{data}-edm-{network}",
            oracle_sampler="heun", missing=NO_CHECKPOINT,
        ),
        Column(
            f"{network_title}, {data_title}, Heun on both sides", data,
            None, f"{data}-edm-{network}", sampler="heun", missing=NO_CHECKPOINT,
        ),
    )
)  # fmt: skip

PAIRING_NOTE = (
    "The authors compare two samplers from the same unit noise: the analytical side runs 10 "
    "DDIM steps, the network EDM's own 10 Heun steps (sigma 80 to 0.002, 19 calls). The fair "
    "pairing runs Heun on both sides; the paper has no figures for it. Checkpoints: "
    "`--oracle cifar10-edm-vp=PATH`, `-edm-ve`, `afhq-edm-vp`, `afhq-edm-ve`."
)


def run(context: Context) -> Page:
    """The page of the table."""
    return likeness_page(
        context, LABEL, COLUMNS, ALL,
        difference=GOLDDIFF_LESS_PCA, notes=[SETTINGS_NOTE, PAIRING_NOTE],
    )  # fmt: skip
