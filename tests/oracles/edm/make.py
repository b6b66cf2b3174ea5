"""Write networks of this package as pickles in the format of EDM's training code.

``torch_utils.persistence`` replaces each module by its source text, class name and state;
``dnnlib.util.EasyDict`` is a dict; containers and tensors use torch's own pickling.
"""

import contextlib
import io
import pickle
import sys
from types import ModuleType

import numpy as np
import torch

from golddiff.oracles.edm.pickled import architecture, check_arguments
from golddiff.oracles.edm.preconditioning import PRECONDITIONINGS, iddpm_levels
from golddiff.oracles.oracle import Oracle

VP = {
    "model_type": "SongUNet",
    "embedding_type": "positional",
    "encoder_type": "standard",
    "decoder_type": "standard",
    "channel_mult_noise": 1,
    "resample_filter": [1, 1],
}
VE = {
    "model_type": "SongUNet",
    "embedding_type": "fourier",
    "encoder_type": "residual",
    "decoder_type": "standard",
    "channel_mult_noise": 2,
    "resample_filter": [1, 3, 3, 1],
}
ADM = {"model_type": "DhariwalUNet"}
TINY = {"model_channels": 8, "channel_mult": [1, 2], "num_blocks": 1, "attn_resolutions": [4]}
SMALLEST = VP | {
    "model_channels": 4,
    "channel_mult": [1],
    "channel_mult_emb": 1,
    "num_blocks": 1,
    "attn_resolutions": [],
}
SOURCE = "raise RuntimeError('the source text of the file was run')\n"

# The attributes that torch restores; the constructor of a module sets the others.
MODULE_STATE = ("training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class EasyDict(dict):
    """Stands in for dnnlib's class, which pickles refer to by name."""


def _reconstruct_persistent_obj(meta):
    raise RuntimeError("the file's function was called")


EasyDict.__module__, _reconstruct_persistent_obj.__module__ = (
    "dnnlib.util",
    "torch_utils.persistence",
)


@contextlib.contextmanager
def named_modules():
    """Make the modules that the pickle names importable while it is written."""
    names = ("dnnlib", "dnnlib.util", "torch_utils", "torch_utils.persistence")
    modules = {name: ModuleType(name) for name in names}
    modules["dnnlib.util"].EasyDict = EasyDict
    modules["torch_utils.persistence"]._reconstruct_persistent_obj = _reconstruct_persistent_obj
    sys.modules |= modules
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


class EDMPickler(pickle.Pickler):
    """Pickles modules as ``torch_utils.persistence`` does.

    ``extra`` is added to the state of the outermost network, ``source`` is its source text.
    """

    def __init__(self, file, protocol=4, extra=None, source=SOURCE, class_name=None):
        super().__init__(file, protocol)
        self.extra, self.source, self.class_name = extra or {}, source, class_name

    def reducer_override(self, obj):
        if not isinstance(obj, torch.nn.Module) or isinstance(obj, torch.nn.ModuleDict):
            return NotImplemented
        state = {name: obj.__dict__[name] for name in MODULE_STATE}
        state["skip_scale"] = np.sqrt(0.5)  # EDM's files hold NumPy scalars too
        name = type(obj).__name__
        if hasattr(obj, "init_kwargs"):
            state |= {"_init_args": (), "_init_kwargs": EasyDict(obj.init_kwargs)} | self.extra
            name = self.class_name or name
        meta = {
            "type": "class",
            "version": 6,
            "module_src": self.source,
            "class_name": name,
            "state": state,
        }
        return _reconstruct_persistent_obj, (meta,), None


class Preconditioned(torch.nn.Module):
    """A network inside its preconditioner, as in EDM's files."""

    def __init__(self, arguments):
        super().__init__()
        self.model, self.arguments = architecture(arguments), arguments
        if arguments.precond == "iDDPMPrecond":
            self.register_buffer("u", torch.tensor(iddpm_levels(0.001, 0.008, 1000)))

    def forward(self, x, sigma, labels):
        preconditioning = PRECONDITIONINGS[self.arguments.precond](**self.arguments.settings)
        classes = self.arguments.images["label_dim"]
        return Oracle(self.model, num_classes=classes, **preconditioning)(x, sigma, labels)


def precond_class(name):
    return type(name, (Preconditioned,), {})


def make_network(precond="EDMPrecond", side=8, channels=3, classes=0, seed=0, **kwargs):
    """A network with random nonzero parameters; ``init_kwargs`` are its arguments."""
    kwargs = {"img_resolution": side, "img_channels": channels, "label_dim": classes} | kwargs
    network = precond_class(precond)(check_arguments(precond, (), kwargs))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 9.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / fan_in**0.5)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1)
        for name, buffer in network.named_buffers():
            if name.endswith("freqs"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
    network.init_kwargs = kwargs
    return network.eval().requires_grad_(False)


def pickled(network, *, protocol=4, whole=None, **options):
    """The bytes of the file; ``whole`` adds entries to the outermost dict."""
    file = io.BytesIO()
    content = {"ema": network, "dataset_kwargs": {"path": "x.zip", "xflip": False}} | (whole or {})
    with named_modules():
        EDMPickler(file, protocol, **options).dump(content)
    return file.getvalue()
