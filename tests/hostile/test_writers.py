"""Outputs that would destroy a file: what a command reads, what a run keeps, and what somebody else wrote."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.helpers.hostile import Case, check
from tests.helpers.running import shell

pytestmark = pytest.mark.slow

SMALL = ["train.epochs=1", "cache_dir=cache", "hydra.run.dir={}"]
TABLES = [
    "data=tables",
    "data.nodes.path=nodes.csv",
    "data.edges.path=edges.csv",
    "data.nodes.features=[size]",
    "data.nodes.label=kind",
    "model.num_layers=2",
    "model.hidden_channels=8",
    "partition.num_parts=1",
]
GRAPH = [
    "data=file",
    "data.path=graph.pt",
    "model.num_layers=2",
    "model.hidden_channels=8",
    "partition.num_parts=1",
]
TRIPLES = ["trainer=knowledge", "data=triples", "data.folder=kg", "trainer.dim=4"]
VECTORS = ["trainer=node_embedding", "data=edges", "data.path=edges.tsv", "trainer.dim=4"]


def write_data(folder: Path) -> None:
    """Write tables, a graph, triples and an edge list of 40 nodes."""
    ends = [(node, (node * 7 + step) % 40) for node in range(40) for step in (1, 2, 3)]
    (folder / "nodes.csv").write_text(
        "id,size,kind\n" + "".join(f"{n},{n % 5},{n % 2}\n" for n in range(40))
    )
    (folder / "edges.csv").write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in ends))
    (folder / "edges.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in ends))
    edges = torch.tensor(ends).T
    part = torch.arange(40) % 3
    torch.save(
        {
            "edge_index": torch.cat([edges, edges.flip(0)], 1),
            "x": torch.randn(40, 3),
            "y": torch.arange(40) % 2,
            "train_mask": part == 0,
            "valid_mask": part == 1,
            "test_mask": part == 2,
        },
        folder / "graph.pt",
    )
    (folder / "kg").mkdir()
    for number, split in enumerate(("train", "valid", "test")):
        (folder / "kg" / f"{split}.txt").write_text(
            "".join(f"{a}\tr{a % 2}\t{b}\n" for a, b in ends[number::3])
        )
    (folder / "asked.txt").write_text("1\tr0\t?\n")
    (folder / "wanted.csv").write_text("id\n3\n4\n")
    (folder / "mine.csv").write_text("id,split,class\n1,train,2\n")
    (folder / "diary.txt").write_text("Dear diary\n")
    torch.save(torch.tensor([[0, 1]]), folder / "pairs.pt")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with data and four runs."""
    folder = tmp_path_factory.mktemp("trained")
    write_data(folder)
    for name, overrides in (
        ("tables", TABLES),
        ("graph", GRAPH),
        ("kg", TRIPLES),
        ("walks", VECTORS),
    ):
        done = shell(
            "pipeline.train",
            *overrides,
            *[text.format(f"runs/{name}") for text in SMALL],
            cwd=folder,
        )
        assert done.returncode == 0, done.stderr
    assert (
        shell("pipeline.predict", "run=runs/tables", "output=before.csv", cwd=folder).returncode
        == 0
    )
    return folder


def reads(written: str, source: str) -> str:
    return f"{written} is a file that this command reads ({source}). Give another name"


def belongs(written: str, owner: str) -> str:
    return f"{written} belongs to {owner}, and no command replaces such a file. Give another name"


def others(written: str, way_out: str = "overwrite=true") -> str:
    return (
        f"{written} exists, and this command did not write it. Give another name, or {way_out} to "
        "replace it"
    )


P, E, R, T = (
    "pipeline.predict run=runs/",
    "pipeline.evaluate run=runs/",
    "scripts.report ",
    "pipeline.train ",
)
NODES = "data.nodes.path=nodes.csv"
RUN = "the run <*>/runs/"
CASES = [
    Case(
        "output on the table of nodes",
        P + "tables output=nodes.csv",
        reads("output=nodes.csv", NODES),
    ),
    Case(
        "predictions on the table of edges",
        P + "tables predictions=edges.csv overwrite=true",
        reads("predictions=edges.csv", "data.edges.path=edges.csv"),
    ),
    Case(
        "output on its output_nodes",
        P + "tables output=wanted.csv output_nodes=wanted.csv overwrite=true",
        reads("output=wanted.csv", "output_nodes=wanted.csv"),
    ),
    Case(
        "output on a table of the user",
        P + "tables output=mine.csv",
        others("output=mine.csv"),
    ),
    Case(
        "predictions on the graph",
        P + "graph predictions=graph.pt overwrite=true",
        reads("predictions=graph.pt", "data.path=graph.pt"),
    ),
    Case(
        "predictions on the checkpoint",
        P + "graph predictions=runs/graph/checkpoints/best.pt overwrite=true",
        belongs("predictions=runs/graph/checkpoints/best.pt", RUN + "graph"),
    ),
    Case(
        "predictions on a lock of a run",
        P + "tables predictions=runs/tables/.lock overwrite=true",
        belongs("predictions=runs/tables/.lock", RUN + "tables"),
    ),
    Case(
        "vectors on the edge list",
        P + "walks predictions=edges.tsv",
        "predictions=edges.tsv is a file that this "
        "command reads (data.path=edges.tsv). Give another name",
    ),
    Case(
        "answers on the questions",
        P + "kg triples=asked.txt predictions=asked.txt overwrite=true",
        reads("predictions=asked.txt", "triples=asked.txt"),
    ),
    Case(
        "vectors of relations on a file of the user",
        P + "kg predictions=v.txt",
        others("predictions=v.relations.txt"),
        lambda folder: (folder / "v.relations.txt").write_text("mine"),
    ),
    Case(
        "predictions on the cache",
        P + "tables predictions=cache/notes overwrite=true",
        belongs("predictions=cache/notes", "the cache cache"),
        lambda folder: (folder / "cache/notes").write_text("mine"),
    ),
    Case(
        "page on a checkpoint",
        R + "runs/graph --output runs/graph/checkpoints/best.pt --overwrite",
        belongs("--output=runs/graph/checkpoints/best.pt", RUN + "graph"),
    ),
    Case(
        "the usual page on a page of the user",
        R + "runs",
        others("--output=runs/report.html", "--overwrite"),
        lambda folder: (folder / "runs/report.html").write_text("<html>mine"),
    ),
    Case(
        "reference runs on a table",
        "tools.reference_runs record nodes.csv",
        others("FILE=nodes.csv", "--overwrite"),
    ),
    Case(
        "a run onto its own data",
        T + "data=file data.path=app/base.pt hydra.run.dir=app",
        reads("hydra.run.dir=<*>app/base.pt", "data.path=app/base.pt"),
        lambda folder: _write(folder / "app/base.pt", "mine"),
    ),
    Case(
        "a run onto a folder with a config.yaml of the user",
        T + "hydra.run.dir=app",
        "<*>app/config.yaml is not the configuration of a run: <*>. A run would replace this file: choose another "
        "directory",
        lambda folder: _write(folder / "app/config.yaml", "port: 80\n"),
    ),
]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_file_is_destroyed(trained, tmp_path, case):
    shutil.copytree(trained, folder := tmp_path / "here", symlinks=True)
    check(case, folder)


def test_predictions_replace_predictions_and_what_the_user_allows(trained):
    for name, allows in (("before.csv", []), ("mine.csv", ["overwrite=true"])):
        shell("pipeline.predict", "run=runs/tables", f"output={name}", *allows, cwd=trained)
        assert (
            (trained / name).read_text().startswith("id,split,class,probability_0,probability_1\n")
        )
