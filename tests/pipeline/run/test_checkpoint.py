import os
import signal
import subprocess
import sys

import pytest
import torch

from parallel_epochs.pipeline.data.readers import ogb_link, saved_graph as file
from parallel_epochs.pipeline.run import checkpoint, files
from tests.helpers.running import forked, status_of


def state(round_: int) -> dict:
    return {
        "round": round_,
        "model": {"weight": torch.arange(6.0).view(2, 3) + round_, "steps": torch.tensor(round_)},
        "list": [1, (2.5, None)],
    }


def test_round_trip_with_plain_torch(tmp_path):
    checkpoint.save(tmp_path / "a.pt", state(3))
    assert torch.equal(
        torch.load(tmp_path / "a.pt", weights_only=True)["model"]["weight"],
        state(3)["model"]["weight"],
    )
    loaded = checkpoint.load(tmp_path / "a.pt")
    assert loaded["list"] == [1, (2.5, None)] and "sha256" not in loaded
    assert os.listdir(tmp_path) == ["a.pt"]


def test_digest_sees_names_order_types_and_bits():
    base = {"a": torch.zeros(2), "b": torch.zeros(2)}
    others = [
        {"b": torch.zeros(2), "a": torch.zeros(2)},
        {"a": torch.zeros(2), "c": torch.zeros(2)},
        {"a": torch.zeros(2).double(), "b": torch.zeros(2)},
        {"a": torch.tensor([0.0, -0.0]), "b": torch.zeros(2)},
        {"a": torch.zeros(1, 2), "b": torch.zeros(2)},
    ]
    assert len({checkpoint.digest(s) for s in [base, *others]}) == 6
    assert checkpoint.digest([1, 23]) != checkpoint.digest([12, 3])
    assert checkpoint.digest(base) == checkpoint.digest({k: v.clone() for k, v in base.items()})


