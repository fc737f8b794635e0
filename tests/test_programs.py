"""The ten programs of docs/library.md: each is short, needs no internals, and runs as it stands."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.running import ROOT, shell

PAGE = (ROOT / "docs" / "library.md").read_text()
PROGRAMS = dict(
    re.findall(r'^```python title="([\w.]+)"\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE)
)
MOST_LINES = 19  # after ruff format
INTERNALS = re.compile(r"parallel_epochs\.(pipeline|models\.\w)|[\s.(]_[a-z]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the graph that the page writes first."""
    path = tmp_path_factory.mktemp("programs")
    run(path, "-c", re.search(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1])
    return path


def run(folder: Path, *command: str) -> str:
    """Run a program, and return what it prints."""
    found = shell(*command, cwd=folder)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_the_programs_are_short_and_need_no_internals():
    assert len(PROGRAMS) == 10
    for name, text in PROGRAMS.items():
        assert sum(map(bool, text.split("\n"))) <= MOST_LINES, name
        assert not INTERNALS.search(text), name


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs(name, folder):
    needed = re.findall(r"^(?:import|from) (lightning|accelerate)", PROGRAMS[name], re.MULTILINE)
    if missing := [package for package in needed if find_spec(package) is None]:
        pytest.skip(f"{missing[0]} is not installed")
    if "torchrun" not in PROGRAMS[name]:
        run(folder, "-c", PROGRAMS[name])
        return
    (folder / name).write_text(PROGRAMS[name])
    text = run(folder, "torch.distributed.run", "--standalone", "--nproc-per-node=2", name)
    losses = re.findall(r"\d+\.\d{3}", text)  # two ranks may write to one line
    assert (
        len(losses) == 20 and losses.count(losses[0]) == 2
    )  # both ranks print the mean over all labels
