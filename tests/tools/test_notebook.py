"""The notebook of the documentation: it is that of its script, and it runs."""

import json

import pytest

from tools import notebook

WRITTEN = notebook.SOURCE.with_suffix(".ipynb")


def test_the_notebook_has_the_cells_of_its_script():
    found = [
        (cell["cell_type"], "".join(cell["source"]))
        for cell in json.loads(WRITTEN.read_text())["cells"]
    ]
    assert found == notebook.cells_of(notebook.SOURCE.read_text())
    assert {kind for kind, _ in found} == {"markdown", "code"} and len(found) > 10


@pytest.mark.slow
def test_a_notebook_has_bars(tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(notebook.DOCS.parent))
    cell = nbformat.v4.new_code_cell(
        "from parallel_epochs.pipeline.run.progress import Bar\n"
        "with Bar('counting', 3, 'sheep') as bar:\n    bar.advance()"
    )
    client = nbclient.NotebookClient(
        nbformat.v4.new_notebook(cells=[cell]),
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    assert (
        "counting:   0%" in str(cell.outputs)
        and "sheep" in str(cell.outputs)
        and "Warning" not in str(cell.outputs)
    )


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    """In a kernel without ipywidgets, where DuckDB refuses to switch its progress bar off."""
    pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(notebook.DOCS.parent))
    cells = json.loads(notebook.execute(notebook.SOURCE.read_text(), tmp_path))["cells"]
    kinds = [set(output.get("data", {})) for cell in cells for output in cell.get("outputs", [])]
    assert any("image/png" in kind for kind in kinds), kinds
    assert str(tmp_path) not in json.dumps(cells)
    written = json.loads(WRITTEN.read_text())["cells"]
    assert [len(cell.get("outputs", [])) for cell in cells] == [
        len(cell.get("outputs", [])) for cell in written
    ]
