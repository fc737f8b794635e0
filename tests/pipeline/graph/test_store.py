"""Stores: what is written is read, whoever is killed; what is damaged is named."""

import contextlib
import errno
import json
import os
import random
import signal
import time
from functools import partial

import numpy as np
import pytest
import torch

from parallel_epochs.pipeline.data import cache
from parallel_epochs.pipeline.data.config import StoreConfig, SyntheticProteinsConfig
from parallel_epochs.pipeline.data.graph import open_graph, write_graph
from parallel_epochs.pipeline.data.node_names import pack_names
from parallel_epochs.pipeline.graph import ranges, store
from parallel_epochs.pipeline.graph.store import StoreWriter, open_store
from parallel_epochs.pipeline.run.errors import FileError, InUse
from tests.helpers import disks, running
from tests.helpers.graphs import random_graph

SMALL = SyntheticProteinsConfig(
    num_nodes=60, num_edges=600, num_groups=4, num_species=2, num_tasks=2
)


@pytest.fixture
def path(tmp_path):
    with StoreWriter(tmp_path / "graph") as writer:
        write_graph(
            writer, random_graph(30, 200, 0).update(pack_names(np.arange(30))), colour="red"
        )
    return tmp_path / "graph"


@pytest.mark.parametrize("is_before", [True, False])
def test_a_folder_that_another_process_has_just_renamed_is_written_by_it(
    is_before, tmp_path, monkeypatch
):
    lock = store.files.lock

    @contextlib.contextmanager
    def rename(folder):
        if is_before:
            os.rename(folder, tmp_path / "graph")
        with lock(folder):
            if not is_before:
                os.rename(folder, tmp_path / "graph")
            yield

    monkeypatch.setattr(store.files, "lock", rename)
    with pytest.raises(InUse, match="another process has just written .*/graph"):
        StoreWriter(tmp_path / "graph")
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_a_graph_that_another_process_writes_is_waited_for(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    other = StoreWriter(tmp_path / "graph")

    def finish(seconds):
        with other:
            write_graph(other, random_graph(30, 200, 0), colour="red")

    monkeypatch.setattr(cache.time, "sleep", finish)
    assert cache._keep(tmp_path / "graph", pytest.fail, again="", verify=False).colour == "red"
    assert "data: waiting, as " in caplog.text


def test_what_is_written_is_read(path):
    data, read = random_graph(30, 200, 0), open_graph(path)
    assert (
        read.colour == "red" and read.metric == data.metric and set(data.keys()) < set(read.keys())
    )
    for name, value in data.to_dict().items():
        if isinstance(value, torch.Tensor):
            assert read[name].dtype == value.dtype
            assert torch.equal(torch.as_tensor(read[name]), torch.as_tensor(value)), name
    assert torch.equal(read.edge_index.get_csc()[0][0], data.edge_index.get_csc()[0][0])


def test_edges_are_checked_once_for_each_state_of_their_files(path, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checked = []
    monkeypatch.setattr(ranges, "check_graph", lambda *args: checked.append(args))
    for _ in range(2):
        open_graph(path)
    assert len(checked) == 1
    for number, (changed, put_back) in enumerate(
        [("edges", False), ("names_ptr", False), ("indptr", True)], start=2
    ):
        file, before = path / f"{changed}.bin", (path / f"{changed}.bin").stat()
        os.utime(file)
        if put_back:  # as by who changes a number in place and hides it
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        open_graph(path)
        assert len(checked) == number


@pytest.mark.parametrize("link", ["graph.part", "graph.part/work-tables", "graph.part/x.bin"])
def test_a_writer_follows_no_link_in_a_foreign_cache(tmp_path, link):
    (mine := tmp_path / "mine").mkdir()
    (mine / "x.bin").write_text("mine")
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(mine / "x.bin" if link.endswith("bin") else mine)
    with contextlib.suppress(FileError), StoreWriter(tmp_path / "graph", "key") as writer:
        (writer.folder / "work-tables").mkdir()
        (writer.folder / "work-tables" / "x.bin").write_text("work")
        writer.put("x", torch.ones(2))
        writer.finish({})
    assert [(path.name, path.read_text()) for path in mine.iterdir()] == [("x.bin", "mine")]


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64]
)
def test_every_dtype_and_an_empty_array(tmp_path, dtype):
    values = torch.arange(12).reshape(3, 4).to(dtype)
    with StoreWriter(tmp_path / "s") as writer:
        writer.put("values", values)
        writer.put("nothing", values[:0])
        writer.finish({})
    arrays, _ = open_store(tmp_path / "s")
    assert torch.equal(arrays["values"], values) and arrays["values"].dtype == dtype
    assert arrays["nothing"].shape == (0, 4)


def test_reading_does_not_write(path):
    """Nobody can change a store through its tensors."""
    open_graph(path).x.zero_()
    assert torch.equal(open_graph(path).x, random_graph(30, 200, 0).x)


