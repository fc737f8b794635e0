"""Runs, studies, databases, stores and archives of others: nothing of theirs is called, and no other file is read."""

import gzip
import io
import json
import os
import pickle
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from parallel_epochs.pipeline import keys
from parallel_epochs.pipeline.command.cli import compose_config
from parallel_epochs.pipeline.graph import store
from parallel_epochs.pipeline.run import checkpoint
from tests.helpers.hostile import Case, check
from tests.helpers.running import TOY

pytestmark = pytest.mark.slow


def their_run(
    edit: Callable[[str], str] = lambda text: text, *overrides: str
) -> Callable[[Path], None]:
    """Write the folder of a run, its config.yaml edited, with a checkpoint that has no settings."""

    def write(folder: Path) -> None:
        (folder / "theirs" / "checkpoints").mkdir(parents=True)
        text = keys.to_yaml(compose_config([*TOY, *overrides]))
        (folder / "theirs" / "config.yaml").write_text(edit(text))
        checkpoint.save(
            folder / "theirs" / "checkpoints" / "best.pt", {"model": {}, "round": 0, "epoch": 1}
        )

    return write


def custom(path: str, **kwargs: object) -> Callable[[Path], None]:
    """Write a run of model=custom."""
    return their_run(
        lambda text: text.replace("path: a.B", f"path: {path}").replace(
            "kwargs: {}", f"kwargs: {json.dumps(kwargs)}"
        ),
        "model=custom",
        "model.path=a.B",
    )


OS_SYSTEM = custom("os.system", command="touch pwned")


def added(text: str) -> Callable[[Path], None]:
    """Write a run whose config.yaml ends with more lines."""
    return their_run(lambda config: f"{config}{text}\n")


def named(value: str) -> Callable[[Path], None]:
    """Write a run of another name."""
    return their_run(lambda config: config.replace("name: default", f"name: {value}", 1))


def untrusted(origin: str, path: str, key: str = "model.path") -> str:
    return (
        f"{origin} names the class {path} ({key}). You have not named it in a command"
        f"{' with these model.kwargs' * (key == 'model.path')}, and importing it would run code that the author "
        "of this file chose. If you trust the author, add trust=true, once for each class"
    )


TABLES = "data=tables cache_dir=cache data.nodes.path={} data.edges.path={}"
NODES = "id,size\na,1\nb,2\nc,3\n"
EDGES = "source,target\na,b\nb,c\n"


def tables(folder: Path) -> None:
    (folder / "nodes.csv").write_text(NODES)
    (folder / "edges.csv").write_text(EDGES)


def their_store(edit: Callable[[dict, Path], Any]) -> Callable[[Path], None]:
    """Write a store of an array, its manifest edited."""

    def write(folder: Path) -> None:
        with store.StoreWriter(folder / "theirs") as writer:
            writer.put("x", torch.zeros(4, 2))
            writer.finish({"metric": "acc"})
        (folder / "secret.bin").write_bytes(bytes(32))
        manifest = json.loads((folder / "theirs" / "manifest.json").read_text())
        edit(manifest, folder)
        (folder / "theirs" / "manifest.json").write_text(json.dumps(manifest))

    return write


def renamed(name: str) -> Callable[[Path], None]:
    return their_store(
        lambda manifest, folder: manifest["arrays"].update({name: manifest["arrays"]["x"]})
    )


def linked(manifest: dict, folder: Path) -> None:
    (folder / "theirs" / "x.bin").unlink()
    (folder / "theirs" / "x.bin").symlink_to(folder / "secret.bin")
    manifest["arrays"]["x"]["changed_ns"] = (folder / "secret.bin").stat().st_mtime_ns


def no_name(name: str) -> str:
    return f"theirs/manifest.json is damaged: {name!r} is not the name of an array or a value"


class Reduced:
    """What a pickle may call."""

    def __reduce__(self):
        return os.system, ("touch pwned",)


def pickled(
    name: str, dump: Callable[[object, Any], object] = pickle.dump
) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        if "theirs" in name:
            their_run()(folder)
        with open(folder / name, "wb") as file:
            dump(Reduced(), file)

    return write


def linked_file(name: str) -> Callable[[Path], None]:
    """Write a run in which a file is a link to one of the user's."""

    def write(folder: Path) -> None:
        their_run()(folder)
        (folder / "diary.txt").write_text("Dear diary\n")
        (folder / "theirs" / name).symlink_to(folder / "diary.txt")

    return write


BOMB = b"a\tb\n" * 500_000


