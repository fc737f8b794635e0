"""Files that nobody should have written: no regular files, cut short, or with odd values. Each ends in one line."""

import gzip
import io
import lzma
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.io
import torch

from parallel_epochs.pipeline.data.graph import Graph, write_graph
from parallel_epochs.pipeline.data.prepare import prepare
from parallel_epochs.pipeline.graph import store
from parallel_epochs.pipeline.run import checkpoint
from tests.helpers import disks
from tests.helpers.hostile import Case, check
from tests.helpers.running import ROOT, shell

pytestmark = pytest.mark.slow

NUM_NODES = 40
ENDS = [(node, (node * 7 + step) % NUM_NODES) for node in range(NUM_NODES) for step in (1, 2, 3)]
SMALL = "model.num_layers=2 model.hidden_channels=8 train.epochs=1 cache_dir=cache"
TABLES = (
    f"pipeline.train data=tables data.nodes.path=nodes.csv data.edges.path=edges.csv data.nodes.features=[size] "
    f"data.nodes.label=kind partition.num_parts=1 {SMALL}"
)
GRAPH = f"pipeline.train data=file data.path=graph.pt partition.num_parts=1 {SMALL}"
STORE = f"pipeline.train data=store data.path=stored partition.num_parts=1 {SMALL}"
MANY = (
    "pipeline.train data=graph_files data.folder=graphs task=graph loader=graph evaluation=exact model.norm=batch "
    f"{SMALL}"
)
SMILES = MANY.replace("graph_files data.folder=graphs", "smiles data.path=molecules.csv")
EDGES = "pipeline.train trainer=node_embedding data=edges trainer.dim=4 train.epochs=1 cache_dir=cache data.path="
TRIPLES = "pipeline.train trainer=knowledge data=triples trainer.dim=4 train.epochs=1 cache_dir=cache data.folder="
VECTORS = "pipeline.train trainer=layout data=vectors train.epochs=1 cache_dir=cache data.path="
EVALUATE, RESUME = "pipeline.evaluate run=runs/graph", "pipeline.train resume=runs/graph"
BEST, LAST = "runs/graph/checkpoints/best.pt", "runs/graph/checkpoints/last.pt"
PREDICT = "pipeline.predict run=runs/"
Write = Callable[[Path], object]


def graph_of(num_nodes: int) -> dict[str, Any]:
    """Make a graph with features, labels and masks."""
    edges = torch.tensor(
        [(node, (node * 7 + step) % num_nodes) for node in range(num_nodes) for step in (1, 2, 3)]
    ).T
    part = torch.arange(num_nodes) % 3
    return {
        "edge_index": torch.cat([edges, edges.flip(0)], 1),
        "x": torch.arange(3.0 * num_nodes).view(-1, 3) / 100,
        "y": torch.arange(num_nodes) % 2,
        "train_mask": part == 0,
        "valid_mask": part == 1,
        "test_mask": part == 2,
    }


