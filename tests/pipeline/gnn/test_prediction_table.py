"""Tables of predictions: what stands in them beside what the model says, and what is refused."""

import gzip
import shutil
import types

import numpy as np
import pandas as pd
import pytest
import torch

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.data.node_names import pack_names
from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNPredictConfig
from parallel_epochs.pipeline.gnn.kinds import labels
from parallel_epochs.pipeline.gnn.kinds.base import Predicted
from parallel_epochs.pipeline.gnn.kinds.nodes import NodeKind
from parallel_epochs.pipeline.gnn.predict import ids as node_ids, table as tables
from parallel_epochs.pipeline.gnn.predict.table import label_columns
from tests.helpers import building as restore
from tests.helpers.building import EvaluateConfig, write_config
from tests.helpers.graphs import random_graph
from tests.helpers.running import TOY, train

MODEL = ["model.num_layers=2", "model.hidden_channels=8", "train.epochs=2"]
READ = {
    ".parquet": pd.read_parquet,
    ".csv": pd.read_csv,
    ".tsv.gz": lambda path: pd.read_csv(path, sep="\t"),
}


def masks_of(node, of_a_split=True):
    return {
        f"{split}_mask": (node % 3 == number) & of_a_split
        for number, split in enumerate(("train", "val", "test"))
    }


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """A graph of three classes whose last ten nodes are of no split."""
    num_nodes, g = 50, torch.Generator().manual_seed(0)
    node, y = torch.arange(num_nodes), torch.randint(3, (num_nodes,), generator=g)
    edge_index = torch.stack([node, (node + 1) % num_nodes])
    x, masks = torch.randn(num_nodes, 4, generator=g), masks_of(node, node < 40)
    path = tmp_path_factory.mktemp("classes") / "graph.pt"
    torch.save(
        {"edge_index": torch.cat([edge_index, edge_index.flip(0)], 1), "x": x, "y": y, **masks},
        path,
    )
    return ["data=file", f"data.path={path}"]


@pytest.fixture(scope="module")
def run(classes, tmp_path_factory):
    """A run on the graph of three classes, which nothing may change."""
    folder = tmp_path_factory.mktemp("trained")
    train(
        cli.compose_config([*classes, *MODEL, f"cache_dir={folder / 'cache'}", "task.base=none"]),
        folder / "run",
    )
    return folder / "run"


def table_of(kind, rows, data):
    """The table of predictions of nodes that are in no split."""
    data.update(
        {
            f"{split}_mask": torch.zeros(len(rows), dtype=torch.bool)
            for split in ("train", "valid", "test")
        }
    )
    task = types.SimpleNamespace(kind=kind, out_channels=rows.size(1))
    return NodeKind(GNNConfig()).table(
        Predicted(data, data, task, torch.nn.Identity(), rows, 0), GNNPredictConfig("run")
    )


def predict(folder, **options):
    options = EvaluateConfig(
        run=str(folder),
        device="cpu",
        **{
            name: str(value) if name.startswith("output") else value
            for name, value in options.items()
        },
    )
    restore.predict(options)
    return options


def test_ids_are_those_of_the_type_with_labels_which_need_not_be_the_first():
    types = GraphTypes(
        ["item", "user"], [3, 2], [1, 1], [("user", "buys", "item")], labelled="user"
    )
    data = Graph(num_nodes=5, types=types, **pack_names(np.array(["a", "b", "c", "b", "a"])))
    found = NodeKind(GNNConfig()).find(
        ["a", "b"], data, data, GNNPredictConfig("run", output="o", output_nodes="ids")
    )
    assert found.tolist() == [4, 3]


