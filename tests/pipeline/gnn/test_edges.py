"""Labels of edges: each row of a table is a node between its ends, and what is predicted sends no messages."""

import copy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.config import settings
from parallel_epochs.pipeline.gnn.base import edges, folds
from parallel_epochs.pipeline.gnn.base.fit import fit_base
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.config import NewDataConfig
from parallel_epochs.pipeline.gnn.tasks.edge import find_ends
from parallel_epochs.pipeline.graph.partition import assignment
from parallel_epochs.pipeline.names import MASKS
from parallel_epochs.pipeline.run.saved import SavedRun
from parallel_epochs.pipeline.run.schedule import Share
from tests.helpers.building import EvaluateConfig, evaluate, open_graph, predict, predicted
from tests.helpers.payments import KEYS, make_payments, write_payments
from tests.helpers.running import train

pytest.importorskip("duckdb")
LABEL = "data.edges.label=fraud"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("payments")
    write_payments(folder)
    return folder


def opened(folder, *overrides):
    config = cli.compose_config(
        [*KEYS, f"data.folder={folder}", f"cache_dir={folder / 'cache'}", *overrides]
    )
    return open_graph(config).parts[0]


def senders(data):
    """Which labelled edges send messages."""
    own = data.types.nodes_of("edge")
    src = data.edge_index.as_tensor()[0].long()
    return torch.bincount(src, minlength=data.num_nodes)[own.start :] > 0


