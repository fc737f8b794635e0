"""Executes docs/notebook.py, whose cells begin with ``# %%``, and writes it as docs/notebook.ipynb.

python -m tools.notebook
"""

import os
import re
import tempfile
from pathlib import Path

from parallel_epochs.pipeline.run.errors import install_command
from parallel_epochs.pipeline.run.files import write_text

DOCS = Path(__file__).resolve().parents[1] / "docs"
SOURCE = DOCS / "notebook.py"


def cells_of(source: str) -> list[tuple[str, str]]:
    """Cut a script into cells: "markdown" or "code", and the text of each."""
    found = []
    for part in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            found.append(("markdown", re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE)))
        else:
            found.append(("code", body.strip()))
    return found


def execute(source: str, folder: Path) -> str:
    """Execute the cells of a script in a folder, and return the notebook as JSON.

    Raises:
        ValueError: nbclient is not installed.
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError:
        raise ValueError(
            f"notebooks are executed by nbclient: {install_command('notebook')}"
        ) from None
    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    cells = [
        make[kind](text, id=f"cell-{number}")
        for number, (kind, text) in enumerate(cells_of(source))
    ]
    notebook = nbformat.v4.new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        },
    )
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if output.output_type == "stream":  # files are named by their paths in the folder
                    output.text = output.text.replace(f"{folder}/", "")
    notebook.metadata.language_info = {"name": "python"}
    return nbformat.writes(notebook) + "\n"


def main() -> None:
    """Write the notebook."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(DOCS.parent), os.environ.get("PYTHONPATH")])
        )
        write_text(SOURCE.with_suffix(".ipynb"), execute(SOURCE.read_text(), Path(folder)))


if __name__ == "__main__":
    main()
