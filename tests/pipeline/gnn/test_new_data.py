"""A trained model on other data than those of its training."""

import copy
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.config import settings
from parallel_epochs.pipeline.data.learned import PREPROCESSING as FILE
from parallel_epochs.pipeline.gnn.config import NewDataConfig
from parallel_epochs.pipeline.gnn.predict import new_data
from parallel_epochs.pipeline.run.checkpoint import load
from parallel_epochs.pipeline.run.saved import SavedRun
from tests.helpers.building import EvaluateConfig, evaluate, predicted
from tests.helpers.running import rounds_of, train

SMALL = [
    "data=file",
    "model.num_layers=2",
    "model.hidden_channels=8",
    "train.epochs=2",
    "train.patience=0",
    "partition.num_parts=2",
    "task.base=none",
]


def graph(
    num_nodes=60, num_edges=400, seed=0, *, x=4, edges=2, kind="classes", species=0, masks=True
) -> Data:
    g = torch.Generator().manual_seed(seed)
    data = Data(
        edge_index=torch.randint(num_nodes, (2, num_edges), generator=g), num_nodes=num_nodes
    )
    if x:
        data.x = torch.randn(num_nodes, x, generator=g)
    if edges:
        data.edge_attr = torch.rand(num_edges, edges, generator=g)
    if species:
        data.species = torch.randint(species, (num_nodes,), generator=g)
    if masks:
        place = torch.rand(num_nodes, generator=g)
        data.train_mask, data.val_mask, data.test_mask = (
            place < 0.5,
            (place >= 0.5) & (place < 0.75),
            place >= 0.75,
        )
        data.y = {
            "classes": torch.randint(3, (num_nodes,), generator=g),
            "values": 10 + 3 * torch.randn(num_nodes, generator=g),
            "tasks": (torch.rand(num_nodes, 2, generator=g) < 0.5).float(),
        }[kind]
        data.metric = {"classes": "acc", "values": "rmse", "tasks": "rocauc"}[kind]
    return data


def trained(tmp_path, data, *overrides) -> SavedRun:
    path = tmp_path / "graph.pt"
    tmp_path.mkdir(exist_ok=True)
    torch.save(data.to_dict(), path)
    config = cli.compose_config(
        [*SMALL, f"data.path={path}", f"cache_dir={tmp_path / 'cache'}", *overrides]
    )
    train(config, tmp_path / "run")
    return SavedRun(tmp_path / "run", config, settings(config))


def predict(run, new=None, folder=None, **asked) -> torch.Tensor:
    """The logits of the run's own data, or of other data."""
    data = NewDataConfig(None if new is None else str(new), None if folder is None else str(folder))
    restored = predicted(run, data=data, **asked)
    return restored.setup.kind.tensors(restored)


def logits(run, new=None, **options) -> torch.Tensor:
    found = predict(run, new, **options)
    return found["logits" if "logits" in found else "values"]