def test_edges_that_lack_an_end_are_in_no_group_and_have_no_columns_of_it(folder, monkeypatch):
    data = opened(folder, LABEL).data
    ends = find_ends(data)
    ends[:2, 0] = -1
    assert edges.number_groups(data, ends[:, :1])[:2].tolist() == [-1, -1]
    monkeypatch.setattr(edges, "find_ends", lambda data: ends)
    found = edges.columns_of_ends(SimpleNamespace(data=data))
    assert not found[:2, : found.size(1) // 2].any() and found[2:].any()


def test_each_row_of_the_table_is_an_edge_with_the_label_and_the_ends_of_the_row(folder):
    data, table = opened(folder, LABEL).data, make_payments()
    own, names = data.types.nodes_of("edge"), [f"a{number}" for number in range(40)]
    assert len(own) == len(table) and data.types.labelled == "edge"
    ends = find_ends(data)
    assert [names[node] for node in ends[:, 0]] == table.source.tolist()
    assert [names[node] for node in ends[:, 1]] == table.target.tolist()
    known = torch.stack([data[mask] for mask in MASKS]).any(0)[own.start :]
    assert known.all() and data.y[own.start :, 0].tolist() == table.fraud.tolist()
    assert ends[0].tolist() == ends[1].tolist() and data.y[own.start] != data.y[own.start + 1]


def test_edges_of_validation_and_test_send_no_messages(folder):
    data = opened(folder, LABEL).data
    first = data.types.nodes_of("edge").start
    assert torch.equal(senders(data), data.train_mask[first:])
    degrees = torch.bincount(find_ends(data)[data.train_mask[first:]].flatten(), minlength=40)
    assert torch.equal(
        torch.bincount(data.edge_index.as_tensor()[1].long(), minlength=40)[:40], degrees
    )


def test_with_a_split_by_time_no_edge_after_the_border_sends_a_message(tmp_path):
    table = make_payments()
    table.loc[::5, "fraud"] = np.nan
    table["fraud"] = table.fraud.astype("Int64")
    write_payments(tmp_path, table)
    data = opened(
        tmp_path,
        LABEL,
        "data.split=time",
        "data.edges.time=day",
        "data.train_until=50",
        "data.valid_until=70",
    ).data
    first, day = data.types.nodes_of("edge").start, torch.tensor(table.day.tolist())
    is_labelled = torch.tensor(table.fraud.notna().tolist())
    assert torch.equal(data.train_mask[first:], (day <= 50) & is_labelled)
    assert torch.equal(data.test_mask[first:], (day > 70) & is_labelled)
    assert torch.equal(senders(data), day <= day[data.train_mask[first:]].max())


@pytest.mark.parametrize("keys", [["data.split_by=source"], ["data.edges.split_column=channel"]])
def test_edges_are_divided_by_a_column_or_by_groups(keys, tmp_path):
    table = make_payments()
    table["channel"] = np.where(np.arange(len(table)) % 3, "train", "test")
    write_payments(tmp_path, table)
    data = opened(tmp_path, LABEL, *keys).data
    first, split = (
        data.types.nodes_of("edge").start,
        np.select([data[mask].numpy() for mask in MASKS], MASKS, ""),
    )
    if "split_by" in keys[0]:
        assert (table.assign(split=split[first:]).groupby("source").split.nunique() == 1).all()
    else:
        assert (split[first:] == (table.channel + "_mask")).all()


def test_a_planted_label_in_the_columns_of_other_edges_reaches_no_prediction(folder):
    """The column that holds the label is read by the edge itself alone."""
    setup = opened(folder, LABEL, "partition=whole")
    (batch,) = setup.loader.batches(0, Share())
    data, task, own = setup.data, setup.task, setup.data.types.nodes_of("edge")
    number = int(data.valid_mask.nonzero()[0])
    same_end = (find_ends(data) == find_ends(data)[number - own.start]).any(1).nonzero().squeeze(
        1
    ) + own.start
    others = same_end[data.test_mask[same_end] | data.valid_mask[same_end]]
    others = others[others != number]
    assert len(others)
    planted = copy.copy(batch)
    planted.x = batch.x.clone()
    planted.x[others, 0] += 1000 * (2 * data.y[others, 0] - 1)
    setup.model.eval()
    with torch.no_grad():
        before, after = (task.predict(setup.model, each)[1][number] for each in (batch, planted))
    assert torch.equal(before, after)


@pytest.mark.parametrize("shown", [0.5, 0])
def test_a_training_edge_that_is_learned_sees_neither_its_label_nor_others_that_are(shown, folder):
    keys = [f"train.label_input={shown}"]
    setup = opened(folder, LABEL, *keys, "partition=whole", "model.dropout=0")
    (batch,) = setup.loader.batches(0, Share())
    model, task, seen = setup.model.eval(), setup.task, []
    is_number = torch.arange(batch.x.size(1)) < 1  # others are the type and the channel
    task.label_loss = lambda logits, y: (
        seen.append(logits.detach()) or (logits.sum(), torch.tensor(1))
    )
    _, learned = task._divide(batch, task.draw(batch, torch.Generator().manual_seed(0)))
    for x, y in (
        (batch.x, batch.y),
        (batch.x, torch.where(learned[:, None], 1 - batch.y, batch.y)),
        (
            batch.x
            + 1000.0 * (learned & (torch.arange(batch.num_nodes) % 2 > 0))[:, None] * is_number,
            batch.y,
        ),
        (batch.x + 1000.0 * (batch.train_mask & ~learned)[:, None] * is_number, batch.y),
    ):
        task.loss(
            model, copy.copy(batch).update({"x": x, "y": y}), torch.Generator().manual_seed(0)
        )
    odd = learned.nonzero().squeeze(1) % 2 == 0
    assert 0.3 < float(learned.sum() / batch.train_mask.sum()) < 0.7
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0][odd], seen[2][odd])
    assert not torch.equal(seen[0], seen[3])  # the others send theirs


