"""`predict top=K` as a user asks it: the likeliest targets of users, with their ids, of tables plain and typed."""

import numpy as np
import pandas as pd
import pytest
import torch

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.gnn.config import (
    GNNPredictConfig,
    NewDataConfig,
    NewTableConfig,
)
from parallel_epochs.pipeline.gnn.predict import top
from parallel_epochs.pipeline.names import PAIRS
from parallel_epochs.pipeline.run import checkpoint
from tests.helpers import building as restore
from tests.helpers.graphs import random_graph
from tests.helpers.running import train
from tests.helpers.typed_graphs import write_typed_tables

SMALL = [
    "task=link",
    "partition=whole",
    "model.num_layers=2",
    "model.hidden_channels=8",
    "train.epochs=2",
    "task.predictor=bilinear",
    "task.metric=ndcg@5",
]


@pytest.fixture(scope="module")
def bought(tmp_path_factory):
    """A run on a table of who bought what, 20 users and 12 items, and the table; nothing may change them."""
    folder = tmp_path_factory.mktemp("bought")
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "source": [f"u{number}" for number in rng.integers(20, size=110)],
            "target": [f"a{number}" for number in rng.integers(12, size=110)],
        }
    ).drop_duplicates()
    table.to_csv(folder / "bought.csv", index=False)
    train(
        cli.compose_config(
            [
                *SMALL,
                "data=tables",
                f"data.edges.path={folder / 'bought.csv'}",
                f"cache_dir={folder / 'cache'}",
            ]
        ),
        folder / "run",
    )
    return folder / "run", table


def ask(run, output, **asked) -> pd.DataFrame:
    """Ask a run for the likeliest targets."""
    restore.predict(
        restore.EvaluateConfig(
            run=str(run), device="cpu", output=str(output), overwrite=True, **asked
        )
    )
    return pd.read_csv(output)


def test_candidates_without_a_link_are_counted(caplog):
    data = random_graph(30, 25, 3)
    data.update({key: torch.empty(0, 2, dtype=torch.int64) for key in PAIRS})
    num_alone = 30 - len(data.edge_index.unique())
    asked = GNNPredictConfig(run="run", top=2)
    top.find(top.Asked(None, None), top.links_of(data), np.arange(30).astype(str), asked)
    assert f"{num_alone} of 30 candidates have no link here" in caplog.text and num_alone


def test_other_links_have_no_score(bought, tmp_path):
    run, table = bought
    new = NewDataConfig(edges=NewTableConfig(path=_write(tmp_path / "new.csv", table)))
    with pytest.raises(ValueError, match=r"^other data have no test split\. predict writes"):
        restore.evaluate(restore.EvaluateConfig(run=str(run), device="cpu", data=new))


def test_users_get_items_that_they_do_not_have(bought, tmp_path):
    run, table = bought
    found, has = ask(run, tmp_path / "top.csv", top=4), {*table.itertuples(index=False, name=None)}
    assert list(found) == ["source", "target", "score", "rank"]
    assert set(found["source"]) == set(
        table["source"]
    )  # not the items, which have the smaller numbers
    assert not has & {*found[["source", "target"]].itertuples(index=False, name=None)}
    for source, own in found.groupby("source"):
        free = 12 - sum(user == source for user, _ in has)
        assert (
            own["rank"].tolist() == [*range(1, min(4, free) + 1)]
            and own["score"].is_monotonic_decreasing
        )
    everything = ask(run, tmp_path / "top.csv", top=100, filtered=False)
    assert len(everything) == 20 * 12
    scores = ask(run, tmp_path / "pairs.csv", pairs=_write(tmp_path / "asked.csv", everything))
    assert np.allclose(scores["score"], everything["score"], atol=1e-6)


def _write(path, table: pd.DataFrame) -> str:
    table.to_csv(path, index=False)
    return str(path)


def test_sources_keep_their_order_and_may_be_of_the_other_side(bought, tmp_path):
    run, _ = bought
    asked = _write(tmp_path / "asked.csv", pd.DataFrame({"id": ["a3", "u4", "a1"]}))
    found = ask(run, tmp_path / "top.csv", top=2, output_nodes=asked)
    assert found["source"].tolist() == ["a3", "a3", "u4", "u4", "a1", "a1"]
    assert found["target"].str[0].tolist() == ["u", "u", "a", "a", "u", "u"]
    few = _write(tmp_path / "few.csv", pd.DataFrame({"id": ["a7", "a2"]}))
    found = ask(run, tmp_path / "top.csv", top=9, candidates=few, filtered=False)
    assert set(found["target"]) == {"a7", "a2"} and len(found) == 40


