"""GoldDiff: training-free, analytical diffusion. Names load when first used (``__init__.pyi``)."""

import lazy_loader

# torch, numba and diffusers take seconds to import: whoever asks for one name pays for it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.2.0"
del lazy_loader
