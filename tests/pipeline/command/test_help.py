"""Every entry point explains itself, and the default run trains, where none of the optional packages is installed."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib

import pytest

from parallel_epochs.pipeline.command import cli, schema
from parallel_epochs.pipeline.gnn.config import GNNConfig
from tests.helpers.running import ROOT, TOY

# What a distribution is imported by, where it is not its own name.
IMPORTED = {
    "faiss-cpu": "faiss",
    "mlflow-skinny": "mlflow",
    "hydra-submitit-launcher": "hydra_plugins",
}
# Each entry point, and a word of its help; the first answer before torch is imported.
QUICK = {
    "pipeline.train": "train.lr=",
    "pipeline.prepare": "data.num_nodes=",
    "pipeline.check": "data.num_nodes=",
    "pipeline.baselines": "data.num_nodes=",
    "pipeline.evaluate": "checkpoint=",
    "pipeline.predict": "predictions=",
    "pipeline.explain": "node=",
    "pipeline.tune": "study=",
}
SLOW = {
    "scripts.report": "--output",
    "tools.reference_runs": "--threads",
    "scripts.bench": "sampling",
}
# Runs commands one after the other in one process, where some packages cannot be imported; prints what each said.
RUNNER = """
import contextlib, importlib.abc, io, json, re, runpy, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

missing, commands = json.load(sys.stdin)
sys.meta_path.insert(0, Missing())
said = {}
for module, *arguments in commands:
    sys.argv, status = [module, *arguments], 0
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code
    said[" ".join([module, *arguments])] = status or 0, output.getvalue(), "torch" in sys.modules
    if (module, arguments) == ("scripts.bench", ["--help"]):
        commands += [[module, name, "--help"] for name in re.search("{([a-z,]+)}", output.getvalue())[1].split(",")]
json.dump(said, sys.stdout)
"""
# The files of conf/ are read once for all commands.
REMEMBER = """
from parallel_epochs.pipeline.command import cli
from tests.helpers.composing import remember_choices

cli.register_schema()
remember_choices()
"""
TABLES = [
    "data=tables",
    "data.edges.path=edges.csv",
    "data.nodes.path=nodes.csv",
    "data.nodes.label=label",
]


# What is refused before torch is imported: a wrong key, value, file or column of each command, and what it says.
REFUSED = {
    ("pipeline.train", "train.lrr=1"): "train.lrr is unknown; did you mean train.lr?",
    ("pipeline.train", "train.lr=fast"): "train.lr must be a number, not fast",
    ("pipeline.train", "device=tpu"): "device=tpu is unknown; choose auto, cpu, cuda or cuda:N",
    ("pipeline.train", "model.num_layers=0"): "model.num_layers must be at least 1, not 0",
    (
        "pipeline.train",
        "model.norm=group",
    ): "model.norm=group is unknown; choose one of layer, batch",
    (
        "pipeline.train",
        "model=pyg",
        "model.norm=group",
    ): "model.norm=group is unknown; choose one of layer, batch, none",
    ("pipeline.train", "data=file", "data.path=no.pt"): "data.path=no.pt does not exist",
    (
        "pipeline.train",
        *TABLES,
        "data.nodes.label=genre",
    ): "data.nodes.label=genre: nodes.csv has no such column; there are id, label",
    (
        "pipeline.train",
        *TABLES,
        "data.edges.weight=w",
    ): "data.edges.weight=w: edges.csv has no such column; there are source, target",
    (
        "pipeline.train",
        "trainer=node_embedding",
        "data=tables",
        "data.edges.path=nodes.csv",
    ): "data.edges.source=source: nodes.csv has no such column; there are id, label",
    (
        "pipeline.train",
        "data=smiles",
        "data.path=nodes.csv",
        "task=graph",
        "loader=graph",
    ): "nodes.csv has no column smiles, which holds the molecules; there are id, label",
    ("pipeline.train", "resume=no"): "resume=no is not a run directory: it has no config.yaml",
    (
        "pipeline.prepare",
        *TABLES,
        "data.edges.source=from",
    ): "data.edges.source=from: edges.csv has no such column; there are source, target",
    ("pipeline.tune", "study=study", "train.lr=-1,1"): "train.lr must be more than 0, not -1.0",
    (
        "pipeline.tune",
        "study=study",
        "data=file",
        "data.path=no.pt",
        "train.lr=1,2",
    ): "data.path=no.pt does not exist",
    ("pipeline.evaluate", "run=no"): "no is not a run directory: it has no config.yaml",
    (
        "pipeline.evaluate",
        "run=no",
        "checkpint=last",
    ): "checkpint is unknown; did you mean checkpoint?",
    (
        "pipeline.predict",
        "run=no",
        "predictions=x.pt",
    ): "no is not a run directory: it has no config.yaml",
    ("scripts.report", "."): ". is not a run directory: it has no config.yaml",
}


def extras() -> list[str]:
    """The packages of all extras but those of the tests, by the names that they are imported by."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {
        re.match(r"[\w-]+", line)[0]
        for name, lines in listed.items()
        if name != "test"
        for line in lines
    }
    return sorted(IMPORTED.get(name, name) for name in named)


