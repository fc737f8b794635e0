"""Many graphs of the user's own: folders of files and tables of molecules, read in parallel."""

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from parallel_epochs.pipeline.data.cache import load, read
from parallel_epochs.pipeline.data.config import GraphFilesConfig, SmilesConfig
from parallel_epochs.pipeline.data.readers import graph_files
from parallel_epochs.pipeline.data.readers.many import read_in_parallel
from tests.helpers import building
from tests.helpers.kill_runs import is_alive
from tests.helpers.reading import refuse, tell
from tests.helpers.running import train

pytestmark = pytest.mark.usefixtures("importable")
TABLE = (
    "smiles,active,size,split\nCCO,1,3,train\nc1ccccc1,0,6,train\nCC(=O)[O-],,4,valid\nN,1,1,test\n"
)
RUN = [
    "task=graph",
    "loader=graph",
    "evaluation=exact",
    "model.num_layers=2",
    "model.hidden_channels=8",
    "train.epochs=2",
]


def graph(number: int, **changed) -> Data:
    """A cycle of `number` + 2 nodes whose features tell the graph's number."""
    nodes = torch.arange(number + 2)
    edges = torch.stack([nodes, nodes.roll(1)])
    return Data(
        **{
            "x": torch.full((len(nodes), 2), float(number)),
            "edge_index": edges,
            "edge_attr": torch.arange(len(nodes)) / 10,
            "y": torch.tensor([number % 2]),
            **changed,
        }
    )


@pytest.fixture
def folder(tmp_path):
    """Twelve graphs, of which names in the order of the alphabet would put the eleventh before the third."""
    folder = tmp_path / "graphs"
    folder.mkdir()
    for number in range(12):
        torch.save(graph(number), folder / f"graph_{number}.pt")
    return folder


def test_a_folder_becomes_a_union(folder, tmp_path):
    (folder / "notes.txt").write_text("not a graph")
    data = load(GraphFilesConfig(folder=str(folder)), tmp_path / "cache")
    assert data.ptr.tolist() == np.cumsum([0, *range(2, 14)]).tolist()
    assert data.x[:, 0].tolist() == [float(n) for n in range(12) for _ in range(n + 2)]
    assert data.y.flatten().tolist() == [n % 2 for n in range(12)] and data.metric == "rocauc"
    edges = data.edge_index.as_tensor()
    assert (
        bool(((edges[0] - edges[1] == 1) | (edges[0] - edges[1] < 0)).all())
        and edges.size(1) == data.num_nodes
    )
    sizes = [int(data[f"{split}_mask"].sum()) for split in ("train", "valid", "test")]
    assert sizes == [9, 1, 2] and bool((data.train_mask ^ data.valid_mask ^ data.test_mask).all())
    other = load(GraphFilesConfig(folder=str(folder), graph_seed=1), tmp_path / "cache")
    assert not torch.equal(other.train_mask, data.train_mask)


@pytest.mark.parametrize("step", [1, -1])
def test_files_are_in_the_order_of_their_names_however_the_disk_lists_them(
    step, tmp_path, monkeypatch
):
    names = ["2.pt", "10.pt", "a_02.pt", "a_2.pt", "a_2.pth", "a_2_b.pt", "a_10.pt", "b_1.pt"]
    monkeypatch.setattr(Path, "iterdir", lambda folder: (folder / name for name in names[::step]))
    assert [path.name for path in graph_files.find_files(tmp_path)[""]] == names


@pytest.mark.parametrize(
    "names",
    [("train", "valid", "test"), ("Training", "validation", "test"), ("train", "val", "testing")],
)
def test_folders_are_splits(names, folder, tmp_path, caplog):
    for number in range(12):
        split = folder / names[0 if number < 7 else 1 if number < 10 else 2]
        split.mkdir(exist_ok=True)
        (folder / f"graph_{number}.pt").rename(split / f"graph_{number}.pt")
    data = load(GraphFilesConfig(folder=str(folder)), tmp_path / "cache")
    for split, numbers in (("train", range(7)), ("valid", range(7, 10)), ("test", range(10, 12))):
        graphs = data[f"{split}_mask"].nonzero().flatten()
        assert data.x[data.ptr[graphs], 0].tolist() == list(numbers)
    found = graph_files.find_files(folder)
    shutil.copytree(folder / names[1], folder / "raw")
    assert graph_files.find_files(folder) == found
    shutil.copytree(folder / names[1], folder / "dev")
    with pytest.raises(ValueError, match=f"has dev/ and {names[1]}/"):
        graph_files.find_files(folder)


