"""Miniature checkouts of peers: the names of their code, over dense equations."""

MASK = """
import torch


def alpha_at(timestep):
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    return torch.cumprod(1 - betas, 0)[int(timestep)]


def mask_at(U, LA, Vh, alpha, threshold):
    U, LA, Vh = U.double(), LA.double(), Vh.double()
    W = U @ torch.diag(alpha * LA / (1 - alpha + alpha * LA)) @ Vh
    denominator = torch.diagonal(W).unsqueeze(1).clone()
    denominator[denominator.abs() < 1e-6] = 1.0
    M = (W / denominator).abs()
    return (M >= threshold * M.max()).double()


def softmax_mean(x, images, mask, alpha):
    delta = (x[:, None] - alpha.sqrt() * images) ** 2
    logits = -(delta @ mask) / (2 * (1 - alpha))
    return (torch.softmax(logits, 1) * images).sum(1)
"""

RELEASE = (
    """from data_src import DatasetBundle
import methods.baseline_unet
"""
    + MASK
    + '''

class OursDenoiser:
    """The posterior mean over the k_max nearest images."""

    def __init__(self, dataset, device, num_steps, params=None):
        self.threshold, self.k = params["mask_threshold"], params["k_max"]

    def train(self, dataset):
        self.factor = self._load_or_compute_wiener_svd()
        self.images = torch.cat([b.flatten(1) for b in dataset.dataloader]).double()

    def denoise(self, latents, timestep):
        alpha, x = alpha_at(timestep), latents.flatten(1).double()
        mask = mask_at(*self.factor[:3], alpha, self.threshold)
        near = torch.cdist(x, alpha.sqrt() * self.images).topk(self.k, largest=False).indices
        out = [softmax_mean(q[None], self.images[n], mask, alpha) for q, n in zip(x, near)]
        return torch.cat(out).float().view_as(latents)
'''
)

STUDIO = (
    """from local_diffusion.data import DatasetBundle
from tqdm import tqdm
"""
    + MASK
    + '''

def load_wiener_filter(path, device):
    raise FileNotFoundError(path)


class PCALocalityDenoiser:
    """The plain average of the means of batches."""

    def __init__(self, dataset, device, num_steps, params=None):
        self.threshold = params["mask_threshold"]

    def train(self, dataset):
        self.factor = load_wiener_filter(None, None)
        self.dataset = dataset

    def denoise(self, latents, timestep):
        alpha, x = alpha_at(timestep), latents.flatten(1).double()
        mask = mask_at(*self.factor[:3], alpha, self.threshold)
        means = [
            softmax_mean(x, batch.flatten(1).double(), mask, alpha)
            for batch in tqdm(self.dataset.dataloader)
        ]
        return torch.stack(means).mean(0).float().view_as(latents)
'''
)

KAMB = '''
import matplotlib.pyplot as plt
import torchvision
import torchvision.transforms as transforms
from torch import nn
from torchvision import datasets, models, transforms
import torch


class LocalEquivBordersScoreModule(nn.Module):
    """The local score: a position against itself only, with patches cut at the border."""

    def __init__(self, dataset, kernel_size, batch_size, image_size, channels, schedule):
        super().__init__()
        self.images = torch.stack([image for image, label in dataset])
        self.k, self.schedule = kernel_size, schedule

    def forward(self, t, x, device):
        beta = self.schedule(t)
        delta = x[:, None] - (1 - beta).sqrt() * self.images
        near = torch.nn.functional.avg_pool2d(
            delta.square().sum(2), self.k, 1, self.k // 2, divisor_override=1
        )
        weights = torch.softmax(-near / (2 * beta), 1)
        return -(weights[:, :, None] * delta).sum(1) / beta


class LocalEquivScoreModule(LocalEquivBordersScoreModule):
    pass
'''

PSPC = '''
import torch
from torch import nn


class PSPCSquareDenoiser(nn.Module):
    """The mean of E[x0 | patch] over the squares that cover a pixel."""

    def __init__(self, dataset, patch_sizes):
        super().__init__()
        self.images = torch.stack([torch.tensor(image) for image, label in dataset]) / 127.5 - 1

    def forward(self, z, t):
        p, side = self.patch_size_schedule(t[0].item()), z.shape[-1]
        sums, counts = torch.zeros_like(z), torch.zeros_like(z)
        for y in range(side - p + 1):
            for x in range(side - p + 1):
                window = (..., slice(y, y + p), slice(x, x + p))
                patches = self.images[window]
                near = (z[window][:, None] - patches).square().sum((2, 3, 4))
                weights = torch.softmax(-near / (2 * t[:, None] ** 2), 1)
                sums[window] += torch.einsum("bn,nchw->bchw", weights, patches)
                counts[window] += 1
        return sums / counts
'''

FILES = {
    "release": ("methods/ours.py", RELEASE),
    "studio": ("src/local_diffusion/models/pca_locality.py", STUDIO),
    "kamb-ganguli": ("src/utils/idealscore.py", KAMB),
    "pspc": ("pspc/denoisers.py", PSPC),
}


def write_checkout(name, folder):
    """Write the miniature checkout of a peer; returns its folder."""
    path, text = FILES[name]
    file = folder / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    if name == "studio":
        for package in ("src/local_diffusion", "src/local_diffusion/models"):
            (folder / package / "__init__.py").touch()
        wiener = folder / "src/local_diffusion/utils"
        wiener.mkdir()
        (wiener / "__init__.py").touch()
    return folder