@pytest.mark.parametrize("ending", READ)
def test_a_table_says_what_the_logits_say(ending, run, tmp_path):
    path = tmp_path / f"nodes{ending}"
    predict(run, output=path, predictions=str(tmp_path / "logits.pt"))
    logits, table = torch.load(tmp_path / "logits.pt")["logits"], READ[ending](path)
    assert list(table) == [
        "id",
        "split",
        "class",
        "probability_0",
        "probability_1",
        "probability_2",
    ]
    assert (
        table["id"].tolist() == list(range(50))
        and table["class"].tolist() == logits.argmax(1).tolist()
    )
    assert table["split"].tolist() == ["train", "valid", "test"] * 13 + ["train"] + ["none"] * 10
    scores = table.filter(like="probability").to_numpy(np.float32)
    assert np.array_equal(
        scores, logits.double().softmax(1).float().numpy()
    )  # nine digits are a float32


@pytest.mark.parametrize("columns", ["class", "top3"])
def test_likeliest_classes_and_their_probabilities(columns, run, tmp_path):
    (tmp_path / "ids.csv").write_text("id\n7\n3\n")
    predict(run, output=tmp_path / "all.csv")
    predict(
        run,
        output=tmp_path / "some.csv",
        output_nodes=tmp_path / "ids.csv",
        columns=columns,
    )
    whole, some = pd.read_csv(tmp_path / "all.csv").loc[[7, 3]], pd.read_csv(tmp_path / "some.csv")
    scores = whole.filter(like="probability").to_numpy()
    assert some["id"].tolist() == [7, 3]
    if columns == "class":
        assert list(some) == ["id", "split", "class", "probability"]
        assert some["class"].tolist() == scores.argmax(1).tolist()
        assert np.allclose(
            some["probability"], scores.max(1), atol=1e-6
        )  # another batch: the last bits differ
    else:
        assert np.array_equal(some[["class_1", "class_2", "class_3"]], (-scores).argsort(1))
        assert np.allclose(
            some[["probability_1", "probability_2", "probability_3"]], -np.sort(-scores), atol=1e-6
        )


@pytest.mark.parametrize(
    "model, methods",
    [
        ([], ["exact", "views", "neighbor"]),
        (["model=custom", "model.path=tests.helpers.nets.Headed"], ["exact"]),
    ],
    ids=["deepergcn", "custom"],
)
def test_embeddings_are_what_the_head_reads(
    model, methods, classes, run, configure, tmp_path, monkeypatch
):
    monkeypatch.setattr(tables, "MAX_CELLS", 130)  # nine rows at a time
    folder = run
    if model:
        folder = tmp_path / "run"
        train(configure(*classes, *MODEL, *model), folder)
    for method in methods:
        how = dict(
            method=method,
            num_views=2,
            num_parts=3,
            num_neighbors=[2, 2] if method == "neighbor" else None,
        )
        options = predict(folder, output=tmp_path / "nodes.parquet", embeddings=True, **how)
        restored, table = restore.restore(options), pd.read_parquet(tmp_path / "nodes.parquet")
        head = getattr(restored.setup.model, "model", restored.setup.model).head
        h = torch.tensor(np.stack(table["embedding"]))
        assert h.shape == (50, 8) and len(set(map(tuple, h.tolist()))) > 40
        with torch.no_grad():  # the head is linear, and means over views go through it
            torch.testing.assert_close(head(h), restored.rows, rtol=1e-4, atol=1e-5)
        assert (
            table["class"].tolist() == restored.rows.argmax(1).tolist() and len(table.columns) == 7
        )


