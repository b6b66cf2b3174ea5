"""Help pages, and what they import."""

import os
import subprocess
import sys

import pytest

import golddiff
from golddiff.__main__ import main
from golddiff.cli import run


def test_help_and_version_import_no_slow_package():
    code = (
        "import sys; from golddiff.cli import run; run(['sample', '--help']); run(['--version']);"
        "print([m for m in ('torch', 'diffusers', 'numba', 'matplotlib', 'sklearn', 'datasets')"
        " if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, version, modules = out.stdout.splitlines()
    assert version == f"golddiff {golddiff.__version__}"
    assert modules == "[]"


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_command_that_is_told_to_stop_ends_as_after_ctrl_c(name):
    code = (
        "import os, signal, time; import golddiff.cli as cli; from golddiff.__main__ import main;"
        f"signal.signal(signal.{name}, signal.SIG_DFL);"  # nohup ignores SIGHUP
        f"cli.run = lambda words: (os.kill(os.getpid(), signal.{name}), time.sleep(60)); main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "golddiff: interrupted; no partial files were written\n"


def test_a_name_that_the_terminal_cannot_show_is_escaped(tmp_path):
    command = [sys.executable, "-m", "golddiff", "index", "digits", str(tmp_path / "größe")]
    done = subprocess.run(
        [*command, "--limit", "10"], capture_output=True, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"gr\\xf6\\xdfe: 10 images" in done.stdout


def test_ctrl_c_during_the_imports_is_told_in_one_line(monkeypatch, capsys):
    class Interrupt:
        def find_spec(self, name, path=None, target=None):
            if name == "golddiff.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "golddiff.cli")
    monkeypatch.delattr(golddiff, "cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupt(), *sys.meta_path])
    with pytest.raises(SystemExit, match="130"):
        main()
    assert capsys.readouterr().err == "golddiff: interrupted; no partial files were written\n"


def test_help_lists_common_options_before_advanced_ones(capsys):
    assert run(["sample", "--help"]) == 0
    first, advanced = capsys.readouterr().out.split("─ Advanced ")
    options = first.split("─ Options ")[1]
    assert 10 <= options.count("│ --") <= 16
    for option in ("--data", "--method", "--seed", "--out", "--start", "--explain"):
        assert option in options
    for option in ("--k-min", "--mask-threshold", "--sampler", "--batch-size", "--cluster"):
        assert option in advanced
        assert option not in options


def test_help_wraps_at_the_width_of_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "130")
    assert run(["novelty", "--help"]) == 0
    assert (
        "over the usual distance between nearest training images: 0 is" in capsys.readouterr().out
    )


def test_h_is_short_for_help(capsys):
    assert run(["-h"]) == run(["sample", "-h"]) == 0
    assert "Number of images" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["index", "info", "sample", "demo"])
def test_help_of_each_command_has_an_example(command, capsys):
    assert run([command, "--help"]) == 0
    assert f"golddiff {command}" in capsys.readouterr().out.split("For example:")[1]