@pytest.mark.parametrize(
    "asked, error",
    [
        (
            dict(top=2, pairs="asked.csv"),
            "pairs=asked.csv does not go with top=2, which writes a table of the likeliest",
        ),
        (dict(top=2, embeddings=True), "embeddings=True does not go with top=2"),
        (
            dict(top=2, calibrate=True),
            "calibrate=true is for classes and binary tasks, and .* has task=link",
        ),
        (
            dict(top=2, output_nodes="strange.csv"),
            "output_nodes=strange.csv: no node has the id 'nobody' of row 1",
        ),
        (
            dict(top=2, candidates="strange.csv"),
            "candidates=strange.csv: no node has the id 'nobody' of row 1",
        ),
        (dict(top=2, candidates="empty.csv"), "candidates=empty.csv has a header, but no rows"),
        (
            dict(candidates="x.csv"),
            "candidates=x.csv is for the likeliest targets of each source. Give top=K",
        ),
        (
            dict(top=2, candidates="users.csv", output_nodes="users.csv"),
            "candidates=users.csv names no node that can be a target of the 1 source, which",
        ),
    ],
)
def test_questions_that_do_not_fit_are_refused(asked, error, bought, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, id in (("strange", "nobody"), ("users", "u1")):
        _write(tmp_path / f"{name}.csv", pd.DataFrame({"id": [id]}))
    (tmp_path / "empty.csv").write_text("id\n")
    with pytest.raises(ValueError, match=error):
        ask(bought[0], tmp_path / "top.csv", **asked)


def test_a_relation_has_targets_of_its_type(tmp_path):
    """Users and items have the same ids here."""
    overrides = write_typed_tables(tmp_path)
    train(
        cli.compose_config(
            [*SMALL, *overrides, "task.relation=buys", f"cache_dir={tmp_path / 'cache'}"]
        ),
        tmp_path / "run",
    )
    links = {
        *pd.read_csv(tmp_path / "buys.csv")[["source", "target"]].itertuples(index=False, name=None)
    }
    found = ask(tmp_path / "run", tmp_path / "top.csv", top=100)
    pairs = {*found[["source", "target"]].itertuples(index=False, name=None)}
    assert pairs == {(source, target) for source in range(40) for target in range(30)} - links


def test_new_tables_are_ranked_without_the_links_that_they_have(bought, tmp_path):
    run, _ = bought
    new = pd.DataFrame({"source": ["x", "x", "y"], "target": ["p", "q", "q"]})
    data = NewDataConfig(edges=NewTableConfig(path=_write(tmp_path / "new.csv", new)))
    found = ask(run, tmp_path / "top.csv", top=5, data=data)
    assert found[["source", "target"]].to_numpy().tolist() == [["y", "p"]]


def test_a_user_and_an_item_may_have_the_same_id(tmp_path):
    """The experiment recommends from ids that both columns have; new tables, while the network has no part in it."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"user": rng.integers(1, 21, 150), "item": rng.integers(1, 13, 150)}
    ).drop_duplicates()
    overrides = [
        "+experiment=recommend",
        f"data.edges.path={_write(tmp_path / 'bought.csv', table)}",
        "data.edges.source=user",
        "data.edges.target=item",
        f"cache_dir={tmp_path / 'cache'}",
        "train.epochs=1",
        "train.eval_every=1",
        "model.hidden_channels=8",
        "features.channels=8",
    ]
    summary = train(cli.compose_config(overrides), tmp_path / "run")
    assert summary["answer"]["share"] == 1
    has = {*table.itertuples(index=False, name=None)}
    found = ask(tmp_path / "run", tmp_path / "top.csv", top=12)
    assert {*found[["source", "target"]].itertuples(index=False, name=None)} == {
        (user, item) for user in range(1, 21) for item in range(1, 13)
    } - has
    with pytest.raises(
        ValueError,
        match="no node has the id '21' of row 1; the 12 nodes of the type of the targets",
    ):
        ask(
            tmp_path / "run",
            tmp_path / "top.csv",
            top=12,
            candidates=_write(tmp_path / "ids.csv", pd.DataFrame({"id": [21]})),
        )
    pairs = pd.DataFrame({"source": [3, 20], "target": [3, 12]})
    scored = ask(
        tmp_path / "run", tmp_path / "pairs.csv", pairs=_write(tmp_path / "asked.csv", pairs)
    )
    assert scored["score"].between(0, 1).all() and scored[["source", "target"]].equals(pairs)
    new = pd.DataFrame({"user": [1, 1, 2, 77], "item": [5, 6, 6, 6]})
    data = NewDataConfig(edges=NewTableConfig(path=_write(tmp_path / "new.csv", new)))
    found = ask(tmp_path / "run", tmp_path / "new_top.csv", top=2, data=data)
    assert found[["source", "target"]].to_numpy().tolist() == [[2, 5], [77, 5]]
    checkpoint.save(
        base := tmp_path / "run" / "base.pt", dict(checkpoint.load(base)) | {"share": 0.9}
    )
    with pytest.raises(
        ValueError, match="cannot predict other data: its model learned features of the nodes"
    ):
        ask(tmp_path / "run", tmp_path / "new_top.csv", top=2, data=data)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["data.edges.target=user"], "data.edges.source=user is data.edges.target too"),
        (
            ["data.nodes.path=bought.csv"],
            "data.nodes.path=bought.csv .* does not fit data.schema or data.edges.bipartite=true",
        ),
    ],
)
def test_two_types_of_nodes_do_not_go_with_keys_of_one(overrides, message, tmp_path):
    pd.DataFrame({"user": [1, 2], "item": [1, 2]}).to_csv(tmp_path / "bought.csv", index=False)
    config = cli.compose_config(
        [
            "+experiment=recommend",
            f"data.folder={tmp_path}",
            "data.edges.path=bought.csv",
            "data.edges.source=user",
            "data.edges.target=item",
            *overrides,
        ]
    )
    with pytest.raises(
        ValueError,
        match=message,
    ):
        config.data.check()
