"""Figure 1: the posterior on the Moons narrows from all points to a neighbourhood."""

from __future__ import annotations

from golddiff.sources.source_options import SourceOptions
from golddiff.store.cache import cached_store
from golddiff.system.markdown import markdown_table
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.page import Page


def run(context: Context) -> Page:
    """The page of the figure."""
    from golddiff_lab.figures.concentration import concentration, draw_concentration

    store = cached_store("moons", SourceOptions(), say=context.say)
    panels = concentration(store, context.seed)
    texts = [
        [f"{p.sigma:.3g}", f"{len(p.support):,}", f"{p.weights.max():.3g}", f"{len(p.golden):,}"]
        for p in panels
    ]
    header = ["σ", "points with 99% of the weight", "largest weight", "golden subset"]
    rows = [
        {
            "sigma": p.sigma,
            "support": len(p.support),
            "largest_weight": float(p.weights.max()),
            "golden": len(p.golden),
        }
        for p in panels
    ]
    note = f"One sample of the exact denoiser over {store.n:,} points, seed {context.seed}."
    lines = [note, "", *markdown_table(header, texts)]
    return Page(lines, rows, pictures={"moons": draw_concentration(store, context.seed)})
