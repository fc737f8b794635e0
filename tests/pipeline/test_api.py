"""Training and prediction from Python."""

import ast
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import networkx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data, HeteroData

import parallel_epochs as pe
from parallel_epochs.pipeline import apart, api
from parallel_epochs.pipeline.data import cache, objects
from parallel_epochs.pipeline.data.config import FileConfig
from parallel_epochs.pipeline.data.node_names import unpack_names
from tests.helpers.running import ROOT, finish, shell, summary_of
from tests.pipeline.gnn.test_new_data import graph
from tests.pipeline.gnn.test_new_tables import write

NODES = pd.DataFrame({"id": ["a", "b", "c"], "size": [1.0, 2.0, 3.0], "kind": ["x", "y", "x"]})
OPTIONS = {
    "num_layers": 2,
    "hidden_channels": 8,
    "epochs": 2,
    "verbose": False,
    "task.base": "none",
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    with torch.inference_mode():  # as in a server
        return pe.train(graph(), folder=folder / "run", cache_dir=folder / "cache", **OPTIONS)


@pytest.fixture
def new(tmp_path) -> dict:
    """The folders of a run."""
    return {"folder": tmp_path / "run", "cache_dir": tmp_path / "cache"}


def test_a_call_trains_the_weights_of_the_command(result, tmp_path):
    torch.save(graph().to_dict(), tmp_path / "graph.pt")
    status, output = finish(
        [
            "data=file",
            f"data.path={tmp_path / 'graph.pt'}",
            "model.num_layers=2",
            "model.hidden_channels=8",
            "train.epochs=2",
        ],
        tmp_path / "run",
        tmp_path / "cache",
    )
    assert status == 0, output
    assert summary_of(tmp_path / "run")["weights_sha256"] == result.summary["weights_sha256"]
    assert "python -m pipeline.train data=file" in result.summary["command"]


def test_a_result_has_what_the_run_wrote(result):
    assert result.scores["valid"] == result.summary["best_valid"] and set(result.scores) == {
        "train",
        "valid",
        "test",
    }
    assert [record["epochs"] for record in result.history] == [1, 2] and result.history[1][
        "loss"
    ] > 0
    assert (result.folder / "train.log").read_text().count("epoch ") >= 2
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    first, found = torch.rand(1), result.model.predict()
    assert torch.equal(torch.cat([first, torch.rand(3)]), expected)  # the user's random numbers
    assert found.shape == (60, 3) and torch.allclose(found.sum(1), torch.ones(60))
    assert torch.equal(found, result.model.predict(graph())) and not torch.equal(
        found, result.model.logits()
    )


def test_a_model_in_one_file(result, tmp_path):
    result.model.export(tmp_path / "model.pe")
    model, new = pe.load(tmp_path / "model.pe"), graph(20, 90, seed=3, masks=False)
    assert torch.equal(model.predict(new), result.model.predict(new))
    for call, message in (
        (model.predict, r"has no data of its own: give those to predict, as predict\(data\)"),
        (lambda: model.history, "is a model alone, without the history of its run"),
    ):
        with pytest.raises(ValueError, match=f"model.pe {message}"):
            call()
    assert torch.equal(
        torch.from_numpy(model.vectors(new)), torch.from_numpy(result.model.vectors(new))
    )
    inputs = model.prepare(new)
    torch.testing.assert_close(
        model.module(new)(inputs.x, inputs.edge_index, inputs.edge_attr), model.logits(new)
    )
    (tmp_path / "model.pe").write_bytes(b"nothing")
    torch.save({"a": 1}, tmp_path / "other.pt")
    wrong = "is no run directory, and no model that export=FILE wrote"
    for path, keys, message in (
        (tmp_path / "model.pe", {}, wrong),
        (tmp_path / "other.pt", {}, wrong),
        (3, {}, "path=3 names no run: give its directory"),
        ([], {}, r"path=\[\] names no run: give its directory"),
        (result.folder, {"checkpoint": "worst"}, "checkpoint=worst is unknown; choose one of best"),
        (result.folder, {"device": "gpu"}, "device=gpu is unknown; choose auto, cpu, cuda"),
    ):
        with pytest.raises(ValueError, match=message):
            pe.load(path, **keys)


@pytest.mark.parametrize(
    "data",
    [
        scipy.sparse.random(50, 50, 0.2, random_state=0, format="csr"),
        networkx.gnm_random_graph(50, 200, seed=0),
    ],
)
def test_graphs_of_other_libraries(data, tmp_path):
    vectors = pe.embed(
        data, dim=8, folder=tmp_path / "run", cache_dir=tmp_path / "cache", epochs=1, verbose=False
    )
    assert vectors.shape == (50, 8) and vectors.dtype == np.float32 and np.isfinite(vectors).all()


def test_names_and_weights_of_networkx_are_kept(tmp_path):
    found = networkx.Graph([("b", "a"), ("c", "b")])
    found.edges["b", "a"]["weight"] = 2.5  # the other one weighs 1
    given = objects.attributes_of(found)
    torch.save(given, tmp_path / "graph.pt")
    data = cache.read(FileConfig(path=str(tmp_path / "graph.pt")))
    names = unpack_names(data)
    assert {
        (names[a], names[b]): weight
        for (a, b), weight in zip(data.edge_index.t().tolist(), data.edge_attr[:, 0].tolist())
    } == {("a", "b"): 2.5, ("b", "a"): 2.5, ("b", "c"): 1, ("c", "b"): 1} and names == [
        "b",
        "a",
        "c",
    ]
    assert set(objects.attributes_of(networkx.path_graph(3))) == {
        "edge_index",
        "num_nodes",
    }  # names are the numbers
    for key, wrong in (
        ("names", given["names"][1:]),
        ("names_ptr", given["names_ptr"].flip(0)),
        ("names", torch.zeros_like(given["names"])),
    ):
        torch.save(given | {key: wrong}, tmp_path / "wrong.pt")
        with pytest.raises(ValueError, match="are not 3 different names in UTF-8"):
            cache.read(FileConfig(path=str(tmp_path / "wrong.pt")))


def test_several_types_in_memory_train_what_their_files_train(tmp_path):
    keys = {"model": "rgcn", "cache_dir": tmp_path / "cache", **OPTIONS}
    data, number = HeteroData(), torch.arange(60)
    data["user"].x, data["user"].y, data["item"].num_nodes = torch.rand(60, 3), number % 3, 20
    data["user", "buys", "item"].edge_index = torch.stack([number, number % 20])
    for place, mask in enumerate(("train_mask", "val_mask", "test_mask")):
        data["user"][mask] = number % 7 % 3 == place
    torch.save(data, tmp_path / "graph.pt")
    by_files = pe.train(tmp_path / "graph.pt", folder=tmp_path / "files", **keys)
    found = pe.train(data, folder=tmp_path / "memory", **keys)
    assert found.summary["weights_sha256"] == by_files.summary["weights_sha256"]
    assert torch.equal(found.model.predict(data), by_files.model.predict())


@pytest.mark.parametrize(
    "keys, message",
    [
        (dict(lr=0.1), "lr means features.lr or train.lr: name one in full"),
        (dict(nun_layers=2), "nun_layers is unknown"),
        (dict(model="deepergcnn"), "did you mean deepergcn"),
        ({"train.lr": -1}, "train.lr must be more than 0, not -1"),
        (dict(model=torch.nn.Linear(1, 1)), "not an object of Linear: each rank builds its own"),
        (
            dict(model=type("Local", (torch.nn.Module,), {"__module__": "__main__"})),
            "write the class into a module",
        ),
        (
            dict(num_layers=object()),
            "^model.num_layers is of type object: give a number, a text, a list or a dict of",
        ),
        (dict(folder=3), "^folder is of type int: give the path of a run directory"),
        (dict(cache_dir=None), "^cache_dir is of type NoneType: give the path of a folder"),
        (
            {"hydra.run.dir": "x"},
            "^hydra.run.dir is for the command. Name the run directory by folder=",
        ),
    ],
)
def test_keys_are_refused_as_on_the_command_line(keys, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        pe.train(graph(), **{"folder": tmp_path / "run", "cache_dir": tmp_path / "cache", **keys})
    assert not (tmp_path / "run").exists()


def test_tables_in_memory_train_what_their_files_train(tmp_path):
    pa = pytest.importorskip("pyarrow")
    write(tmp_path / "tables")
    nodes, edges = (
        pd.read_parquet(tmp_path / "tables" / f"{name}.parquet") for name in ("nodes", "edges")
    )
    keys = {
        "data.nodes.features": ["size", "age"],
        "data.nodes.categories": ["color"],
        "data.nodes.label": "label",
        "cache_dir": tmp_path / "cache",
        **OPTIONS,
    }
    found = pe.train(
        (nodes.astype({"color": "category"}), edges), folder=tmp_path / "memory", **keys
    )
    paths = {
        f"data.{name}.path": tmp_path / "tables" / f"{name}.parquet" for name in ("nodes", "edges")
    }
    by_files = pe.train("tables", folder=tmp_path / "files", **paths, **keys)
    assert found.summary["weights_sha256"] == by_files.summary["weights_sha256"]
    log = (tmp_path / "memory" / "train.log").read_text()
    assert (
        "the table of nodes: 60 nodes" in log
        and "the table of edges: " in log
        and "given" not in log
    )
    new = nodes.assign(size="1"), pa.Table.from_pandas(edges.iloc[:50])
    assert found.model.predict(new).shape == (60, 3)
    assert torch.equal(found.model.predict((nodes, edges)), found.model.predict())
    only_edges = pe.train(
        (None, edges),
        "trainer=node_embedding",
        folder=tmp_path / "edges",
        dim=4,
        epochs=1,
        cache_dir=tmp_path / "cache",
        verbose=False,
    )
    assert only_edges.model.vectors().shape == (60, 4)


@pytest.mark.parametrize(
    "data, message",
    [
        (pd.DataFrame({"source": [1]}), r"data is of type DataFrame; .* a pair of tables \(nodes"),
        (
            scipy.sparse.coo_array(np.array([[0, -1.0], [1, 0]])),
            "row 0, column 1 holds -1, which is negative",
        ),
        (networkx.Graph([(1, "1")]), "two nodes that are called '1' as text"),
        ({"user": NODES}, "data is of type dict; .* several tables as data.schema names them"),
        (
            (None, pd.DataFrame({"source": [1, "a"]})),
            "the table of edges cannot be written as Parquet: ",
        ),
        (3, "data is of type int; give a torch_geometric Data"),
        (HeteroData(), "the HeteroData holds a HeteroData without types of nodes"),
    ],
)
def test_data_of_no_kind_are_refused(data, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        pe.train(data, folder=tmp_path / "run", cache_dir=tmp_path / "cache")


EDGES = pd.DataFrame({"source": ["a", "b"], "target": ["b", "c"]})
LABEL = {"data.nodes.label": "kind"}


def schema(**edges) -> dict:
    """A schema with tables in place of paths."""
    ends = {end: {"type": "item", "column": end} for end in ("source", "target")}
    return {
        "nodes": {"item": {"path": NODES, "id": "id", "label": "kind"}},
        "edges": {"next": {"path": EDGES, **ends, **edges}},
    }


# What is given to pe.train, the keys, and how the message begins.
WRONG = {
    "an end that is no node": (
        {"edge_index": torch.tensor([[0], [99]])},
        {},
        "the Data: edge_index is out of range",
    ),
    "no masks": (
        {f"{split}_mask": None for split in ("train", "val", "test")},
        {},
        "the Data has no labels to learn: add y and masks",
    ),
    "an object": ({"extra": object()}, {}, "the Data names object, which is not loaded"),
    "a matrix without labels": (
        scipy.sparse.eye_array(4),
        {},
        "the SciPy matrix has no labels to learn: add y",
    ),
    "tables without labels": ((NODES, EDGES), {}, "the table of nodes has no labels to learn"),
    "a label that is no column": (
        (NODES, EDGES),
        {"data.nodes.label": "knd"},
        "data.nodes.label=knd: the table of nodes has no such column",
    ),
    "an id twice": (
        (pd.concat([NODES, NODES]), EDGES),
        LABEL,
        "the table of nodes: the id 'a' of row 1 is there",
    ),
    "mixed values": (
        (NODES.assign(size=[1, "x", 2]), EDGES),
        LABEL,
        "the table of nodes cannot be written as Parquet: Could not convert 'x'",
    ),
    "a schema's column": (
        schema(weight="no"),
        {},
        "data.schema: edges.next: data.edges.weight=no: the table of next has",
    ),
    "a file that is missing": ("nowhere.pt", {}, "nowhere.pt does not exist"),
    "a dataset that is none": (
        "digit",
        {},
        "data='digit' is no file here, and no dataset; these are ",
    ),
    "a key of data, too": ({}, {"data.path": "x.pt"}, "data.path is given, and data too"),
    "a folder that is a file": (
        {},
        {"folder": __file__},
        f"folder={__file__} cannot be a run directory: File exists",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_speak_of_what_was_given(name, tmp_path):
    data, keys, message = WRONG[name]
    if isinstance(data, dict) and "edges" not in data:
        changed = {**graph().to_dict(), **data}
        data = Data(**{key: value for key, value in changed.items() if value is not None})
    with pytest.raises(ValueError) as error:
        pe.train(
            data, **{"folder": tmp_path / "run", "cache_dir": tmp_path / "cache", **OPTIONS, **keys}
        )
    assert str(error.value).startswith(message)
    assert ".cache" not in str(error.value) and str(tmp_path) not in str(error.value)


@pytest.mark.parametrize(
    "data, message",
    [
        (
            Data(x=torch.zeros(2, 9), edge_index=torch.tensor([[0], [1]])),
            "the Data: the features of the edges have no",
        ),
        (
            Data(x=torch.zeros(2, 4), edge_index=torch.tensor([[0], [7]])),
            "the Data: edge_index is out of range",
        ),
        (
            {"edge_index": torch.tensor([[0], [1]]), "num_nodes": 2},
            "the dict: there is no x, and the model reads",
        ),
        (
            ["CCO"],
            "RUN was trained on data=file, and a list of SMILES is given: give one graph, or a path",
        ),
        (
            [Data()],
            "RUN was trained on data=file, and a list of graphs is given: give one graph, or a path",
        ),
        (
            (NODES, EDGES),
            "RUN was trained on data=file, and a pair of tables is given: give one graph, or a path",
        ),
        (
            schema(),
            "RUN was trained on data=file, and a schema is given: give one graph, or a path",
        ),
        ("nowhere.pt", "nowhere.pt does not exist"),
        (7, "data is of type int; give"),
    ],
)
def test_wrong_predictions_speak_of_what_was_given(result, data, message):
    with pytest.raises(ValueError) as error:
        result.model.predict(data)
    assert str(error.value).startswith(message.replace("RUN", str(result.folder)))
    assert "data.path=/" not in str(error.value)


def test_a_finished_run_is_not_overwritten(result):
    options = dict(folder=result.folder, cache_dir=result.folder.parent / "cache", **OPTIONS)
    with pytest.raises(ValueError, match="already holds a run"):
        pe.train(graph(), **options)
    again = pe.train(graph(), resume="auto", **options)
    assert again.summary == result.summary


def test_values_of_every_kind_reach_their_keys(tmp_path):
    from parallel_epochs.pipeline.api import _configure

    path = tmp_path / "a 'quoted\", file.pt"
    torch.save(graph().to_dict(), path)
    config, told = _configure(
        path,
        ["partition=metis", "data.to_undirected=true"],
        {
            "model": "pyg",
            "conv": "GATv2Conv",
            "model.kwargs": {"heads": 2},
            "patience": 3,
            "train.clip_grad_norm": 0.5,
            "memory": None,
            "loader.num_neighbors": [5, np.int64(5)],
        }
        | {"num_layers": torch.tensor(2)},
    )
    assert (
        config.data.path == str(path)
        and config.partition.name == "metis"
        and config.model.kwargs == {"heads": 2}
    )
    assert (
        config.loader.num_neighbors == [5, 5]
        and config.train.patience == 3
        and config.memory is None
    )
    assert told[0] == "data=file" and "model.num_layers=2" in told


@pytest.mark.parametrize(
    "text",
    ["2024_01", "größe", "a\\b", "a\\\\b", 'quo"te', "back\\", "tr ue", "-1", "a,b=c", "null?"],
)
def test_a_text_reaches_its_key_unchanged(text, tmp_path):
    from parallel_epochs.pipeline.api import _configure

    config, _ = _configure("digits", (), {"name": text})
    assert config.name == text


def test_flags_and_processes_of_the_command_are_refused(new, monkeypatch):
    with pytest.raises(ValueError, match="is for the command. Name the run directory by folder="):
        pe.train(graph(), "--multirun", **new)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="RANK=0 is set, as torchrun does"):
        pe.train(graph(), **new)


def test_an_import_is_silent_and_loads_no_torch():
    program = "import sys, parallel_epochs as pe; assert 'torch' not in sys.modules and 'train' in dir(pe); pe.no"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.strip().endswith("module 'parallel_epochs' has no attribute 'no'")


def test_type_checkers_see_every_public_name():
    stub = ast.parse(Path(pe.__file__).with_name("__init__.pyi").read_text())
    assert {name.name for line in stub.body for name in line.names} == pe._API.keys()


# Not guarded by __name__: the processes of ranks must not run it again.
PROGRAM = """
import parallel_epochs as pe, sys
print("begins")
result = pe.train("synthetic_proteins", folder=sys.argv[1], cache_dir=sys.argv[2], num_ranks=int(sys.argv[3]),
                  epochs=120, patience=0, resume="auto", eval_every=50, **{
                      "task.base": "none", "data.num_nodes": 400, "data.num_edges": 8000, "data.num_groups": 8,
                      "data.num_species": 4})
print("weights", result.summary["weights_sha256"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_ctrl_c_stops_with_a_checkpoint_and_the_same_call_goes_on(num_ranks, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(name):
        return subprocess.Popen(
            [sys.executable, "program.py", name, "cache", str(num_ranks)],
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )

    process, deadline = start("run"), time.monotonic() + 200
    while not (tmp_path / "run/checkpoints/last.pt").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=100)
    assert (
        "Stopped" in output
        and process.returncode != 0
        and not (tmp_path / "run/summary.json").exists()
    )
    weights = []
    for name in ("run", "undisturbed"):
        output, _ = start(name).communicate(timeout=300)
        assert output.count("begins") == 1
        weights.append(output.splitlines()[-1])
    assert weights[0] == weights[1] and weights[0].startswith("weights ")


def test_new_graphs_and_molecules_in_memory(tmp_path):
    pytest.importorskip("rdkit")
    (tmp_path / "molecules.csv").write_text(
        "smiles,y\n" + "".join(f"{'C' * n}O,{n % 2}\n" for n in range(1, 13))
    )
    options = dict(
        num_layers=2, hidden_channels=8, epochs=1, verbose=False, cache_dir=tmp_path / "cache"
    )
    result = pe.train(
        None,
        "data=smiles",
        f"data.path={tmp_path / 'molecules.csv'}",
        "task=graph",
        "loader=graph",
        "evaluation=exact",
        folder=tmp_path / "molecules",
        **options,
    )
    assert result.model.predict(["CCO", "c1ccccc1"]).shape == (2, 1)
    with pytest.raises(ValueError, match="RDKit reads no molecule in ''"):
        result.model.predict(["CCO", "", "CCN"])
    (tmp_path / "graphs").mkdir()
    for number in range(6):
        one = graph(10, 30, seed=number, masks=False)
        one.y = torch.tensor([number % 2])
        torch.save(one.to_dict(), tmp_path / "graphs" / f"{number}.pt")
    result = pe.train(
        None,
        "data=graph_files",
        f"data.folder={tmp_path / 'graphs'}",
        "task=graph",
        "loader=graph",
        "evaluation=exact",
        folder=tmp_path / "files",
        **options,
    )
    assert result.model.predict(
        [graph(7, 9, seed=9, masks=False), graph(4, 5, seed=8, masks=False)]
    ).shape == (2, 1)
    with pytest.raises(
        ValueError,
        match="trained on data=graph_files, and the Data is given: give a list of graphs",
    ):
        result.model.predict(Data(edge_index=torch.empty(2, 0, dtype=torch.int64)))


def test_calls_in_threads_wait_for_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main = sys.modules["__main__"]
    with ThreadPoolExecutor(3) as pool:
        runs = list(
            pool.map(
                lambda number: pe.train(graph(), cache_dir=tmp_path / "cache", **OPTIONS), range(3)
            )
        )
        predicted = list(pool.map(lambda run: run.model.predict(), runs))
    assert len({run.folder for run in runs}) == 3
    assert len({run.summary["weights_sha256"] for run in runs}) == 1
    assert all(torch.equal(predicted[0], other) for other in predicted)
    assert sys.modules["__main__"] is main


@pytest.mark.parametrize(
    "exits, call, says",
    [
        ("sys.exit", "train()", "ValueError: sys.exit() was called before there was a result"),
        *(
            pytest.param(
                "os._exit", call, "os._exit(0) was called before there was", marks=pytest.mark.slow
            )
            for call in ("train()", "train().model.predict()")
        ),
    ],
)
def test_a_class_cannot_end_the_program_as_if_all_were_well(exits, call, says, tmp_path):
    (tmp_path / "mine.py").write_text(f"""import os, sys, torch
class Net(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin = torch.nn.Linear(in_channels, out_channels)
    def forward(self, x, edge_index):
        if os.path.exists("run/summary.json"): {exits}(0)
        return self.lin(x)
    def state_dict(self, *args, **options):
        if {"predict" not in call}: {exits}(0)
        return super().state_dict(*args, **options)
""")
    torch.save(graph().to_dict(), tmp_path / "graph.pt")
    program = f"""import parallel_epochs as pe
def train():
    return pe.train("graph.pt", model="custom", epochs=1, folder="run", **{{"model.path": "mine.Net"}})
{call}
print("went on")
"""
    done = shell("-c", program, cwd=tmp_path)
    assert (
        done.returncode == 1 and says in done.stdout + done.stderr and "went on" not in done.stdout
    ), done.stderr


def test_a_prediction_waits_for_no_training_and_a_child_for_no_thread_of_its_parent(result):
    with ThreadPoolExecutor(1) as pool, api._LOCKS["train"]:
        assert pool.submit(result.model.predict).result(60).shape[1] == 3
        pool.submit(apart._LOCKS["apart"].acquire).result()
        pool.submit(result.model._lock.acquire).result()
        if (child := os.fork()) == 0:
            locks = (*api._LOCKS.values(), *apart._LOCKS.values(), result.model._lock)
            os._exit(0 if all(lock.acquire(timeout=1) for lock in locks) else 1)
        pool.submit(apart._LOCKS["apart"].release).result()
        result.model._lock.release()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "code, module, raises",
    [(0, "mine", ValueError), (1, "mine", SystemExit), (0, "other", SystemExit)],
)
def test_the_exit_of_a_program_is_not_that_of_a_class(code, module, raises, result):
    config = SimpleNamespace(model=SimpleNamespace(path="mine.Net"))
    with pytest.raises(raises), apart.apart_from_the_caller(config):
        exec(f"raise SystemExit({code})", {"__name__": module})


def test_the_program_is_seen_while_its_data_are_written(tmp_path, monkeypatch):
    main, seen = sys.modules["__main__"], []
    monkeypatch.setattr(
        api, "_configure", lambda *args: seen.append(sys.modules["__main__"]) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        pe.train()
    assert seen == [main]


def test_a_run_writes_through_no_link_in_its_folder(result, tmp_path):
    theirs = shutil.copytree(result.folder, tmp_path / "theirs")
    shutil.rmtree(theirs / "checkpoints")
    (theirs / "checkpoints").symlink_to(result.folder / "checkpoints")
    with pytest.raises(
        OSError, match=f"theirs/checkpoints is a symbolic link to {result.folder}/checkpoints, and"
    ):
        pe.train(resume=theirs, epochs=4)


def test_a_run_finds_its_data_from_another_folder(tmp_path, monkeypatch, caplog):
    (tmp_path / "sub").mkdir()
    (tmp_path / "copy").mkdir()
    for folder, seed in ((".", 0), ("sub", 5)):
        torch.save(graph(seed=seed).to_dict(), tmp_path / folder / "g.pt")
    monkeypatch.chdir(tmp_path)
    trained = pe.train("g.pt", folder="run", **OPTIONS)
    expected = trained.model.predict()
    caplog.set_level("INFO")
    monkeypatch.chdir(tmp_path / "sub")  # where another file has this name
    with pytest.raises(
        ValueError, match="the dataset is not the one that this run was started with"
    ):
        pe.load("../run").predict()
    (tmp_path / "sub" / "g.pt").unlink()
    assert torch.equal(pe.load("../run").predict(), expected)
    assert f"data.path=g.pt is {tmp_path}/g.pt, since the run was started there" in caplog.text
    (tmp_path / "g.pt").rename(tmp_path / "copy" / "g.pt")
    with pytest.raises(ValueError, match="does not exist"):
        pe.load("../run").predict()
    monkeypatch.chdir(tmp_path / "copy")  # the file has moved, and the caller with it
    assert torch.equal(pe.load("../run").predict(), expected)
    (tmp_path / "copy" / "g.pt").rename(tmp_path / "g.pt")
    monkeypatch.chdir(tmp_path / "sub")
    again = pe.train(None, resume="../run", verbose=False)
    assert again.summary["weights_sha256"] == trained.summary["weights_sha256"]
    assert f"path: {tmp_path}/g.pt\n" in (tmp_path / "run" / "config.yaml").read_text()