@pytest.mark.parametrize(
    "labels, metric, dtype",
    [
        ([0.0, 1.0], "rocauc", torch.float32),
        ([0.0, float("nan")], "rocauc", torch.float32),
        ([0, 3], "acc", torch.int64),
        ([0.5, 1.0], "rmse", torch.float32),
    ],
)
def test_the_metric_is_that_of_the_labels(labels, metric, dtype, folder, tmp_path):
    for number in range(12):
        torch.save(graph(number, y=torch.tensor(labels[number % 2])), folder / f"graph_{number}.pt")
    data = load(GraphFilesConfig(folder=str(folder)), tmp_path / "cache")
    assert (data.metric, data.y.dtype) == (metric, dtype)
    chosen = load(GraphFilesConfig(folder=str(folder), metric="rmse"), tmp_path / "cache")
    assert chosen.metric == "rmse" and chosen.y[1].item() == pytest.approx(labels[1], nan_ok=True)


def test_processes_return_the_items_in_order_with_few_files_open():
    seen = []
    for num_items in (3000, 6000):
        before = len(os.listdir("/proc/self/fd"))
        y = read_in_parallel(tell, range(num_items)).y
        assert y[:, 0].tolist() == list(range(num_items))
        assert os.getpid() not in y[:, 1] and 1 <= len(np.unique(y[:, 1])) <= 2
        seen.append((y[:, 2].max(), len(os.listdir("/proc/self/fd")) - before))
    assert seen[0][0] == seen[1][0] and seen[1][1] == 0
    assert set(read_in_parallel(tell, range(100)).y[:, 1]) == {os.getpid()}, "few are read here"


def test_the_first_item_that_is_refused_is_named():
    with pytest.raises(ValueError, match="^item 700 is none$"):
        read_in_parallel(refuse, range(5000))


def test_a_killed_process_is_told_of():
    with pytest.raises(ValueError, match=r"killed, perhaps for lack of memory: give it more"):
        read_in_parallel(partial(tell, end=2500), range(5000))


@pytest.mark.slow
def test_no_process_outlives_the_one_that_started_it(tmp_path):
    signals = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
    folders, readers = [tmp_path / signum.name for signum in signals], []
    for folder in folders:
        folder.mkdir()
        code = "import sys; from tests.helpers import reading; reading.read_for_ever(sys.argv[1])"
        readers.append(
            subprocess.Popen([sys.executable, "-c", code, str(folder)], stderr=subprocess.DEVNULL)
        )
    while any(len(list(folder.iterdir())) < 2 for folder in folders):
        assert all(reader.poll() is None for reader in readers)
        time.sleep(0.01)
    for signum, reader in zip(signals, readers):
        reader.send_signal(signum)
    end = time.monotonic() + 60
    for reader in readers:
        assert reader.wait(60) != 0
    while any(is_alive(int(path.name)) for folder in folders for path in folder.iterdir()):
        assert time.monotonic() < end
        time.sleep(0.01)


hetero = HeteroData()
hetero["a"].x = torch.ones(2, 1)


@pytest.mark.parametrize(
    "saved, message",
    [
        (graph(3, y=None), "graph_3.pt: no y; there is"),
        (
            graph(3, x=torch.ones(5, 3)),
            "graph_3.pt: its columns are x 3, edge_attr 1, y 1, but those of the first file are "
            "x 2",
        ),
        (
            graph(3, x=torch.ones(4, 2)),
            "graph_3.pt: edge_index is out of range: it names node 4, the graph has nodes 0",
        ),
        (
            graph(3, x=torch.full((5, 2), torch.inf)),
            "graph_3.pt: x is not finite: row 0, column 0 holds inf",
        ),
        (graph(3, edge_attr=torch.ones(4)), "graph_3.pt: edge_attr has 4 rows for 5 edges"),
        (graph(3, edge_index=torch.ones(2, 5)), "graph_3.pt: edge_index must be integers of shape"),
        (
            graph(
                3, x=torch.ones(0, 2), edge_index=torch.empty(2, 0).long(), edge_attr=torch.empty(0)
            ),
            "graph_3.pt: a graph has at least one node",
        ),
        (graph(3, y=torch.eye(2).to_sparse()), "graph_3.pt: y must be a dense tensor"),
        (hetero, "graph_3.pt holds a HeteroData, not a graph"),
        ([graph(3), graph(4)], "graph_3.pt holds 2 graphs: save the one"),
    ],
    ids=str,
)
def test_a_file_that_is_not_like_the_others(saved, message, folder):
    if isinstance(saved, Data):
        saved = Data(**{key: value for key, value in saved.to_dict().items() if value is not None})
    torch.save(saved, folder / "graph_3.pt")
    with pytest.raises(ValueError, match="^" + str(folder / message).replace("[", r"\[")):
        read(GraphFilesConfig(folder=str(folder)))


def damage(folder):
    (folder / "graph_5.pt").write_bytes((folder / "graph_5.pt").read_bytes()[:300])


def mix(folder):
    (folder / "train").mkdir()


def leave_out_train(folder):
    (folder / "test").mkdir()
    for path in folder.glob("*.pt"):
        path.rename(folder / "test" / path.name)


def empty(folder):
    for path in folder.glob("*.pt"):
        path.unlink()


