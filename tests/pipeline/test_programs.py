"""Exported networks: they run without this package, with any number of nodes and edges, and equal the run."""

import json
import re
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor

import parallel_epochs as pe
from parallel_epochs.models.kernels.sorting import sort_edges
from parallel_epochs.models.networks.deepgcn import DeeperGCN
from parallel_epochs.models.networks.pyg import RECIPES, PyGModel, find
from parallel_epochs.models.networks.relational import HGT, RGCN
from parallel_epochs.models.networks.reversible import RevGNN
from parallel_epochs.pipeline import programs
from parallel_epochs.pipeline.gnn.config import GNNPredictConfig
from parallel_epochs.pipeline.gnn.predict import command as predict, export
from parallel_epochs.pipeline.gnn.predict.export import SIZES, _traced
from parallel_epochs.pipeline.programs import Program
from parallel_epochs.pipeline.run.files import FileError
from tests.pipeline.gnn.test_new_data import graph
from tests.pipeline.test_model import SMALL, people

NODES = [(1, 0), (1, 3), (7, 0), (40, 300)]
# Without this package.
ALONE = """
    import importlib.abc, json, sys
    class Refuse(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("parallel_epochs", "torch_geometric"):
                raise ImportError(name)
    sys.meta_path.insert(0, Refuse())
    import numpy as np
    import torch
    given = {name: torch.from_numpy(array) for name, array in np.load(sys.argv[2]).items()}
    extra = {"parallel_epochs": ""}
    program = torch.export.load(sys.argv[1], extra_files=extra)
    np.save(sys.argv[2] + ".npy", program.module()(**given).detach().numpy())
    print(extra["parallel_epochs"])
"""


