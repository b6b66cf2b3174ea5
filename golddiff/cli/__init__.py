"""The command line: ``golddiff index | info | prepare | sample | evaluate | studio | ...``.

Bad input prints one line on stderr and exits with status 2; an interrupt exits with status 130.
torch, diffusers and numba take seconds to import, so only the commands import them.

Other packages add commands, functions or typer.Typer objects, through the entry point group
``golddiff.commands``: golddiff_lab adds ``bench``, ``demo``, ``oracle``, ``plot``, ``reproduce``.
"""

from __future__ import annotations

import functools
import gc
import io
import os
import re
import shlex
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
from golddiff.cli.terminal import unsaid
from golddiff.system.errors import ArgumentError, GoldDiffError
from golddiff.system.signals import signals_as_interrupt

BAD_INPUT = 2
INTERRUPTED = 130
UNREAD = 1
NO_MEMORY = re.compile("can't allocate memory|out of memory")  # a RuntimeError of torch

# Command-line names of options and arguments that error messages name differently.
OPTION_NAMES = {"patch_sizes": "patch_size", "address": "cluster", "path": "out"}

app = typer.Typer(
    name="golddiff",
    epilog="golddiff COMMAND --help  shows the options and examples of a command.",
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (sample, restore, novelty, studio, evaluate, index, info, prepare, cache_command):
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
    """New pictures from your own, with no training.

    For example:

      golddiff sample
      golddiff sample --data photos/ --size 64
    """


@functools.cache
def _add_plugins() -> None:
    """Add other packages' commands; not at import time, because those packages import this one."""
    for entry in sorted(entry_points(group="golddiff.commands"), key=lambda entry: entry.name):
        command = entry.load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=entry.name)
        else:
            app.command(entry.name)(command)


def main() -> None:
    """The entry point of ``golddiff``."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names that its encoding cannot show are escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    with signals_as_interrupt():
        status = run(sys.argv[1:])
    gc.freeze()  # skip garbage collection at exit, which takes half a second
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    # Pillow warns about panoramas and damaged files, without their names; golddiff names them.
    warnings.filterwarnings("ignore", module=r"PIL\b")
    _add_plugins()
    return run_app(app, list(arguments) or ["--help"], "golddiff")


def run_app(commands: typer.Typer, arguments: Sequence[str], program: str) -> int:
    """Run a command line with the given commands; print errors, return the exit status."""
    # Shells leave the ~ of --out=~/a.png and of quoted paths.
    home = os.path.expanduser("~")
    arguments = [
        re.sub("^(--[^=]+=)?~(?=/|$)", lambda m: (m[1] or "") + home, a) for a in arguments
    ]
    unsaid.clear()
    words = [w for a in arguments for w in (a.split("=", 1) if a.startswith("--") else [a])]
    try:
        for option, value in pairwise(words):
            if option.startswith("--") and not value:  # Path("") is the current folder
                raise ArgumentError(f"{option}: got '', which is empty")
        status = commands(arguments, prog_name=program, standalone_mode=False)
        if unsaid:
            raise unsaid[0]
    except GoldDiffError as error:
        return _fail(_in_options(str(error), commands, arguments), BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort) as error:
        if isinstance(error.__cause__, EOFError):  # typer turns every EOFError into an Abort
            raise error.__cause__ from None
        status = INTERRUPTED
    except BrokenPipeError:  # golddiff ... | head
        return UNREAD
    except OSError as error:
        # Readers and writers raise GoldDiffErrors; other OSErrors come from the disk or a path.
        parts = [str(part) for part in (error.filename, error.strerror) if part]
        return _fail(": ".join(parts) or str(error), BAD_INPUT)
    except Exception as error:
        if isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
            message = "memory: not enough for this run; use smaller or fewer images"
            return _fail(message, BAD_INPUT)
        # Old versions of typer raise click's errors, new ones their own; both have this method.
        if not hasattr(error, "format_message"):
            raise
        message = _usage(error, words)
        if not message:  # a group of commands without arguments; the help is printed
            return BAD_INPUT
        called = getattr(getattr(error, "ctx", None), "command_path", program)
        return _fail(f"{message} (see {called} --help)", BAD_INPUT)
    if status == INTERRUPTED:
        return _fail("interrupted; no partial files were written", INTERRUPTED)
    return status if isinstance(status, int) else 0


def _in_options(message: str, commands: typer.Typer, arguments: Sequence[str]) -> str:
    """Rewrite the command's argument names as options: 'k_min: got 0' as '--k-min: got 0'."""
    name, colon, rest = message.partition(":")
    called: Any = typer.main.get_command(commands)
    for word in arguments:
        called = getattr(called, "commands", {}).get(word, called)
    for option in called.params:
        flag = option.opts[0]
        if OPTION_NAMES.get(name, name) == option.name:
            message = f"{flag}{colon}{rest}"
        if flag.startswith("--"):
            argument = rf"(?<![^\s(]){option.name}=(?!\S*/)"  # not a part of a path, as run/n=3
            message = re.sub(rf"{argument}\((\S+), (\S+)\)", rf"{flag} \1,\2", message)
            message = re.sub(rf"{argument}(True\b)?", f"{flag} ", message)
    return message


def _usage(error: Any, words: Sequence[str]) -> str:
    """The text of a usage error; an extra argument is suggested as the value of --data."""
    message: str = error.format_message()
    options = getattr(getattr(error, "param", None), "opts", [])
    given = [value for option, value in pairwise(words) if option in options]
    message += "".join(f"; got {value!r}" for value in given[-1:] if value not in message)
    params = getattr(getattr(error, "cmd", None), "params", [])
    data = next((param for param in params if "--data" in param.opts), None)
    if data is None or {"--data", "--store"} & {*words} or "unexpected extra" not in message:
        return message
    extra = message.partition(" (")[2].removesuffix(")")
    value = data.metavar or (shlex.quote(extra) if extra in words else "SOURCE")
    return f"{message}; expected --data {value}"


def _fail(message: str, status: int) -> int:
    print("golddiff: " + " ".join(message.split()), file=sys.stderr)
    return status
