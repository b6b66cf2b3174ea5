"""``golddiff bench gpu``: the paper's time and memory columns on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from golddiff.cli.options import JsonPath
from golddiff.cli.terminal import say, write_json
from golddiff.system.errors import ArgumentError
from golddiff.system.files import check_writable


def gpu(
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="A row, again for more; default all: mnist, fashion-mnist, cifar10, afhq, "
            "celeba-hq, imagenet, imagenet-tenth, imagenet-class.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            "--batch-size",
            "--batch",
            help="Images a step, again for more; default 1, 16, 64.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Real images for a row; the others are crops of photographs, as many and as "
            "large. Again for more.",
            metavar="CASE=STORE",
            show_default=False,
        ),
    ] = None,
    peer: Annotated[
        Path | None,
        typer.Option(help="A checkout of the released GoldDiff, to run beside ours."),
    ] = None,
    variant: Annotated[str, typer.Option(help="Of the schedule: released or text.")] = "released",
    repeats: Annotated[int, typer.Option(help="Timed steps a noise level, after one.")] = 5,
    device: Annotated[str, typer.Option(help="cuda, cuda:1 ... or cpu.")] = "cuda",
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes, to see that the benchmark works.")
    ] = False,
    json: JsonPath = None,
) -> None:
    """Time denoising steps on a GPU: beside the paper's, the released code's and the floor.

    A step is one call of GoldDiff(PCA) on a batch, the mean over the ten DDIM noise levels, with
    masks and proxies already made. Its floor is the larger of its bytes over the measured copy
    rate and its operations over the measured matrix rate.

    For example:

      golddiff bench gpu --case cifar10 --data cifar10=cifar.store --json gpu.json

      golddiff bench gpu --peer GoldDiff/ --batch 1 --batch 16

      golddiff bench gpu --device cpu --quick
    """
    import torch

    from golddiff_lab.gpu.cases import CASES, QUICK, chosen
    from golddiff_lab.gpu.run import GpuJob, run

    if json is not None:
        check_writable("json", json)
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise ArgumentError(f"device: got {device!r}, expected cuda, cuda:1 ... or cpu") from error
    if where.type not in ("cuda", "cpu"):
        raise ArgumentError(f"device: got {device!r}, expected cuda, cuda:1 ... or cpu")
    if where.type == "cpu" and not quick:
        raise ArgumentError("device: cpu needs --quick; full sizes are for GPUs")
    stores = {}
    for text in data or ():
        name, _, path = text.partition("=")
        if name not in CASES or not path:
            raise ArgumentError(f"data: got {text!r}, expected CASE=STORE, CASE {', '.join(CASES)}")
        stores[name] = Path(path)
    job = GpuJob(
        [QUICK] if quick else chosen(case), batch or ([1, 2] if quick else [1, 16, 64]), where,
        stores, variant, 1 if quick else repeats, 3 if quick else 1, peer, quick,
    )  # fmt: skip
    job.check()
    figures = run(job, say)
    if json is not None:
        write_json(json, figures)
        say(f"wrote {json}")