def test_labels_have_sigmoids_and_names_stand_in_the_order_that_is_asked_for(configure, tmp_path):
    (tmp_path / "edges.txt").write_text(
        "".join(f"n{node} n{(node + 1) % 30}\n" for node in range(30))
    )
    (tmp_path / "labels.txt").write_text(
        "".join(f"n{node} {'odd' if node % 2 else 'even'}\n" for node in range(20))
    )
    config = configure(
        "data=edges",
        f"data.path={tmp_path / 'edges.txt'}",
        f"data.labels={tmp_path / 'labels.txt'}",
        *MODEL,
    )
    train(config, tmp_path / "run")
    (tmp_path / "ids.tsv").write_text("weight\tid\n1\tn29\n2\tn3\n3\tn0\n")
    predict(tmp_path / "run", output=tmp_path / "all.csv", embeddings=True)
    options = predict(
        tmp_path / "run",
        output=tmp_path / "some.csv",
        output_nodes=tmp_path / "ids.tsv",
        embeddings=True,
    )
    whole, some, rows = (
        pd.read_csv(tmp_path / "all.csv"),
        pd.read_csv(tmp_path / "some.csv"),
        restore.restore(options),
    )
    assert list(whole) == [
        "id",
        "split",
        "probability_odd",
        "probability_even",
        "predicted_odd",
        "predicted_even",
        *(f"embedding_{number}" for number in range(8)),
    ]
    assert np.array_equal(
        whole.filter(like="probability").to_numpy(np.float32),
        rows.rows.double().sigmoid().float().numpy(),
    )
    is_even = whole["id"].str[1:].astype(int) % 2 == 0
    assert torch.equal(
        rows.setup.data.y[:, 1] == 1,
        torch.tensor((is_even & (whole["split"] != "none")).to_numpy()),
    )
    assert some["id"].tolist() == ["n29", "n3", "n0"]
    pd.testing.assert_frame_equal(
        some.set_index("id"), whole.set_index("id").loc[["n29", "n3", "n0"]], check_exact=True
    )
    is_labelled = whole["id"].str[1:].astype(int) < 20
    assert (whole["split"] != "none").tolist() == is_labelled.tolist()
    (tmp_path / "ids.tsv").write_text("id\nn3\nn30\n")
    with pytest.raises(
        ValueError, match="ids.tsv: no node has the id 'n30' of row 2; the 30 nodes of the run are"
    ):
        predict(tmp_path / "run", output=tmp_path / "new.csv", output_nodes=tmp_path / "ids.tsv")
    assert not (tmp_path / "new.csv").exists()


@pytest.mark.parametrize("kind", ["classes", "binary tasks"])
def test_a_node_has_the_same_scores_in_every_table(kind, monkeypatch):
    """In any memory layout, in batches of any size."""
    wide = 8 * torch.randn(1000, 12, generator=torch.Generator().manual_seed(0))
    found = []
    for rows, size in (
        (wide[:, :4], 1000),
        (wide[:, :4].contiguous(), 1000),
        (wide[:, :4], 7),
        (wide[:, :4], 1),
    ):
        monkeypatch.setattr(tables, "MAX_CELLS", size * 7)
        batches = table_of(kind, rows, Graph(num_nodes=1000))._parts()
        found.append(
            np.concatenate(
                [np.stack([batch[name] for name in batch if "_" in name], 1) for batch in batches]
            )
        )
    assert found[0].shape == (1000, 4) and found[0].dtype == np.float32
    assert all(np.array_equal(found[0], table) for table in found[1:])


