"""The tutorial notebook runs completely on small sizes."""

import json

import matplotlib.pyplot as plt

from tests.docs.pages import DOCS

TUTORIAL = DOCS / "tutorial.ipynb"
MAX_BYTES = 1_500_000
SMALL_SIZES = "\nIMAGES, QUERIES, STEPS, CIFAR_IMAGES, CIFAR10 = 2, 2, 3, 200, ''"


def code_cells():
    cells = json.loads(TUTORIAL.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_every_cell_runs_on_small_sizes(capsys):
    namespace = {}
    for cell in code_cells():
        source = "".join(cell["source"]).removeprefix("%matplotlib inline")
        is_parameters = "parameters" in cell["metadata"].get("tags", [])
        exec(source + SMALL_SIZES * is_parameters, namespace)
    plt.close("all")
    assert "crops of photographs, NOT CIFAR-10" in capsys.readouterr().out


def test_the_notebook_is_stored_with_its_outputs():
    assert all(cell["execution_count"] for cell in code_cells())
    outputs = [output for cell in code_cells() for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" for output in outputs)
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= 10
    assert TUTORIAL.stat().st_size < MAX_BYTES
