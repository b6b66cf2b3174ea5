"""Write ``docs/api.md`` from the package's signatures and docstrings.

Usage: ``python docs/make_api.py``. The source is parsed, not imported: defaults stand as they were
written, and nothing depends on what is installed. A test compares the page with the source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"

# In the order of reading; a module's name stands for its public functions and classes.
GROUPS = {
    "Training sets": ["load", "ImageStore"],
    "Denoisers": [
        "Optimal",
        "Wiener",
        "PCA",
        "Kamb",
        "GoldDiff",
        "GaussianMixture",
        "PatchMixture",
        "Blend",
        "recommended",
        "network_like",
        "create",
    ],
    "Golden subsets": ["PaperSchedule", "AdaptiveSchedule"],
    "Sampling": ["sample", "Samples", "steps", "State"],
    "Where an output comes from": [
        "Attribution",
        "PixelSources",
        "pixel_sources",
        "write_report",
        "novelty",
        "Novelty",
    ],
    "Trained networks, and comparing with them": [
        "load_oracle",
        "Oracle",
        "evaluate",
        "Evaluation",
    ],
    "Metrics": ["metrics"],
    "Diffusers": ["diffusers", "AnalyticUNet"],
    "On a cluster": ["cluster"],
    "Errors": ["errors"],
}

HEAD = """# API reference

Made from the docstrings by `python docs/make_api.py`; edit those, not this page. What is not
listed is internal and may change.

Everywhere: x = x0 + sigma * eps, x0 in [-1, 1]. A batch of B images of shape (C, H, W), or of
points (D,), has shape (B, \\*shape). Every denoiser is called as `denoiser(x, sigma, labels=None)`:
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def render() -> str:
    """The whole page."""
    homes = top_level_names()
    lines = [HEAD]
    lines += _entries("denoiser", {"Denoiser"})
    for group, names in GROUPS.items():
        lines.append(f"\n# {group}")
        for name in names:
            home = homes.get(name, name)
            whole = home == name
            lines += _entries(
                "system.errors" if name == "errors" else home, None if whole else {name}
            )
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def top_level_names() -> dict[str, str]:
    """The names that ``golddiff`` gives, and the module that each comes from."""
    tree = ast.parse((ROOT / "golddiff/__init__.pyi").read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {name.name: node.module or name.name for node in found for name in node.names}


def _path(module: str) -> Path:
    path = ROOT.joinpath("golddiff", *filter(None, module.split(".")))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _entries(module: str, names: set[str] | None) -> Iterator[str]:
    """Some public names of a module; None: its own page, or the names that a folder gives."""
    tree = ast.parse(_path(module).read_text(encoding="utf-8"))
    if names is None:
        yield f"\n## golddiff.{module}\n"
        yield _text(ast.get_docstring(tree))
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
                for name, home in ast.literal_eval(node.value).items():
                    yield from _entries(f"{module}.{home}", {name})
    for node in tree.body:
        public = isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_")
        if public and (names is None or node.name in names):
            yield f"\n### {node.name}\n"
            yield from _class(node) if isinstance(node, ast.ClassDef) else _function(node)


def _function(node: Function, owner: str = "") -> Iterator[str]:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    yield _signature(owner + node.name, _parameters(node.args, method=bool(owner)), returns)
    yield _text(ast.get_docstring(node))


def _class(node: ast.ClassDef) -> Iterator[str]:
    methods = {n.name: n for n in node.body if isinstance(n, Function)}
    bases = [ast.unparse(base) for base in node.bases]
    fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
    # A dataclass or named tuple is made from its fields, which only the class body shows.
    made_of_fields = "NamedTuple" in bases or any(
        "dataclass" in ast.unparse(decorator) for decorator in node.decorator_list
    )
    if "__init__" in methods:
        yield _signature(node.name, _parameters(methods["__init__"].args, method=True))
    elif made_of_fields:
        yield _signature(node.name, [_field(field) for field in fields])
    else:
        yield f"```python\nclass {node.name}({', '.join(bases)})\n```\n"
    yield _text(ast.get_docstring(node))
    for method in methods.values():
        public = not method.name.startswith("_") or method.name == "__call__"
        if not public or not ast.get_docstring(method):
            continue
        kinds = {ast.unparse(decorator) for decorator in method.decorator_list}
        label = " (property)" if "property" in kinds else ""
        label = " (class method)" if "classmethod" in kinds else label
        call = method.name == "__call__"
        name = "denoiser" if call else f"{node.name}.{method.name}"
        yield f"\n#### {f'{node.name}, called' if call else name}{label}\n"
        if "property" in kinds:
            annotation = "" if method.returns is None else f"{ast.unparse(method.returns)}. "
            yield annotation + _text(ast.get_docstring(method))
            continue
        returns = "" if method.returns is None else f" -> {ast.unparse(method.returns)}"
        yield _signature(name, _parameters(method.args, method=True), returns)
        yield _text(ast.get_docstring(method))


def _field(node: ast.AnnAssign) -> str:
    """A field as a parameter; of ``field(...)`` only the default that it makes."""
    name, value = f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}", node.value
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        made = {word.arg: ast.unparse(word.value) for word in value.keywords}
        if "default_factory" in made:
            return f"{name} = {made['default_factory']}()"
        return f"{name} = {made['default']}" if "default" in made else name
    return name if value is None else f"{name} = {ast.unparse(value)}"


def _parameters(arguments: ast.arguments, *, method: bool) -> list[str]:
    """Each parameter as written: name, annotation, default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    listed = list(zip(positional, defaults, strict=True))[1 if method else 0 :]
    out = [_parameter(argument, default) for argument, default in listed]
    if arguments.vararg:
        out.append("*" + _parameter(arguments.vararg, None))
    elif arguments.kwonlyargs:
        out.append("*")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return out + [_parameter(argument, default) for argument, default in pairs]


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg
    if argument.annotation is not None:
        text += f": {ast.unparse(argument.annotation)}"
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _signature(name: str, parameters: list[str], returns: str = "") -> str:
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {p},\n" for p in parameters) + f"){returns}"
    return f"```python\n{line}\n```\n"


_SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises):$")
_ENTRY = re.compile(r"    (?P<names>\*{0,2}\w[\w, ]*): (?P<text>.*)$")


def _text(docstring: str | None) -> str:
    """A docstring in Google's form as markdown: its sections become lists."""
    out: list[str] = []
    section = ""
    for line in (docstring or "").splitlines():
        heading = _SECTION.match(line)
        if heading:
            section = heading[1]
            out += [f"**{section}**", ""]
        elif section and line and not line.startswith("    "):
            section = ""
            out.append(line)
        elif section in ("Args", "Attributes", "Raises") and (entry := _ENTRY.match(line)):
            names = ", ".join(f"`{name}`" for name in entry["names"].split(", "))
            out.append(f"- {names}: {_escaped(entry['text'])}")
        elif section in ("Returns", "Yields"):
            out.append(_escaped(line[4:]))
        elif section:
            # Goes on from the entry above: four columns less, so as to stay inside its item.
            out.append(_escaped(line[6:] if line.startswith(" " * 8) else line.strip()))
        else:
            out.append(_escaped(line))
    return "\n".join(out) + "\n" if out else ""


def _escaped(line: str) -> str:
    """Names as code; characters that markdown would take for its own, kept as they are."""
    line = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", line).replace("``", "`")
    parts = re.split(r"(`[^`]*`)", line)
    parts[::2] = [re.sub(r"(?<!^)([*_<|])|^([*_<|])(?! )", r"\\\1\2", p) for p in parts[::2]]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(render().splitlines()):,} lines")
