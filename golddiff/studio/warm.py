"""Everything that is slow the first time, done before anyone asks for it."""

from __future__ import annotations

from golddiff.estimators.registry import SHOWN
from golddiff.studio.explain import curves, sources_at
from golddiff.studio.grid import draw_grid
from golddiff.studio.library import Library
from golddiff.studio.plots import draw_plots
from golddiff.studio.run import Selection, Settings, prepare
from golddiff.system.errors import GoldDiffError


def warm_up(library: Library) -> None:
    """Run the page's default run: compiles the kernels, makes the masks, finds the fonts.

    Runs take turns with it step by step, so it is in nobody's way for long.
    """
    try:
        name = library.names[0]
        opened = library.get(name)
        methods = opened.default_methods()
        run = prepare(opened, Settings(name, tuple(methods), n=2), None)
        for _ in run.advance():
            if run.steps_done and set(methods) != set(SHOWN):
                break  # a large store: one step has compiled everything
        *_, height, width = opened.store.shape
        selected = Selection(methods[-1], 0, height // 2, width // 2)
        draw_grid(run, 0, False, selected)
        draw_plots(run, 0, selected, sources_at(run, selected, 0), curves(run, selected, 1))
    except GoldDiffError:
        pass  # whoever chooses this store is told
    finally:
        library.warm.set()
