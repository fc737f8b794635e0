import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from parallel_epochs.pipeline import init
from parallel_epochs.pipeline.command import folder as run_folder
from parallel_epochs.pipeline.command.folder import RUN_FILES, refuse_files_of_others
from parallel_epochs.pipeline.data.config import FileConfig, GraphFilesConfig
from parallel_epochs.pipeline.data.tables.columns import EdgeColumns, NodeColumns
from parallel_epochs.pipeline.data.tables.config import TablesConfig
from parallel_epochs.pipeline.gnn.config import (
    GNNConfig,
    GNNEvaluateConfig,
    GNNPredictConfig,
    NewDataConfig,
    NewTableConfig,
)
from parallel_epochs.pipeline.keys import to_yaml
from parallel_epochs.pipeline.run import files, outputs


def check(path: Path, **options) -> None:
    outputs.check("predictions", path, **options)


def refuses(path: Path, reason: str, **options) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        check(path, **options)


def test_a_file_of_others_is_replaced_only_if_the_user_says_so(tmp_path):
    path = tmp_path / "nodes.csv"
    path.write_text("mine")
    said = f"predictions={path} exists, and this command did not write it. Give another name, or overwrite=true"
    refuses(path, said)
    check(path, overwrite=True)
    files.write_text(path, "predictions")
    check(path)
    check(path.parent / "." / path.name)
    path.write_text("predictions, and notes of mine")
    refuses(path, said)


def test_a_new_file_and_an_empty_one_are_written(tmp_path):
    check(tmp_path / "new.csv")
    (tmp_path / "empty.csv").touch()
    check(tmp_path / "empty.csv")


def test_what_a_command_reads_is_never_replaced_under_any_of_its_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Even where it looks like predictions: a second model may be trained on those of the first.
    Path("nodes.csv").write_text("id,split,score_0\n")
    Path("other").mkdir()
    os.symlink(tmp_path / "nodes.csv", "link.csv")
    os.link("nodes.csv", "hard.csv")
    os.symlink(tmp_path / "other", "way")
    reads = [("data.nodes.path", tmp_path / "nodes.csv")]
    for name in (
        "nodes.csv",
        "./nodes.csv",
        "other/../nodes.csv",
        "way/../nodes.csv",
        "link.csv",
        "hard.csv",
    ):
        refuses(
            Path(name),
            f"predictions={Path(name)} is a file that this command reads (data.nodes.path={tmp_path}/"
            "nodes.csv). Give another name",
            reads=reads,
            overwrite=True,
        )
    check(Path("other/nodes.csv"), reads=reads)


def test_a_new_file_is_not_put_among_files_that_are_read_together(tmp_path):
    (tmp_path / "edges").mkdir()
    tables = TablesConfig(
        folder=str(tmp_path), edges=EdgeColumns(path="edges"), nodes=NodeColumns(path="n-*.csv")
    )
    for name in ("edges/new.csv", "n-3.csv"):
        refuses(tmp_path / name, "is a file that this command reads (data.", reads=tables.sources())
    check(tmp_path / "new.csv", reads=tables.sources())
    graphs = GraphFilesConfig(folder=str(tmp_path))
    refuses(
        tmp_path / "new.pt",
        "is a file that this command reads (data.folder=",
        reads=graphs.sources(),
    )
    check(tmp_path / "new.csv", reads=graphs.sources())


@pytest.mark.parametrize(
    "name",
    [
        "run/checkpoints/best.pt",
        "run/metrics.jsonl",
        "run/config.yaml",
        "store/x.bin",
        "study/study.journal",
        "sweep/notes.csv",
        ".cache/graphs/file-0123456789abcdef01234567.pt",
        "mine/table.csv",
        "raw/edge.csv",
    ],
)
def test_files_of_runs_stores_caches_and_folders_are_never_replaced(tmp_path, name):
    for other in (
        "run/config.yaml",
        "run/metrics.jsonl",
        "store/manifest.json",
        "study/study.journal",
        "sweep/multirun.yaml",
        name,
    ):
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).write_text("something")
    refuses(
        tmp_path / name,
        "and no command replaces such a file. Give another name",
        overwrite=True,
        cache=tmp_path / "mine",
        reads=[("data.folder", tmp_path / "raw")],
    )
    (tmp_path / "link").symlink_to(tmp_path / name)
    refuses(
        tmp_path / "link",
        "and no command replaces such a file. Give another name",
        overwrite=True,
        cache=tmp_path / "mine",
        reads=[("data.folder", tmp_path / "raw")],
    )


def test_predictions_in_a_run_directory_are_replaced_by_predictions(tmp_path):
    (tmp_path / "config.yaml").touch()
    (tmp_path / "checkpoints").mkdir()
    check(tmp_path / "words.txt")
    files.write_text(tmp_path / "words.txt", "1 2")
    check(tmp_path / "words.txt")


SCHEMA = """
nodes:
  user: {path: users.csv, id: name}
  item: {}
edges:
  buys: {path: buys.csv, source: {type: user, column: user}, target: {type: item, column: item}}
"""


