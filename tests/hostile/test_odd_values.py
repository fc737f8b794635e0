"""Models that somebody changed and gave the right checksum: each odd value is used or refused in one line."""

import copy
import io
import shutil

import pandas as pd
import pytest
import torch

import parallel_epochs as pe
from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.config import FileConfig
from parallel_epochs.pipeline.data.objects import keys_of
from parallel_epochs.pipeline.run import checkpoint
from tests.helpers.running import train
from tests.pipeline.gnn.test_new_data import graph

OPTIONS = {"num_layers": 2, "hidden_channels": 8, "epochs": 1, "verbose": False, "base": "none"}
# Nothing that a file can hold is one of these.
FAULTS = (TypeError, AttributeError, LookupError, RuntimeError, UnicodeError, MemoryError)


def tables(num_nodes=40):
    nodes = pd.DataFrame(
        {
            "id": range(num_nodes),
            "size": [node % 7 for node in range(num_nodes)],
            "town": [f"t{node % 4}" for node in range(num_nodes)],
            "text": [f"word{node % 5} other{node % 3}" for node in range(num_nodes)],
            "kind": [f"k{node % 3}" for node in range(num_nodes)],
        }
    )
    ends = [
        (node, (node * 7 + step) % num_nodes) for node in range(num_nodes) for step in (1, 2, 3)
    ]
    return nodes, pd.DataFrame(ends, columns=["source", "target"])


