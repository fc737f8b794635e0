"""Models of graphs with several types of nodes: what they predict, of which nodes, and of other tables."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.config import settings
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.data.graph_types import GraphTypes
from parallel_epochs.pipeline.data.join_types import edge_features
from parallel_epochs.pipeline.data.links import describe_relation, warn_of_copies
from parallel_epochs.pipeline.gnn.config import GNNPredictConfig, NewDataConfig
from parallel_epochs.pipeline.gnn.features import KEY
from parallel_epochs.pipeline.gnn.predict import command as predict, new_data
from parallel_epochs.pipeline.gnn.predict.warm import Warm
from parallel_epochs.pipeline.names import MASKS
from parallel_epochs.pipeline.run.saved import SavedRun
from tests.helpers.building import predicted
from tests.helpers.running import summary_of, train
from tests.helpers.typed_graphs import hetero_graph
from tests.helpers.typed_tables import SCHEMA, write_tables

pytest.importorskip("duckdb")
SMALL = [
    "model.num_layers=2",
    "model.hidden_channels=8",
    "train.epochs=2",
    "train.patience=0",
    "task.base=none",
    "partition.num_parts=2",
    "evaluation=exact",
]


def trained(folder, tables, *overrides) -> SavedRun:
    (folder / "graph.yaml").write_text(yaml.safe_dump(SCHEMA, sort_keys=False))
    config = cli.compose_config(
        [
            "data=tables",
            f"data.schema={folder / 'graph.yaml'}",
            f"data.folder={tables}",
            *SMALL,
            "model=rgcn",
            f"cache_dir={folder / 'cache'}",
            *overrides,
        ]
    )
    train(config, folder / "run")
    return SavedRun(folder / "run", config, settings(config))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> SavedRun:
    folder = tmp_path_factory.mktemp("typed")
    write_tables(folder)
    return trained(folder, folder)


def table_of(run: SavedRun, path, **asked) -> pd.DataFrame:
    predict.predict(run, GNNPredictConfig(str(run.folder), output=str(path), **asked))
    return pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)


def test_the_table_holds_the_nodes_with_labels_by_their_ids(run, tmp_path):
    found = table_of(run, tmp_path / "out.csv")
    users = pd.read_csv(run.folder.parent / "users.csv")
    assert (
        found["id"].tolist() == users["id"].tolist()
        and found["split"].tolist() == users["split"].tolist()
    )
    assert list(found.columns) == [
        "id",
        "split",
        "class",
        "probability_a",
        "probability_b",
        "probability_c",
    ]
    (tmp_path / "ids.csv").write_text("id\nn7\nn3\n")
    some = table_of(run, tmp_path / "some.csv", output_nodes=str(tmp_path / "ids.csv"))
    assert some["id"].tolist() == ["n7", "n3"], "those of users, although items have these ids too"
    pd.testing.assert_frame_equal(
        some, found.set_index("id").loc[["n7", "n3"]].reset_index()[some.columns], rtol=1e-4
    )


def test_logits_are_those_of_the_nodes_with_labels(run, tmp_path):
    restored = predicted(run)
    predict.predict(run, GNNPredictConfig(str(run.folder), predictions=str(tmp_path / "out.pt")))
    saved = torch.load(tmp_path / "out.pt")["logits"]
    assert len(restored.rows) == 68 and torch.equal(saved, restored.rows[:40])
    assert saved.untyped_storage().nbytes() == saved.nbytes
    assert torch.equal(Warm(run, None, {}).rows(None, None)[0], saved)


def test_vectors_of_other_types(run, tmp_path):
    shops = table_of(run, tmp_path / "shops.parquet", embeddings=True, output_type="shop")
    assert shops["id"].tolist() == ["n1", "n2", "n3"] and list(shops.columns) == [
        "id",
        "split",
        "embedding",
    ]
    (tmp_path / "ids.csv").write_text(f"id\n{shops['id'].iloc[1]}\n")
    one = table_of(
        run,
        tmp_path / "one.parquet",
        embeddings=True,
        output_type="shop",
        output_nodes=str(tmp_path / "ids.csv"),
    )
    assert one["id"].tolist() == [shops["id"].iloc[1]]
    np.testing.assert_allclose(one["embedding"].iloc[0], shops["embedding"].iloc[1], rtol=1e-4)
    every = table_of(run, tmp_path / "all.parquet", embeddings=True, output_type="all")
    assert every["type"].tolist() == ["user"] * 40 + ["item"] * 25 + ["shop"] * 3
    assert every["embedding"].iloc[-1].tolist() == pytest.approx(
        shops["embedding"].iloc[-1].tolist(), rel=1e-5
    )
    assert "class" not in every


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"output_type": "dog"},
            "output_type=dog: there is no such type of nodes; there are user, item, shop, and all",
        ),
        (
            {"output_type": "shop"},
            "output_type=shop: the model predicts labels of user. For the vectors of other",
        ),
        (
            {"output_type": "all", "embeddings": True, "output_nodes": "ids.csv"},
            "lists ids, which are unique within",
        ),
    ],
)
def test_wrong_types_of_a_table(run, tmp_path, asked, message):
    (tmp_path / "ids.csv").write_text("id\nn7\n")
    if "output_nodes" in asked:
        asked = asked | {"output_nodes": str(tmp_path / "ids.csv")}
    with pytest.raises(ValueError, match=message):
        table_of(run, tmp_path / "out.csv", **asked)


def test_the_tables_of_the_training_as_new_data_give_the_same_bits(tmp_path):
    write_tables(tmp_path)
    run = trained(tmp_path, tmp_path, "model=rgcn")
    old = predicted(run)
    for other in (
        NewDataConfig(folder=str(tmp_path)),
        NewDataConfig(schema=str(tmp_path / "graph.yaml")),
    ):
        new = predicted(run, data=other)
        assert torch.equal(old.setup.data.x, new.setup.data.x) and torch.equal(old.rows, new.rows)
        assert not new.setup.data.train_mask.any()


def test_labels_of_new_data_are_not_read_where_the_schema_alone_names_them(tmp_path):
    tables = write_tables(tmp_path)
    run = trained(tmp_path, tmp_path, "data.folder=null")
    new = tmp_path / "new"
    new.mkdir()
    write_tables(new)
    (new / "graph.yaml").write_text(yaml.safe_dump(SCHEMA, sort_keys=False))
    other = NewDataConfig(schema=str(new / "graph.yaml"))
    assert not predicted(run, data=other).setup.data.train_mask.any()
    tables["users"].drop(columns=["kind", "split"]).to_csv(new / "users.csv", index=False)
    without = predicted(run, data=other)
    assert torch.equal(without.rows, predicted(run).rows)
    schema = yaml.safe_load((new / "graph.yaml").read_text())
    for key in ("label", "split_column"):
        schema["nodes"]["user"].pop(key, None)
    (new / "graph.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))
    assert torch.equal(without.rows, predicted(run, data=other).rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda schema: schema["nodes"]["user"].update(features=["visits", "age"]),
            r"data.schema: nodes.user.features is \['visits', 'age'\], and the model was trained on \['age', 'visits'\]",
        ),
        (
            lambda schema: schema["nodes"].update(user=schema["nodes"].pop("user")),
            "data.schema: nodes has item, shop, user, and the model was trained on user, item, shop, in this order",
        ),
        (
            lambda schema: schema["edges"].update(more=schema["edges"]["knows"]),
            "data.schema: edges has acts, knows, sold_by, more, and the model was trained on acts, knows, sold_by",
        ),
        (
            lambda schema: schema["edges"]["acts"].pop("weight"),
            "data.schema: edges.acts.weight is None, and the model was trained on times",
        ),
    ],
)
def test_another_schema_with_other_columns_is_refused(run, tmp_path, change, message):
    write_tables(tmp_path)
    schema = copy.deepcopy(SCHEMA)
    change(schema)
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))
    with pytest.raises(ValueError, match=message):
        predicted(run, data=NewDataConfig(schema=str(tmp_path / "other.yaml")))


def test_vectors_and_layouts_do_not_take_relations_for_weights():
    data = Graph(
        edge_attr=torch.tensor([[0.0], [3.0]]), types=GraphTypes(["a"], [2], [0], [("a", "r", "a")])
    )
    assert edge_features(data) is None
    data.edge_attr = torch.tensor([[0.0, 0.5], [3.0, 2.0]])
    assert torch.equal(edge_features(data), torch.tensor([[0.5], [2.0]]))
    assert edge_features(Graph(edge_attr=data.edge_attr, num_nodes=2)) is data.edge_attr


def test_links_that_another_relation_shows_are_told_of(caplog):
    schema = GraphTypes(
        ["user", "item"], [3, 2], [1, 1], [("user", "buys", "item"), ("item", "bought_by", "user")]
    )
    edges = torch.tensor([[0, 1, 3, 4], [3, 4, 0, 1]])
    own, relation = describe_relation(schema, 0), torch.tensor([0.0, 0, 1, 1])
    links = torch.tensor([[0, 3], [1, 4]])
    warn_of_copies(schema, own, links, edges, relation)
    assert (
        "100 % of the links of buys are edges of bought_by too" in caplog.text
        and "name it rev_buys" in caplog.text
    )
    caplog.clear()
    warn_of_copies(schema, own, links, edges[:, :2], relation[:2])
    edges[1, 2:] = edges[1, 2:].flip(0)
    warn_of_copies(schema, own, links, edges, relation)  # the other relation links other nodes
    assert not caplog.text


def test_an_exported_model_reads_other_tables(run, tmp_path):
    write_tables(tmp_path)
    new_data.export(run, tmp_path / "model.pe")
    config, shared = cli.load_run(tmp_path / "model.pe", trusts=False)
    assert str(run.folder.parent) not in shared["config"]
    opened = SavedRun(tmp_path / "model.pe", config, {}, shared=shared)
    with pytest.raises(
        ValueError, match=r"has no data of its own: name those to predict by data.schema"
    ):
        predicted(opened)
    found = predicted(opened, data=NewDataConfig(schema=str(run.folder.parent / "graph.yaml")))
    assert torch.equal(found.rows, predicted(run).rows)


def test_only_the_named_types_have_rows_in_a_learned_table(tmp_path):
    write_tables(tmp_path)
    run = trained(
        tmp_path,
        tmp_path,
        "features=embedding",
        "features.types=[shop,item]",
        "features.channels=5",
        "data.featureless=none",
        "features.dropout=0",
        "data.degrees=false",
    )
    weights = run.load()["model"]
    assert weights[KEY].shape == (28, 5)
    data = predicted(run).setup.data
    assert data.types.widths == [2, 1, 0]
    with pytest.raises(
        ValueError, match=r"features.types names dog, and .* has no such type of nodes"
    ):
        trained(tmp_path, tmp_path, "features=embedding", "features.types=[dog]")


def test_in_memory_and_on_disk_end_with_the_same_weights(tmp_path):
    graph = hetero_graph()
    graph["user"].y, split = torch.arange(40) % 3, torch.arange(40) % 4
    for number, mask in enumerate(MASKS):
        graph["user"][mask] = split == number
    torch.save(graph, tmp_path / "graph.pt")
    digests = {}
    for on_disk in (True, False):
        config = cli.compose_config(
            [
                "data=file",
                f"data.path={tmp_path / 'graph.pt'}",
                *SMALL,
                "model=rgcn",
                f"data.on_disk={on_disk}",
                f"cache_dir={tmp_path / 'cache'}",
            ]
        )
        train(config, tmp_path / f"run-{on_disk}")
        digests[on_disk] = summary_of(tmp_path / f"run-{on_disk}")["weights_sha256"]
    assert digests[True] == digests[False]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("digits", "is for graphs with several types of nodes, and data=digits"),
        (
            "store",
            "chooses among labels when a graph is prepared, and a store has those of one type. Leave it out",
        ),
    ],
)
def test_a_type_is_refused_where_there_is_nothing_to_choose(data, message):
    with pytest.raises(ValueError, match=f"task.type=user {message}"):
        cli.compose_config(
            [f"data={data}", "task.type=user", *["data.path=graph.store"] * (data == "store")]
        )