CASES = {
    "features": (dict(), []),
    "logarithms of sums": (dict(x=0), ["data.node_features=log_sum"]),
    "labels as inputs": (dict(kind="tasks"), ["train.label_input=0.5"]),
    "weights of classes": (
        dict(),
        ["task.class_weights=balanced"],
    ),
    "sampled": (dict(), ["evaluation=neighbor", "loader.num_neighbors=[5,5]"]),
    "METIS, undirected": (dict(), ["partition=metis", "data.to_undirected=true"]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_training_graph_as_new_data_gives_the_same_bits(name, tmp_path):
    options, overrides = CASES[name]
    data = graph(**options)
    run = trained(tmp_path, data, *overrides)
    again = tmp_path / "again.pt"
    torch.save(data.to_dict(), again)
    assert torch.equal(logits(run), logits(run, again))
    if not {"train.label_input=0.5"} & set(overrides):
        for key in (
            "y",
            "train_mask",
            "val_mask",
            "test_mask",
            "metric",
        ):  # which new data need not have
            del data[key]
        torch.save(data.to_dict(), again)
        assert torch.equal(logits(run), logits(run, again))


def test_what_is_added_later_changes_nothing_elsewhere(tmp_path):
    """Means and deviations are those of the training: nodes that new ones do not touch keep their predictions."""
    options, overrides = CASES["logarithms of sums"]
    old = graph(**options)
    run = trained(tmp_path, old, *overrides, "evaluation=exact")
    added = graph(20, 90, seed=1, **options, masks=False)
    whole = Data(
        edge_index=torch.cat([old.edge_index, added.edge_index + 60], 1),
        num_nodes=80,
        **{
            key: torch.cat([old[key], 5 * added[key] if key != "species" else added[key]])
            for key in ("x", "edge_attr", "species")
            if key in old
        },
    )
    torch.save(whole, tmp_path / "whole.pt")
    found = logits(run, tmp_path / "whole.pt")
    assert found.shape == (80, 3)
    torch.testing.assert_close(found[:60], logits(run), rtol=1e-5, atol=1e-6)


def test_other_molecules_and_other_graphs(tmp_path):
    pytest.importorskip("rdkit")
    rows = [
        ("CCO", 0, "train"),
        ("CCN", 1, "train"),
        ("c1ccccc1O", 1, "valid"),
        ("CC(=O)O", 0, "test"),
        ("CCCl", 1, "valid"),
        ("CCBr", 0, "test"),
        ("CNC", 1, "train"),
        ("COC", 0, "train"),
    ]
    table = tmp_path / "molecules.csv"
    table.write_text(
        "smiles,y,split\n" + "".join(f"{smiles},{y},{split}\n" for smiles, y, split in rows)
    )
    options = [
        "task=graph",
        "loader=graph",
        "evaluation=exact",
        "model.num_layers=2",
        "model.hidden_channels=8",
        "train.epochs=1",
        "train.ema=0",
        "train.warmup_steps=0",
        f"cache_dir={tmp_path / 'cache'}",
        "train.patience=0",
        "model.norm=batch",
        "task.base=none",
    ]
    config = cli.compose_config(["data=smiles", f"data.path={table}", *options])
    train(config, tmp_path / "run")
    run = SavedRun(tmp_path / "run", config, settings(config))
    new = tmp_path / "new.csv"
    new.write_text("smiles\n" + "".join(f"{smiles}\n" for smiles, *_ in rows[4:]))
    torch.testing.assert_close(logits(run, new), logits(run)[4:], rtol=1e-5, atol=1e-6)

    for name in ("graphs", "others"):
        (tmp_path / name).mkdir()
        for number in range(6):
            one = graph(10, 30, seed=number, masks=False)
            one.y = torch.tensor([number % 2]) if name == "graphs" else None
            torch.save(one.to_dict(), tmp_path / name / f"{number}.pt")
    config = cli.compose_config(
        ["data=graph_files", f"data.folder={tmp_path / 'graphs'}", *options]
    )
    train(config, tmp_path / "files")
    run = SavedRun(tmp_path / "files", config, settings(config))
    torch.testing.assert_close(
        logits(run, folder=tmp_path / "others"), logits(run), rtol=1e-5, atol=1e-6
    )


def test_links_of_other_graphs(tmp_path):
    data = graph(masks=False)
    run = trained(
        tmp_path,
        data,
        "task=link",
        "evaluation=exact",
        "data.train_fraction=0.9",
        "data.valid_fraction=0.05",
    )
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("source,target\n0,1\n5,9\n")
    torch.save(graph(30, 200, seed=2, masks=False), tmp_path / "new.pt")
    found = predict(run, tmp_path / "new.pt", pairs=str(pairs), predictions="unused")
    assert found["logits"].shape == (2,) and found["embeddings"].shape[0] == 30
    with pytest.raises(
        ValueError, match="other data have no pairs to predict: name them by pairs=FILE"
    ):
        predict(run, tmp_path / "new.pt", predictions="unused")


@pytest.mark.parametrize(
    "change, message",
    [
        (
            dict(x=3),
            "new.pt: the features of the nodes have 3 columns, and the model was trained on 4",
        ),
        (dict(x=0), "new.pt: there is no x, and the model reads features of nodes. Give them as x"),
        (
            dict(edges=0),
            "new.pt: the features of the edges have no columns, and the model was trained on 2",
        ),
        (
            dict(edges=3),
            "new.pt: the features of the edges have 3 columns, and the model was trained on 2",
        ),
        (dict(species=3), "new.pt: a node has species 2, and the model knows 0, counted from 0"),
    ],
)
def test_data_of_another_kind_are_refused(change, message, a_run, tmp_path):
    torch.save(graph(20, 60, masks=False, **change), tmp_path / "new.pt")
    with pytest.raises(ValueError, match=message):
        predict(a_run, tmp_path / "new.pt")


def test_nan_is_refused(a_run, tmp_path):
    data = graph(masks=False)
    data.x[3, 1] = float("nan")
    torch.save(data, tmp_path / "new.pt")
    with pytest.raises(ValueError, match="x is not finite: row 3, column 1 holds nan"):
        predict(a_run, tmp_path / "new.pt")


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(folder="other"), "was trained on data=file. Name other data by data.path"),
        (dict(new="none.pt"), "data.path=none.pt does not exist"),
    ],
)
def test_keys_that_do_not_fit_the_run_are_refused(given, message, a_run):
    with pytest.raises(ValueError, match=message):
        predict(a_run, **given)


