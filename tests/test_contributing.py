"""The examples of CONTRIBUTING.md, put into a copy of the repository, train."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from tests.helpers.running import ROOT, TOY, summary_of
from tests.test_docs import SMALL

# Parts of models/, each with a script that trains it.
OPERATORS = "layer", "message", "score"
PARTS = ("dataset", "partition", "model", "task", "kind", "loader", "product", "tracker", "metric")
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
# Runs commands one after the other, each in a fork that has the imports of the copy behind it, and so have its ranks.
RUNNER = """
import json, multiprocessing.util, os, runpy, sys
import parallel_epochs.pipeline.gnn.predict.command, parallel_epochs.pipeline.training
from tests.helpers.kill_runs import fork_rank_server
multiprocessing.util.spawnv_passfds = fork_rank_server
for module, *arguments in json.load(sys.stdin):
    if (pid := os.fork()) == 0:
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit()
    if status := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        sys.exit(f"{module} {arguments} ended with status {status}")
"""


def section_of(part: str) -> list[tuple[str, str]]:
    """The code blocks that add a part, each with its language."""
    section = re.search(rf"^### A {part}\n(.*?)(?=^###|\Z)", TEXT, re.DOTALL | re.MULTILINE)[1]
    return re.findall(r"^```(\w+)\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


def insert(file: Path, name: str, lines: list[str]) -> None:
    """Put lines into a dict of a file, and imports beside its imports."""
    text = file.read_text()
    for line in lines:
        if line.startswith(("from ", "import ")):
            text, count = re.subn(r"^from ", f"{line}\nfrom ", text, count=1, flags=re.MULTILINE)
        else:
            text, count = re.subn(rf"^({name}\b.*= \{{)", rf"\g<1>{line}", text, flags=re.MULTILINE)
        assert count == 1, f"no place in {file} for {line}"
    file.write_text(text)


def apply(part: str, root: Path) -> list[str]:
    """Write the files and lines that add a part, and return its command."""
    for language, block in section_of(part):
        header, _, body = block.partition("\n")
        if language == "bash":
            command = shlex.split(block)
        elif ": " in header:
            file, name = header.removeprefix("# ").split(": ")
            old = name.removeprefix("before ").removeprefix("in place of ")
            if old == name:
                insert(root / file, name, body.splitlines())
                continue
            new = f"{body}\n\n{old}" if name.startswith("before") else body.strip()
            parts = re.split(rf"^( *){re.escape(old)}", (root / file).read_text(), flags=re.M)
            assert len(parts) == 3, f"no place in {file} for {old}"
            (root / file).write_text(f"{parts[0]}{parts[1]}{new}{parts[2]}")
        else:
            (root / header.removeprefix("# ")).parent.mkdir(exist_ok=True)
            (root / header.removeprefix("# ")).write_text(body)
    return command


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    return copy_to(tmp_path_factory.mktemp("copy"))


def copy_to(root: Path) -> Path:
    """Copy the repository."""
    shutil.copy(ROOT / "pyproject.toml", root)
    for name in ("conf", "models", "pipeline", "scripts", "tests", "tools"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(
        ROOT / "parallel_epochs",
        root / "parallel_epochs",
        symlinks=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return root


@pytest.mark.slow
def test_the_examples_pass_ruff_mypy_and_lint_imports(tmp_path):
    root = copy_to(tmp_path)
    for part in PARTS + OPERATORS:
        apply(part, root)
    folder = Path(sys.executable).parent
    sort = ["ruff", "check", "-q", "--fix", "--select", "I"]  # imports that the test has put in
    for command in (sort, ["ruff", "format", "-q"], ["ruff", "check"], ["mypy"], ["lint-imports"]):
        ran = subprocess.run(
            [folder / command[0], *command[1:]], cwd=root, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_the_examples_train(copy, tmp_path):
    mask = torch.arange(60) % 3
    torch.save(
        Data(
            x=torch.randn(60, 4),
            edge_index=torch.randint(60, (2, 200)),
            y=mask,
            metric="top2",
            train_mask=mask == 0,
            val_mask=mask == 1,
            test_mask=mask == 2,
        ),
        tmp_path / "graph.pt",
    )
    steps = []
    for part in PARTS:
        _, _, module, *overrides = apply(part, copy)
        own = part in ("dataset", "metric")
        given = {override.split("=")[0] for override in overrides}
        small = (
            []
            if part == "product"
            else [
                override
                for override in (SMALL if own else TOY)
                if override.split("=")[0] not in given
            ]
        )
        steps.append([module, *overrides, *small, f"hydra.run.dir={part}"])
    # All of them at once, by two ranks that are split over processes of their own.
    steps.append(
        [
            "pipeline.train",
            "data=ring",
            "partition=slices",
            "model=sage",
            "task=denoise",
            "loader=halves",
            "tracker=lines",
            "task.base=none",
            "train.epochs=4",
            "parallel.num_ranks=2",
            "hydra.run.dir=together",
        ]
    )
    steps.append(["pipeline.predict", "run=kind", "output=kind.csv"])
    result = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(steps),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(copy)},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert summary_of(tmp_path / "dataset")["metric"] == "acc"
    assert "partition: slices, 4 clusters" in (tmp_path / "partition" / "train.log").read_text()
    assert "aggr: max" in (tmp_path / "model" / "config.yaml").read_text()
    assert summary_of(tmp_path / "product")["test"] > 0.8  # of ten digits
    for name in ("tracker", "together"):
        lines = (tmp_path / name / "lines.txt").read_text().splitlines()
        assert lines[0].endswith(f"/{name}") and lines[1].startswith("after ") and len(lines) == 3
    assert summary_of(tmp_path / "metric")["metric"] == "top2"
    assert (tmp_path / "kind.csv").read_text().startswith("id,value_0,value_1,") and summary_of(
        tmp_path / "kind"
    )["metric"] == "rmse"
    assert summary_of(tmp_path / "together")["num_ranks"] == 2
    # Each of the others changes what is learned.
    weights = {part: summary_of(tmp_path / part)["weights_sha256"] for part in PARTS}
    assert weights["product"] not in (
        weights[part] for part in ("partition", "model", "task", "loader")
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", OPERATORS)
def test_the_examples_of_layers_messages_and_scores_train(part, copy):
    """The script of an example fails unless its loss falls."""
    _, *script = apply(part, copy)
    result = subprocess.run(
        [sys.executable, *script],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(copy)},
    )
    assert result.returncode == 0, result.stdout + result.stderr
