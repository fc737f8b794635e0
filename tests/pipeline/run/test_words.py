"""What a run says of itself at its end: the commands that come next, and what its numbers suggest."""

import contextlib
import logging
import os

import pytest

from parallel_epochs.pipeline.run.progress import TerminalHandler
from parallel_epochs.pipeline.run.ranks import from_environment
from parallel_epochs.pipeline.run.words import command_of, count
from tests.helpers.running import ROOT


@pytest.mark.parametrize(
    "place, said",
    [
        (ROOT, ["python -m scripts.report", "python -m pipeline.predict"]),
        (ROOT / "pipeline", ["parallel-epochs report", "parallel-epochs predict"]),
    ],
)
def test_a_command_is_named_as_it_can_be_typed_here(place, said, monkeypatch):
    monkeypatch.chdir(place)
    assert [command_of("report"), command_of("predict")] == said


@pytest.mark.parametrize(
    "arguments, text",
    [
        ((1, "edge"), "1 edge"),
        ((0, "edge"), "0 edges"),
        ((1200, "edge"), "1,200 edges"),
        ((1, "category", "categories"), "1 category"),
        ((2, "category", "categories"), "2 categories"),
    ],
)
def test_the_noun_agrees_with_its_number(arguments, text):
    assert count(*arguments) == text


SLURM = {"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NNODES": "1"}


@pytest.mark.parametrize(
    "given, said",
    [
        ({"RANK": "a", "WORLD_SIZE": "2"}, "RANK=a WORLD_SIZE=2: .* must be whole numbers"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 WORLD_SIZE=2: .* WORLD_SIZE, which is larger"),
        (
            {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "2"},
            "LOCAL_WORLD_SIZE=2: .* LOCAL_RANK less than LOCAL_WORLD_SIZE",
        ),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1 .* must be whole numbers"),
        ({"RANK": "0"}, "RANK=0: .* both RANK and WORLD_SIZE.* unset them"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4: .* both RANK and WORLD_SIZE"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0: "),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0 WORLD_SIZE=0: "),
        ({"RANK": "0", "WORLD_SIZE": ""}, "RANK=0 WORLD_SIZE=: "),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "-1"}, "LOCAL_RANK=-1: "),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "LOCAL_RANK=1: "),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE=0: "),
        (
            {"MASTER_ADDR": "n1", "SLURM_NTASKS": "x"},
            "SLURM_NTASKS=x SLURM_PROCID= .* as srun sets them",
        ),
        (
            {"MASTER_ADDR": "n1", **SLURM, "SLURM_PROCID": "x"},
            "SLURM_PROCID=x .* as srun sets them.* unset MASTER_ADDR",
        ),
        (
            {"MASTER_ADDR": "n1", **SLURM, "SLURM_NODEID": "-1"},
            "SLURM_NODEID=-1: .* as srun sets them",
        ),
        (
            {"MASTER_ADDR": "n1", **SLURM, "SLURM_NNODES": "0"},
            "SLURM_NNODES=0 .* as srun sets them",
        ),
        (
            {"MASTER_ADDR": "n1", **SLURM, "SLURM_PROCID": "9"},
            "RANK=9 WORLD_SIZE=2 .* WORLD_SIZE, which is larger",
        ),
    ],
)
def test_ranks_that_cannot_be_are_refused_by_the_names_of_their_variables(given, said, monkeypatch):
    monkeypatch.setattr(
        os,
        "environ",
        {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
    )
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=said):
        from_environment()


def test_an_output_that_cannot_be_written_is_said_once(capfd):
    with contextlib.suppress(OSError), open("/dev/full", "w") as full:
        handler = TerminalHandler(full)
        for text in ("one", "two"):
            handler.handle(logging.makeLogRecord({"msg": text}))
    assert capfd.readouterr().err.splitlines() == [
        "standard output cannot be written: No space left on device"
    ]
