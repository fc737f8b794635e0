"""The notebook of the documentation: it is that of its script, and it runs."""

import json

import pytest

from parallel_epochs.scripts import notebook

WRITTEN = notebook.SOURCE.with_suffix(".ipynb")


def test_the_notebook_has_the_cells_of_its_script():
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(WRITTEN.read_text())["cells"]]
    assert found == notebook.cells_of(notebook.SOURCE.read_text())
    assert {kind for kind, _ in found} == {"markdown", "code"} and len(found) > 10


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
    assert [len(cell.get("outputs", [])) for cell in cells] == [len(cell.get("outputs", [])) for cell in written]
