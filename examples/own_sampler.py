"""Write your own sampler: it only needs to call D(x, sigma).

Usage: python own_sampler.py     writes own.png
"""

import torch

import golddiff
from golddiff.system.pictures import draw_grid


def ancestral(denoiser, noise, sigmas, generator):
    """Euler steps with fresh noise after each step (k-diffusion's euler_ancestral)."""
    x = noise * sigmas[0]
    for sigma, following in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        x0 = denoiser(x, sigma)
        up = following * (1 - (following / sigma) ** 2) ** 0.5
        down = (following**2 - up**2) ** 0.5
        x = x0 + down / sigma * (x - x0)
        x = x + up * torch.randn(x.shape, generator=generator)
    return x


def main():
    """Draw eight digits."""
    store = golddiff.load("digits")
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn((8, *store.shape), generator=generator)
    sigmas = torch.logspace(1.5, -1.5, 12).tolist()
    images = ancestral(golddiff.recommended(store), noise, sigmas, generator)
    draw_grid(images.clamp(-1, 1), columns=8).save("own.png")
    print(images.shape)


if __name__ == "__main__":
    main()