def test_int64_where_there_are_more_edges_than_int32_counts(tmp_path):
    """A file with holes: 2**31 + 10 edges of a node, of which the disk holds the last."""
    num_edges = 2**31 + 10
    with StoreWriter(tmp_path / "s") as writer:
        with writer.write(indptr=((3,), torch.int64)) as arrays:
            arrays["indptr"].write(0, np.array([0, num_edges - 2, num_edges]))
        folder = writer.folder
        writer._arrays["edges"] = {
            "dtype": "int64",
            "shape": [2, num_edges],
            "size": 16 * num_edges,
            "changed_ns": 0,
            "blake2b": "not looked at",
        }
        with open(folder / "edges.bin", "wb") as file:
            os.truncate(file.fileno(), 16 * num_edges)
            os.pwrite(file.fileno(), np.array([1, 1]).tobytes(), 8 * (num_edges - 2))
            os.pwrite(file.fileno(), np.array([1, 1]).tobytes(), 8 * (2 * num_edges - 2))
        writer.finish({})
    data = open_graph(tmp_path / "s", verify=False)
    assert data.num_edges == num_edges and data.edge_index[:, -1].tolist() == [1, 1]
    assert data.edge_index.get_csc()[0][0].tolist() == [0, num_edges - 2, num_edges]


def _truncate(path):
    os.truncate(path / "x.bin", (path / "x.bin").stat().st_size - 4)


def _edit(path):
    with open(path / "x.bin", "r+b") as file:
        file.seek(8)
        file.write(b"\xff")


def _change(path, **values):
    """Change values of the manifest, or of what it says of an array."""
    manifest = json.loads((path / "manifest.json").read_text())
    (manifest if "version" in values else manifest["arrays"]["x"]).update(values)
    (path / "manifest.json").write_text(json.dumps(manifest))


def _edit_and_date_back(path):
    """As a backup that is put back would be: older than the manifest says."""
    _edit(path)
    os.utime(path / "x.bin", (1.0, 1.0))


@pytest.mark.parametrize(
    "damage, says",
    [
        (_truncate, "x.bin is damaged: it has .* bytes, the manifest says"),
        (_edit, "x.bin is damaged: its content does not have the checksum"),
        (_edit_and_date_back, "x.bin is damaged: its content does not have the checksum"),
        (lambda path: (path / "x.bin").unlink(), "x.bin is missing"),
        (lambda path: (path / "manifest.json").write_text("{"), "manifest.json is damaged"),
        (lambda path: (path / "manifest.json").unlink(), "holds no store"),
        (partial(_change, version=99), "version 99 of stores, and this program reads 1"),
        (partial(_change, dtype="load"), "damaged"),
        (partial(_change, shape=[-2, -15]), "damaged"),
        (partial(_change, shape=["a"]), "damaged"),
        (partial(_change, size=12.0), "damaged"),
        (
            lambda path: (path / "manifest.json").write_text('{"version": 1}'),
            "manifest.json is damaged",
        ),
    ],
)
def test_damage_is_named(path, damage, says):
    damage(path)
    with pytest.raises(ValueError, match=says):
        open_store(path)


def test_a_writer_goes_on_where_another_was_killed(tmp_path):
    with StoreWriter(tmp_path / "s", "key") as writer:
        writer.put("first", torch.arange(5))
        with pytest.raises(ZeroDivisionError), writer.write(second=((4,), torch.int64)) as arrays:
            arrays["second"].write(0, np.arange(2))
            raise ZeroDivisionError
    assert not store.is_store(tmp_path / "s")
    with StoreWriter(tmp_path / "s", "key") as writer:
        assert writer.has("first") and not writer.has("second")
        writer.put("first", torch.zeros(5))  # is there already
        writer.put("second", torch.arange(4))
        writer.finish({})
    arrays, _ = open_store(tmp_path / "s")
    assert arrays["first"].tolist() == [0, 1, 2, 3, 4] and arrays["second"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("first, then", [("a", "b"), (None, None), ("a", None)])
def test_nothing_is_taken_from_another_store(tmp_path, first, then):
    with StoreWriter(tmp_path / "s", first) as writer:
        writer.put("array", torch.arange(5))
        (writer.folder / "work-table").write_text("")
    with StoreWriter(tmp_path / "s", then) as writer:
        assert not writer.has("array") and not (writer.folder / "work-table").exists()


def test_two_writers(tmp_path):
    with StoreWriter(tmp_path / "s"), pytest.raises(ValueError, match="in use by another process"):
        StoreWriter(tmp_path / "s")


def test_a_new_store_takes_the_place_of_the_old(path):
    with StoreWriter(path) as writer:
        writer.put("other", torch.arange(3))
        writer.finish({})
    assert set(open_store(path)[0]) == {"other"} and [p.name for p in path.parent.iterdir()] == [
        "graph"
    ]


def test_no_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with (
        StoreWriter(tmp_path / "s") as writer,
        pytest.raises(FileError, match="has no space left for the 8.59 GB of x.bin"),
        writer.write(x=((2**31,), torch.float32)),
    ):
        raise AssertionError("not reached")
    assert not store.is_store(tmp_path / "s")


def test_a_full_disk(tmp_path):
    with disks.small_disk(tmp_path / "small", 1) as folder:
        with StoreWriter(folder / "s", "a") as writer:
            writer.put("small", torch.arange(5))
            with pytest.raises(FileError, match="has no space left"):
                writer.put("large", torch.zeros(2**20))
        with StoreWriter(folder / "s", "a") as writer:
            assert writer.has("small")


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda data: data.pop("y"), "there is no y in manifest.json"),
        (lambda data: data.update({"metric": "luck"}), "metric is 'luck', which does not fit"),
        (
            lambda data: data.update({"valid_mask": torch.ones(3) > 0}),
            "valid_mask is torch.bool of .3., and it should be",
        ),
        (
            lambda data: data.update({"edge_attr": torch.ones(3, 1)}),
            "edge_attr is torch.float32 of .3, 1., which does not fit",
        ),
    ],
)
def test_a_store_that_is_no_graph_with_labels(tmp_path, change, says):
    data = random_graph(30, 200, 0)
    change(data)
    with StoreWriter(tmp_path / "s") as writer:
        write_graph(writer, data)
    with pytest.raises(ValueError, match=says):
        cache.load(StoreConfig(path=str(tmp_path / "s")), tmp_path / "cache")


