"""The names of the package that the frozen outputs use, in one place, as they may move."""

import golddiff


def method(name, store, seed=0, **settings):
    """A denoiser by its name on the command line; ``settings`` replace its defaults."""
    from golddiff.estimators.registry import MethodSettings, create

    return create(name, store, MethodSettings(**settings), seed)


def tiled(base, side, tiles, images):
    """``base`` with a separate random support for each tile, in place of a schedule's."""
    import numpy as np

    from golddiff.support import Support, TiledSupport

    class RandomTiles:
        def budgets(self, sigma, n):
            return n, images

        def supports(self, store, x, sigma, label, seed):
            rows = store.everything(label).rows
            generator = np.random.default_rng(seed)
            drawn = [np.sort(generator.choice(rows, images, replace=False)) for _ in range(tiles)]
            tile_supports = [Support(chosen, generator.uniform(0, 1, images)) for chosen in drawn]
            return [TiledSupport(side, tile_supports)] * len(x)

    return golddiff.GoldDiff(base, RandomTiles())


def levels():
    """The ten DDIM noise levels of the paper."""
    from golddiff.noise import ddim_sigmas

    return ddim_sigmas(10)
