"""Graphs with several types of nodes: HeteroData and ogbn-mag's raw folder, as one graph with types and relations."""

import pytest
import torch
from ogb.io.read_graph_raw import read_csv_heterograph_raw
from torch_geometric.data import HeteroData
from torch_geometric.transforms import ToUndirected

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.config import FileConfig, OGBHeteroConfig
from parallel_epochs.pipeline.data.join_types import refuse_unread
from tests.helpers.typed_graphs import write_mag

BUYS = ("user", "buys", "item")


def make(seed: int = 0) -> HeteroData:
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    data["user"].x, data["item"].x = (
        torch.rand(20, 3, generator=generator),
        torch.rand(12, 2, generator=generator),
    )
    data["tag"].num_nodes = 4
    data["user"].y = torch.arange(20) % 3
    for place, mask in enumerate(("train_mask", "val_mask", "test_mask")):
        data["user"][mask] = torch.arange(20) % 4 == place
    sizes = {"user": 20, "item": 12, "tag": 4}
    for relation, num in (
        (BUYS, 50),
        (("item", "has", "tag"), 20),
        (("user", "knows", "user"), 30),
    ):
        data[relation].edge_index = torch.stack(
            [
                torch.randint(sizes[kind], (num,), generator=generator)
                for kind in (relation[0], relation[2])
            ]
        )
    data["user", "buys", "item"].edge_attr = torch.rand(50, 2, generator=generator)
    return data


def edges_of(found) -> list[tuple[int, int, int]]:
    """Return source, destination and relation of each edge of a prepared graph."""
    return sorted(
        zip(
            *found.edge_index.as_tensor().tolist(),
            found.edge_attr[:, 0].long().tolist(),
            strict=True,
        )
    )


def load(tmp_path, data: HeteroData | dict, **options):
    tmp_path.mkdir(exist_ok=True)
    torch.save(data, tmp_path / "graph.pt")
    return cache.load(FileConfig(path=str(tmp_path / "graph.pt"), **options), tmp_path / "cache")


def test_equal_to_pygs_to_homogeneous(tmp_path):
    data = make()
    found = load(tmp_path, data, reverse_relations=False, featureless="none")
    schema = found.types
    plain = HeteroData(
        {
            name: {"num_nodes": count}
            for name, count in zip(schema.names, schema.counts, strict=True)
        }
        | {
            "__".join(relation): {"edge_index": data[relation].edge_index}
            for relation in data.edge_types
        }
    )
    expected = plain.to_homogeneous(node_attrs=[], edge_attrs=[])
    assert edges_of(found) == sorted(
        zip(*expected.edge_index.tolist(), expected.edge_type.tolist(), strict=True)
    )
    assert torch.equal(found.x[:, -3:].argmax(1), expected.node_type)
    assert torch.equal(found.x[:20, :3], data["user"].x) and torch.equal(
        found.x[20:32, :2], data["item"].x
    )
    assert not found.x[20:, 2].any() and not found.x[32:, :3].any()
    assert schema.labelled == "user" and torch.equal(found.valid_mask[:20], data["user"].val_mask)
    assert not found.train_mask[20:].any()


def test_reverse_relations_that_pyg_has_added_are_those_that_are_added(tmp_path):
    """ToUndirected gives the reverse relation the features of the edges; their order does not count."""
    data = make()
    del data["user", "knows", "user"]  # PyG adds reverse edges within a type
    plain, undirected = load(tmp_path / "plain", data), ToUndirected()(data.clone())
    edges = undirected["item", "rev_buys", "user"]
    order = torch.randperm(edges.num_edges)
    edges.edge_index, edges.edge_attr = edges.edge_index[:, order], edges.edge_attr[order]
    found = load(tmp_path / "undirected", undirected)
    assert found.types.to_value() == plain.types.to_value() and torch.equal(
        found.edge_attr, plain.edge_attr
    )
    assert torch.equal(found.edge_index.as_tensor(), plain.edge_index.as_tensor()) and torch.equal(
        found.x, plain.x
    )
    edges.edge_attr[0] += 1
    with pytest.raises(
        ValueError, match="rev_buys from item to user has the name of the reverse of buys"
    ):
        load(tmp_path / "changed", undirected)


def test_a_dict_of_it_gives_the_same(tmp_path):
    one = load(tmp_path, make())
    other = load(tmp_path, make().to_dict())
    assert torch.equal(one.x, other.x) and torch.equal(one.edge_attr, other.edge_attr)


def test_means_are_of_the_neighbours_of_one_type_each(tmp_path):
    data = HeteroData(
        {
            "a": {"x": torch.tensor([[1.0], [3.0]])},
            "b": {"x": torch.tensor([[10.0], [20.0]])},
            "tag": {"num_nodes": 1},
            ("a", "to", "tag"): {"edge_index": torch.tensor([[0, 1], [0, 0]])},
            ("b", "of", "tag"): {"edge_index": torch.tensor([[0], [0]])},
        }
    )
    assert load(tmp_path, data, reverse_relations=False).x[4, :2].tolist() == [2, 10]


def without(name, attribute):
    def change(data):
        del data[name][attribute]

    return change


def put(name, attribute, value):
    def change(data):
        data[name][attribute] = value

    return change


