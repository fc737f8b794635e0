"""Rows of a label table: each is predicted from what is earlier, by columns, messages and simple methods."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.data.tables import label_rows
from parallel_epochs.pipeline.data.tables.label_rows import summarise
from parallel_epochs.pipeline.gnn.base import folds, rows
from parallel_epochs.pipeline.gnn.base.fit import fit_base
from parallel_epochs.pipeline.gnn.base.inputs import Inputs
from parallel_epochs.pipeline.gnn.config import NewDataConfig
from parallel_epochs.pipeline.gnn.loaders.snapshots import (
    num_snapshots,
    rows_of,
    take_snapshot,
)
from parallel_epochs.pipeline.gnn.tasks import row as tasks_row
from parallel_epochs.pipeline.gnn.tasks.edge import find_ends
from parallel_epochs.pipeline.run.schedule import Share
from tests.helpers.building import EvaluateConfig, evaluate, open_graph, predict
from tests.helpers.purchases import (
    FUTURE,
    KEYS,
    TIMES,
    change_future,
    make_labels,
    make_orders,
    write_purchases,
)
from tests.helpers.running import finish, summary_of, train

pytest.importorskip("duckdb")
SAMPLING = [
    "loader=neighbor",
    "loader.batch_size=16",
    "loader.num_neighbors=[4,4]",
    "evaluation=neighbor",
]
CLUSTERS = [
    "partition=random",
    "partition.num_parts=3",
    "evaluation=views",
    "evaluation.num_views=2",
    "evaluation.num_parts=2",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("purchases")
    write_purchases(folder)
    return folder


def keys_of(folder, *overrides):
    files = [f"data.folder={folder}", f"data.schema={folder / 'schema.yaml'}"]
    return [*KEYS, *files, f"cache_dir={folder / 'cache'}", *overrides]


def opened(folder, *overrides):
    return open_graph(cli.compose_config(keys_of(folder, *overrides))).parts[0]


def run_of(folder, run, *overrides, **asked):
    """Train, and return the summary and the table of predictions."""
    summary = train(cli.compose_config(keys_of(folder, *overrides)), run)
    predict(EvaluateConfig(run=str(run), output=str(run / "out.csv"), **asked))
    return summary, pd.read_csv(run / "out.csv")


def test_rows_are_nodes_with_the_label_the_time_and_the_node_of_the_table(folder):
    data, table = opened(folder).data, make_labels(make_orders())
    own = data.types.nodes_of("label")
    assert (
        data.types.labelled == "label"
        and len(own) == len(table)
        and data.types.names[-1] == "label"
    )
    assert [f"u{node}" for node in find_ends(data)[:, 0].tolist()] == table.id.tolist()
    assert data.y[own.start :, 0].tolist() == table.label.tolist()
    for mask, times in zip(
        ("train_mask", "valid_mask", "test_mask"), (TIMES[:3], TIMES[3:4], TIMES[4:]), strict=True
    ):
        assert (data[mask][own.start :].numpy() == table.time.isin(times)).all() and not data[mask][
            : own.start
        ].any()


def test_other_data_do_not_tell_which_rows_are_about_new_nodes(folder, monkeypatch):
    monkeypatch.setattr(tasks_row, "FEWEST", 0)
    setup = opened(folder)
    every = torch.ones(setup.data.num_nodes, dtype=torch.bool)
    setup.task._is_new, rows = every, torch.arange(float(len(every)))[:, None]
    assert "rocauc_of_new" in setup.task.scores(None, rows)
    setup.data.split_names = ["old", "valid", "new"]
    assert "rocauc_of_new" not in setup.task.scores(None, rows)


def test_fractions_of_rows_have_their_borders_between_two_times(folder, tmp_path):
    keys = [
        "data.train_until=null",
        "data.valid_until=null",
        "data.train_fraction=0.45",
        "data.valid_fraction=0.25",
    ]
    data = opened(folder, *keys).data
    assert [int(data[mask].sum()) for mask in ("train_mask", "valid_mask", "test_mask")] == [
        60,
        30,
        60,
    ]
    labels = make_labels(make_orders())
    write_purchases(tmp_path, labels=labels[labels.time < 60])
    with pytest.raises(
        ValueError,
        match="rows with labels have 2 times, and training, validation and test need one",
    ):
        opened(tmp_path, *keys)


def test_a_snapshot_has_the_edges_from_before_its_time_and_no_message_from_a_row(folder):
    data, orders = opened(folder).data, make_orders()
    assert num_snapshots(data) == len(TIMES)
    for number, time in enumerate(TIMES):
        view = take_snapshot(data, number)
        src, dst = view.edge_index.as_tensor().long()
        relation = view.edge_attr[:, 0].long()
        names = [name for _, name, _ in view.types.relations]
        past = orders[orders.day < time].drop_duplicates(["user", "item"])
        found = {
            (f"u{s}", f"i{d - 30}")
            for s, d in zip(
                src[relation == names.index("orders")].tolist(),
                dst[relation == names.index("orders")].tolist(),
            )
        }
        assert found == set(zip(past.user, past.item)) and (src < 40).all()
        assert torch.equal(view.n_id[40:], rows_of(data, number)) and len(view.n_id) == 40 + 30
        assert torch.equal(view.n_id[src[dst >= 40]], find_ends(data)[:, 0][view.n_id[40:] - 40])
        assert (relation == names.index("label_source")).sum() == 0


def test_nodes_without_columns_get_neither_means_nor_degrees_which_would_count_later_edges(
    folder, tmp_path
):
    keys = keys_of(folder, f"cache_dir={tmp_path}")
    (tmp_path / "bare.yaml").write_text(
        (folder / "schema.yaml").read_text().replace(", features: [price]", "")
    )
    data = (
        open_graph(cli.compose_config([*keys, f"data.schema={tmp_path / 'bare.yaml'}"]))
        .parts[0]
        .data
    )
    assert (
        data.types.widths[1] == 0
        and not data.x[30:40, : data.types.widths[2]].any()
        and not data.types.degrees
    )


def test_fewer_snapshots_show_only_edges_from_before_the_earliest_of_their_times(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(label_rows, "MOST_SNAPSHOTS", 2)
    data, orders = opened(folder, f"cache_dir={tmp_path}").data, make_orders()
    assert num_snapshots(data) == 2
    first = set(zip(*take_snapshot(data, 0).edge_index.as_tensor().tolist()))
    assert len(rows_of(data, 0)) == 90 and sum(d < 40 for _, d in first) == 2 * len(
        orders[orders.day < TIMES[0]].drop_duplicates(["user", "item"])
    )


def test_summaries_are_those_counted_by_hand_and_later_events_change_no_bit_of_them():
    rng = np.random.default_rng(0)
    code, time, paid = rng.integers(0, 5, 200), rng.integers(0, 50, 200) * 1.0, rng.normal(size=200)
    paid[::7] = np.nan
    own, at = rng.integers(0, 6, 60), rng.integers(0, 60, 60) * 1.0
    found = summarise(
        pa.table({"code": code, "time": time, "v0": paid}), own, at, [10.0], time.min()
    )
    for row in range(60):
        past = (code == own[row]) & (time < at[row])
        near, order = past & (time >= at[row] - 10), np.argsort(time[past], kind="stable")
        expected = [past.sum(), near.sum()]
        if past.any():
            expected += [at[row] - time[past].max(), at[row] - time[past].min()]
            last = paid[past][order][time[past][order] == time[past].max()]
            assert found[5][row] in np.nan_to_num(last)
        else:
            expected += [at[row] - min(time.min(), at[row])] * 2
        expected += [past.sum() / (expected[-1] / 10 + 1)]
        np.testing.assert_allclose([column[row] for column in found[:5]], expected)
        own_events = np.flatnonzero(past)[np.lexsort((paid[past], time[past]))]
        for place, chosen in ((6, past), (8, near), (10, own_events[-3:]), (12, own_events[-10:])):
            known = paid[chosen][~np.isnan(paid[chosen])]
            np.testing.assert_allclose(
                [found[place][row], found[place + 1][row]],
                [known.sum(), known.mean() if len(known) else 0],
                atol=1e-12,
            )
    early = at <= 30
    more = {
        "code": np.append(code, [0, 3]),
        "time": np.append(time, [30, 41]),
        "v0": np.append(np.where(time >= 30, paid * 9, paid), [1e9, 7]),
    }
    other = summarise(pa.table(more), own, at, [10.0], time.min())
    assert all(np.array_equal(a[early], b[early]) for a, b in zip(found, other, strict=True))
    assert not np.array_equal(found[0], other[0])


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(["task.base=trees", "task.candidate=offset"], marks=pytest.mark.slow),
        ["task.base=linear", "task.candidate=inputs"],
        pytest.param(CLUSTERS, marks=pytest.mark.slow),
        pytest.param(SAMPLING, marks=pytest.mark.slow),
        pytest.param(["task.base=earlier", "task.candidate=network"], marks=pytest.mark.slow),
    ],
    ids=["trees", "linear", "clusters", "sampling", "labels"],
)
def test_no_path_reads_the_future_of_a_row(overrides, folder, tmp_path):
    """Other events and labels of the future change no bit of an earlier prediction, and change later ones."""
    (tmp_path / "other").mkdir()
    write_purchases(tmp_path / "other", *change_future(make_orders(), make_labels(make_orders())))
    found = [
        run_of(place, tmp_path / f"run{number}", *overrides)[1]
        for number, place in enumerate((folder, tmp_path / "other"))
    ]
    past = found[0].time <= FUTURE
    assert past.sum() == 120 and (found[0][["id", "time"]] == found[1][["id", "time"]]).all(
        axis=None
    )
    assert (found[0].probability_label[past] == found[1].probability_label[past]).all()
    reads_labels = "task.base=earlier" in overrides  # those of the training alone
    assert (
        found[0].probability_label[~past] != found[1].probability_label[~past]
    ).any() != reads_labels


def test_simple_methods_read_columns_of_the_past_and_labels_that_are_known_by_then(folder):
    setup, table = opened(folder), make_labels(make_orders())
    inputs = Inputs(setup.data, setup.task)
    assert (
        inputs.data.edge_index.as_tensor()[1] >= 40
    ).all()  # of rows alone: all others have times
    train, mean = table.time <= 60, table.label[table.time <= 60].mean()
    for which in ("last", "earlier"):
        found = rows.predict(
            inputs, {"which": which, "mean": torch.tensor([mean])}, setup.data.train_mask
        )
        for row in range(150):
            known = table[
                train & (table.id == table.id[row]) & (table.time + 20 <= table.time[row])
            ].label
            known = known[-1:] if which == "last" else known
            assert float(found[40 + row]) == pytest.approx(
                (known.sum() + mean) / (len(known) + 1), abs=1e-6
            )
    assert all(
        fit_base(setup.data, setup.task, name).scores["valid"] > 0.5
        for name in ("earlier", "linear")
    )


def test_rows_about_one_node_are_in_one_fold(folder):
    setup = opened(folder)
    inputs = Inputs(setup.data, setup.task)
    fold, first = folds.divide(inputs, 0), inputs.own.start
    rows = setup.data.train_mask.nonzero().squeeze(1)
    of_entity = pd.Series(fold[rows]).groupby(find_ends(setup.data)[rows - first, 0].numpy())
    assert (of_entity.nunique() == 1).all() and (of_entity.size() > 1).any()
    assert sorted(fold.unique().tolist()) == [-1, *range(folds.NUM_FOLDS)]


@pytest.fixture(scope="module")
def of_trees(folder):
    """The folder of a run whose network reads the scores of trees, its summary and its predictions."""
    run = folder / "run"
    return run, *run_of(folder, run, "task.base=trees", "task.candidate=inputs")


def ask(run, rows, scratch):
    """Predict the rows of a label table that has no labels."""
    rows.to_csv(scratch / "asked.csv", index=False)
    new = NewDataConfig(label_table=str(scratch / "asked.csv"))
    predict(EvaluateConfig(run=str(run), output=str(scratch / "new.csv"), data=new))
    return pd.read_csv(scratch / "new.csv")


def test_a_run_predicts_rows_without_labels_as_it_predicted_them_in_the_training(
    of_trees, tmp_path
):
    run, summary, own = of_trees
    assert evaluate(EvaluateConfig(run=str(run)))["test"] == pytest.approx(summary["test"])
    asked = make_labels(make_orders()).drop(columns="label")
    found = ask(run, asked[asked.time == 100], tmp_path)
    assert (
        list(found)[:3] == ["id", "time", "split"]
        and (found.split == "unknown").all()
        and len(found) == 30
    )
    then = own[own.time == 100].probability_label.to_numpy()
    assert found.probability_label.to_numpy() == pytest.approx(then, abs=1e-7, rel=0)
    with pytest.raises(ValueError, match="data.label_table=FILE"):
        predict(EvaluateConfig(run=str(run), output="o.csv", output_nodes="ids.csv"))


def test_the_prediction_of_a_row_does_not_depend_on_the_others_of_its_table(of_trees, tmp_path):
    """Not even where nothing has happened at its node yet."""
    orders, names = make_orders(), [f"u{number}" for number in range(30)]
    bare = next(name for name in names if not (orders[orders.day < 20].user == name).any())
    alone, together = (
        ask(of_trees[0], pd.DataFrame({"id": own, "time": 20}), tmp_path).set_index("id")
        for own in ([bare], names)
    )
    assert alone.probability_label[bare] == pytest.approx(
        together.probability_label[bare], abs=1e-6
    )


def test_rows_that_the_training_did_not_have_are_scored(folder, tmp_path):
    labels = make_labels(make_orders())
    write_purchases(tmp_path / "tables", labels=labels[labels.time < 100])
    train(
        cli.compose_config(
            keys_of(
                tmp_path / "tables",
                "data.train_until=40",
                "data.valid_until=60",
                "task.base=earlier",
                "task.candidate=inputs",
            )
        ),
        tmp_path / "run",
    )
    new = NewDataConfig(label_table=str(folder / "labels.csv"), known_labels="old")
    scores = evaluate(
        EvaluateConfig(run=str(tmp_path / "run"), output=str(tmp_path / "new.csv"), data=new)
    )
    found = pd.read_csv(tmp_path / "new.csv").merge(labels, on=["id", "time"])
    assert (found[found.split == "new"].time == 100).all() and (found.split == "new").sum() == 30
    better = found[found.split == "new"]
    pairs = np.sign(
        better.probability_label[better.label == 1].to_numpy()[:, None]
        - better.probability_label[better.label == 0].to_numpy()
    )
    assert scores["new"] == pytest.approx((pairs + 1).mean() / 2, abs=1e-4) and set(scores) == {
        "old",
        "new",
    }


def test_without_a_span_no_label_is_known_to_others(folder):
    setup = opened(folder, "data.rows.within=null")
    assert bool(setup.data.row_times[1].isinf().all())
    with pytest.raises(ValueError, match="task.base=earlier is no simple method for this data"):
        fit_base(setup.data, setup.task, "earlier")


def test_the_metric_of_rows_about_new_nodes_stands_beside_that_of_all(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(tasks_row, "FEWEST", 15)
    labels = make_labels(make_orders())
    labels = labels[(labels.time > 60) | (labels.id.str[1:].astype(int) % 2 == 0)]
    write_purchases(tmp_path / "tables", labels=labels)
    summary, table = run_of(tmp_path / "tables", tmp_path / "run")
    assert {"rocauc_of_new@valid", "rocauc_of_new"} <= set(summary["scores"])
    new = table[(table.time == 80) & (table.id.str[1:].astype(int) % 2 == 1)].merge(
        labels, on=["id", "time"]
    )
    scores = new.probability_label.to_numpy()
    better = np.sign(scores[new.label == 1][:, None] - scores[new.label == 0])
    assert summary["scores"]["rocauc_of_new@valid"] == pytest.approx(
        (better + 1).mean() / 2, abs=1e-4
    )


@pytest.mark.parametrize(
    "overrides", [SAMPLING, CLUSTERS, ["partition=metis", "partition.num_parts=2"]]
)
def test_batches_have_each_training_row_once_with_the_node_that_it_asks_about(overrides, folder):
    setup = opened(folder, *overrides)
    data, seen = setup.data, torch.zeros(setup.data.num_nodes)
    batches = list(setup.loader.batches(0, Share()))
    assert len(batches) == setup.loader.num_batches
    for batch in batches:
        learned = batch.train_mask & batch.target
        seen[batch.n_id[learned]] += 1
        assert torch.equal(batch.y.nan_to_num(), data.y[batch.n_id].nan_to_num())
        assert torch.equal(batch.x, data.x[batch.n_id])
        src, dst = batch.edge_index.as_tensor()
        ends = {int(batch.n_id[d]): int(batch.n_id[s]) for s, d in zip(src, dst) if learned[d]}
        assert all(find_ends(data)[:, 0][row - 40] == node for row, node in ends.items())
        assert len(ends) == int(learned.sum())
    assert torch.equal(seen > 0, data.train_mask) and seen.max() == 1
    for stride in (2, 3):
        parts = [
            list(setup.loader.batches(0, Share(first=first, stride=stride)))
            for first in range(stride)
        ]
        assert sum(map(len, parts)) == len(batches)
        assert all(
            torch.equal(part.n_id, batches[first + place * stride].n_id)
            for first, own in enumerate(parts)
            for place, part in enumerate(own)
        )


def test_the_labels_of_a_graph_with_one_type_of_nodes_have_times(tmp_path):
    orders = make_orders().assign(item=lambda table: "u" + table.item.str[1:])
    orders.to_csv(tmp_path / "orders.csv", index=False)
    make_labels(orders).to_csv(tmp_path / "labels.csv", index=False)
    keys = [
        "data=tables",
        f"data.folder={tmp_path}",
        "data.edges.path=orders.csv",
        "data.edges.source=user",
        "data.edges.target=item",
        "data.edges.time=day",
        "data.edges.features=[paid]",
        "partition=whole",
        "model.num_layers=2",
        "model.hidden_channels=8",
        "train.epochs=1",
        "task.base=none",
        "data.label_table=labels.csv",
        "data.rows.within=20",
        f"cache_dir={tmp_path / 'cache'}",
    ]
    assert np.isfinite(train(cli.compose_config(keys), tmp_path / "run")["best_valid"])
    asked = pd.DataFrame({"id": ["u1", "u2"], "time": 120})
    assert ask(tmp_path / "run", asked, tmp_path).id.tolist() == ["u1", "u2"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda table: pd.concat([table, table[:1].assign(label=1 - table.label[0])]),
            "'u0' at 20 has two labels, 0 and",
        ),
        (
            lambda table: table.assign(id=table.id.where(table.index != 3, "gone")),
            "row 4 asks about 'gone', .* type user",
        ),
        (
            lambda table: table.assign(id=table.id.where(table.index != 3)),
            "row 4, column id is empty",
        ),
        (
            lambda table: table.assign(
                time=table.time.astype(object).where(table.index != 3, "soon")
            ),
            "row 4, column time",
        ),
        (
            lambda table: table.assign(time="2024-01-01")[:30],
            "its times are dates, and those of .*orders.csv are numbers",
        ),
        (lambda table: table[:0], "holds no rows"),
        (lambda table: table.assign(time=table.time + 900), "train_until"),
        (lambda table: table[table.time <= 60], "after data.train_until"),
        (lambda table: table.drop(columns="time"), "no such column; there are id, label"),
    ],
)
def test_wrong_label_tables_are_refused_in_one_line(change, message, folder, tmp_path):
    write_purchases(tmp_path, labels=change(make_labels(make_orders())))
    with pytest.raises(ValueError, match=message) as caught:
        opened(tmp_path).task  # noqa: B018
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.label_table=none.csv"], "none.csv does not exist"),
        (["data.split=random"], "data.split=random"),
        (["task=link"], "task=link reads no labels"),
        (["task=edge"], "task=edge needs labels of edges"),
        (["data.on_disk=true"], "data.on_disk=true"),
        (["data.time_column=since"], "data.time_column=since"),
        (["data.rows.type=null"], "data.rows.type=null must name .* one of user, item"),
        (["data.rows.within=soon"], "data.rows.within=soon is no span"),
        (["data.rows.within=20d"], "times that are numbers"),
        (["data.reverse_relations=false"], "reverse_relations"),
        (["train.label_input=0.5"], "train.label_input"),
        (["data.components=largest"], "data.components=largest"),
        (["task.type=user"], "task.type=user"),
    ],
)
def test_wrong_keys_are_refused_in_one_line(overrides, message, folder):
    with pytest.raises(ValueError, match=message) as caught:
        config = cli.compose_config(keys_of(folder, *overrides))
        config.check()
        open_graph(config)
    assert "\n" not in str(caught.value)


def test_labels_that_look_beyond_the_last_event_are_reported(folder, tmp_path, caplog):
    opened(folder, f"cache_dir={tmp_path}")
    opened(folder, f"cache_dir={tmp_path}", "data.rows.within=15")
    assert [
        line.message for line in caplog.records if "later than the last event" in line.message
    ] == [
        f"{folder}/labels.csv: the 20 of 30 rows with a label end later than the last event. If events are still to "
        "come, leave these rows out: their labels may be too low"
    ] and make_orders().day.max() in range(115, 120)


def test_training_labels_that_tell_of_the_time_of_validation_are_reported(folder, tmp_path, caplog):
    opened(folder, f"cache_dir={tmp_path}")
    opened(folder, f"cache_dir={tmp_path}", "data.rows.within=21")
    assert [line.message for line in caplog.records if "first validation row" in line.message] == [
        "the 21 of 30 training rows end later than the first validation row, so that their labels tell of its time. "
        "Leave out the rows between data.train_until and the first validation row"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["epochs", "split"])
def test_two_ranks_train_and_predict_rows(parallel, folder, tmp_path):
    overrides = [*keys_of(folder), "parallel.num_ranks=2", f"parallel={parallel}", *CLUSTERS]
    status, output = finish(overrides, tmp_path / "run", folder / "cache")
    assert status == 0, output
    assert (
        np.isfinite(summary_of(tmp_path / "run")["test"])
        and summary_of(tmp_path / "run")["num_ranks"] == 2
    )
