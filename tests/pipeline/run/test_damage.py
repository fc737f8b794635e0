"""Files that are damaged, cut, edited, no files at all or cannot be read: what each command makes of them."""

import contextlib
import dataclasses
import errno
import logging
import os
import re
import resource
import shutil
from pathlib import Path

import pytest
import torch

from parallel_epochs.pipeline import training
from parallel_epochs.pipeline.command import cli, folder as run_folder, schema as configuration
from parallel_epochs.pipeline.run import checkpoint, files, log
from parallel_epochs.pipeline.run.errors import DamagedFile, FileError, one_line
from parallel_epochs.scripts.report.document import build
from parallel_epochs.scripts.report.runs import find_runs
from tests.helpers import building as restore, disks
from tests.helpers.building import EvaluateConfig
from tests.helpers.running import TOY, shell, train

RUN = [*TOY, "train.epochs=3", "task.base=none"]


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(
        content[: content.index(b"num_layers") + 4] if path.suffix == ".yaml" else content[:-20]
    )


def become_binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00\x80" * 50)


def become_empty(path: Path) -> None:
    path.write_bytes(b"")


def become_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")  # which never ends


NO_FILES = [become_directory, become_pipe, become_device]


def replace(old: str, new: str):
    def edit(path: Path) -> None:
        text = path.read_text()
        assert re.search(old, text), text
        path.write_text(re.sub(old, new, text, count=1))

    return edit


