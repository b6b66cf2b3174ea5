"""GoldDiff: training-free, analytical diffusion. Names load on first use (``__init__.pyi``)."""

import lazy_loader

# torch, numba and diffusers take seconds to import, so each loads only when a name needs it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.2.0"
del lazy_loader