@pytest.mark.slow
def test_kills_while_a_store_is_written(tmp_path):
    """SIGKILL at a random moment: no store, or a whole one; the next writer goes on."""
    overrides = ["data.num_nodes=20_000", "data.num_edges=1_000_000", "data.on_disk=true"]
    moments, complete, continued = random.Random(0), 0, 0
    start = time.perf_counter()
    assert (
        running.shell(
            "pipeline.prepare", *overrides, f"cache_dir={tmp_path / 'undisturbed'}", cwd=tmp_path
        ).returncode
        == 0
    )
    took = time.perf_counter() - start
    for number in range(8):
        folder = tmp_path / f"cache{number % 4}"  # some with what was left before
        process = running.command(
            "pipeline.prepare", *overrides, f"cache_dir={folder}", cwd=tmp_path
        )
        time.sleep(moments.uniform(0.3, 1) * took)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        for left in folder.glob("graphs/*.store"):
            open_graph(left)
            complete += 1
        continued += len(list(folder.glob("graphs/*.part/journal.json")))
    assert (
        running.shell(
            "pipeline.prepare", *overrides, f"cache_dir={tmp_path / 'cache0'}", cwd=tmp_path
        ).returncode
        == 0
    )
    (ours,), (theirs,) = (
        (tmp_path / name / "graphs").glob("*.store") for name in ("cache0", "undisturbed")
    )
    for file in theirs.glob("*.bin"):
        assert file.read_bytes() == (ours / file.name).read_bytes()
    assert not list((tmp_path / "cache0" / "graphs").glob("*.part"))


def test_a_store_that_another_process_has_just_written_is_not_written_again(tmp_path, monkeypatch):
    written: list = []
    is_store = store.is_store

    def look(path):
        """Let another process write the store right after the first look."""
        if not written:
            written.append(path)
            monkeypatch.setattr(store, "is_store", is_store)
            cache.load(SMALL, tmp_path)
            return False
        return is_store(path)

    monkeypatch.setattr(store, "is_store", look)
    monkeypatch.setattr(
        cache,
        "prepare_as",
        lambda *args, _prepare=cache.prepare_as, **options: (
            written.append("prepared"),
            _prepare(*args, **options),
        )[1],
    )
    cache.load(SMALL, tmp_path)
    assert written[1:] == ["prepared"] and [
        path.suffix for path in (tmp_path / "graphs").iterdir()
    ] == [".store"]


@pytest.mark.parametrize(
    "part, name, value",
    [
        ("values", "out_channels", 10**9),
        ("values", "out_channels", 0),
        ("values", "metric", "odd"),
        ("values", "num_nodes", ...),
        ("values", "num_categories", 10**9),
        ("values", "structure", {"num_nodes": 3}),
        ("arrays", "train_mask", ...),
        ("arrays", "x", ...),
    ],
)
def test_a_value_that_the_arrays_contradict_is_damage(tmp_path, caplog, part, name, value):
    expected = cache.load(SMALL, tmp_path)
    manifest = expected.store / "manifest.json"
    content = json.loads(manifest.read_text())
    if value is ...:
        del content[part][name]
    else:
        content[part][name] = value
    manifest.write_text(json.dumps(content))
    assert cache.load(SMALL, tmp_path).out_channels == expected.out_channels
    assert "does not fit the arrays; preparing the graph again" in caplog.text