@pytest.mark.parametrize("partition", ["random", "metis", "metis_random"])
def test_an_edge_is_in_the_cluster_of_an_end_and_is_learned_where_both_are(partition, folder):
    loader = opened(folder, LABEL, f"partition={partition}", "partition.num_parts=4").loader
    own, ends = loader.data.types.nodes_of("edge"), find_ends(loader.data)
    part = torch.from_numpy(assignment(loader._follow(loader.draw(1, Share()))))
    is_at = part[ends] == part[own.start :].unsqueeze(1)
    assert is_at.any(1).all()
    seen = torch.zeros(loader.data.num_nodes)
    for batch in loader.batches(1, Share()):
        seen[batch.n_id] += 1
        inside = batch.n_id >= own.start
        assert torch.equal(batch.target[inside], is_at.all(1)[batch.n_id[inside] - own.start])
    assert (seen == 1).all()


def test_labels_of_other_edges_at_the_ends_are_those_counted_by_hand(tmp_path):
    table = make_payments()
    table.loc[:28:7, "target"] = table.source[:29:7]  # loops, which are no reverse of their own
    write_payments(tmp_path, table)
    setup = opened(tmp_path, LABEL, "data.metric=acc")
    inputs, own = Inputs(setup.data, setup.task), setup.data.types.nodes_of("edge")
    train = setup.data.train_mask[own.start :].numpy()
    found, mean = (
        edges.labels_of_ends(inputs, setup.data.train_mask).numpy(),
        table.fraud[train].mean(),
    )
    for number in range(0, 300, 7):
        row, others = table.iloc[number], train & (np.arange(300) != number)
        is_source, is_target = (table.source == row.source), (table.target == row.target)
        reverse = (
            (table.source == row.target) & (table.target == row.source) & (row.source != row.target)
        )
        for place, group in enumerate((is_source, is_target, is_source & is_target, reverse)):
            labels = table.fraud[group & others]
            expected = [(labels.sum() + mean) / (len(labels) + 1), np.log1p(len(labels))]
            np.testing.assert_allclose(
                found[number, 3 * place + 1 : 3 * place + 3], expected, rtol=1e-5
            )


@pytest.mark.slow
def test_simple_methods_read_the_labels_of_the_target(folder):
    setup = opened(folder, LABEL, "data.split_by=source")
    fold = folds.divide(Inputs(setup.data, setup.task), 0)
    rows = (fold >= 0).nonzero().squeeze(1)
    sources = find_ends(setup.data)[rows - setup.data.types.nodes_of("edge").start, 0]
    assert (pd.Series(fold[rows]).groupby(sources.numpy()).nunique() == 1).all()
    scores = {
        name: fit_base(setup.data, setup.task, name).scores["test"]
        for name in ("mean", "target", "source")
    }
    assert scores["target"] > max(scores["mean"], scores["source"]) - 0.05
    best = fit_base(setup.data, setup.task, "trees", seconds=30)
    assert (
        best.scores["test"] > scores["mean"] + 0.1
        and best.reads_labels
        and "labels of ends" in best.title
    )


@pytest.mark.parametrize(
    ("keys", "columns"),
    [
        ([LABEL, "data.metric=acc"], ["class", "probability_0", "probability_1"]),
        (["data.edges.label=rating", "train.label_input=0"], ["value_rating"]),
    ],
    ids=["classes", "values"],
)
def test_a_run_predicts_the_table_of_edges(keys, columns, folder, tmp_path):
    config = cli.compose_config(
        [*KEYS, f"data.folder={folder}", f"cache_dir={folder / 'cache'}", "train.epochs=2", *keys]
    )
    summary = train(config, tmp_path / "run")
    assert evaluate(EvaluateConfig(run=str(tmp_path / "run")))["test"] == pytest.approx(
        summary["test"]
    )
    predict(EvaluateConfig(run=str(tmp_path / "run"), output=str(tmp_path / "out.csv")))
    found, table = pd.read_csv(tmp_path / "out.csv"), make_payments()
    assert list(found)[:4] == ["source", "target", "id", "split"] and set(columns) <= set(found)
    assert (found[["source", "target"]] == table[["source", "target"]]).all(axis=None)
    assert (found.id == np.arange(1, 301)).all() and set(found.split) == {"train", "valid", "test"}