def test_every_writer_knows_all_files_that_a_command_reads(tmp_path):
    """Those of the training, new ones in their place, relative to either folder, and a schema with its tables."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shop.yaml").write_text(SCHEMA)
    old, new = tmp_path / "old", tmp_path / "new"
    single = TablesConfig(
        folder=str(old), edges=EdgeColumns(path="edges.csv"), nodes=NodeColumns(path="nodes.csv")
    )
    typed = TablesConfig(schema=str(old / "shop.yaml"))
    file = FileConfig(path=str(old / "graph.pt"))
    table = NewTableConfig
    for data, other, read in [
        (single, NewDataConfig(), ["old/edges.csv", "old/nodes.csv"]),
        (single, NewDataConfig(nodes=table(path="more.csv")), ["old/more.csv", "old/edges.csv"]),
        (single, NewDataConfig(folder=str(new)), ["new/edges.csv", "new/nodes.csv"]),
        (single, NewDataConfig(folder=str(new), edges=table(path="more.csv")), ["new/more.csv"]),
        (
            typed,
            NewDataConfig(schema=str(new / "shop.yaml")),
            [
                f"{folder}/{name}"
                for folder in ("old", "new")
                for name in ("shop.yaml", "users.csv", "buys.csv")
            ],
        ),
        (typed, NewDataConfig(folder=str(new)), ["new/users.csv"]),
        (file, NewDataConfig(path=str(new / "graph.pt")), ["old/graph.pt", "new/graph.pt"]),
    ]:
        for path in read:
            (tmp_path / path).exists() or (tmp_path / path).touch()
        options, config = (
            GNNPredictConfig(run=str(tmp_path), data=other, overwrite=True),
            GNNConfig(data=data),
        )
        for name in ("predictions", "output", "export"):
            for path in read:
                with pytest.raises(ValueError, match="is a file that this command reads"):
                    options.check_output(name, tmp_path / path, config)
            options.check_output(
                name, tmp_path / ("more.pe" if name == "export" else "more.csv"), config
            )


@pytest.mark.parametrize(
    "first, second", [("output", "export"), ("predictions", "export"), ("predictions", "output")]
)
def test_two_outputs_have_two_names(tmp_path, first, second):
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("a.csv", "link/a.csv"):
        options = GNNPredictConfig(
            run=str(tmp_path), **{first: str(tmp_path / "a.csv"), second: str(tmp_path / name)}
        )
        with pytest.raises(ValueError, match="=.*csv and .*=.*csv name the same file"):
            options.check_outputs(GNNConfig())


@pytest.mark.parametrize("name", ["*.csv", "[ab].csv", "?.csv"])
def test_the_name_of_an_output_is_no_pattern(tmp_path, name):
    left, mine = (
        tmp_path / f".{name}.{'0' * 16}.tmp",
        [f".a.csv.{'0' * 16}.tmp", f".{name}.draft.tmp"],
    )
    for path in (left, *(tmp_path / other for other in mine)):
        path.touch()
    files.write_text(tmp_path / name, "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*mine, name])


def test_a_run_takes_no_folder_that_holds_files_of_others(tmp_path):
    refuse_files_of_others(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    refuse_files_of_others(tmp_path)
    for name in RUN_FILES[1:]:
        (tmp_path / name).write_text("mine")
        with pytest.raises(
            ValueError, match=f"{name} was not written by a run, .* would replace this file: choose"
        ):
            refuse_files_of_others(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / "config.yaml").write_text("service: web\n")
    with pytest.raises(
        ValueError,
        match=r"config.yaml is not the configuration of a run: .* A run would replace this",
    ):
        refuse_files_of_others(tmp_path)
    (tmp_path / "config.yaml").write_text(to_yaml(GNNConfig()))
    refuse_files_of_others(tmp_path)


def write_shop(folder: Path) -> Path:
    (folder / "users.csv").write_text("id,team\n" + "".join(f"u{n},{n % 2}\n" for n in range(9)))
    (folder / "buys.csv").write_text("user,item\nu1,i1\nu2,i1\n")
    torch.save({"x": torch.zeros(2)}, folder / "base.pt")
    return folder


def train_there(folder: Path) -> None:
    (folder / "config.yaml").write_text(to_yaml(GNNConfig()))
    config = GNNConfig(data=FileConfig(path=str(folder / "base.pt")))
    run_folder.resolve(config, folder)


def shop_tables(folder: Path) -> TablesConfig:
    return TablesConfig(
        folder=str(folder), nodes=NodeColumns(path="users.csv"), edges=EdgeColumns(path="buys.csv")
    )


# Every command that writes where a user says, with the file that it reads.
WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "init": ("users.csv", lambda at: init.write(at, "none", at / "users.csv", overwrite=True)),
    "train": ("base.pt", train_there),
    **{
        name: (
            "users.csv",
            lambda at, name=name, kind=kind: kind(
                run=str(at), overwrite=True, **{name: str(at / "users.csv")}
            ).check_outputs(GNNConfig(data=shop_tables(at))),
        )
        for name, kind in {
            "predictions": GNNEvaluateConfig,
            "output": GNNPredictConfig,
            "export": GNNPredictConfig,
        }.items()
    },
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_command_replaces_what_it_reads(writer, tmp_path):
    name, write = WRITERS[writer]
    before = (write_shop(tmp_path) / name).read_bytes()
    with pytest.raises(ValueError, match=f"{name} is a file that this command reads .*=.*{name}.*"):
        write(tmp_path)
    assert (tmp_path / name).read_bytes() == before


def test_links_in_a_circle_name_files_too(tmp_path):
    (tmp_path / "a").symlink_to("a")
    outputs.check_distinct([("output", tmp_path / "a"), ("predictions", tmp_path / "b")])
    with pytest.raises(ValueError, match="name the same file"):
        outputs.check_distinct([("output", tmp_path / "a"), ("predictions", tmp_path / "a")])