@pytest.mark.parametrize("ending", [".parquet", ".tsv"])
def test_names_of_classes_and_hostile_ids(ending, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_CELLS", 6)  # one row at a time
    ids = np.array(["a\tb", 'say "no"', "NA", "línea\nnew", " 7"], object)
    rows = torch.tensor([[0.0, 9], [9, 0], [9, 0], [0, 9], [0, 9]])
    data = random_graph(5, 6, 0)
    data.update(
        pack_names(ids) | pack_names(np.array(["x11", "gnu, r", "no split has it"]), "label_names")
    )
    assert node_ids.ids_of(data, torch.tensor([4, 0])).tolist() == [" 7", "a\tb"]
    path = str(tmp_path / f"nodes{ending}")
    table_of("classes", rows, data).write(path)
    table = (
        pd.read_parquet(path)
        if ending == ".parquet"
        else pd.read_csv(path, sep="\t", keep_default_na=False)
    )
    assert list(table) == ["id", "split", "class", "probability_x11", "probability_gnu, r"]
    assert table["id"].tolist() == ids.tolist() and table["class"].tolist() == [
        "gnu, r",
        *["x11"] * 2,
        *["gnu, r"] * 2,
    ]
    assert node_ids.find_nodes(node_ids.read_ids(path)[::-1], ids, "table").tolist() == [
        4,
        3,
        2,
        1,
        0,
    ]


def test_nodes_of_a_component_keep_their_ids(configure, tmp_path):
    node = torch.arange(30)
    edge_index = torch.stack([node, torch.where(node < 18, (node + 1) % 18, 18 + (node - 17) % 12)])
    torch.save(
        {
            "edge_index": torch.cat([edge_index, edge_index.flip(0)], 1),
            "x": torch.randn(30, 4),
            "y": node % 2,
            **masks_of(node),
        },
        tmp_path / "graph.pt",
    )
    train(
        configure("data=file", f"data.path={tmp_path / 'graph.pt'}", "data.components=2", *MODEL),
        tmp_path / "run",
    )
    pd.DataFrame({"id": [29, 22]}).to_parquet(tmp_path / "ids.parquet")
    predict(tmp_path / "run", output=tmp_path / "nodes.csv", output_nodes=tmp_path / "ids.parquet")
    assert pd.read_csv(tmp_path / "nodes.csv")[["id", "split"]].to_numpy().tolist() == [
        [29, "test"],
        [22, "valid"],
    ]
    pd.DataFrame({"id": [29, 12]}).to_parquet(tmp_path / "ids.parquet")
    with pytest.raises(
        ValueError,
        match="no node has the id '12' of row 2; the 12 nodes of the run are called 18, 19",
    ):
        predict(
            tmp_path / "run", output=tmp_path / "nodes.csv", output_nodes=tmp_path / "ids.parquet"
        )


@pytest.mark.parametrize("ending", [".parquet", ".csv.gz"])
def test_a_write_that_is_interrupted_leaves_what_was_there(ending, run, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_CELLS", 60)
    (tmp_path / "tables").mkdir()
    path, calls, columns = tmp_path / "tables" / f"nodes{ending}", [], labels.label_columns

    def stop(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return columns(*arguments)

    monkeypatch.setattr(labels, "label_columns", stop)
    with pytest.raises(KeyboardInterrupt):
        predict(run, output=path)
    assert len(calls) == 3 and not list(path.parent.iterdir())
    path.write_bytes(b"old")
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        predict(run, output=path)
    assert path.read_bytes() == b"old" and len(list(path.parent.iterdir())) == 1


def test_evaluation_writes_the_table_too_and_nothing_that_is_not_finite(run, classes, tmp_path):
    path = tmp_path / "nodes.csv.gz"
    scores = restore.evaluate(EvaluateConfig(run=str(run), device="cpu", output=str(path)))
    table, y = pd.read_csv(path), torch.load(classes[1].removeprefix("data.path="))["y"].numpy()
    test = table["split"] == "test"
    assert np.mean(table["class"][test] == y[test]) == pytest.approx(scores["test"])
    first = path.read_bytes()
    predict(run, output=path)
    assert path.read_bytes() == first and first[4:8] == bytes(4)  # no time in it
    assert gzip.decompress(first).startswith(b"id,split,class,")
    with pytest.raises(FloatingPointError, match="no table is written"):
        table_of("classes", torch.full((1, 2), torch.nan), Graph(num_nodes=1)).write(str(path))
    assert path.read_bytes() == first


WRONG = [
    (
        dict(output="nodes.xlsx"),
        "output=nodes.xlsx: tables are one of .parquet, .csv, .csv.gz, .tsv, .tsv.gz",
    ),
    (dict(output="parquet"), "output=parquet: tables are one of"),
    (
        dict(predictions="a.pt", embeddings=True),
        "embeddings=True is for a table of predictions. Give output=FILE",
    ),
    (
        dict(predictions="a.pt", output_nodes="ids.csv"),
        "output_nodes=ids.csv is for a table of predictions. Give output=FILE",
    ),
    (
        dict(predictions="a.pt", columns="class"),
        "columns=class is for a table of predictions. Give output=FILE",
    ),
    (dict(output="a.csv", output_nodes="no.csv"), "output_nodes=no.csv does not exist"),
    (dict(output="a.csv", output_nodes="ids.txt"), "output_nodes=ids.txt: tables are one of"),
    (
        dict(output="a.csv", output_nodes="name.csv"),
        "name.csv has the columns name, size, but none called id",
    ),
    (
        dict(output="a.csv", output_nodes="again.csv"),
        "again.csv: row 3 below the header has the id '4' of row 1: give each once",
    ),
    (dict(output="a.csv", output_nodes="gap.csv"), "gap.csv: row 2 below the header has no id"),
    (dict(output="a.csv", output_nodes="head.csv"), "head.csv has a header, but no rows"),
    (dict(output="a.csv", output_nodes="empty.csv"), "empty.csv is not a readable table .csv: "),
    (
        dict(output="a.csv", output_nodes="text.parquet"),
        "text.parquet is not a readable table .parquet: ",
    ),
    (
        dict(output="a.csv", output_nodes="text.csv.gz"),
        "text.csv.gz is not a readable table .csv.gz: ",
    ),
]


def test_what_cannot_be_written_is_refused_before_the_graph_is_opened(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(run, tmp_path / "run")
    for name, text in (
        ("ids", "id\n4\n"),
        ("name", "name,size\nx,1\n"),
        ("again", "id\n4\n5\n4\n"),
        ("gap", "id,size\n4,1\n,2\n"),
        ("head", "id\n"),
        ("empty", ""),
        ("far", "id\n4\n50\n"),
    ):
        (tmp_path / f"{name}.csv").write_text(text)
    for name in ("text.parquet", "text.csv.gz"):
        (tmp_path / name).write_text("id\n4\n")
    for options, message in WRONG:
        with pytest.raises(ValueError, match=message):
            predict(run, **options)
    far = dict(output="a.csv", output_nodes="far.csv")
    with pytest.raises(
        ValueError, match="far.csv: no node has the id '50' of row 2; the 50 nodes of the run are"
    ):
        predict(run, **far)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ValueError, match="has the columns name, size"):
        predict(run, **far | dict(output_nodes="name.csv"))
    assert not (tmp_path / "a.csv").exists() and not (tmp_path / "a.pt").exists()


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            ["data=ogb_link", "task=link"],
            "embeddings=True needs a table with a row for each node, and .* has task=link",
        ),
        (
            ["data=ogb_graph", "task=graph", "loader=graph", "evaluation=exact"],
            "embeddings=True needs .*has task=graph",
        ),
        (
            ["trainer=node_embedding", "data=synthetic_proteins"],
            "output=a.csv is read for runs of trainer=gnn only; .*"
            "has trainer=node_embedding. Leave it out",
        ),
        (
            ["trainer=knowledge", "data=math"],
            "output=a.csv is read for runs of trainer=gnn only; .*has trainer=knowledge",
        ),
    ],
)
def test_runs_without_rows_of_nodes(overrides, message, configure, tmp_path):
    (tmp_path / "run").mkdir()
    write_config(tmp_path / "run", configure(*overrides))
    needs_nodes = message.startswith("embeddings")
    for use in (restore.predict, restore.evaluate):
        with pytest.raises(ValueError, match=message):
            use(EvaluateConfig(run=str(tmp_path / "run"), output="a.csv", embeddings=needs_nodes))


def test_a_model_without_a_head_has_no_embeddings(configure, tmp_path):
    train(
        configure(*TOY[:5], "model=custom", "model.path=tests.helpers.nets.Net", "train.epochs=1"),
        tmp_path / "run",
    )
    with pytest.raises(
        ValueError, match="^embeddings=true: model=custom has no torch.nn.Linear called head, whose"
    ):
        predict(tmp_path / "run", output=tmp_path / "nodes.csv", embeddings=True)
    predict(tmp_path / "run", output=tmp_path / "nodes.csv")
    assert list(pd.read_csv(tmp_path / "nodes.csv")) == ["id", "split"] + [
        f"{name}_{task}" for name in ("probability", "predicted") for task in range(3)
    ]


def test_of_equal_logits_the_first_classes_come_first():
    found = label_columns("classes", torch.zeros(1, 40), None, chosen="top3")
    assert [int(found[f"class_{place}"][0]) for place in (1, 2, 3)] == [0, 1, 2]
