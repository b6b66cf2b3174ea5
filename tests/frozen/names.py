"""What the frozen outputs call, in one place: names that may move, and how a method is made."""

import golddiff


def method(name, store, seed=0, **settings):
    """A denoiser by its name on the command line, with what differs from its settings."""
    from golddiff.estimators.registry import MethodSettings, create

    return create(name, store, MethodSettings(**settings), seed)


def tiled(base, side, tiles, images):
    """``base``, each of so many tiles over random images of its own: no schedule's supports."""
    import numpy as np

    from golddiff.support import Support, TiledSupport

    class Tiles:
        def budgets(self, sigma, n):
            return n, images

        def supports(self, store, x, sigma, label, seed):
            rows = store.everything(label).rows
            generator = np.random.default_rng(seed)
            drawn = [np.sort(generator.choice(rows, images, replace=False)) for _ in range(tiles)]
            made = [Support(part, generator.uniform(0, 1, images)) for part in drawn]
            return [TiledSupport(side, made)] * len(x)

    return golddiff.GoldDiff(base, Tiles())


def levels():
    """The ten noise levels of DDIM, as the paper runs it."""
    from golddiff.noise import ddim_sigmas

    return ddim_sigmas(10)
