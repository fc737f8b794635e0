"""What other libraries would have said: each error names the file or the key, the value, and what to do."""

import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.helpers.hostile import Case, check, matches
from tests.helpers.running import ROOT, TOY

pytestmark = pytest.mark.slow

TABLES = "pipeline.check data=tables data.nodes.path=nodes.{0} data.nodes.label=kind data.edges.path=edges.{0}"
CSV, PARQUET, SCHEMA = (
    TABLES.format("csv"),
    TABLES.format("parquet"),
    "pipeline.check data=tables data.schema=s.yaml",
)
NODES = "id,kind,text\n" + "".join(f"n{place},{place % 2},t\n" for place in range(40))
EDGES = "source,target,w\n" + "".join(f"n{place},n{(place + 1) % 40},1\n" for place in range(40))
ENDS = "Give all the same end: sed -i 's/\\r$//' FILE"
LONG = "it has more than 64 MB. If that is right, raise the limit PARALLEL_EPOCHS_MAX_LINE"
DAMAGED = "<*>edges.parquet<*>"


def tables(nodes: str = NODES, edges: str = EDGES):
    """Write two tables of text, whose line ends are those of the texts."""

    def write(folder: Path) -> None:
        (folder / "nodes.csv").write_bytes(nodes.encode())
        (folder / "edges.csv").write_bytes(edges.encode())

    return write


def cut(first: int, last: int | None = None, *, by: bytes = b""):
    """Write two Parquet files, and replace some bytes of that of the edges."""

    def write(folder: Path) -> None:
        tables()(folder)
        for name in ("nodes", "edges"):
            pd.read_csv(folder / f"{name}.csv", dtype=str).to_parquet(folder / f"{name}.parquet")
        whole = (folder / "edges.parquet").read_bytes()
        (folder / "edges.parquet").write_bytes(
            whole[:first] + by + (b"" if last is None else whole[last:])
        )

    return write


def schema(nodes: object = None, edges: object = None):
    """Write two tables and a schema of them with some other values."""
    usual = {
        "path": "edges.csv",
        "source": {"type": "a", "column": "source"},
        "target": {"type": "a", "column": "target"},
    }

    def write(folder: Path) -> None:
        tables()(folder)
        parts = {
            "nodes": {
                "a": {"path": "nodes.csv", "label": "kind"} | nodes
                if isinstance(nodes, dict)
                else nodes
            },
            "edges": {"e": usual | edges if isinstance(edges, dict) else edges},
        }
        (folder / "s.yaml").write_text(yaml.safe_dump(parts))

    return write


def wrong(part: str, key: str, value: object, must: str, shown: str | None = None) -> Case:
    """A key of a schema whose value is of the wrong kind."""
    keys = {key: value}
    files = schema(keys, {}) if part == "nodes.a" else schema({}, keys)
    return Case(
        f"{part}.{key}={value}",
        SCHEMA,
        f"data.schema: {part}.{key}={shown or value} must be {must}",
        files,
    )


HALF = EDGES[:200].rpartition("\n")[0] + "\n"
FILES = [
    Case(
        "CRLF after LF",
        CSV,
        f"<*>edges.csv: some lines end in LF and others in CRLF. {ENDS}",
        tables(edges=HALF + EDGES[len(HALF) :].replace("\n", "\r\n")),
    ),
    Case(
        "CRLF everywhere",
        CSV,
        None,
        tables(NODES.replace("\n", "\r\n"), EDGES.replace("\n", "\r\n")),
    ),
    Case(
        "a line of 70 MB",
        CSV,
        f"<*>nodes.csv: line 7: {LONG}",
        tables(NODES.replace("n5,1,t", f"n5,1,{'word ' * 14_000_000}")),
    ),
    Case("a Parquet file cut short", PARQUET, DAMAGED, cut(400)),
    Case("a Parquet file without its end", PARQUET, DAMAGED, cut(4, 900)),
    Case(
        "a row with a cell less",
        CSV,
        "<*>edges.csv: line 3: <*>",
        tables(edges=EDGES.replace("n1,n2,1", "n1")),
    ),
]
A_LIST, A_BOOL = "a list of names", "true or false"
SCHEMAS = [
    wrong("nodes.a", "features", "w", A_LIST),
    wrong("nodes.a", "standardize", "maybe", A_BOOL),
    wrong("edges.e", "features", "w", A_LIST),
    Case(
        "a column of an end that is a list",
        SCHEMA,
        "data.schema: edges.e.source.column=['id'] must be a text",
        schema({}, {"source": {"type": "a", "column": ["id"]}}),
    ),
    Case(
        "a list in place of a table",
        SCHEMA,
        "data.schema: nodes.a must be a mapping of keys, not list",
        schema([1, 2], {}),
    ),
]


@pytest.mark.parametrize("case", FILES + SCHEMAS, ids=lambda case: case.name)
def test_hostile(case, tmp_path):
    check(case, tmp_path)


@pytest.mark.parametrize(
    "limit, most, message",
    [
        (
            resource.RLIMIT_NOFILE,
            12,
            "this process may have 12 files open, and that is not enough: raise the limit by <*>",
        ),
        (
            resource.RLIMIT_FSIZE,
            4096,
            "<*> cannot be written: File too large",
        ),
    ],
)
def test_limits_of_the_shell_are_named(limit, most, message, tmp_path):
    typed = [
        sys.executable,
        "-m",
        "pipeline.train",
        *TOY,
        f"cache_dir={tmp_path}/cache",
        f"hydra.run.dir={tmp_path}/r",
    ]
    done = subprocess.run(
        typed,
        cwd=ROOT,
        text=True,
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(limit, (most, most)),
    )
    assert done.returncode == 1 and matches(done.stderr.strip(), f"error: {message}"), done.stderr


def test_a_limit_of_addresses_is_named():
    """What imports do when they meet it is up to the libraries, so the limit leaves them room."""
    code = (
        "import sys, torch\nfrom parallel_epochs.pipeline.command.cli import explain\n"
        "try:\n    torch.empty(10**13)\nexcept RuntimeError as error:\n    sys.exit(f'error: {explain(error)}')"
    )
    most = 1 << 33
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        text=True,
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
    )
    assert done.returncode == 1 and matches(
        done.stderr.strip(),
        "error: out of memory: this process may take 8.59 GB of addresses (ulimit -v). <*>",
    )


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full", ">&- 2>&-"])
def test_a_run_ends_well_whose_output_cannot_be_written(redirection, tmp_path):
    typed = " ".join(
        [*TOY, f"cache_dir={tmp_path}/cache", f"hydra.run.dir={tmp_path}/r", redirection]
    )
    done = subprocess.run(
        ["bash", "-c", f"exec {shlex.quote(sys.executable)} -m pipeline.train {typed}"],
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    assert (
        done.returncode == 0
        and (tmp_path / "r" / "summary.json").exists()
        and "Traceback" not in done.stderr
    )
