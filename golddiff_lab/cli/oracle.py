"""``golddiff oracle train | info | export``: networks to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from golddiff.cli.options import JsonPath
from golddiff.cli.terminal import say, write_json
from golddiff.system.errors import ArgumentError
from golddiff.system.files import check_writable
from golddiff.system.units import byte_size, shape_text
from golddiff_lab.cli.oracle_train import train

oracle = typer.Typer(
    name="oracle",
    help="Train a network to compare with, show what a checkpoint is, pack weights.",
    no_args_is_help=True,
)
oracle.command()(train)

DTYPES = ("float16", "float32")


@oracle.command()
def info(
    path: Annotated[Path, typer.Argument(help="A checkpoint that load_oracle reads.")],
    resolution: Annotated[
        int | None, typer.Option(help="Side of the images, where the file does not tell it.")
    ] = None,
    json: JsonPath = None,
) -> None:
    """Show what a checkpoint is: the network, its images, and how it was trained.

    For example:

      golddiff oracle info mnist-oracle/
    """
    if json is not None:
        check_writable("json", json)

    from golddiff.oracles.load import describe_checkpoint

    about = describe_checkpoint(path, resolution)
    shape, classes = tuple(about["shape"]), about["num_classes"]
    say(f"{path}: {about['kind']}")
    say(
        f"images: {shape_text(shape)}, "
        + (f"{classes:,} classes" if classes else "unconditional")
        + f"; noise levels {about['sigma_min']:.3g} to {about['sigma_max']:.4g}"
    )
    size = "" if about["bytes"] is None else f", {byte_size(about['bytes'])} on disk"
    say(f"weights: {about['parameters']:,}{size}")
    if about["network"] is not None:
        say("network: " + ", ".join(f"{name} {value}" for name, value in about["network"].items()))
    training = about["training"]
    if training:
        say(f"trained: {training['steps']:,} steps in {training['minutes']:g} minutes")
        if training["loss"]:
            say("loss: " + _losses(training["loss"]))
        if training.get("command"):
            say(f"command: {training['command']}")
    if json is not None:
        write_json(json, about)


@oracle.command()
def export(
    path: Annotated[Path, typer.Argument(help="The folder of a run, or a file of golddiff's.")],
    out: Annotated[Path, typer.Argument(help="The file to write, .safetensors.")],
    dtype: Annotated[str, typer.Option(help="float16 or float32.")] = "float16",
    command: Annotated[
        str | None,
        typer.Option(help="The command line it was trained by, where the run did not keep it."),
    ] = None,
) -> None:
    """Pack a trained network into one file, at half the size.

    The file says of itself what the network is, by which command it was trained and how the loss
    fell; load_oracle and golddiff oracle info read it.

    For example:

      golddiff oracle export cifar-oracle cifar.safetensors
    """
    check_writable("out", out, (".safetensors",))
    if dtype not in DTYPES:
        raise ArgumentError(f"dtype: got {dtype!r}, expected {' or '.join(DTYPES)}")

    import torch

    from golddiff.oracles.files import find_weights, read_weights, write_weights

    loaded = read_weights(find_weights(path))
    description = loaded.description
    if command is not None:
        description = {**description, "training": {**description["training"], "command": command}}
    write_weights(out, loaded.network, description, getattr(torch, dtype))
    say(f"{out}: {byte_size(out.stat().st_size)}, {dtype}")


def _losses(points: list[list[Any]]) -> str:
    """The first, the middle and the last of the points kept."""
    chosen = {0, len(points) // 2, len(points) - 1}
    return ", ".join(f"{points[i][1]:.4f} at step {points[i][0]:,}" for i in sorted(chosen))