# file, what happens to it, and what the commands say: nothing where they do not need it, "WARNING ..." where they go
# on. `resume` is of a run that has rounds left.
ROWS = [
    (
        "config.yaml",
        cut,
        dict(
            resume="config.yaml is not the configuration of a run: .*could not find expected ':'",
            evaluate="config.yaml is not the configuration of a run: .*could not find expected ':'",
            report="config.yaml is not a configuration: .*could not find expected ':'",
        ),
    ),
    (
        "config.yaml",
        replace(r"(?s)(  name: deepergcn\n).*", r"\1"),
        dict(
            resume=r"config.yaml is not what this run was trained with \(.*model.num_layers: 2 -> 4; .*put the old",
            evaluate="config.yaml is not what this run was trained with .*model.hidden_channels: 8 -> 64",
        ),
    ),
    (
        "config.yaml",
        become_binary,
        dict.fromkeys(
            ("resume", "evaluate", "report"), "config.yaml is damaged: it is not a text file"
        ),
    ),
    (
        "config.yaml",
        become_empty,
        dict(
            resume="config.yaml is not the configuration of a run: it holds no keys",
            evaluate="config.yaml is not the configuration of a run: it holds no keys",
            report="config.yaml is not a configuration: it holds no keys",
        ),
    ),
    (
        "config.yaml",
        replace("seed: 0", "seed: 1"),
        dict.fromkeys(
            ("resume", "evaluate"),
            "config.yaml is not what this run was trained with .seed: 0 -> 1.: put the old valu",
        ),
    ),
    (
        "config.yaml",
        replace("method: exact", "method: views"),
        dict.fromkeys(("resume", "evaluate"), "trained with .evaluation.method: exact -> views."),
    ),
    (
        "config.yaml",
        replace("seed: 0", "seed: many"),
        dict.fromkeys(
            ("resume", "evaluate"),
            "config.yaml is not the configuration of a run: seed: Value 'many' .*Integer",
        ),
    ),
    (
        "config.yaml",
        replace("seed: 0", "sead: 0"),
        dict.fromkeys(
            ("resume", "evaluate"),
            "config.yaml is not the configuration of a run: Key 'sead' not in 'GNNConfig'",
        ),
    ),
    (
        "config.yaml",
        Path.unlink,
        dict.fromkeys(
            ("resume", "evaluate", "report"), "run is not a run directory: it has no config.yaml"
        ),
    ),
    ("summary.json", cut, dict(report="summary.json is damaged: it is not JSON .*line")),
    ("summary.json", become_binary, dict(report="summary.json is damaged: it is not a text file")),
    ("summary.json", become_empty, dict(report="summary.json is damaged: it is empty")),
    (
        "summary.json",
        lambda path: path.write_text("[1]"),
        dict(report="summary.json is damaged: it does not hold a JSON object"),
    ),
    (
        "metrics.jsonl",
        cut,
        dict(resume="WARNING metrics.jsonl: the records of 1 of 3 rounds are lost"),
    ),
    (
        "metrics.jsonl",
        become_binary,
        dict(
            resume="WARNING metrics.jsonl: the records of 3 of 3 rounds are lost",
            report="run has no round to show",
        ),
    ),
    (
        "metrics.jsonl",
        become_empty,
        dict(
            resume="WARNING metrics.jsonl: the records of 3 of 3 rounds are lost",
            report="run has no round to show",
        ),
    ),
    (
        "metrics.jsonl",
        replace('"round": 1,', '"round": "one",'),
        dict(
            resume="WARNING metrics.jsonl is damaged and kept as metrics.jsonl.damaged: line 3 is not a record",
            report="metrics.jsonl lacks 1 of 3 rounds; the first one is round 2",
        ),
    ),
    (
        "metrics.jsonl",
        replace("(?m)^", "3\n[]\nnull\n"),
        dict(
            resume="WARNING metrics.jsonl is damaged and kept as metrics.jsonl.damaged: line 1 is not a record",
            report="WARNING metrics.jsonl is damaged: 3 lines are left out, line 1 is the first",
        ),
    ),
    ("components.json", become_empty, dict(report="components.json is damaged: it is empty")),
    (
        "checkpoints/last.pt",
        cut,
        dict(
            resume="WARNING last.pt is damaged: .* and kept as last.pt.damaged; falling back to .*previous.pt of round 2"
        ),
    ),
    (
        "checkpoints/last.pt",
        become_empty,
        dict(resume="WARNING last.pt is damaged: it cannot be read .EOFError."),
    ),
    ("checkpoints/best.pt", cut, dict(evaluate="best.pt is damaged: it cannot be read")),
    ("checkpoints/best.pt", Path.unlink, dict(evaluate="best.pt does not exist")),
    (
        "checkpoints",
        lambda path: shutil.rmtree(path) or path.write_text("3"),
        dict(resume="checkpoints.*: File exists", evaluate="best.pt does not exist"),
    ),
    *(
        (
            name,
            damage,
            dict.fromkeys(
                says.split(),
                f"{Path(name).name} is a {damage.__name__.removeprefix('become_')}, not a file",
            ),
        )
        for name, says, damages in [
            ("config.yaml", "resume evaluate report", NO_FILES),
            ("summary.json", "resume report", [become_pipe]),
            ("metrics.jsonl", "resume report", [become_pipe]),
            ("components.json", "resume report", [become_pipe]),
            (".lock", "resume", [become_pipe]),
            ("checkpoints/last.pt", "resume", [become_pipe, become_directory]),
            ("checkpoints/best.pt", "evaluate", [become_device]),
        ]
        for damage in damages
    ),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of three epochs in a folder, what composes its configuration, and the weights after a fourth."""
    root = tmp_path_factory.mktemp("damage")

    def configure(*overrides: str):
        return cli.compose_config([f"cache_dir={root / 'cache'}", *RUN, *overrides])

    train(configure(), root / "trained")
    return (
        root,
        configure,
        train(configure("train.epochs=4"), root / "undisturbed")["weights_sha256"],
    )


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained[0] / "trained", tmp_path / "run")
    return tmp_path / "run"


def resume(run: Path, trained) -> None:
    *_, expected = trained
    config = run_folder.resolve(configuration.RunConfig(resume=str(run)), run, named=set())
    more = dataclasses.replace(config.train, epochs=4)
    assert (
        training.run(dataclasses.replace(config, train=more), run, "test")["weights_sha256"]
        == expected
    )


def evaluate(run: Path, trained) -> None:
    restore.evaluate(EvaluateConfig(run=str(run)))


def report(run: Path, trained) -> None:
    """Raise what the command prints beside the page, which is drawn if the files alone say nothing."""
    runs, left_out = find_runs([run])
    problems = [line for each in runs for line in each.problems]
    if problems := problems or build(runs, left_out)[1]:
        raise ValueError("; ".join(problems))


@pytest.mark.parametrize(
    "name, damage, says, command",
    [
        pytest.param(*row, command, id=f"{row[0]}-{index}-{command.__name__}")
        for index, row in enumerate(ROWS)
        for command in (resume, evaluate, report)
        if command.__name__ in row[2]
    ],
)
def test_damaged_files_of_a_run(name, damage, says, command, run, trained, caplog):
    damage(run / name)
    caplog.set_level("WARNING")
    said = ""
    try:
        command(run, trained)
    except (ValueError, OSError) as error:
        said = one_line(error)
    expected = says[command.__name__]
    if expected.startswith("WARNING "):
        assert not said and re.search(expected.removeprefix("WARNING "), caplog.text), (
            said,
            caplog.text,
        )
        return
    assert re.search(expected, said) and "\n" not in said, said
    assert str(run.parent) in said or command is report


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "error, says",
    [
        (OSError(errno.EIO, os.strerror(errno.EIO)), "Input/output error"),
        (OSError(errno.EACCES, os.strerror(errno.EACCES)), "Permission denied"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "Too many open files"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "Cannot allocate memory"),
        (MemoryError(), "no memory"),
    ],
)
def test_what_cannot_be_read_now_is_not_damaged(error, says, run, trained, monkeypatch):
    before, read_bytes = contents(run / "checkpoints"), Path.read_bytes

    def fail(path):
        if path.name == "last.pt":
            raise error
        return read_bytes(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        with pytest.raises(FileError, match=f"last.pt cannot be read: {says}"):
            resume(run, trained)
    assert contents(run / "checkpoints") == before
    if isinstance(error, MemoryError):  # as good as any
        resume(run, trained)
        assert checkpoint.load(run / "checkpoints" / "last.pt")["round"] == 4


def in_a_process(do) -> str:
    """What the error says that a function ends with in a process of its own, whose limits and user it may change."""
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            do()
        except Exception as error:
            os.write(write, f"{type(error).__name__}: {one_line(error)}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as file:
        return file.read()


@pytest.mark.filterwarnings("ignore:.*fork")
def test_the_system_itself_refuses_to_read(run):
    checkpoints = run / "checkpoints"
    before = contents(checkpoints)

    def as_another_user():
        if os.geteuid() == 0:
            os.seteuid(65534)
        checkpoint.load_last(checkpoints)

    def without_descriptors():
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        checkpoint.load_last(checkpoints)

    os.chmod(checkpoints / "last.pt", 0)
    assert re.fullmatch(
        r"FileError: .*/last.pt cannot be read: Permission denied", in_a_process(as_another_user)
    )
    os.chmod(checkpoints / "last.pt", 0o644)
    assert in_a_process(without_descriptors) == (
        "FileError: this process may have 0 files open, and that is not "
        "enough: raise the limit by ulimit -n 1024"
    )
    assert contents(checkpoints) == before


def _written(path: Path) -> tuple[int, int, int]:
    """What every writing of a file changes, and no reading (which may set the time of the last access)."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def test_a_cache_that_cannot_be_mapped_is_read_and_one_that_cannot_be_read_stays(
    tmp_path, monkeypatch, caplog
):
    path, state, torch_load = tmp_path / "a.pt", {"x": torch.arange(4)}, torch.load
    checkpoint.save(path, state)
    before = _written(path)

    def fail(file, *, mmap=False, **options):
        if mmap:
            raise RuntimeError(
                "unable to mmap 64 bytes from file <a.pt>: Cannot allocate memory (12)"
            )
        return torch_load(file, **options)

    def build():
        raise AssertionError("it is there")

    monkeypatch.setattr(torch, "load", fail)
    assert torch.equal(checkpoint.keep(path, build, again="")["x"], state["x"])
    assert "a.pt cannot be memory-mapped (unable to mmap 64 bytes" in caplog.text
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: (_ for _ in ()).throw(OSError(errno.EIO, "bad disk"))
    )
    with pytest.raises(FileError, match="a.pt cannot be read: bad disk"):
        checkpoint.keep(path, build, again="")
    assert _written(path) == before


