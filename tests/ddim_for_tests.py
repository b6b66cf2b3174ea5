"""The paper's DDIM scheduler, as diffusers builds it."""

from diffusers import DDIMScheduler


def ddim_scheduler(steps, *, clip=True):
    """Diffusers' scheduler of x0 with linear betas; 10 steps are at timesteps 900, 800 ... 0."""
    scheduler = DDIMScheduler(
        num_train_timesteps=1000, beta_start=1e-4, beta_end=0.02, beta_schedule="linear",
        prediction_type="sample", clip_sample=clip,
    )  # fmt: skip
    scheduler.set_timesteps(steps)
    return scheduler