def drawn(
    num_nodes: int,
    num_edges: int,
    *,
    edge_dim: int = 0,
    relations: int = 0,
    types: int = 0,
    columns: int = 6,
    graphs: bool = False,
) -> dict[str, Tensor]:
    """Draw a graph, some of whose edges are there twice or join a node with itself."""
    rng = torch.Generator().manual_seed(num_nodes + num_edges)
    edges = torch.randint(num_nodes, (2, num_edges), generator=rng)
    edges[:, : num_edges // 10] = edges[:, num_edges // 2 : num_edges // 2 + num_edges // 10]
    edges[1, -(num_edges // 20) - 1 :] = edges[0, -(num_edges // 20) - 1 :]
    found = {"x": torch.randn(num_nodes, columns, generator=rng), "edge_index": edges}
    if types:
        one_hot = torch.nn.functional.one_hot(
            torch.randint(types, (num_nodes,), generator=rng), types
        ).float()
        found["x"] = torch.cat([found["x"], one_hot], dim=1)
    if relations:
        found["edge_attr"] = torch.randint(relations, (num_edges, 1), generator=rng).float()
    elif edge_dim:
        found["edge_attr"] = torch.rand(num_edges, edge_dim, generator=rng)
    if graphs:
        found["ptr"] = torch.tensor([0, num_nodes] if num_nodes < 3 else [0, 2, num_nodes])
    return found


def alone(path: Path, given: dict[str, Tensor]) -> tuple[np.ndarray, dict]:
    """Run a program in a process that cannot import this package; return its answer and its description."""
    np.savez(path.with_suffix(".npz"), **{name: tensor.numpy() for name, tensor in given.items()})
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(ALONE),
            str(path),
            str(path.with_suffix(".npz")),
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=path.parent,
    )
    return np.load(f"{path.with_suffix('.npz')}.npy"), json.loads(found.stdout)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A run on a small graph whose answer is its network's."""
    folder = tmp_path_factory.mktemp("programs")
    return pe.train(
        graph(),
        "model=pyg",
        folder=folder / "run",
        cache_dir=folder / "cache",
        **SMALL,
        **{"task.base": "none", "model.conv": "GCNConv"},
    )


@pytest.fixture(scope="module")
def exported(result, tmp_path_factory):
    """A program of this run."""
    path = tmp_path_factory.mktemp("exported") / "model.pt2"
    with pytest.MonkeyPatch.context() as patch:  # nothing is predicted
        patch.setattr(predict, "build_predictor", fail)
        result.model.export(path)
    return path


def test_a_program_runs_without_this_package_and_equals_the_run(result, exported):
    inputs = result.model.prepare()
    given = {name: inputs[name].as_subclass(Tensor) for name in ("x", "edge_index", "edge_attr")}
    found, about = alone(exported, given)
    np.testing.assert_allclose(found, result.model.logits().numpy(), atol=1e-5)
    assert about["task"] == {"predicts": "nodes", "labels": "classes", "metric": "acc"}
    assert list(about["inputs"]["x"]["columns"].values())[0][1] == {
        "column": "x[1]",
        "mean": 0.0,
        "std": 1.0,
    }
    assert about["inputs"]["edge_index"] == {"shape": [2, "edges"], "dtype": "int64"}
    assert about["output"]["name"] == "logits" and about["not_in_the_program"] == []
    with zipfile.ZipFile(exported) as file:
        content = b"".join(map(file.read, file.namelist()))
    assert str(result.folder.parent).encode() not in content and b"/models/" not in content


@pytest.mark.parametrize("nodes, edges", NODES)
def test_a_program_takes_any_number_of_nodes_and_edges(nodes, edges, result, exported):
    program, network = torch.export.load(exported).module(), result.model.module()
    given = drawn(nodes, edges, edge_dim=2)
    with torch.no_grad():
        np.testing.assert_allclose(program(**given), network(**given), atol=1e-5)
        given["x"][0, 0] = torch.nan
        np.testing.assert_allclose(program(**given), network(**given), atol=1e-5)


def test_a_program_replaces_its_like_and_nothing_else(result, tmp_path):
    path = tmp_path / "model.pt2"
    asked = pe.load(result.folder)
    asked.export(path)
    for name, message in (
        ("model.bin", "must be one of .pe, .pt2"),
        ("model", "must be one of .pe"),
        ("missing/model.pt2", "the directory .*missing does not exist"),
    ):
        with pytest.raises(ValueError, match=message):
            asked.export(tmp_path / name)
    (tmp_path / "mine.pt2").write_text("mine")
    with pytest.raises(ValueError, match="this command did not write it"):
        asked.export(tmp_path / "mine.pt2")
    (options := GNNPredictConfig(str(result.folder))).check_output(
        "export", path, result.model.run.config
    )
    assert (
        sorted(part.name for part in tmp_path.iterdir()) == ["mine.pt2", "model.pt2"]
        and options.export is None
    )


# Models that can be exported, and the options that the table of docs/serving.md needs to build them.
NETWORKS = {
    "deepergcn": (lambda: DeeperGCN(6, 8, 3, 3, edge_dim=2), {"edge_dim": 2}),
    "deepergcn of categories": (
        lambda: DeeperGCN(6, 8, 3, 2, aggr="max", num_categories=2),
        {"types": 2},
    ),
    "deepergcn of relations": (
        lambda: DeeperGCN(6, 8, 3, 2, edge_dim=1, num_relations=3),
        {"relations": 3},
    ),
    "deepergcn of graphs": (
        lambda: DeeperGCN(6, 8, 3, 3, edge_dim=2, pool="mean", virtual_node="add"),
        {"edge_dim": 2, "graphs": True},
    ),
    "deepergcn with a virtual node": (lambda: DeeperGCN(6, 8, 3, 3, virtual_node="mean"), {}),
    "revgnn": (lambda: RevGNN(6, 8, 3, 3, edge_dim=2), {"edge_dim": 2}),
    "rgcn": (lambda: RGCN(6, 8, 3, 2, edge_dim=1, num_relations=3, num_bases=2), {"relations": 3}),
    "rgcn of types": (
        lambda: RGCN(
            6,
            8,
            3,
            2,
            edge_dim=1,
            num_relations=3,
            num_categories=2,
            type_columns=[[(0, 4)], [(2, 6)]],
        ),
        {"relations": 3, "types": 2},
    ),
    "hgt": (
        lambda: HGT(
            6,
            8,
            3,
            2,
            heads=2,
            edge_dim=1,
            num_relations=3,
            num_categories=2,
            type_columns=[[(0, 6)], []],
        ),
        {"relations": 3, "types": 2},
    ),
    "max pooling": (lambda: PyGModel(6, 8, 3, 2, conv="SAGEConv", pool="max"), {"graphs": True}),
}
# Constructors of layers of PyG need these.
GIVEN = {
    "ChebConv": {"K": 2},
    "FAConv": {},
    "GCN2Conv": {"alpha": 0.1},
    "GMMConv": {"kernel_size": 2},
    "PNAConv": {
        "aggregators": ["mean", "max", "std"],
        "scalers": ["identity", "amplification"],
        "deg": torch.tensor([0, 1, 2, 3, 4]),
    },
    "GatedGraphConv": {"num_layers": 2},
    "APPNP": {"K": 2, "alpha": 0.1},
    "PDNConv": {"hidden_channels": 4},
    "SSGConv": {"alpha": 0.1},
    "MixHopConv": {"powers": [1]},
    "GATv2Conv": {"heads": 2},
    "GATConv": {"heads": 2},
    "TransformerConv": {"heads": 2},
    "GIPAConv": {"heads": 2},
}
NEED_EDGES = ("CGConv", "GINEConv", "GMMConv", "NNConv", "PDNConv", "SplineConv", "GatedGCNConv")
PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
DOCUMENT = PAGE.partition("## Export a model")[2]


def documented() -> dict[str, str]:
    """Return the layers of the table of the document, each with the reason why it is not exported, or an empty text."""
    rows = [
        line.strip("| \n").split(" | ") for line in DOCUMENT.splitlines() if line.startswith("| `")
    ]
    return {
        name: "" if cell.startswith("yes") else cell
        for names, cell in rows
        for name in names.replace("`", "").split(", ")
    }


def network_of(name: str) -> tuple[torch.nn.Module, dict]:
    """Build a network with random weights; return it and how its graphs are drawn."""
    torch.manual_seed(0)
    if name in NETWORKS:
        build, options = NETWORKS[name]
        return build().eval(), options
    edge_dim = 2 if name in NEED_EDGES else 0
    return PyGModel(
        6, 8, 3, 2, conv=name, kwargs=GIVEN.get(name), edge_dim=edge_dim or None
    ).eval(), {"edge_dim": edge_dim}


def program_of(name: str, checks: dict[str, Tensor], network: torch.nn.Module) -> Program:
    """Describe a network for :func:`programs.write`."""
    return Program(name, network, _traced(checks), {part: SIZES[part] for part in checks}, checks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *NETWORKS,
        *sorted(name for name, reason in documented().items() if not (reason or "=" in name)),
    ],
)
def test_every_model_of_the_table_is_exported(name, tmp_path):
    network, options = network_of(name)
    program = program_of(name, drawn(40, 300, **options), network)
    programs.write(tmp_path / "model.pt2", program)
    module = torch.export.load(tmp_path / "model.pt2").module()
    for nodes, edges in NODES:
        given = drawn(nodes, edges, **options)
        for column in (None, 0):
            if column is not None:
                given["x"][0, column] = torch.nan
            with torch.no_grad():
                np.testing.assert_allclose(
                    module(**given).detach().numpy(),
                    network(**given).numpy(),
                    atol=1e-5,
                    rtol=1e-5,
                    err_msg=f"{nodes}, {edges}, {column}",
                )


@pytest.mark.slow
def test_the_table_has_every_layer(tmp_path):
    layers = set(RECIPES)
    for name in dir(pyg):
        try:
            find(name)
            layers.add(name)
        except ValueError:
            pass
    table = documented()
    assert layers <= table.keys(), layers - table.keys()
    for name in (name for name, reason in table.items() if reason and name in layers):
        with pytest.raises(Exception) as refused:  # noqa: PT011 - layers of others raise what they like
            network, options = network_of(name)
            programs.write(
                tmp_path / "model.pt2", program_of(name, drawn(40, 300, **options), network)
            )
        assert refused.value is not None


def test_what_cannot_be_exported_is_refused_in_one_line(tmp_path, capfd):
    reason = "Own cannot be written as a program: the operator parallel_epochs.sort_edges"
    with pytest.raises(ValueError, match=reason) as refused:
        programs.write(tmp_path / "model.pt2", program_of("Own", drawn(10, 30), Own().eval()))
    assert "\n" not in str(refused.value) and not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")  # torch prints the whole graph


class Own(torch.nn.Module):
    """Calls an operator of this package."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x + sort_edges(edge_index, x.size(0), x.size(0))[0][0]


def test_a_program_that_differs_or_does_not_fit_is_not_written(result, tmp_path, monkeypatch):
    program, trace = program_of("sum", drawn(10, 30), Sum()), programs._trace
    monkeypatch.setattr(
        programs, "_trace", lambda program: trace(replace(program, network=Double()))
    )
    with pytest.raises(ValueError, match="the program and sum differ by .*e.*, more than 1e-05"):
        programs.write(tmp_path / "model.pt2", program)
    monkeypatch.undo()
    monkeypatch.setattr(programs.files, "write_atomically", fail)
    with pytest.raises(FileError, match="no space left"):
        programs.write(tmp_path / "model.pt2", program)
    assert not list(tmp_path.iterdir())


def fail(path, write):
    raise FileError(f"{path.parent} has no space left")


class Sum(torch.nn.Module):
    """Sums neighbours."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


class Double(Sum):
    """Sums neighbours twice."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return 2 * super().forward(x, edge_index)


@pytest.mark.slow
def test_links_and_graphs_are_exported(tmp_path):
    common = {"cache_dir": tmp_path / "cache", **SMALL}
    links = pe.train(
        (None, people()[1]),
        "task=link",
        folder=tmp_path / "links",
        **common,
        **{"task.base": "none", "task.common_neighbors": False},
    ).model
    links.export(tmp_path / "links.pt2")
    opened = links._open()
    pairs = torch.tensor([[0, 1], [5, 3], [7, 7]])
    given = {
        name: tensor.as_subclass(Tensor)
        for name, tensor in opened.inputs().to_dict().items()
        if isinstance(tensor, Tensor)
    } | {"pairs": pairs}
    found, about = alone(tmp_path / "links.pt2", given)
    expected = links.predict(pairs=links.ids[pairs[:2]].tolist()).numpy().reshape(-1)
    np.testing.assert_allclose(1 / (1 + np.exp(-found[:2])), expected, atol=1e-5)
    assert about["inputs"]["pairs"]["shape"] == ["pairs", 2] and about["output"][
        "meaning"
    ].endswith("of a link")
    table = pd.DataFrame({"smiles": ["CCO", "CCN", "c1ccccc1O", "CC(=O)O", "CCCl", "CO"] * 10})
    table["y"] = table["smiles"].str.contains("O").astype(int)
    table.to_csv(tmp_path / "molecules.csv", index=False)
    graphs = pe.train(
        None,
        "data=smiles",
        "task=graph",
        "loader=graph",
        folder=tmp_path / "graphs",
        **common,
        **{
            "data.path": str(tmp_path / "molecules.csv"),
            "data.label_columns": ["y"],
            "task.base": "none",
        },
    ).model
    graphs.export(tmp_path / "graphs.pt2")
    inputs = {
        name: tensor.as_subclass(Tensor)
        for name, tensor in graphs.prepare().to_dict().items()
        if isinstance(tensor, Tensor)
    }
    found, about = alone(tmp_path / "graphs.pt2", inputs)
    np.testing.assert_allclose(found, graphs.logits().numpy(), atol=1e-5)
    assert (
        about["inputs"]["ptr"]["shape"] == ["graphs + 1"] and about["task"]["predicts"] == "graphs"
    )


@pytest.mark.slow
def test_the_page_on_export_runs(tmp_path):
    blocks = re.findall(r"^```(python|bash)\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
    assert [language for language, _ in blocks] == ["python", "bash", "python", "python"]
    for language, block in blocks:
        command = (
            [sys.executable, "-c", block]
            if language == "python"
            else [
                sys.executable,
                *block.replace("pipeline.", "parallel_epochs.pipeline.").split()[1:],
            ]
        )
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert not done.returncode, done.stderr


@pytest.mark.slow
def test_an_answer_that_is_not_the_networks_is_refused_or_named(
    result, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(export.fusion, "share_of", lambda run: 1)
    with pytest.raises(ValueError, match="answers by its simple method alone"):
        result.model.export(tmp_path / "model.pt2")
    monkeypatch.setattr(export.fusion, "share_of", lambda run: 0.3)
    result.model.export(tmp_path / "model.pt2")
    assert "whose share is 0.3" in caplog.text
    extra = {"parallel_epochs": ""}
    torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    assert json.loads(extra["parallel_epochs"])["output"]["name"] == "network_logits"