@pytest.mark.parametrize("at", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_damage_anywhere_is_found(at, tmp_path):
    checkpoint.save(tmp_path / "a.pt", {"weight": torch.randn(10_000)})
    content = bytearray((tmp_path / "a.pt").read_bytes())
    content[int(at * len(content))] ^= 1
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(ValueError, match="a.pt is damaged"):
        checkpoint.load(tmp_path / "a.pt")
    (tmp_path / "a.pt").write_bytes(content[: int(at * len(content))])
    with pytest.raises(ValueError, match="a.pt is damaged"):
        checkpoint.load(tmp_path / "a.pt")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_any_changed_byte_is_found_or_harmless(tmp_path):
    path = tmp_path / "a.pt"
    checkpoint.save(path, state(1))
    content = path.read_bytes()
    found = 0
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
        try:
            loaded = checkpoint.load(path)
        except ValueError as error:
            assert "a.pt is damaged" in str(error)
            found += 1
        else:
            assert checkpoint.digest(loaded) == checkpoint.digest(state(1))
    assert found > 100
    torch.save(torch.ones(3), path)
    with pytest.raises(ValueError, match="a.pt is damaged"):
        checkpoint.load(path)


def test_a_layout_without_a_digest_is_damage(tmp_path):
    x = torch.sparse_coo_tensor(
        torch.zeros(1, 1, dtype=torch.int64), torch.ones(1), (2,), check_invariants=True
    )
    torch.save({"sha256": "0" * 64, "x": x}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="a.pt is damaged: its content does not have the checksum"):
        checkpoint.load(tmp_path / "a.pt")


def test_what_killed_processes_left_is_cleaned_up(tmp_path):
    half_written = "\n".join(
        [
            "import os, pathlib, signal, sys, time",
            "from parallel_epochs.pipeline.run import files",
            "def write(file):",
            "    file.write(b'half'); file.flush(); print('half', flush=True)",
            "    os.kill(os.getpid(), signal.SIGKILL) if sys.argv[2] == 'dead' else time.sleep(100)",
            "files.write_atomically(pathlib.Path(sys.argv[1]), write)",
        ]
    )
    # The living one is in a process number space of its own where the machine allows that: as on another node, its
    # number says nothing here.
    unshare = ["unshare", "--pid", "--fork"]
    allowed = subprocess.run([*unshare, "true"], capture_output=True).returncode == 0
    command = [sys.executable, "-c", half_written, str(tmp_path / "a.pt")]
    living = subprocess.Popen(
        [*unshare * allowed, *command, "alive"], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert living.stdout.readline() == b"half\n"
        (alive,) = os.listdir(tmp_path)
        subprocess.run([*command, "dead"], stdout=subprocess.DEVNULL)
        assert len(os.listdir(tmp_path)) == 2
        checkpoint.save(tmp_path / "a.pt", state(1))
        assert sorted(os.listdir(tmp_path)) == sorted([alive, "a.pt"])
    finally:
        os.killpg(living.pid, signal.SIGKILL)
        living.communicate()
    checkpoint.save(tmp_path / "a.pt", state(2))
    assert os.listdir(tmp_path) == ["a.pt"]


def hold(folder) -> None:
    with files.lock(folder):
        pass


def test_a_directory_is_held_by_one_process(tmp_path, capfd):
    with files.lock(tmp_path):
        assert status_of(forked(hold, tmp_path)) == 1
    assert "is in use by another process" in capfd.readouterr().err
    assert status_of(forked(hold, tmp_path)) == 0


def test_a_lock_is_not_written_through_a_link(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "theirs")
    with (
        pytest.raises(OSError, match="lock is a symbolic link, which is not written to"),
        files.lock(tmp_path),
    ):
        pass
    assert not (tmp_path / "theirs").exists()


def test_a_temporary_file_that_another_process_took_for_stale_is_made_anew(tmp_path, monkeypatch):
    flock, taken = files.fcntl.flock, []

    def take(file, how):
        if not taken:
            os.unlink(file.name)
        taken.append(file.name)
        flock(file, how)

    monkeypatch.setattr(files.fcntl, "flock", take)
    files.write_text(tmp_path / "a.txt", "new")
    assert (
        (tmp_path / "a.txt").read_text() == "new"
        and os.listdir(tmp_path) == ["a.txt"]
        and len(taken) == 2
    )


def test_a_save_that_was_killed_between_its_two_names_leaves_no_third(tmp_path):
    files.write_text(tmp_path / "last", "1")
    os.link(tmp_path / "last", tmp_path / "previous")
    files.write_atomically(
        tmp_path / "last", lambda file: file.write(b"2"), keep_as=tmp_path / "previous"
    )
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "last": "2",
        "previous": "1",
    }


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path):
    checkpoint.save(tmp_path / "a.pt", state(1))

    def write(file):
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        files.write_atomically(tmp_path / "a.pt", write)
    assert checkpoint.load(tmp_path / "a.pt")["round"] == 1 and os.listdir(tmp_path) == ["a.pt"]


def test_while_a_checkpoint_is_written_the_two_before_are_two_files(tmp_path, monkeypatch):
    for round_ in (1, 2):
        checkpoint.save_last(tmp_path, state(round_))
    write, seen = torch.save, []

    def look(*args):
        write(*args)
        seen.append(
            [checkpoint.load(tmp_path / name)["round"] for name in ("previous.pt", "last.pt")]
        )

    monkeypatch.setattr(torch, "save", look)
    checkpoint.save_last(tmp_path, state(3))
    assert seen == [[1, 2]]
    assert [checkpoint.load(tmp_path / name)["round"] for name in ("previous.pt", "last.pt")] == [
        2,
        3,
    ]


