"""The experiments by name, in the order of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from golddiff.system.errors import ArgumentError

if TYPE_CHECKING:
    from golddiff_lab.paper.context import Context
    from golddiff_lab.paper.page import Page


NOT_IN_PAPER = "not in the paper"


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    Attributes:
        name: name on the command line.
        title: title of its page.
        source: location in the paper.
        place: "module:name" of its function ``(context) -> Page`` in this package, imported on use.
    """

    name: str
    title: str
    source: str
    place: str

    def run(self, context: Context) -> Page:
        """Compute the results that are not cached, and return the page."""
        return resolve_name(f"golddiff_lab.paper.{self.place}")(context)


EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment("moons", "Posterior concentration on the Moons", "Figure 1", "moons:run"),
        Experiment("smoothing", "Averaged weights smooth", "Figure 2", "steps:run_smoothing"),
        Experiment(
            "weights", "Posterior weights and random subsets", "Figure 3, Sec. 3.3", "weights:run"
        ),
        Experiment("complexity", "Complexity", "Table 1, Sec. 3.5", "complexity:run"),
        Experiment("theorem1", "The truncation bound", "Theorem 1", "theorem1:run"),
        Experiment("main", "CIFAR-10, CelebA-HQ and AFHQv2", "Table 2", "likeness_tables:MAIN.run"),
        Experiment("grid", "Every method from the same noise", "Figure 4", "grid:run"),
        Experiment("imagenet", "ImageNet", "Table 3", "likeness_tables:IMAGENET.run"),
        Experiment("tench", "One class, step by step", "Figure 5", "steps:run_tench"),
        Experiment("edm", "EDM networks", "Table 4", "likeness_tables:EDM.run"),
        Experiment("orthogonality", "Golden subsets for Optimal and Kamb", "Table 5",
                   "likeness_tables:ORTHOGONALITY.run"),
        Experiment("wss", "Batch-averaged against exact weights", "Table 6",
                   "likeness_tables:WSS.run"),
        Experiment("sensitivity-m-max", "How large the candidate set must be", "Figure 6 (a)",
                   "sensitivity:run_m_max"),
        Experiment("sensitivity-k-min", "How large the golden subset must be", "Figure 6 (b)",
                   "sensitivity:run_k_min"),
        Experiment("mnist", "MNIST and Fashion-MNIST", "Table 7, appendix",
                   "likeness_tables:MNIST.run"),
        Experiment("field", "Other estimators of the field", NOT_IN_PAPER,
                   "likeness_tables:FIELD.run"),
        Experiment("posterior-samplers", "Posterior samplers against the exact posterior",
                   NOT_IN_PAPER, "posterior_samplers:run"),
    )
}  # fmt: skip


def of_the_paper() -> list[str]:
    """Names of the experiments that are in the paper."""
    return [e.name for e in EXPERIMENTS.values() if e.source != NOT_IN_PAPER]


def find(name: str) -> Experiment:
    """The experiment of a name."""
    if name not in EXPERIMENTS:
        raise ArgumentError(f"name: got {name!r}, expected all or one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