BAD = {
    "no number of nodes": (
        without("tag", "num_nodes"),
        {},
        "the type tag has neither x nor num_nodes",
    ),
    "an end of another type": (
        put(("user", "likes", "dog"), "edge_index", torch.zeros(2, 3, dtype=torch.int64)),
        {},
        "the relation likes goes from user to dog, and there is no type dog",
    ),
    "a node that is not there": (
        put(BUYS, "edge_index", torch.tensor([[1, 2], [3, 12]])),
        {},
        "edge_index of user.buys.item names node 12 of item, whose nodes are 0 to 11",
    ),
    "features of other edges": (
        put(BUYS, "edge_attr", torch.rand(3, 2)),
        {},
        "edge_attr of user.buys.item has 3 rows for",
    ),
    "no labels of this type": (
        lambda data: None,
        {"label_type": "item"},
        "task.type=item: the nodes of this type have no",
    ),
    "features of three dimensions": (
        put(BUYS, "edge_attr", torch.rand(50, 2, 2)),
        {},
        "user.buys.item: edge_attr must have 2 dimensions, not the shape [50, 2, 2]",
    ),
    "no such type": (lambda data: None, {"label_type": "dog"}, "task.type=dog: "),
    "a negative number of nodes": (
        put("tag", "num_nodes", -3),
        {},
        "tag: num_nodes is -3, and must be a whole number of nodes",
    ),
    "a number of nodes that is not whole": (
        put("tag", "num_nodes", 3.5),
        {},
        "tag: num_nodes is 3.5, and must be",
    ),
    "a type without nodes": (put("tag", "num_nodes", 0), {}, "there are no nodes of the type tag"),
    "a reverse name that is taken": (
        put(("item", "rev_buys", "user"), "edge_index", torch.zeros(2, 1, dtype=torch.int64)),
        {},
        "the relation rev_buys from item to user has the name of the reverse of buys",
    ),
    "no edge_index": (
        without(BUYS, "edge_index"),
        {},
        "user.buys.item: there is no edge_index; it has edge_attr",
    ),
    "features that are not finite": (
        put("item", "x", torch.full((12, 2), torch.nan)),
        {},
        "item: x is not finite",
    ),
    "undirected": (
        lambda data: None,
        {"to_undirected": True},
        "data.to_undirected=true adds edges without a relation",
    ),
    "self-loops": (
        lambda data: None,
        {"add_self_loops": True},
        "data.add_self_loops=true adds edges without a relation",
    ),
    "masks missing": (without("user", "val_mask"), {}, "user: there is no valid_mask"),
    "times of edges": (
        lambda data: None,
        {"edge_time": "t", "split": "time"},
        "data.edge_time=t is for a Data",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_named(tmp_path, case):
    change, options, message = BAD[case]
    data = make()
    change(data)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        load(tmp_path, data, **options)
    assert message in str(caught.value), str(caught.value)


def test_ogbn_mags_folder_is_read_as_ogb_reads_it(tmp_path, capsys):
    write_mag(tmp_path)
    found = cache.load(
        OGBHeteroConfig(folder=str(tmp_path), featureless="none"), tmp_path / "cache"
    )
    expected = read_csv_heterograph_raw(str(tmp_path / "raw"))[0]
    schema = found.types
    assert schema.names == sorted(expected["num_nodes_dict"])
    assert schema.relations[:4] == sorted(expected["edge_index_dict"])
    edges = []
    for number, (source, name, target) in enumerate(schema.relations[:4]):
        first = schema.nodes_of(source).start, schema.nodes_of(target).start
        edges += [
            (s + first[0], t + first[1], number)
            for s, t in expected["edge_index_dict"][source, name, target].T.tolist()
        ]
    assert edges_of(found) == sorted(
        [*edges, *((target, source, number + 4) for source, target, number in edges)]
    )
    papers = schema.nodes_of("paper")
    features = torch.from_numpy(expected["node_feat_dict"]["paper"]).float()
    torch.testing.assert_close(found.x[papers.start :, :4], features)
    assert found.train_mask.nonzero().squeeze(1).tolist() == list(
        range(papers.start, papers.start + 10)
    )
    assert found.metric == "acc" and schema.labelled == "paper"
    (tmp_path / "raw" / "relations" / "paper___cites___paper" / "edge.csv.gz").unlink()
    with pytest.raises(ValueError, match=r"paper___cites___paper/edge.csv.gz is missing"):
        cache.hash_graph(OGBHeteroConfig(folder=str(tmp_path)))


def test_labels_of_two_types_need_no_choice_where_none_are_learned(tmp_path):
    data = make()
    data["item"].y = torch.arange(12)
    torch.save(data, tmp_path / "graph.pt")
    config = FileConfig(path=str(tmp_path / "graph.pt"))
    assert cache.read(config, needs_labels=False).types.labelled is None
    assert cache.load_links(config, tmp_path / "cache", relation="buys").num_nodes == 36
    with pytest.raises(
        ValueError, match="labels of several types of nodes, user and item. Choose those"
    ):
        refuse_unread(load(tmp_path, data).types, "graph.pt")
    config = FileConfig(path=str(tmp_path / "graph.pt"), label_type="user")
    del data["user"].y, data["item"].y
    torch.save(data, tmp_path / "graph.pt")
    assert cache.read(config, needs_labels=False).types.labelled is None


def test_a_hetero_data_without_types_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds a HeteroData without types of nodes"):
        load(tmp_path, HeteroData())


def test_a_graph_with_one_type_has_no_type_to_choose(tmp_path):
    data = {"x": torch.rand(3, 2), "edge_index": torch.tensor([[0, 1], [1, 2]])}
    assert load(tmp_path, data, reverse_relations=False, featureless="none").num_nodes == 3
    with pytest.raises(ValueError, match="has one type of nodes: leave task.type out"):
        load(tmp_path, data, label_type="user")
