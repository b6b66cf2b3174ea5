"""The tutorial notebook runs completely on small sizes."""

import pytest

from tests.docs.pages import DOCS

REASON = "needs nbclient, nbformat and ipykernel: pip install -c constraints.txt -e '.[dev]'"
nbformat = pytest.importorskip("nbformat", reason=REASON)
nbclient = pytest.importorskip("nbclient", reason=REASON)
pytest.importorskip("ipykernel", reason=REASON)

TUTORIAL = DOCS / "tutorial.ipynb"
MAX_BYTES = 1_500_000
SMALL_SIZES = "IMAGES, QUERIES, STEPS, CIFAR_IMAGES, CIFAR10 = 2, 2, 3, 200, ''"


def test_every_cell_runs_on_small_sizes():
    notebook = nbformat.read(TUTORIAL, as_version=4)
    (parameters,) = (c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    parameters.source += f"\n{SMALL_SIZES}"
    # The kernel imports from its working folder, hence the package of this checkout.
    resources = {"metadata": {"path": str(DOCS.parent)}}
    client = nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources=resources
    )
    client.execute()
    printed = "".join(
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream"
    )
    assert "crops of photographs, NOT CIFAR-10" in printed


def test_the_notebook_is_stored_with_its_outputs():
    notebook = nbformat.read(TUTORIAL, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    outputs = [output for cell in code for output in cell.outputs]
    assert not any(output.output_type == "error" for output in outputs)
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) >= 10
    assert TUTORIAL.stat().st_size < MAX_BYTES