def test_the_last_checkpoint_is_predicted_by_the_views_of_its_last_evaluation(tmp_path):
    run = trained(
        tmp_path,
        graph(kind="values"),
        "evaluation=views",
        "evaluation.num_views=1",
        "train.epochs=3",
    )
    found = evaluate(EvaluateConfig(str(run.folder), checkpoint="last", device="cpu"))
    assert found["valid"] == pytest.approx(rounds_of(run.folder)[-1]["valid"])
    run = SavedRun(run.folder, run.config, run.settings, "last")
    assert torch.equal(logits(run), logits(run, tmp_path / "graph.pt"))


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["features=embedding"], "features of the nodes of its training"),
        (["data.components=largest"], "a part of its"),
    ],
)
def test_runs_that_cannot_predict_other_data_say_why(overrides, message, a_run):
    config = cli.compose_config([*SMALL, f"data.path={a_run.config.data.path}", *overrides])
    run = SavedRun(a_run.folder, config, settings(config))
    with pytest.raises(
        ValueError, match=f"data.path=new.pt: .* cannot predict other data: .*{message}"
    ):
        predict(run, "new.pt")
    with pytest.raises(
        ValueError, match=f"export=model.pe: .* cannot predict other data: .*{message}"
    ):
        new_data.export(run, Path("model.pe"))


def test_a_small_graph_needs_no_partition(tmp_path):
    run = trained(
        tmp_path,
        graph(),
        "partition.num_parts=30",
        "evaluation=views",
        "evaluation.num_parts=20",
    )
    torch.save(graph(8, 20, seed=1, masks=False), tmp_path / "new.pt")
    assert logits(run, tmp_path / "new.pt").shape == (8, 3)


def test_a_directed_graph_needs_no_metis(tmp_path):
    data = graph()
    data.edge_index = torch.cat([data.edge_index, data.edge_index.flip(0)], 1)
    data.edge_attr = data.edge_attr.repeat(2, 1)
    run = trained(tmp_path, data, "partition=metis", "evaluation=exact")
    torch.save(graph(30, 90, seed=1, masks=False), tmp_path / "new.pt")
    assert logits(run, tmp_path / "new.pt").shape == (30, 3)


def test_a_graph_without_edges(a_run, tmp_path):
    torch.save(graph(5, 0, masks=False), tmp_path / "new.pt")
    assert logits(a_run, tmp_path / "new.pt").isfinite().all()


def test_what_was_learned_of_other_data_is_not_used(tmp_path):
    """A run cannot be resumed on other data, and its file stays as it was; a file from elsewhere is refused."""
    run = trained(tmp_path, graph(x=0))
    kept = (tmp_path / "run" / FILE).read_bytes()
    torch.save(graph(x=0, seed=5).to_dict(), tmp_path / "graph.pt")
    with pytest.raises(
        ValueError, match="the dataset is not the one that this run was started with"
    ):
        train(run.config, tmp_path / "run")
    assert (tmp_path / "run" / FILE).read_bytes() == kept
    other = trained(tmp_path / "other", graph(x=0, seed=5))
    (tmp_path / "other" / "run" / FILE).write_bytes(kept)
    with pytest.raises(ValueError, match="the dataset is not the one"):
        predict(other, tmp_path / "graph.pt")


@pytest.mark.parametrize("checkpoint", ["best", "last"])
def test_every_checkpoint_can_be_shared(checkpoint, tmp_path):
    run = trained(tmp_path, graph())
    run = SavedRun(run.folder, run.config, run.settings, checkpoint)
    new_data.export(run, tmp_path / "model.pe")
    content = load(tmp_path / "model.pe")
    assert (
        set(content["state"]) == {"model", "round", "epoch"}
        and str(tmp_path) not in content["config"]
    )
    config, shared = cli.load_run(tmp_path / "model.pe", trusts=False)
    opened = SavedRun(tmp_path / "model.pe", config, {}, "last", shared=shared)
    assert torch.equal(logits(opened, tmp_path / "graph.pt"), logits(run))


def test_a_damaged_file_is_named(a_run, tmp_path):
    run = copy.copy(a_run)
    object.__setattr__(run, "folder", tmp_path)
    (tmp_path / "checkpoints").symlink_to(a_run.folder / "checkpoints")
    (tmp_path / FILE).write_bytes(b"nothing")
    torch.save(graph(masks=False), tmp_path / "new.pt")
    with pytest.raises(ValueError, match=FILE):
        predict(run, tmp_path / "new.pt")


@pytest.fixture(scope="module")
def a_run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("trained"), graph())