def test_the_help_of_baselines_names_the_run_and_what_it_reads():
    assert "pipeline.baselines run=DIR " in cli.help_text("pipeline.baselines", [])
    asked = cli.help_text("pipeline.baselines", ["run=DIR"])
    assert re.findall(r"^  (\w+)=", asked, re.MULTILINE) == ["run", "trust"]


def test_the_help_of_a_run_explains_every_key():
    explain_every_key(cli.help_text("pipeline.train", ["+experiment=digits"]))


@pytest.mark.parametrize(
    "typed", [[], ["trainer=layout", "data=digits"], ["trainer=knowledge", "data=math"]]
)
@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_of_a_run_fits_into_a_terminal_and_begins_with_ten_keys(
    columns, typed, monkeypatch
):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = cli.help_text("pipeline.train", typed).splitlines()
    assert not [line for line in lines if len(line) > columns and len(line.split()) > 1]
    assert max(map(len, lines)) > columns - 10
    first = [re.match(r"  [a-z_.]+=", line) for line in lines[3 : lines.index("", 3)]]
    assert lines[2] == "The keys that are set most often:" and sum(map(bool, first)) in (9, 10)


@pytest.mark.slow
def test_who_reads_the_first_lines_of_the_help_sees_no_error():
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m pipeline.train --help | head -n 1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("python -m pipeline.train [") and not done.stderr


@pytest.mark.slow
def test_help_and_the_default_run_need_no_extra(tmp_path):
    # PyG itself needs jinja2
    missing = [name for name in extras() if not name.startswith("jinja2")]
    assert {
        "duckdb",
        "faiss",
        "mlflow",
        "optuna",
        "plotly",
        "pyarrow",
        "rdkit",
        "submitit",
        "tensorboard",
        "torch_scatter",
        "torch_sparse",
        "triton",
        "wandb",
    } <= set(missing)
    run = ["pipeline.train", "hydra.run.dir=run", f"cache_dir={tmp_path / 'cache'}", *TOY]
    commands = [
        *([module, "--help"] for module in {**QUICK, **SLOW}),
        ["pipeline.train", "+experiment=digits", "-h"],
        run,
    ]
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps([missing, commands]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for module, words in {**QUICK, **SLOW}.items():
        status, shown, has_torch = said.pop(f"{module} --help")
        assert status == 0 and f"python -m {module} [" in shown and words in shown, (module, shown)
        assert not has_torch or module in SLOW, module
    explain_every_key(said.pop("pipeline.train +experiment=digits -h")[1])
    status, shown, _ = said.pop(" ".join(run))
    assert (
        status == 0
        and "result of default" in shown
        and (tmp_path / "run" / "summary.json").is_file()
    )
    assert len(said) >= 8  # the benchmarks
    for command, (status, shown, _) in said.items():
        assert status == 0 and shown.startswith(
            f"usage: python -m {command.removesuffix(' --help')} ["
        ), command
    assert {path.name for path in tmp_path.iterdir()} == {"run", "cache"}


@pytest.mark.slow
def test_what_is_refused_imports_no_torch(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    (tmp_path / "nodes.csv").write_text("id,label\na,x\nb,y\n")
    done = subprocess.run(
        [sys.executable, "-c", REMEMBER + RUNNER],
        input=json.dumps([[], list(REFUSED)]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    for (command, words), (status, _, has_torch) in zip(
        REFUSED.items(), json.loads(done.stdout).values(), strict=True
    ):
        # What evaluate and predict find in a run goes through their log.
        assert status == 1 or str(status).startswith(f"error: {words}"), (command, status)
        assert not has_torch, command


def explain_every_key(shown: str) -> None:
    """Check the help of a run of data=digits."""
    keys = dict(
        line.strip().split("=", 1) for line in shown.splitlines() if re.match(r"  [a-z_.]+=", line)
    )
    assert keys["train.lr"].startswith("0.003 ") and keys["data.source"].startswith("digits ")
    assert keys.keys() >= {
        entry.name for entry in schema.keys.entries(GNNConfig()) if "data." not in entry.name
    }
    assert all(len(text.split(maxsplit=1)) == 2 for name, text in keys.items() if "." in name)