def packed(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        tables(folder)
        (folder / name).write_bytes(content)

    return write


def tar_of(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name in ("train.txt", "valid.txt", "test.txt"):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def npz_of(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, x=array)
    return file.getvalue()


def repacked(folder: Path) -> None:
    """Write a graph of torch.save with its zeros compressed."""
    torch.save({"x": torch.zeros(1_000_000)}, folder / "stored.pt")
    with (
        zipfile.ZipFile(folder / "stored.pt") as stored,
        zipfile.ZipFile(folder / "graph.pt", "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in stored.namelist():
            archive.writestr(name, stored.read(name))


def parquet_of(folder: Path) -> None:
    column = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(1_000_000, np.int32)), pa.array([1.0])
    )
    parquet.write_table(pa.table({"a": column}), folder / "x.parquet")


def wide(folder: Path) -> None:
    tables(folder)
    (folder / "wide.csv").write_text(",".join(f"c{n}" for n in range(300)) + "\n")
    pd.DataFrame(np.zeros((2, 300))).to_csv(folder / "x.csv", index=False, header=False)


def unpacks(name: str) -> str:
    return f"{name} unpacks to more than 1 MB: if that is right, raise the limit PARALLEL_EPOCHS_MAX_UNPACKED"


ALIASES = "bomb:\n" + "".join(
    f"  - &a{n} [{', '.join([f'*a{n - 1}'] * 9 if n else ['lol'] * 9)}]\n" for n in range(9)
)
TOO_MANY = (
    "stands for more than 1,000,000 values by its aliases: if that is right, raise the limit "
    "PARALLEL_EPOCHS_MAX_CONFIG"
)
NOT_A_RUN = "theirs/config.yaml is not the configuration of a run: "
PREPARE = f"pipeline.prepare trainer=node_embedding {TABLES}"
NODE2VEC = "pipeline.train trainer=node_embedding data=edges cache_dir=cache data.path="
LAYOUT = "pipeline.train trainer=layout data=vectors cache_dir=cache data.path="
ESCAPES = "\x1b]0;owned\x07\x1b[31mred"

CASES = [
    Case(
        "evaluate a run that calls os.system",
        "pipeline.evaluate run=theirs",
        untrusted("theirs/config.yaml", "os.system"),
        OS_SYSTEM,
    ),
    Case(
        "resume a run that calls os.system",
        "pipeline.train resume=theirs",
        untrusted("<*>theirs/config.yaml", "os.system"),
        OS_SYSTEM,
    ),
    Case(
        "trust a run that calls os.system",
        "pipeline.evaluate run=theirs trust=true",
        "model.path=os.system is not a torch.nn.Module: give the path of a class that extends it",
        OS_SYSTEM,
    ),
    Case(
        "trust a run that calls a class",
        "pipeline.train resume=theirs trust=true",
        "model.path=subprocess.Popen is not a torch.nn.Module: give the path of a class that extends it",
        custom("subprocess.Popen", args="touch pwned", shell=True),
    ),
    Case(
        "a class that could be imported",
        "pipeline.evaluate run=theirs",
        untrusted("theirs/config.yaml", "tests.helpers.nets.Net"),
        custom("tests.helpers.nets.Net"),
    ),
    Case(
        "a class with codes of the terminal",
        "pipeline.evaluate run=theirs",
        untrusted("theirs/config.yaml", r"\x1b[31mevil.Net"),
        custom('"\\e[31mevil.Net"'),
    ),
    Case(
        "resume a run whose tracker is a class",
        "pipeline.train resume=theirs",
        untrusted("<*>theirs/config.yaml", "tests.helpers.nets.Net", "tracker.path"),
        their_run(
            lambda config: re.sub(
                r"tracker:\n  name: none\n  path: null",
                r"tracker:\n  name: custom\n  path: tests.helpers.nets.Net",
                config,
            )
        ),
    ),
    Case(
        "trust in the configuration itself",
        "pipeline.evaluate run=theirs",
        untrusted("theirs/config.yaml", "os.system"),
        lambda folder: (
            OS_SYSTEM(folder),
            (folder / "theirs/config.yaml").write_text(
                (folder / "theirs/config.yaml").read_text().replace("trust: false", "trust: true")
            ),
        ),
    ),
    Case(
        "a variable of the environment",
        "pipeline.evaluate run=theirs",
        NOT_A_RUN
        + "name=${oc.env:HOME} is an interpolation, and interpolations in a saved run are not resolved. "
        "Write its value instead",
        named("${oc.env:HOME}"),
    ),
    Case(
        "a resolver of Hydra's",
        "pipeline.evaluate run=theirs",
        NOT_A_RUN
        + "more=${hydra:runtime.cwd} is an interpolation, and interpolations in a saved run are not "
        "resolved. Write its value instead",
        added("more: ['${hydra:runtime.cwd}']"),
    ),
    Case(
        "a target of Hydra's",
        "pipeline.evaluate run=theirs",
        NOT_A_RUN + "Key '_target_' not in 'GNNConfig'",
        added("_target_: os.system"),
    ),
    Case(
        "an object of YAML",
        "pipeline.evaluate run=theirs",
        NOT_A_RUN
        + "could not determine a constructor for the tag 'tag:yaml.org,2002:python/object/apply:<*>",
        added("more: !!python/object/apply:os.system ['touch pwned']"),
    ),
    Case(
        "an object of YAML in a report",
        "scripts.report theirs",
        "theirs/config.yaml is not a configuration: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/object/apply:os.system'<*>",
        added("more: !!python/object/apply:os.system ['touch pwned']"),
    ),
    Case(
        "a bomb of aliases",
        "pipeline.evaluate run=theirs",
        NOT_A_RUN + "config.yaml " + TOO_MANY,
        added(ALIASES),
    ),
    Case(
        "a bomb of aliases in a report",
        "scripts.report theirs",
        "theirs/config.yaml is not a configuration: config.yaml " + TOO_MANY,
        added(ALIASES),
    ),
    Case(
        "an alias of itself",
        "pipeline.train resume=theirs",
        "config.yaml is damaged: an alias in it stands within itself",
        added("more: &a [*a]"),
    ),
    Case(
        "a configuration of 2 MB",
        "pipeline.evaluate run=theirs",
        NOT_A_RUN
        + "config.yaml has more than 1 MB: if that is right, raise the limit PARALLEL_EPOCHS_MAX_CONFIG",
        added("# " + "x" * 2_000_000),
    ),
    Case(
        "a log that is a link",
        "pipeline.train resume=theirs",
        "<*>theirs/train.log is a symbolic link, which is not written to: delete it",
        linked_file("train.log"),
    ),
    Case(
        "a checkpoint that is a pickle",
        "pipeline.evaluate run=theirs",
        "theirs/checkpoints/best.pt is damaged: it cannot be read (UnpicklingError)",
        pickled("theirs/checkpoints/best.pt"),
    ),
    Case(
        "an array of objects",
        LAYOUT + "x.npy",
        "x.npy is not a file that numpy.save wrote: Object arrays cannot be loaded when allow_pickle=False",
        lambda folder: np.save(folder / "x.npy", np.array([Reduced()], object), allow_pickle=True),
    ),
    Case(
        "a database, whose views could read other files",
        PREPARE.format("nodes.csv", "edges.duckdb"),
        "edges.duckdb is no table that can be read: its name ends in none of .csv, .csv.gz, .tsv, .tsv.gz, .parquet. "
        "Write the tables of a database as files of Parquet (data.edges)",
        packed("edges.duckdb", b"view"),
    ),
    Case(
        "an array outside of the store",
        "pipeline.train data=store data.path=theirs",
        no_name("../secret"),
        renamed("../secret"),
    ),
    Case(
        "an array that is a link",
        "pipeline.train data=store data.path=theirs",
        "theirs/x.bin is a link to <*>/secret.bin, outside of the store: put the file itself there",
        their_store(linked),
    ),
    Case(
        "columns with codes of the terminal",
        PREPARE.format("nodes.csv", "edges.csv"),
        r"data.edges.source=source: edges.csv has no such column; there are \x1b]0;owned\x07\x1b[31mred, target",
        packed("edges.csv", f"{ESCAPES},target\na,b\n".encode()),
    ),
    Case(
        "a bomb of gzip",
        NODE2VEC + "x.tsv.gz",
        unpacks("x.tsv.gz"),
        packed("x.tsv.gz", gzip.compress(BOMB)),
    ),
    Case(
        "a bomb of tar",
        "pipeline.train trainer=knowledge data=triples data.folder=x.tar.gz cache_dir=cache",
        unpacks("x.tar.gz"),
        packed("x.tar.gz", tar_of(BOMB)),
    ),
    Case(
        "a bomb of torch",
        "pipeline.train data=file data.path=graph.pt cache_dir=cache",
        unpacks("graph.pt"),
        repacked,
    ),
    Case("a bomb of Parquet", LAYOUT + "x.parquet", unpacks("x.parquet"), parquet_of),
    Case(
        "an array of any size",
        LAYOUT + "x.npy",
        "x.npy is not a file that numpy.save wrote: <*>",
        packed(
            "x.npy",
            b"\x93NUMPY\x01\x00v\x00"
            + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 8), }".ljust(117)
            + b"\n",
        ),
    ),
    Case(
        "a line without end",
        NODE2VEC + "x.tsv",
        "x.tsv: line 1 has more than 1 kB: if that is right, raise the limit PARALLEL_EPOCHS_MAX_LINE",
        packed("x.tsv", b"a" * 5000),
    ),
    Case(
        "more columns than a table has",
        PREPARE.format("nodes.csv", "wide.csv"),
        "wide.csv has 300 columns, more than 200: if that is right, raise the limit PARALLEL_EPOCHS_MAX_COLUMNS",
        wide,
    ),
]
# Small enough for a test.
LIMITS = {"PARALLEL_EPOCHS_MAX_UNPACKED": "1MB", "PARALLEL_EPOCHS_MAX_COLUMNS": "200"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_others_wrote(case, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    limits = LIMITS | ({"PARALLEL_EPOCHS_MAX_LINE": "1kB"} if "without end" in case.name else {})
    for name, value in limits.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "here"
    folder.mkdir()
    done = check(case, folder)
    assert not list(folder.rglob("pwned")) and "\x1b" not in done.stdout + done.stderr
    assert os.environ["HOME"] not in done.stdout + done.stderr
