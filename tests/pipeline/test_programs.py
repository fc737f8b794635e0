"""Exported networks: they run without this package, with any number of nodes and edges, and equal the run."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

import parallel_epochs as pe
from tests.pipeline.gnn.test_new_data import graph
from tests.pipeline.test_model import SMALL

NODES = [(1, 0), (1, 3), (7, 0), (40, 300)]
# Without this package, and where it is a program of ONNX without torch.
ALONE = """
    import importlib.abc, json, sys
    class Refuse(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("parallel_epochs", "torch_geometric", *sys.argv[3:]):
                raise ImportError(name)
    sys.meta_path.insert(0, Refuse())
    import numpy as np
    given = dict(np.load(sys.argv[2]))
    if sys.argv[1].endswith(".onnx"):
        import onnxruntime
        session = onnxruntime.InferenceSession(sys.argv[1])
        found = session.run(None, given)[0]
        about = json.loads(session.get_modelmeta().custom_metadata_map["parallel_epochs"])
    else:
        import torch
        given, extra = {name: torch.from_numpy(array) for name, array in given.items()}, {"parallel_epochs": ""}
        if sys.argv[1].endswith(".aoti.pt2"):
            package = torch._inductor.aoti_load_package(sys.argv[1])
            found, about = package(**given).numpy(), json.loads(package.get_metadata()["parallel_epochs"])
        else:
            program = torch.export.load(sys.argv[1], extra_files=extra)
            found, about = program.module()(**given).detach().numpy(), json.loads(extra["parallel_epochs"])
    np.save(sys.argv[2] + ".npy", found)
    print(json.dumps(about))
"""


def drawn(num_nodes: int, num_edges: int, *, edge_dim: int = 0, relations: int = 0, types: int = 0,
          columns: int = 6, graphs: bool = False) -> dict[str, Tensor]:
    """Draw a graph, some of whose edges are there twice or join a node with itself."""
    rng = torch.Generator().manual_seed(num_nodes + num_edges)
    edges = torch.randint(num_nodes, (2, num_edges), generator=rng)
    edges[:, :num_edges // 10] = edges[:, num_edges // 2:num_edges // 2 + num_edges // 10]
    edges[1, -(num_edges // 20) - 1:] = edges[0, -(num_edges // 20) - 1:]
    found = {"x": torch.randn(num_nodes, columns, generator=rng), "edge_index": edges}
    if types:
        one_hot = torch.nn.functional.one_hot(torch.randint(types, (num_nodes,), generator=rng), types).float()
        found["x"] = torch.cat([found["x"], one_hot], dim=1)
    if relations:
        found["edge_attr"] = torch.randint(relations, (num_edges, 1), generator=rng).float()
    elif edge_dim:
        found["edge_attr"] = torch.rand(num_edges, edge_dim, generator=rng)
    if graphs:
        found["ptr"] = torch.tensor([0, num_nodes] if num_nodes < 3 else [0, 2, num_nodes])
    return found


def alone(path: Path, given: dict[str, Tensor], *refused: str) -> tuple[np.ndarray, dict]:
    """Run a program in a process that cannot import this package; return its answer and its description."""
    np.savez(path.with_suffix(".npz"), **{name: tensor.numpy() for name, tensor in given.items()})
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(ALONE), str(path), str(path.with_suffix(".npz")),
                            *refused], capture_output=True, text=True, check=True, cwd=path.parent)
    return np.load(f"{path.with_suffix('.npz')}.npy"), json.loads(found.stdout)


def refuses_scatter_nd(path: Path) -> None:
    """Check that no sum of a program is one of which onnxruntime's threads lose terms."""
    model = onnx.load(path)
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    assert any(node.op_type == "ScatterElements" for node in nodes)
    assert not [node for node in nodes if node.op_type == "ScatterND" and any(
        part.name == "reduction" and part.s != b"none" for part in node.attribute)]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A run on a small graph whose answer is its network's."""
    folder = tmp_path_factory.mktemp("programs")
    return pe.train(graph(), "model=pyg", folder=folder / "run", cache_dir=folder / "cache", **SMALL,
                    **{"task.base": "none", "model.conv": "GCNConv"})


@pytest.fixture(scope="module")
def exported(result, tmp_path_factory):
    """A program of ONNX of this run."""
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    result.model.export(path)
    return path


def test_a_program_runs_without_this_package_and_torch_and_equals_the_run(result, exported):
    refuses_scatter_nd(exported)
    inputs = result.model.prepare()
    given = {name: inputs[name] for name in ("x", "edge_index", "edge_attr")}
    found, about = alone(exported, given, "torch")
    np.testing.assert_allclose(found, result.model.logits().numpy(), atol=1e-5)
    assert about["task"] == {"predicts": "nodes", "labels": "classes", "metric": "acc"}
    assert about["inputs"]["edge_index"] == {"shape": [2, "edges"], "dtype": "int64"}
    assert about["output"]["name"] == "logits" and about["not_in_the_program"] == []
    assert about["preprocessing"]["num_columns"] == inputs.x.size(1)
    assert str(result.folder.parent).encode() not in exported.read_bytes() and b"/models/" not in exported.read_bytes()


@pytest.mark.parametrize("nodes, edges", NODES)
def test_a_program_takes_any_number_of_nodes_and_edges(nodes, edges, result, exported):
    session, network = onnxruntime.InferenceSession(exported), result.model.module()
    given = drawn(nodes, edges, edge_dim=2)
    with torch.no_grad():
        expected = network(**given).numpy()
        np.testing.assert_allclose(session.run(None, {name: part.numpy() for name, part in given.items()})[0],
                                   expected, atol=1e-5)
        given["x"][0, 0] = torch.nan
        np.testing.assert_allclose(session.run(None, {name: part.numpy() for name, part in given.items()})[0],
                                   network(**given).numpy(), atol=1e-5)


def test_a_program_replaces_its_like_and_nothing_else(result, exported, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(exported.read_bytes())
    asked = pe.load(result.folder)
    for name, message in (("model.bin", "must be one of .pe, .onnx, .pt2"), ("model", "must be one of .pe"),
                          ("missing/model.onnx", "the directory .*missing does not exist")):
        with pytest.raises(ValueError, match=message):
            asked.export(tmp_path / name)
    (tmp_path / "mine.onnx").write_text("mine")
    with pytest.raises(ValueError, match="this command did not write it: it is a text"):
        asked.export(tmp_path / "mine.onnx")
    (options := programs_options(result)).check_output("export", path, result.model.run.config)
    assert sorted(part.name for part in tmp_path.iterdir()) == ["mine.onnx", "model.onnx"] and options.export is None


def programs_options(result):
    """Return the keys of the command for a run."""
    from parallel_epochs.pipeline.gnn.config import GNNPredictConfig
    return GNNPredictConfig(str(result.folder))
