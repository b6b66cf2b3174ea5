"""The command line: ``golddiff index | info | prepare | sample | evaluate | studio | ...``.

Bad input ends in one line on stderr and status 2, an interrupt in one line and status 130.
torch, diffusers and numba take seconds to import, so they are imported by the commands only.

Other packages add commands through entry points of the group ``golddiff.commands``, each a function
or a typer.Typer: golddiff_lab's are ``bench``, ``demo``, ``oracle``, ``plot`` and ``reproduce``.
"""

from __future__ import annotations

import functools
import gc
import re
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import entry_points
from itertools import pairwise
from typing import Any

import typer

from golddiff import __version__
from golddiff.cli.cache import cache as cache_command
from golddiff.cli.evaluate import evaluate
from golddiff.cli.index import index
from golddiff.cli.info import info
from golddiff.cli.novelty import novelty
from golddiff.cli.prepare import prepare
from golddiff.cli.restore import restore
from golddiff.cli.sample_run import sample
from golddiff.cli.studio import studio
from golddiff.system.errors import ArgumentError, GoldDiffError

BAD_INPUT = 2
INTERRUPTED = 130

# What options and arguments are called in Python.
INSIDE = {"patch_sizes": "patch_size", "address": "cluster", "path": "out"}

app = typer.Typer(
    name="golddiff",
    help="Training-free, analytical diffusion over your own images.",
    epilog="golddiff COMMAND --help  shows the options and examples of a command.",
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (index, info, prepare, sample, restore, novelty, evaluate, studio, cache_command):
    app.command()(command)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"golddiff {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", is_eager=True, callback=_print_version
    ),
) -> None:
    """Training-free, analytical diffusion over your own images."""


@functools.cache
def _add_others() -> None:
    """The commands of other packages, which import this one: so not while it is imported."""
    for added in sorted(entry_points(group="golddiff.commands"), key=lambda entry: entry.name):
        command = added.load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=added.name)
        else:
            app.command(added.name)(command)


def main() -> None:
    """The entry point of ``golddiff``."""
    status = run(sys.argv[1:])
    gc.freeze()  # nothing is looked through again on the way out: half a second
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run one command line.

    Returns:
        The exit status.
    """
    # Pillow's word on panoramas: what is too large is refused by our own limit, and said.
    warnings.filterwarnings("ignore", "Image size .* exceeds limit")
    _add_others()
    return run_app(app, list(arguments) or ["--help"], "golddiff")


def run_app(commands: typer.Typer, arguments: Sequence[str], program: str) -> int:
    """Run a command line of any commands; its exit status, after a line where it went wrong."""
    try:
        words = [w for a in arguments for w in (a.split("=", 1) if a.startswith("--") else [a])]
        for option, value in pairwise(words):
            if option.startswith("--") and not value:  # a path of no name is the current folder
                raise ArgumentError(f"{option}: got '', which is empty")
        status = commands(list(arguments), prog_name=program, standalone_mode=False)
    except GoldDiffError as error:
        return _fail(_in_options(str(error), commands, arguments), BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort) as error:
        if isinstance(error.__cause__, EOFError):  # typer takes it for the end of the keyboard's
            raise error.__cause__ from None
        status = INTERRUPTED
    except OSError as error:
        # Readers and writers raise their own errors; what is left is a disk or path gone wrong.
        return _fail(str(error), BAD_INPUT)
    except MemoryError:
        message = "memory: there is not enough for this (smaller images or fewer help)"
        return _fail(message, BAD_INPUT)
    except Exception as error:
        # Older typers raise click's errors, newer ones their own: recognised by a method.
        if not hasattr(error, "format_message"):
            raise
        return _fail(f"{error.format_message()} (see {program} --help)", BAD_INPUT)
    if status == INTERRUPTED:
        return _fail("interrupted; files are written whole or not at all", INTERRUPTED)
    return status if isinstance(status, int) else 0


def _in_options(message: str, commands: typer.Typer, arguments: Sequence[str]) -> str:
    """'k_min: got 0; say size=' as '--k-min: got 0; say --size', of options that there are."""
    name, colon, rest = message.partition(":")
    called: Any = typer.main.get_command(commands)
    for word in arguments:
        called = getattr(called, "commands", {}).get(word, called)
    for option in called.params:
        flag = option.opts[0]
        if INSIDE.get(name, name) == option.name:
            message = f"{flag}{colon}{rest}"
        if flag.startswith("--"):
            message = re.sub(rf"\b{option.name}=(True\b)?", f"{flag} ", message)
    return message


def _fail(message: str, status: int) -> int:
    print("golddiff: " + " ".join(message.split()), file=sys.stderr)
    return status
