"""Run an unmodified diffusers pipeline with a denoiser instead of a U-Net.

Usage: python pipeline.py     writes pipeline-0.png to pipeline-3.png
"""

import torch
from diffusers import DDIMPipeline, DDIMScheduler

import golddiff
from golddiff.diffusers import AnalyticUNet


def main():
    """Make four pictures from patches of two photographs."""
    store = golddiff.load("patches", limit=500, size=16)
    unet = AnalyticUNet(golddiff.recommended(store))
    pipeline = DDIMPipeline(unet, DDIMScheduler(**unet.scheduler_settings))
    generator = torch.Generator().manual_seed(0)
    pictures = pipeline(batch_size=4, num_inference_steps=10, generator=generator).images
    for i, picture in enumerate(pictures):
        picture.save(f"pipeline-{i}.png")
    print(f"{len(pictures)} pictures of {pictures[0].size}")


if __name__ == "__main__":
    main()