KINDS = {
    "file": (graph, {}),
    "degree": (lambda: graph(x=0), {}),
    "tables": (
        tables,
        {
            "data.nodes.features": ["size"],
            "data.nodes.categories": ["town"],
            "data.nodes.text": ["text"],
            "data.nodes.label": "kind",
        },
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("models"), {}
    for kind, (data, keys) in KINDS.items():
        result = pe.train(
            data(), folder=folder / kind, cache_dir=folder / "cache", **OPTIONS, **keys
        )
        result.model.export(folder / f"{kind}.pe")
        found[kind] = (data(), dict(checkpoint.load(folder / f"{kind}.pe")))
    return found


def changed(tree, path, value):
    """Return nested dicts and lists with another value at a path."""
    if not path:
        return value
    tree = copy.copy(tree)
    tree[path[0]] = changed(tree[path[0]], path[1:], value) if path[1:] else value
    return tree


def refuses(content, data, folder) -> str:
    """Predict with a model that has the right checksum, and return why it is refused; "" if it is not."""
    checkpoint.save(folder / "odd.pe", content)
    try:
        pe.load(folder / "odd.pe").predict(data)
    except FAULTS as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    except (ValueError, OSError, FloatingPointError) as error:
        assert str(error) and "\n" not in str(error)
        return str(error)
    return ""


@pytest.mark.parametrize(
    "kind, key, value",
    [
        ("file", ("learned", "out_channels"), 10**9),
        ("file", ("learned", "metric"), "odd"),
        ("file", ("learned", "tables"), None),
        ("degree", ("learned", "edges"), torch.ones(3)),
        (
            "tables",
            ("learned", "label_names", "label_names"),
            torch.full((6,), 255, dtype=torch.uint8),
        ),
        ("tables", ("learned", "fitted"), torch.zeros(9, dtype=torch.uint8)),
    ],
)
def test_an_odd_value_of_a_model_is_refused(models, tmp_path, kind, key, value):
    data, content = models[kind]
    assert refuses(content, data, tmp_path) == ""
    said = refuses(changed(content, key, value), data, tmp_path)
    assert "is damaged" in said or "cannot be used" in said


def test_a_layout_that_has_no_checksum_is_damage(models, tmp_path):
    torch.save(
        {**models["file"][1], "x": torch.ones(2, 2).to_sparse(), "sha256": "0" * 64},
        tmp_path / "odd.pe",
    )
    with pytest.raises(ValueError, match="is damaged: its content does not have the checksum"):
        pe.load(tmp_path / "odd.pe")


BUYS = ("user", "buys", "item")
STORES = {
    "_global_store": {},
    "item": {"num_nodes": 4},
    BUYS: {"edge_index": torch.tensor([[0, 1, 2], [1, 2, 3]])},
    "user": {
        "x": torch.ones(6, 3),
        "y": torch.arange(6) % 2,
        "train_mask": torch.arange(6) < 2,
        "valid_mask": torch.arange(6) == 2,
        "test_mask": torch.arange(6) > 2,
    },
}
ENTRIES = {
    "file": lambda data, path: torch.save(data, path) or path,
    "memory": lambda data, path: keys_of(data, path.parent, {})["data.path"],
}


def refuses_graph(data, entry, folder) -> str:
    """Open a graph, and return why it is refused; "" if it is not."""
    try:
        cache.load(FileConfig(path=str(ENTRIES[entry](data, folder / "odd.pt"))), folder)
    except ValueError as error:
        assert str(error) and "\n" not in str(error)
        return str(error)
    return ""


@pytest.mark.parametrize("entry", ENTRIES)
def test_odd_names_stores_and_counts_of_a_hetero_data_are_refused(tmp_path, entry):
    assert refuses_graph(STORES, entry, tmp_path) == ""
    for name in (
        0,
        1.5,
        True,
        b"a",
        (),
        ("a", "b"),
        (0, 1, 2),
        ("user", 1, "item"),
        ("user", "to", 1),
        "a\nb",
        "\ud800",
        2**70,
    ):
        for old in ("item", BUYS):
            changed_name = {name if key == old else key: store for key, store in STORES.items()}
            assert "is neither the name of a type" in refuses_graph(
                changed_name, entry, tmp_path
            ), name
    for store in ODD:
        found = refuses_graph(changed(STORES, ("item",), store), entry, tmp_path)
        assert (
            "must hold the attributes" if not isinstance(store, dict) else "neither x nor num_nodes"
        ) in found
    for number in (
        *(value for value in ODD if value is not None),
        2**31,
        2**31 - 1,
        torch.tensor(2**31),
    ):
        found = refuses_graph(changed(STORES, ("item", "num_nodes"), number), entry, tmp_path)
        assert "below 2^31" in found or "nodes" in found, number


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
def test_no_odd_value_of_a_hetero_data_ends_in_a_traceback(tmp_path, entry):
    for value in (
        *ODD,
        torch.ones(2, 2).to_sparse(),
        torch.ones(2, device="meta"),
        torch.ones(3, 3) * 1j,
    ):
        for place in ("x", "y", "train_mask", "num_nodes", "metric", "names", "species"):
            refuses_graph(changed(STORES, ("user", place), value), entry, tmp_path)
        for place in ("edge_index", "edge_attr", "edge_weight", "adj_t"):
            refuses_graph(changed(STORES, (BUYS, place), value), entry, tmp_path)


ODD = [None, "odd", -1, 10**9, 2**70, True, 1.5, [], {}, [None], b"x", "\ud800", torch.ones(1)]


@pytest.mark.slow
@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("kind", KINDS)
def test_no_odd_value_of_a_model_ends_in_a_traceback(models, tmp_path, kind, value):
    data, content = models[kind]
    for name in content["learned"]:
        refuses(changed(content, ("learned", name), value), data, tmp_path)
    for name in content["state"]:
        refuses(changed(content, ("state", name), value), data, tmp_path)
    if content["learned"]["fitted"] is None:
        return
    fitted = torch.load(
        io.BytesIO(content["learned"]["fitted"].numpy().tobytes()), weights_only=True
    )
    for key in [(name,) for name in fitted] + [("columns", name) for name in fitted["columns"]]:
        torch.save(changed(fitted, key, value), packed := io.BytesIO())
        odd = torch.frombuffer(packed.getbuffer(), dtype=torch.uint8).clone()
        refuses(changed(content, ("learned", "fitted"), odd), data, tmp_path)


ODD = (
    None,
    "odd",
    -1,
    2**62,
    [],
    {},
    torch.ones(2, 3, 4),
    torch.tensor(float("nan"), dtype=torch.float64),
)


def leaves(tree, path=()):
    """Yield the path of everything that nested dicts and lists hold, and of themselves."""
    yield path
    for name, value in (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    ):
        yield from leaves(value, (*path, name))


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run of two epochs, with averaged weights and a simple method, and what composes its configuration."""
    folder = tmp_path_factory.mktemp("ended")
    torch.save(graph().to_dict(), folder / "graph.pt")

    def configure(*overrides: str):
        return cli.compose_config(
            [
                "data=file",
                f"data.path={folder / 'graph.pt'}",
                f"cache_dir={folder / 'cache'}",
                "model.num_layers=2",
                "model.hidden_channels=8",
                "train.ema=0.9",
                "task.base=linear",
                "task.candidate=offset",
                "train.patience=0",
                *overrides,
            ]
        )

    train(configure("train.epochs=2"), folder / "run")
    return folder / "run", configure


def continue_(folder, configure) -> None:
    train(configure("train.epochs=3"), folder)


def predict_(folder, configure) -> None:
    pe.load(folder).predict()


def predict_other(folder, configure) -> None:
    pe.load(folder).predict(graph(50, 300, seed=1, masks=False))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, command, most",
    [
        ("checkpoints/last.pt", continue_, 60),
        ("checkpoints/best.pt", predict_, 60),
        ("base.pt", predict_other, 60),
        ("preprocessing.pt", predict_other, 40),
    ],
)
def test_odd_values_of_a_run_are_refused_or_used(ended, tmp_path, name, command, most):
    folder, configure = ended
    content = dict(checkpoint.load(folder / name))
    paths = [path for path in leaves(content) if path]
    refused, bad = 0, []
    for number, path in enumerate(paths[:: max(1, len(paths) // most)]):
        value, run = ODD[number % len(ODD)], tmp_path / str(number)
        shutil.copytree(folder, run)
        checkpoint.save(run / name, changed(content, path, value))
        (run / "checkpoints" / "previous.pt").unlink()
        try:
            command(run, configure)
        except (ValueError, OSError, FloatingPointError) as error:
            refused += 1
            if "\n" in str(error):
                bad.append(f"{path}={value}: {error}")
        except FAULTS as error:
            bad.append(f"{path}={value}: {type(error).__name__}: {error}")
    assert refused > most // 6 and not bad, bad