@pytest.mark.parametrize(
    "change, keys, message",
    [
        (damage, {}, "graph_5.pt is not a saved torch_geometric Data: it is damaged or cut short"),
        (mix, {}, "12 files next to train/: move them into one of these"),
        (leave_out_train, {}, "has test/, but no train/"),
        (empty, {}, "has no files"),
        (None, {"metric": "auc"}, "data.metric=auc is unknown; choose one of rocauc"),
        (
            None,
            {"train_fraction": 0.9, "valid_fraction": 0.2},
            "data.train_fraction=0.9 .* their sum must be",
        ),
        (
            None,
            {"to_undirected": True},
            "data.to_undirected=true needs one graph, but data=graph_files holds many graphs",
        ),
    ],
)
def test_a_folder_that_is_none_of_graphs(change, keys, message, folder):
    if change:
        change(folder)
    with pytest.raises(ValueError, match=message):
        read(GraphFilesConfig(**{"folder": str(folder), **keys}))


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "molecules.csv"
    path.write_text(TABLE)
    return path


def test_molecules_have_the_features_of_ogb(table, tmp_path):
    from ogb.utils.mol import smiles2graph

    data = read(SmilesConfig(path=str(table)))
    for number, text in enumerate(("CCO", "c1ccccc1", "CC(=O)[O-]", "N")):
        expected, (first, end) = smiles2graph(text), data.ptr[number : number + 2].tolist()
        inside = (data.edge_index[0] >= first) & (data.edge_index[0] < end)
        assert data.x[first:end].tolist() == expected["node_feat"].tolist()
        assert (data.edge_index[:, inside] - first).tolist() == expected["edge_index"].tolist()
        assert data.edge_attr[inside].tolist() == expected["edge_feat"].tolist()
    assert (data.metric, data.y[:, 1].tolist()) == ("rmse", [3, 6, 4, 1]) and bool(
        data.y[2, 0].isnan()
    )
    assert data.train_mask.tolist() == [True, True, False, False] and data.test_mask.tolist()[3]
    only = read(SmilesConfig(path=str(table), label_columns=["active"]))
    assert only.metric == "rocauc" and only.y.shape == (4, 1)


def test_what_is_no_molecule_is_named(table):
    table.write_text(TABLE.replace("c1ccccc1", "c1cc").replace("\nN,", "\n,"))
    with pytest.raises(
        ValueError,
        match=r"molecules.csv: row 1 \(from 0, below the header\): RDKit reads no "
        "molecule in 'c1cc'",
    ):
        read(SmilesConfig(path=str(table)))


@pytest.mark.parametrize(
    "text, keys, message",
    [
        (
            TABLE.replace("smiles", "mol", 1),
            {},
            "has no column smiles, which holds the molecules; there are mol, active",
        ),
        (
            TABLE,
            {"label_columns": ["split"]},
            "data.label_columns=split: the column of .* not numbers",
        ),
        (TABLE, {"label_columns": ["toxic"]}, "data.label_columns=toxic: .* has no such column"),
        (
            TABLE.replace("train", "3"),
            {},
            "row 0 .* of the column split is .*3.*, not train, valid or test",
        ),
        ("smiles,y\n", {}, "has a header, but no rows"),
        ("smiles,y,y\nC,1,2\n", {}, "the first line names the column 'y' twice"),
        ("smiles,y\nC,1,5\nCC,0,5\n", {}, "its rows have more cells than its head has names, 2"),
        ("", {}, "molecules.csv is empty: its first line is to name the columns"),
    ],
)
def test_a_table_that_is_none_of_molecules(text, keys, message, table):
    table.write_text(text)
    with pytest.raises(ValueError, match=message):
        read(SmilesConfig(path=str(table), **keys))


def test_without_rdkit_the_extra_is_named(table, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"data=smiles needs RDKit: pip install .* -e '.\[molecules\]'"
    ):
        SmilesConfig(path=str(table)).check()


def test_files_train_are_read_once_and_have_names_in_tables(
    configure, folder, tmp_path, monkeypatch
):
    given = ["data=graph_files", f"data.folder={folder}", *RUN]
    config = configure(*given)
    result = train(config, tmp_path / "run")
    assert result["data_epochs"] == 2
    monkeypatch.setattr(graph_files, "read", lambda: pytest.fail("read again"))
    again = train(configure(*given), tmp_path / "again")
    assert again["weights_sha256"] == result["weights_sha256"]
    building.predict(
        building.EvaluateConfig(
            run=str(tmp_path / "run"),
            device="cpu",
            output=str(tmp_path / "graphs.csv"),
            predictions=str(tmp_path / "rows.pt"),
        )
    )
    found = pd.read_csv(tmp_path / "graphs.csv")
    assert found["id"].tolist() == [f"graph_{number}.pt" for number in range(12)]
    assert set(found["split"]) == {"train", "valid", "test"}
    rows = torch.load(tmp_path / "rows.pt")["logits"].double().sigmoid()
    scores = found[[name for name in found if name.startswith("probability")][-1]]
    assert np.array_equal(scores.to_numpy(np.float32), rows[:, -1].float().numpy())
