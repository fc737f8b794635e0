"""Tables of several types of nodes: equal to the same graph read from a HeteroData; odd schemas; kills."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from torch_geometric.data import Data, HeteroData

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.config import FileConfig
from parallel_epochs.pipeline.data.node_names import unpack_names
from parallel_epochs.pipeline.data.tables import sorted_edges
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from tests.helpers.typed_tables import SCHEMA, write_tables


def as_hetero(tables: dict[str, pd.DataFrame]) -> HeteroData:
    """Read the tables by pandas alone."""
    data, (users, items, acts, knows, sold) = HeteroData(), tables.values()
    ids = {"user": users["id"], "item": items["id"], "shop": sorted(sold["shop"].unique())}
    place = {kind: {id: number for number, id in enumerate(own)} for kind, own in ids.items()}
    data["user"].x = torch.tensor(users[["age", "visits"]].to_numpy(np.float32))
    data["user"].y = torch.tensor(users["kind"].factorize(sort=True)[0])
    for mask, split in (("train_mask", "train"), ("valid_mask", "valid"), ("test_mask", "test")):
        data["user"][mask] = torch.tensor((users["split"] == split).to_numpy())
    data["item"].x = torch.tensor(items[["price"]].to_numpy(np.float32))
    data["shop"].num_nodes = 3
    for (source, name, target), table, ends, how in (
        (
            ("user", "buys", "item"),
            acts[acts["what"] == "buys"],
            ["user", "item"],
            {"times": "sum"},
        ),
        (
            ("user", "sees", "item"),
            acts[acts["what"] == "sees"],
            ["user", "item"],
            {"times": "sum"},
        ),
        (("user", "knows", "user"), knows, ["a", "b"], {"years": "mean"}),
        (("item", "sold_by", "shop"), sold.drop_duplicates(), ["item", "shop"], {}),
    ):
        merged = table.groupby(ends, as_index=False).agg(how) if how else table
        index = [merged[end].map(place[kind]) for end, kind in zip(ends, (source, target))]
        data[source, name, target].edge_index = torch.tensor(np.stack(index))
        if how:
            attr = torch.tensor(merged[[*how]].to_numpy(np.float32))
            data[source, name, target].edge_attr = attr
    return data


def load(config, tmp_path) -> Data:
    return cache.load(config, tmp_path / "cache")


def rows_of(data: Data) -> list[tuple]:
    """Return source, destination, relation and features of each edge; both readers number features by relations."""
    return sorted(
        (*ends, *(round(value, 5) for value in attr))
        for ends, attr in zip(
            data.edge_index.as_tensor().t().tolist(), data.edge_attr.tolist(), strict=True
        )
    )


# Every pair of the options is quick; the other half of the cases is slow.
@pytest.mark.parametrize(
    "reverse, featureless",
    [
        pytest.param(
            reverse,
            featureless,
            marks=[] if reverse == (featureless == "mean") else pytest.mark.slow,
        )
        for reverse in (True, False)
        for featureless in ("mean", "none")
    ],
)
def test_equal_to_the_same_graph_as_hetero_data(tmp_path, reverse, featureless):
    hetero = as_hetero(write_tables(tmp_path))
    torch.save(hetero, tmp_path / "hetero.pt")
    options = dict(reverse_relations=reverse, featureless=featureless)
    found = load(TablesConfig(folder=str(tmp_path), schema=SCHEMA, **options), tmp_path)
    expected = load(FileConfig(path=str(tmp_path / "hetero.pt"), **options), tmp_path)
    # One column for the times of buys and sees in the tables, two in HeteroData, which has a relation each.
    assert expected.types.edge_columns == [[1, 1], [2, 1], [3, 1], [0, 0]]
    assert found.types == dataclasses.replace(
        expected.types, edge_columns=[[1, 1], [1, 1], [2, 1], [0, 0]]
    )
    assert found.types.relations[:4] == [
        ("user", "buys", "item"),
        ("user", "sees", "item"),
        ("user", "knows", "user"),
        ("item", "sold_by", "shop"),
    ]
    assert len(found.types.relations) == (8 if reverse else 4)
    expected.edge_attr = torch.stack(
        [expected.edge_attr[:, 0], expected.edge_attr[:, 1:3].sum(1), expected.edge_attr[:, 3]],
        dim=1,
    )
    assert rows_of(found) == rows_of(expected)
    torch.testing.assert_close(found.x, expected.x)
    for key in ("y", "train_mask", "valid_mask", "test_mask"):
        assert torch.equal(found[key], expected[key]), key
    names = unpack_names(found)
    assert names[40:45] == ["n0", "n1", "n2", "n3", "n4"] and names[65:] == ["n1", "n2", "n3"]
    assert unpack_names(found, "label_names") == ["a", "b", "c"]


def test_relations_in_a_column_are_limited_as_kinds_of_edges(tmp_path, monkeypatch):
    write_tables(tmp_path)
    monkeypatch.setattr(sorted_edges, "MAX_RELATIONS", 1)
    with pytest.raises(
        ValueError,
        match=r"acts.csv: column what holds 2 different relations, which are ids rather "
        r"than kinds of edges; at most 1 are read",
    ):
        load(TablesConfig(folder=str(tmp_path), schema=SCHEMA), tmp_path)


def test_equal_numbers_of_different_types_are_no_self_loops(tmp_path, caplog):
    write_tables(tmp_path)
    (tmp_path / "sold.csv").write_text("item,shop\nn0,s0\n")  # node 0 of both types
    caplog.set_level("INFO")
    load(TablesConfig(folder=str(tmp_path), schema=SCHEMA), tmp_path)
    assert "sold.csv: 1 edges" in caplog.text and "sold.csv: 1 edges; " not in caplog.text


def test_ids_of_neighbours_of_other_types_are_terms(tmp_path):
    tables = write_tables(tmp_path)
    schema = changed(
        nodes__shop={"text_neighbors": True},
        nodes__item={"text_neighbors": True, "text_channels": 4},
    )
    found = load(TablesConfig(folder=str(tmp_path), schema=schema), tmp_path)
    acts, sold = tables["acts"], tables["sold"]
    widths = found.types.widths  # a price, users who act on an item, and the shops that sell it
    assert widths == [
        2,
        1 + min(4, acts["user"].nunique()) + sold["shop"].nunique(),
        sold["item"].nunique(),
    ]
    shops = found.x[found.types.nodes_of("shop").start :, : widths[2]]
    assert (shops != 0).sum(1).tolist() == sold.groupby("shop")[
        "item"
    ].nunique().sort_index().tolist()
    assert not (shops < 0).any(), "each item has a column of its own"


def changed(**parts) -> dict:
    """Return the schema with other keys of some tables, as in nodes__user={...}; none: without this table."""
    schema = {
        part: {name: dict(keys) for name, keys in tables.items()} for part, tables in SCHEMA.items()
    }
    for place, keys in parts.items():
        part, name = place.split("__")
        if keys is None:
            del schema[part][name]
        else:
            schema[part][name] = {**schema[part].get(name, {}), **keys}
    return schema


BAD = [
    (
        changed(nodes__shop=None),
        {},
        "data.schema: the edges sold_by end at nodes of the type shop, and nodes has user, "
        "item. Add it there; {} is enough for a type without a table",
    ),
    (
        changed(nodes__bar={}),
        {},
        "data.schema: the type bar has no table and no edges. Leave it out, or give its path",
    ),
    (
        changed(nodes__user={"path": "nobody.csv"}),
        {},
        "data.schema: nodes.user: data.nodes.path=nobody.csv does not exist",
    ),
    (
        changed(nodes__user={"features": ["size"]}),
        {},
        "data.schema: nodes.user: data.nodes.features=size: ",
    ),
    (
        changed(nodes__user={"colour": "red"}),
        {},
        "data.schema: nodes.user.colour is unknown; choose among path",
    ),
    (
        changed(edges__knows={"source": None}),
        {},
        "data.schema: edges.knows.source names no type of nodes. Give it as",
    ),
    (
        changed(nodes__user={"path": "${oc.env:HOME}"}),
        {},
        "data.schema: nodes.user holds ${...}, which is not",
    ),
    (
        changed(edges__knows={"path": None}),
        {},
        "data.schema: edges.knows has no path. Give that of its table",
    ),
    (
        changed(edges__knows={"source": {"type": "user", "column": "c"}}),
        {},
        "data.schema: edges.knows: data.edges.source=c: ",
    ),
    (
        changed(edges__knows={"source": ["user"]}),
        {},
        "data.schema: edges.knows.source must be a mapping of keys, not list",
    ),
    (
        changed(nodes__item={"label": "price"}),
        {},
        "data.schema has labels of several tables, user and item. "
        "Choose those to learn by task.type=user",
    ),
    (
        SCHEMA,
        {"label_type": "item"},
        "task.type=item: data.schema names no label of this type; there are labels of user",
    ),
    (
        SCHEMA,
        {"label_type": "dog"},
        "task.type=dog: data.schema names no label of this type; there are labels of user",
    ),
    (
        changed(edges__rev_knows=SCHEMA["edges"]["knows"]),
        {},
        "the relation rev_knows from user to user has the name of "
        "the reverse of knows. Rename it, or set data.reverse_relations=false",
    ),
    (
        changed(edges__likes=SCHEMA["edges"]["knows"] | {"relation": "years", "path": "likes.csv"}),
        {},
        "{folder}/likes.csv: row 2, column years is empty: each edge needs a relation",
    ),
    ({"nodes": {}, "vertices": {}}, {}, "data.schema: vertices is unknown"),
    ({"nodes": {"user": {}}}, {}, "data.schema names no table of edges"),
    ("absent.yaml", {}, "data.schema=absent.yaml is not a file"),
    (
        SCHEMA,
        {"add_self_loops": True},
        "data.add_self_loops=true: tables have the loops that",
    ),
    (
        SCHEMA,
        {"to_undirected": False},
        "data.to_undirected=false does not fit a graph with several types",
    ),
]


@pytest.mark.parametrize(
    ("schema", "options", "message"), BAD, ids=[str(number) for number in range(len(BAD))]
)
def test_bad_schemas_are_refused(tmp_path, schema, options, message):
    write_tables(tmp_path)
    (tmp_path / "likes.csv").write_text("a,b,years\nn1,n2,3\nn1,n3,\n")
    (tmp_path / "strangers.csv").write_text("a,b,years\nn1,n2,3\nn1,nobody,2\n")
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        config = TablesConfig(folder=str(tmp_path), schema=schema, **options)
        config.check()
        config.check_labels()
        load(config, tmp_path)
    assert str(caught.value).startswith(message.replace("{folder}", str(tmp_path))), str(
        caught.value
    )


def test_a_file_with_the_schema_gives_the_same_graph_and_may_lie_beside_the_tables(tmp_path):
    write_tables(tmp_path)
    (tmp_path / "graph.yaml").write_text(yaml.safe_dump(SCHEMA, sort_keys=False))
    inline = TablesConfig(folder=str(tmp_path), schema=SCHEMA)
    in_file = TablesConfig(schema=str(tmp_path / "graph.yaml"))
    assert cache.hash_graph(inline) == cache.hash_graph(in_file)
    old = changed(nodes__user={"char_lengths": [2, 4], "tag_separator": "|"})  # of 0.6.0
    assert cache.hash_graph(TablesConfig(folder=str(tmp_path), schema=old)) == cache.hash_graph(
        inline
    )
    other = changed(nodes__user={"standardize": True})
    assert cache.hash_graph(TablesConfig(folder=str(tmp_path), schema=other)) != cache.hash_graph(
        inline
    )
    (tmp_path / "graph.yaml").write_text("nodes: {user: {}, user: {path: users.csv}}\nedges: {}\n")
    with pytest.raises(ValueError, match=r"data.schema: user is there twice, in line 1 and before"):
        in_file.check()
    (tmp_path / "graph.yaml").write_text("nodes: [\n")
    with pytest.raises(ValueError, match=r"graph.yaml is not YAML: "):
        in_file.check()