def test_a_damaged_size_is_damage_and_no_lack_of_memory(tmp_path, monkeypatch):
    checkpoint.save(tmp_path / "a.pt", {"x": torch.arange(4)})

    def fail(*args, **options):
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 99999999999 bytes"
        )

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(
        FileError, match="a.pt cannot be read: there is not enough memory for its .* kB"
    ):
        checkpoint.load(tmp_path / "a.pt")
    content = bytearray((tmp_path / "a.pt").read_bytes())
    content[content.index(b"ctorch")] ^= 1
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(DamagedFile, match="a.pt is damaged"):
        checkpoint.load(tmp_path / "a.pt")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own with 1 MiB, where this may be mounted."""
    with disks.small_disk(tmp_path / "disk", 1) as folder:
        yield folder


def fill(folder: Path) -> None:
    with open(folder / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"0" * 4096)


def test_a_full_disk_is_named_and_keeps_what_was_there(small_disk):
    checkpoint.save_last(small_disk, {"round": 1})
    before = contents(small_disk)
    says = (
        rf"{small_disk} has no space left for the 4 MB of last.pt, 1.0\d MB are free; delete something, "
        "or choose another directory"
    )
    with pytest.raises(FileError, match=says) as raised:
        checkpoint.save_last(small_disk, {"round": 2, "x": torch.zeros(1_000_000)})
    assert raised.value.errno == errno.ENOSPC
    assert contents(small_disk) == before and checkpoint.load_last(small_disk)["round"] == 1
    fill(small_disk)
    with pytest.raises(
        FileError, match="has no space left for the .* B of summary.json, 0 B are free"
    ):
        files.write_json(small_disk / "summary.json", {"a": 1})
    assert not list(small_disk.glob(".*"))


def test_records_and_messages_on_a_full_disk(small_disk, capfd):
    run_log = log.RunLog(small_disk, metric="acc")
    messages = log.LogFile(small_disk / "train.log")
    fill(small_disk)
    with pytest.raises(
        FileError, match=f"{small_disk} has no space left for metrics.jsonl, 0 B are free"
    ):
        for round_ in range(100):
            run_log.record("round", round=round_)
    with pytest.raises(FileError, match="has no space left for metrics.jsonl"):
        run_log.close()
    for _ in range(100):
        messages.emit(logging.makeLogRecord({"msg": "x" * 100}))
    messages.close()
    assert (
        capfd.readouterr().err
        == f"{small_disk}/train.log cannot be written: No space left on device\n"
    )


@pytest.mark.parametrize(
    "become, kind",
    [
        (Path.mkdir, "directory"),
        (os.mkfifo, "pipe"),
        (lambda path: path.symlink_to("/dev/null"), "device"),
    ],
)
def test_what_is_no_file_is_not_replaced(become, kind, run, tmp_path):
    target = tmp_path / "predictions.pt"
    become(target)
    before = target.stat()
    with pytest.raises(FileError, match=f"predictions.pt is a {kind}, not a file"):
        restore.evaluate(EvaluateConfig(run=str(run), predictions=str(target)))
    assert target.stat() == before and target.is_symlink() == (kind == "device")


def test_data_may_be_moved(tmp_path, configure):
    masks = zip(
        ("train_mask", "val_mask", "test_mask"), torch.eye(3, 6).bool() | torch.eye(6).bool()[3:]
    )
    torch.save(
        {
            "edge_index": torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]),
            "y": torch.tensor([0, 1, 0, 1, 0, 1]),
            "x": torch.eye(6),
            **dict(masks),
        },
        tmp_path / "graph.pt",
    )
    config = configure(
        "data=file", f"data.path={tmp_path / 'graph.pt'}", "partition.num_parts=1", "train.epochs=1"
    )
    train(config, tmp_path / "run")
    shutil.move(tmp_path / "graph.pt", tmp_path / "moved.pt")
    replace("graph.pt", "moved.pt")(tmp_path / "run" / "config.yaml")
    moved = configuration.load(tmp_path / "run" / "config.yaml")
    assert restore.evaluate(EvaluateConfig(run=str(tmp_path / "run"))).keys() == {
        "train",
        "valid",
        "test",
    }
    assert train(dataclasses.replace(config, data=moved.data), tmp_path / "run")["data_epochs"] == 1


@pytest.mark.slow
def test_the_commands_end_with_one_line_each(run, trained, small_disk, tmp_path):
    cache = f"cache_dir={trained[0] / 'cache'}"
    full = "has no space left for"
    for arguments, says in (
        ([f"cache_dir={small_disk}", f"hydra.run.dir={tmp_path / 'other'}"], full),
        ([cache, f"hydra.run.dir={small_disk / 'run'}", "model.hidden_channels=128"], full),
        (
            [
                f"cache_dir={small_disk}",
                "parallel.num_ranks=2",
                f"hydra.run.dir={tmp_path / 'ranks'}",
            ],
            full,
        ),
    ):
        done = shell(
            "pipeline.train",
            *RUN,
            "data.num_nodes=1200",
            "data.num_edges=40000",
            *arguments,
            cwd=tmp_path,
        )
        assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
        assert re.fullmatch(rf"error: .*{small_disk}.* {says} .*\n", done.stderr), done.stderr
        for path in small_disk.iterdir():
            shutil.rmtree(path)
    os.mkfifo(run / "train.log")
    done = shell("pipeline.train", f"resume={run}", cwd=tmp_path)
    assert done.returncode == 1 and "train.log is a pipe, not a file" in done.stderr, done.stderr
    become_device(run / "config.yaml")
    for module, argument in (
        ("pipeline.train", f"resume={run}"),
        ("pipeline.evaluate", f"run={run}"),
        ("scripts.report", str(run)),
    ):
        done = shell(module, argument, cwd=tmp_path)
        assert done.returncode == 1 and re.fullmatch("error: .*config.yaml.*\n", done.stderr), (
            done.stderr
        )