def test_last_falls_back_to_the_previous_and_says_so(tmp_path, caplog):
    assert checkpoint.load_last(tmp_path) is None
    for round_ in (1, 2, 3):
        checkpoint.save_last(tmp_path, state(round_))
    assert sorted(os.listdir(tmp_path)) == ["last.pt", "previous.pt"]
    assert checkpoint.load_last(tmp_path)["round"] == 3
    content = (tmp_path / "last.pt").read_bytes()
    (tmp_path / "last.pt").write_bytes(content[:-200])
    assert checkpoint.load_last(tmp_path)["round"] == 2
    assert (
        "last.pt is damaged" in caplog.text
        and "falling back to" in caplog.text
        and "of round 2" in caplog.text
    )
    # The whole one is the last one now: a kill in the middle of the next save leaves it.
    assert sorted(os.listdir(tmp_path)) == ["last.pt", "last.pt.damaged"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            checkpoint, "save", lambda *args, **options: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save_last(tmp_path, state(4))
    assert checkpoint.load_last(tmp_path)["round"] == 2
    for name in ("last.pt", "previous.pt"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="no checkpoint is left to resume from"):
        checkpoint.load_last(tmp_path)


def test_the_digest_of_a_tensor_without_a_stride():
    number = torch.full((1,), 7)
    assert checkpoint.digest(number.as_strided((1,), (0,))) == checkpoint.digest(number)
    assert checkpoint.digest(torch.empty(2, 0, dtype=torch.int64).T) != checkpoint.digest(number)


READERS = {
    "a graph": file.read_attributes,
    "tensors": lambda path: checkpoint.read_tensors(path, str(path)),
    "a checkpoint": checkpoint.load,
    "a mapped checkpoint": lambda path: checkpoint.load(path, mmap=True),
    "ogb": ogb_link._load,
}
COO = torch.sparse_coo_tensor(
    torch.ones(2, 1).long().expand(2, 10**12),
    torch.ones(1).expand(10**12),
    (9, 9),
    is_coalesced=True,
    check_invariants=False,
)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "content, key, shape, size",
    [
        (
            {"x": torch.ones(1).expand(10**12), "y": torch.ones(10, 1).expand(10, 500)},
            "x",
            "[1000000000000]",
            "4 TB",
        ),
        (
            {
                "x": torch.ones(1),
                "model": {
                    "w": [torch.ones(1, 1), torch.ones(3, 1, dtype=torch.bool).expand(3, 10**9)]
                },
            },
            "model.w[1]",
            "[3, 1000000000]",
            "3 GB",
        ),
        ({"x": COO}, "x.indices()", "[2, 1000000000000]", "16 TB"),
    ],
    ids=["dense", "nested", "sparse"],
)
def test_an_expanded_tensor_is_refused_before_it_is_used(
    reader, content, key, shape, size, tmp_path, monkeypatch
):
    monkeypatch.setenv("PARALLEL_EPOCHS_MAX_UNPACKED", "1GB")
    torch.save({**content, "sha256": ""}, path := tmp_path / "a.pt")
    with pytest.raises(ValueError) as error:
        READERS[reader](path)
    assert str(error.value).startswith(
        f"{path}: {key} has the shape {shape}, which takes {size}, although the file holds "
    )
    assert str(error.value).endswith(
        "of it: its expanded tensors take more than 1 GB: if that is right, raise the "
        "limit PARALLEL_EPOCHS_MAX_UNPACKED"
    )


def test_expanded_tensors_below_the_limit_together_and_large_ones_that_the_file_holds_are_read(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PARALLEL_EPOCHS_MAX_UNPACKED", "1MB")
    torch.save(
        {"held": torch.zeros(300_000), "x": torch.ones(1).expand(200_000)},
        path := tmp_path / "a.pt",
    )
    assert file.read_attributes(path)["x"].sum() == 200_000
    torch.save({"x": torch.ones(1).expand(200_000), "y": torch.ones(1).expand(100_000)}, path)
    with pytest.raises(ValueError, match="x has the shape .200000., which takes 800 kB"):
        file.read_attributes(path)


def test_large_checkpoints_are_mapped(tmp_path, monkeypatch):
    checkpoint.save_last(tmp_path, {"table": torch.arange(5)})
    mapped, map_ = [], checkpoint._map
    monkeypatch.setattr(checkpoint, "_map", lambda path: (mapped.append(path), map_(path))[1])
    assert checkpoint.load_last(tmp_path)["table"].sum() == 10 and not mapped
    monkeypatch.setattr(checkpoint, "LARGE", (tmp_path / "last.pt").stat().st_size)
    assert checkpoint.load_last(tmp_path)["table"].sum() == 10 and mapped == [tmp_path / "last.pt"]