def save_payments(path, **changes):
    """Save the payments as a Data with a label for each edge, whose fifth ones are for the test."""
    table, number = make_payments(), torch.arange(300) % 5
    label, amount, day = (torch.tensor(table[name].tolist()) for name in ("fraud", "amount", "day"))
    index = torch.tensor([[int(name[1:]) for name in table[end]] for end in ("source", "target")])
    saved = {
        "x": torch.arange(40.0)[:, None] % 7,
        "edge_index": index,
        "edge_label": label,
        "edge_attr": amount,
        "train_mask": number < 3,
        "val_mask": number == 3,
        "test_mask": number == 4,
        "day": day,
    } | changes
    torch.save(Data(**saved), path)
    return [
        "task=edge",
        "data=file",
        f"data.path={path}",
        *(key for key in KEYS[2:] if not key.startswith("data.")),
    ]


@pytest.mark.parametrize(
    "keys", [[], ["data.split=random"], ["data.split=time", "data.edge_time=day"]]
)
def test_labels_of_edges_of_a_saved_graph_are_learned(keys, tmp_path):
    overrides = [*save_payments(tmp_path / "graph.pt"), f"cache_dir={tmp_path / 'cache'}", *keys]
    config, table = (
        cli.compose_config([*overrides, "train.epochs=1", "train.label_input=0"]),
        make_payments(),
    )
    data = open_graph(config).parts[0].data
    first, ends = data.types.nodes_of("edge").start, find_ends(data)
    assert [f"a{node}" for node in ends[:, 1]] == table.target.tolist() and data.y[
        first:, 0
    ].tolist() == table.fraud.tolist()
    assert torch.equal(senders(data), data.train_mask[first:])
    if keys:
        return
    assert torch.equal(data.train_mask[first:], torch.arange(300) % 5 < 3)
    summary = train(config, tmp_path / "run")
    assert evaluate(EvaluateConfig(run=str(tmp_path / "run")))["test"] == pytest.approx(
        summary["test"]
    )
    run = SavedRun(tmp_path / "run", config, settings(config))
    save_payments(tmp_path / "new.pt", edge_label=None)
    found = predicted(run, data=NewDataConfig(path=str(tmp_path / "new.pt")), output="out.csv")
    assert senders(found.setup.data).all() and found.rows[first:].isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_label": None}, "task=edge needs edge_label"),
        ({"edge_label": torch.zeros(7)}, "7 rows"),
        ({"train_mask": None}, "no train_mask of the edges"),
        ({"train_mask": torch.ones(40).bool()}, "for each of the 300"),
        (
            {
                "edge_index": torch.tensor([[0, 1, 2], [1, 0, 3]]),
                "edge_label": torch.tensor([1, 1, 0]),
                **{mask: torch.arange(3) == place for place, mask in enumerate(MASKS)},
            },
            "2 of 3 edges are there in both directions",
        ),
    ],
)
def test_wrong_labels_of_edges_of_a_saved_graph_are_refused(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        open_graph(
            cli.compose_config(
                [*save_payments(tmp_path / "graph.pt", **change), f"cache_dir={tmp_path}"]
            )
        )


def test_labels_of_one_table_of_a_schema_are_learned(folder, tmp_path):
    (tmp_path / "schema.yaml").write_text(
        "nodes: {account: {path: accounts.csv, id: account, features: [age]}, day: {}}\nedges:\n"
        "  pays: {path: payments.csv, source: account, target: account, features: [amount], label: fraud}\n"
        "  at: {path: payments.csv, source: account, target: {type: day, column: day}}\n"
    )
    config = cli.compose_config(
        [
            *(key for key in KEYS if not key.startswith("data.")),
            f"data.folder={folder}",
            "data=tables",
            f"data.schema={tmp_path / 'schema.yaml'}",
            f"cache_dir={folder / 'cache'}",
        ]
    )
    data = open_graph(config).parts[0].data
    assert data.types.names == ["account", "day", "pays"] and data.types.labelled == "pays"
    assert ("account", "at", "day") in data.types.relations and len(find_ends(data)) == 300


def test_new_edges_also_of_new_nodes_are_predicted_from_the_known_labels_of_the_others(
    folder, tmp_path
):
    config = cli.compose_config(
        [
            *KEYS,
            f"data.folder={folder}",
            f"cache_dir={folder / 'cache'}",
            "train.epochs=2",
            LABEL,
            "task.base=none",
        ]
    )
    train(config, tmp_path / "run")
    later = pd.DataFrame(
        {"source": ["a3", "a1"], "target": ["a1", "b0"], "amount": [10, 90], "channel": "web"}
    )
    both = pd.concat([make_payments().astype({"fraud": "Int64"}), later])
    write_payments(tmp_path, both)
    accounts = pd.read_csv(tmp_path / "accounts.csv")
    pd.concat([accounts, pd.DataFrame({"account": ["b0"], "age": [3]})]).to_csv(
        tmp_path / "accounts.csv", index=False
    )
    run, found = SavedRun(tmp_path / "run", config, settings(config)), {}
    for labels in ("none", "all"):
        new = NewDataConfig(folder=str(tmp_path), known_labels=labels)
        found[labels] = predicted(run, data=new, output="out.csv")
        own, data = found[labels].setup.data.types.nodes_of("edge"), found[labels].setup.data
        assert len(own) == 302 and [len(data.types.nodes_of("node"))] == [41]
        assert int(senders(data).sum()) == (302 if labels == "none" else 300)
    assert bool((found["none"].rows != found["all"].rows)[own.start :].any())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["data.edges.label=kind"],
            "data.edges.label=kind: .*payments.csv has no such column; there are source, ",
        ),
        (
            [],
            "task=edge needs labels of edges, and .*payments.csv has none, .* by data.edges.label",
        ),
        ([LABEL, "task=node"], "has labels of edges: set task=edge"),
        ([LABEL, "task=link"], "task=link reads no labels of edges"),
        (
            [LABEL, "data.edges.features=[fraud]"],
            "data.edges.features names fraud, which is the label",
        ),
        ([LABEL, "data.split=time"], "data.edges.time"),
        ([LABEL, "data.reverse_relations=false"], "reverse_relations"),
        ([LABEL, "data.components=largest"], "data.components"),
        (["data=digits"], "task=edge needs labels of edges, and data=digits has none"),
    ],
)
def test_wrong_keys_are_refused_in_one_line(overrides, message, folder):
    keys = [key for key in KEYS if not (overrides == ["data=digits"] and key.startswith("data"))]
    with pytest.raises(ValueError, match=message) as caught:
        config = cli.compose_config(
            [*keys, *([] if keys != KEYS else [f"data.folder={folder}"]), *overrides]
        )
        config.check()
        config.data.check()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda table: table.assign(fraud=np.where(np.arange(300) < 200, np.nan, table.fraud)),
            "train",
        ),
        (lambda table: table.assign(fraud=1), "one class"),
    ],
)
def test_labels_that_teach_nothing_are_refused(change, message, tmp_path):
    table = change(make_payments()).assign(split=np.repeat(["train", "valid", "test"], 100))
    write_payments(tmp_path, table)
    with pytest.raises(ValueError, match=message):
        opened(tmp_path, LABEL, "data.edges.split_column=split").task  # noqa: B018


def test_top_and_pairs_are_refused(folder, tmp_path):
    config = cli.compose_config(
        [*KEYS, f"data.folder={folder}", f"cache_dir={folder / 'cache'}", "train.epochs=1", LABEL]
    )
    run = SavedRun(tmp_path / "run", config, settings(config))
    for asked in ({"top": 3}, {"pairs": "pairs.csv"}):
        with pytest.raises(ValueError, match=f"{next(iter(asked))}=.*task=edge") as caught:
            predicted(run, output=str(tmp_path / "out.csv"), **asked)
        assert "\n" not in str(caught.value)
