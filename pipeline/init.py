"""`python -m pipeline.init FOLDER label=TABLE.COLUMN`: write a schema of the tables in a folder.

usage: parallel-epochs init FOLDER [label=TABLE.COLUMN|none] [output=FOLDER/schema.yaml] [overwrite=true]

FOLDER holds tables in files of CSV, TSV or Parquet. The kinds of their columns, their ids, and the columns that name
rows of other tables are guessed; the schema says so in comments, and is to be corrected.
"""

import shlex
import sys
from pathlib import Path

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.data.tables.config import check_packages
from parallel_epochs.pipeline.run import files, outputs, words
from parallel_epochs.pipeline.run.errors import printable

OPTIONS = {"label": "", "output": "", "overwrite": "false"}


def write(folder: Path, label: str, output: Path, *, overwrite: bool) -> None:
    """Write the schema, and say what to do next.

    Raises:
        ValueError: the tables are no graph, or the file is there; the message says what to do.
    """
    check_packages()
    from parallel_epochs.pipeline.data.tables import heads
    from parallel_epochs.pipeline.data.tables.guess import guess  # imports torch

    labels = guess(folder, None).labels
    tables = [("FOLDER", table) for table in heads.members(folder)]
    outputs.check("output", output, reads=tables, overwrite=overwrite)
    if not label:
        raise ValueError(
            f"which column is to be predicted? Give label=TABLE.COLUMN, as in {', '.join(labels)}, or label=none"
        )
    found = guess(folder, None if label == "none" else label)
    files.write_text(output, found.schema)
    run = f"runs/{folder.absolute().name}"
    more = [f"{name}={value}" for name, value in found.keys.items()] + ["task=link"] * (
        label == "none"
    )
    own = [] if output.parent == folder else [f"data.folder={folder}"]
    train = shlex.join(
        ["data=tables", f"data.schema={output}", *own, *more, f"hydra.run.dir={run}"]
    )
    print(
        printable(
            f"wrote {output}. Read it, then train and predict:\n  {words.command_of('train')} {train}\n"
            f"  {words.command_of('predict')} run={run} output=predictions.csv"
        )
    )


def main() -> None:
    """Read the arguments, and write the schema."""
    if {"--help", "-h"} & set(sys.argv[1:]):
        print((__doc__ or "").partition("\n\n")[2].strip())
        return
    given = OPTIONS | {
        name: value for name, mark, value in (text.partition("=") for text in sys.argv[1:]) if mark
    }
    folders = [Path(text).expanduser() for text in sys.argv[1:] if "=" not in text]
    try:
        if unknown := sorted(given.keys() - OPTIONS.keys()):
            raise ValueError(
                f"{unknown[0]} is no argument of init; choose among {', '.join(OPTIONS)}"
            )
        if len(folders) != 1:
            raise ValueError(
                "name one folder of tables, as in parallel-epochs init shop label=users.churned"
            )
        write(
            folders[0],
            given["label"],
            Path(given["output"] or folders[0] / "schema.yaml"),
            overwrite=given["overwrite"] == "true",
        )
    except (ValueError, OSError) as error:
        sys.exit(printable(f"error: {cli.explain(error)}"))


if __name__ == "__main__":
    main()