def write_data(folder: Path) -> None:
    """Write data of every kind, all of which train."""
    nodes = pd.DataFrame(
        {"id": range(NUM_NODES), "size": range(NUM_NODES), "kind": np.arange(NUM_NODES) % 2}
    )
    nodes.to_csv(folder / "nodes.csv", index=False)
    nodes.to_parquet(folder / "nodes.parquet")
    (folder / "edges.csv").write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in ENDS))
    (folder / "edges.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in ENDS))
    (folder / "kinds.txt").write_text("".join(f"{n} k{n % 2}\n" for n in range(NUM_NODES)))
    (folder / "molecules.csv").write_text(molecules(lambda n: f"{'C' * (n + 1)}O,{n % 2}"))
    np.save(folder / "edges.npy", np.array(ENDS))
    scipy.io.savemat(folder / "edges.mat", {"network": np.eye(NUM_NODES)})
    torch.save(graph_of(NUM_NODES), folder / "graph.pt")
    x = np.random.default_rng(0).normal(size=(60, 4))
    np.save(folder / "x.npy", x)
    pd.DataFrame(x, columns=list("abcd")).to_parquet(folder / "x.parquet")
    (folder / "x.csv").write_text("".join(f"{n % 7},{n % 5},{n}\n" for n in range(60)))
    (folder / "kg").mkdir(), (folder / "graphs").mkdir()
    for number, split in enumerate(("train", "valid", "test")):
        (folder / "kg" / f"{split}.txt").write_text(
            "".join(f"{a}\tr{a % 2}\t{b}\n" for a, b in ENDS[number::3])
        )
    with tarfile.open(folder / "kg.tar.gz", "w:gz") as archive:
        archive.add(folder / "kg", "kg")
    for number in range(12):
        one = {key: value for key, value in graph_of(5).items() if key in ("edge_index", "x")}
        torch.save({**one, "y": number % 2}, folder / "graphs" / f"{number}.pt")
    graph = {**graph_of(NUM_NODES), "y": (torch.arange(NUM_NODES) % 2).unsqueeze(1)}
    with store.StoreWriter(folder / "stored") as writer:
        write_graph(
            writer, prepare(Graph(**graph, metric="acc", num_nodes=NUM_NODES), origin="toy")
        )


def molecules(line: Callable[[int], str], head: str = "smiles,active") -> str:
    return "\n".join([head, *map(line, range(12))]) + "\n"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A folder with data and three runs."""
    folder = tmp_path_factory.mktemp("written")
    write_data(folder)
    for name, typed in (("graph", GRAPH), ("kg", f"{TRIPLES}kg")):
        done = shell(*typed.split(), f"hydra.run.dir=runs/{name}", cwd=folder)
        assert done.returncode == 0, done.stderr
        (folder / "runs" / name / "train.log").unlink()  # a resumed run appends to it
    return folder


def special(name: str, kind: str) -> Write:
    """Replace a file by what is no regular file."""

    def write(folder: Path) -> None:
        path = folder / name
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")

    return write


def text(name: str, content: str) -> Write:
    return lambda folder: (folder / name).write_text(content)


def array(name: str, value: np.ndarray) -> Write:
    return lambda folder: np.save(folder / name, value)


def halved(name: str, source: str | None = None, pack: Callable[[bytes], bytes] = bytes) -> Write:
    """Pack a file, perhaps under another name, and leave half of it."""

    def write(folder: Path) -> None:
        content = pack((folder / (source or name)).read_bytes())
        (folder / (source or name)).unlink()
        (folder / name).write_bytes(content[: len(content) // 2])

    return write


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inside.txt", content)
    return file.getvalue()


def zstd(content: bytes) -> bytes:
    return b"\x28\xb5\x2f\xfd" + lzma.compress(content)


def changed(name: str, **values: object) -> Write:
    """Change the keys of a dict that torch.save wrote; None deletes a key."""

    def write(folder: Path) -> None:
        saved = {**torch.load(folder / name), **values}
        saved = {
            key: value for key, value in saved.items() if value is not None and key != "sha256"
        }
        checkpoint.save(folder / name, saved) if "checkpoints" in name else torch.save(
            saved, folder / name
        )

    return write


def nothing_of(name: str, kind: str) -> str:
    return f"{name} is a {kind}, not a file"


def on(file: str, of: str = EDGES) -> str:
    return of + file


CUT_SHORT = (
    "{} is damaged or cut short: Compressed file ended before the end-of-stream marker was reached"
)
TOO_MANY = (
    "{} names node {} and has {}: every number below is a node too. Number the nodes from 0 without gaps, or "
    "save the edges as a text file for data=edges, whose ids may be any"
)
NO_FIT = "<*>{} is damaged, or of another run: its content does not fit (<*>)"

SPECIAL = [
    ("nodes.csv", "pipe", TABLES),
    ("edges.tsv", "pipe", on("edges.tsv")),
    ("kg/train.txt", "pipe", TRIPLES + "kg"),
    ("stored/manifest.json", "pipe", STORE),
    ("runs/graph/config.yaml", "device", EVALUATE),
]

CASES = [
    *(
        Case(f"a {kind} as {name}", typed, nothing_of(name, kind), special(name, kind), 60)
        for name, kind, typed in SPECIAL
    ),
    Case(
        "an array of a node too far",
        on("edges.npy"),
        TOO_MANY.format("edges.npy", "2,147,483,646", "2 edges"),
        array("edges.npy", np.array([[0, 1], [1, 2**31 - 2]])),
        60,
    ),
    *(
        Case(
            f"half of {source} by {ending}",
            typed.replace(source, source + ending),
            CUT_SHORT.format(source + ending),
            halved(source + ending, source, pack),
        )
        for ending, pack, source, typed in ((".gz", gzip.compress, "edges.tsv", on("edges.tsv")),)
    ),
    *(
        Case(
            f"half of {source} by {ending}",
            typed.replace(source, source + ending),
            f"{source}{ending} <*>",
            halved(source + ending, source, pack),
        )
        for ending, pack in (
            (".zip", zipped),
            (".zst", zstd),
        )
        for source, typed in (("edges.tsv", on("edges.tsv")), ("molecules.csv", SMILES))
    ),
    *(
        Case(f"half of {name}", typed, message, halved(name))
        for name, typed, message in (
            (
                "graph.pt",
                GRAPH,
                "graph.pt is not a saved torch_geometric Data: it is damaged or cut short; save one with "
                "torch.save",
            ),
            ("x.parquet", on("x.parquet", VECTORS), "x.parquet is not a readable table: <*>"),
            ("edges.mat", on("edges.mat"), "edges.mat is not a readable MATLAB file: <*>"),
            ("kg.tar.gz", TRIPLES + "kg.tar.gz", CUT_SHORT.format("kg.tar.gz")),
            (
                "stored/manifest.json",
                STORE,
                "stored/manifest.json is damaged: it is not JSON (<*>)",
            ),
        )
    ),
    *(
        Case(
            f"a {name} checkpoint without {key}",
            typed,
            f"<*>{path} is damaged: it has no {key}",
            changed(path, **{key: None}),
        )
        for name, typed, path, key in (
            ("best", EVALUATE, BEST, "model"),
            ("last", RESUME, LAST, "optimizer"),
        )
    ),
    Case(
        "a last checkpoint with odd progress",
        RESUME,
        NO_FIT.format(LAST),
        changed(LAST, progress={"steps": 3}),
    ),
    *(
        Case(
            f"huge numbers in {key}",
            typed,
            f"loss is nan in round 1, step 1, batch 1 (<*> nodes); the weights have "
            f"not moved. Probably, column 0 of {key} holds 3e+38, and the square of a number beyond 1.8e+19 overflows "
            "float32: divide the column by a constant",
            write,
        )
        for key, typed, write in (
            ("x", GRAPH, changed("graph.pt", x=torch.full((NUM_NODES, 3), 3e38))),
        )
    ),
    Case(
        "huge vectors",
        on("x.npy", VECTORS),
        "x.npy: column 0 of the vectors holds 3e+38, and the square of a number "
        "beyond 1.8e+19 overflows float32: divide the column by a constant",
        array("x.npy", np.full((60, 4), 3e38)),
    ),
    *(
        Case(
            f"columns that differ by case in {name}",
            TABLES,
            f"{name}: the columns {one!r} and {other!r} differ only "
            "by case, and data=tables reads them as one: rename one of them",
            text(name, content),
        )
        for name, one, other, content in (
            ("edges.csv", "source", "SOURCE", "source,target,SOURCE\n1,2,3\n"),
        )
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_file_is_refused_in_one_line(case, written, tmp_path):
    folder = tmp_path / "here"
    shutil.copytree(written, folder)
    check(case, folder)


def test_a_zipped_table_has_a_limit_of_size(written, tmp_path, monkeypatch):
    monkeypatch.setenv("PARALLEL_EPOCHS_MAX_UNPACKED", "1MB")
    folder = tmp_path / "here"
    shutil.copytree(written, folder)
    check(
        Case(
            "zipped",
            TABLES.replace("edges.csv", "edges.csv.gz"),
            "edges.csv.gz unpacks to more than 1 MB: if that "
            "is right, raise the limit PARALLEL_EPOCHS_MAX_UNPACKED",
            lambda folder: (folder / "edges.csv.gz").write_bytes(
                gzip.compress(b"source,target\n" + b"1,2\n" * 500_000)
            ),
        ),
        folder,
    )


def test_full_shared_memory_is_named(written, tmp_path):
    folder = tmp_path / "here"
    shutil.copytree(written, folder)
    disks.mount("-t", "tmpfs", "-o", "size=4k", "tmpfs", "/dev/shm")
    try:
        Path("/dev/shm/full").write_bytes(bytes(4096))
        check(
            Case(
                "full",
                GRAPH,
                "/dev/shm has no space left for board, 0 B are free; delete something, or choose "
                "another directory",
            ),
            folder,
        )
    finally:
        disks.unmount(Path("/dev/shm"))


@pytest.mark.parametrize("module", ["pipeline.train", "pipeline.check"])
def test_a_current_folder_that_was_deleted(module, tmp_path):
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"rmdir ../gone; exec {shlex.quote(sys.executable)} -m parallel_epochs.{module}",
        ],
        cwd=tmp_path / "gone",
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (
        done.returncode == 1
        and done.stderr
        == "error: the current folder has been deleted: change to one that "
        "exists, and run the command again\n"
    ), done.stderr
