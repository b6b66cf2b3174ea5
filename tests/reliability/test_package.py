"""Importing golddiff loads no heavy module and opens no connection."""

import pkgutil
import subprocess
import sys
import tomllib
from importlib import import_module

import reliability

CODE = """
import socket, sys
def refused(*arguments, **options):
    raise AssertionError(f"a connection on import: {arguments}")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refused
import golddiff
heavy = {"torch", "numba", "diffusers", "datasets", "scipy", "sklearn", "matplotlib", "pyarrow"}
print(sorted(heavy & sys.modules.keys()))
for name in golddiff.__all__:
    getattr(golddiff, name)
"""


def test_import_is_light_and_connects_to_nothing():
    """Loading every public name opens no connection either."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "[]"


def test_py_typed_is_packaged(request):
    project = tomllib.loads((request.config.rootpath / "pyproject.toml").read_text("utf-8"))
    data = project["tool"]["setuptools"]["package-data"]["golddiff"]
    assert "py.typed" in data
    assert (request.config.rootpath / "golddiff" / "py.typed").is_file()


def test_golddiff_does_not_import_reliability(request):
    package = request.config.rootpath / "golddiff"
    for path in package.rglob("*.py"):
        text = path.read_text("utf-8")
        assert "import reliability" not in text
        assert "from reliability" not in text


def test_every_module_of_the_long_checks_imports():
    names = [module.name for module in pkgutil.walk_packages(reliability.__path__, "reliability.")]
    assert len(names) > 20
    for name in names:
        if not name.endswith("__main__"):
            import_module(name)
