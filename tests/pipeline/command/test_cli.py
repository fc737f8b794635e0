import dataclasses
import inspect
import math
import os
import re
import shlex
import subprocess
import sys

import pytest
import torch
from hydra import compose, initialize_config_dir

from parallel_epochs.models import DeeperGCN, RevGNN
from parallel_epochs.models.convs.fused_conv import KERNELS
from parallel_epochs.models.networks.relational import HGT, RGCN
from parallel_epochs.pipeline import keys, training
from parallel_epochs.pipeline.command import cli, schema as configuration
from parallel_epochs.pipeline.command.folder import begin_or_continue, resolve
from parallel_epochs.pipeline.gnn.config import MODEL_SCHEMAS, GNNConfig as Config
from parallel_epochs.pipeline.training import run
from tests.helpers import building as restore, composing
from tests.helpers.building import EvaluateConfig
from tests.helpers.files import write_packages, write_typed_packages
from tests.helpers.graphs import random_graph
from tests.helpers.running import ROOT, TOY, shell
from tests.helpers.typed_graphs import write_mag


def test_train_evaluate_resume_and_report_as_a_user_types_them(tmp_path):
    command = ["pipeline.train", *TOY, "hydra.run.dir=run", "resume=auto"]
    trained = shell(*command, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    for part in (
        "components: 1",
        "partition: random, 4 clusters",
        "epoch 4/4",
        "result of default",
        "test rocauc",
        "weights",
    ):
        assert part in trained.stdout
    logged = (tmp_path / "run" / "train.log").read_text().splitlines(keepends=True)
    assert "\r" not in trained.stdout and trained.stdout == "".join(
        line.partition(" INFO ")[2] or line for line in logged
    )
    again = shell(*command, cwd=tmp_path)
    assert again.stdout == f"{tmp_path / 'run'} has been trained already\n", again.stderr
    evaluated = shell("pipeline.evaluate", "run=run", cwd=tmp_path)
    valid = [
        line
        for out in (trained, evaluated)
        for line in out.stdout.splitlines()
        if line.startswith("  valid rocauc")
    ]
    assert len(valid) == 2 and valid[0].split() == valid[1].split()
    resumed = shell(
        "pipeline.train",
        "resume=run",
        "train.epochs=6",
        *[o for o in TOY if "epochs" not in o],
        cwd=tmp_path,
    )
    assert "resumed after 4 of 6 epochs" in resumed.stdout and "epoch 6/6" in resumed.stdout, (
        resumed.stderr
    )
    reported = shell("scripts.report", "run", cwd=tmp_path)
    assert reported.stdout.strip() == "run/report.html"
    assert "directed edges kept" in (tmp_path / "run" / "report.html").read_text()


def test_the_stated_defaults_are_the_default_run(tmp_path):
    with initialize_config_dir(cli.CONF, version_base="1.3"):
        assert configuration.to_object(compose("config")) == Config()


@pytest.mark.parametrize(
    "name, model",
    [
        ("deepergcn", DeeperGCN),
        ("revgnn", RevGNN),
        ("rgcn", RGCN),
        ("hgt", HGT),
    ],
)
def test_options_of_the_model_are_those_of_its_constructor(name, model):
    parameters = inspect.signature(model.__init__).parameters
    schema = {field.name: field.default for field in dataclasses.fields(MODEL_SCHEMAS[name])}
    options = {name: p.default for name, p in parameters.items() if p.kind == p.KEYWORD_ONLY}
    assert {
        name: options[name] for name in schema.keys() - {"name", "num_layers", "hidden_channels"}
    } == {name: value for name, value in schema.items() if name in options}
    fixed = {"reversible"}
    assert options.keys() - schema.keys() - fixed == {
        "edge_dim",
        "num_categories",
        "node_tables",
        "edge_tables",
        "num_relations",
        "type_columns",
        "pool",
        "kernel",
    }


def test_choices_of_the_kernel_are_those_of_the_layers():
    assert Config.__dataclass_fields__["kernel"].metadata["meaning"].choices == KERNELS


def test_configuration_survives_a_round_trip(configure, tmp_path):
    config = configure("+experiment=digits", "train.lr=0.1")
    (tmp_path / "config.yaml").write_text(keys.to_yaml(config))
    assert configuration.load(tmp_path / "config.yaml") == config
    with pytest.raises(ValueError, match="is not a run directory: it has no config.yaml"):
        configuration.load(tmp_path / "elsewhere" / "config.yaml")


@pytest.mark.parametrize("value", ["true", "1.5", "[1]"])
def test_a_saved_value_of_another_type_is_refused_also_where_it_equals_the_default(
    value, configure, tmp_path
):
    text = keys.to_yaml(configure())
    assert "accumulate: 1\n" in text
    (tmp_path / "config.yaml").write_text(text.replace("accumulate: 1\n", f"accumulate: {value}\n"))
    with pytest.raises(ValueError, match="is not the configuration of a run: .*train.accumulate"):
        configuration.load(tmp_path / "config.yaml")


def test_resuming_another_configuration_names_the_keys(configure, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(keys.to_yaml(configure(*TOY)))
    resumed = [*TOY, f"resume={folder}"]
    with pytest.raises(
        ValueError,
        match=r"train.lr: 0.005 -> 0.1; model.t: 1.0 -> 0.5\. Leave these "
        "keys out",
    ):
        resolve(configure(*resumed, "train.lr=0.1", "model.t=0.5"), folder)
    with pytest.raises(ValueError, match="data.source: synthetic_proteins -> digits"):
        resolve(configure("data=digits", f"resume={folder}"), folder)
    assert resolve(configure(*resumed, "train.epochs=9"), folder).train.epochs == 9
    assert resolve(configure(f"resume={folder}"), folder) == configure(*TOY)
    assert resolve(configure(f"resume={folder}", "train.epochs=9"), folder) == configure(
        *[override for override in TOY if "epochs" not in override], "train.epochs=9"
    )
    # A key that is named counts though its value is that of the default run; one of a group that is not named does not.
    with pytest.raises(
        ValueError, match=r"was trained with other values: model.num_layers: 2 -> 4\. Leave"
    ):
        resolve(
            configure(f"resume={folder}", "model.num_layers=4"), folder, named={"model.num_layers"}
        )
    with pytest.raises(
        ValueError, match=r"was trained with other values: partition.name: random -> metis\. Leave"
    ):
        resolve(configure(f"resume={folder}", "partition=metis"), folder)
    with pytest.raises(
        ValueError,
        match=r"data=synthetic_proteins and model=deepergcn, which have no data.train_fraction",
    ):
        resolve(configure(f"resume={folder}", "data=digits", "data.train_fraction=0.5"), folder)
    assert resolve(configure(*TOY), folder) == configure(*TOY)  # nothing is lost yet
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.pt").touch()
    with pytest.raises(ValueError, match="already holds a run: continue it with resume="):
        resolve(configure(*TOY), folder)
    assert resolve(configure(*TOY, "resume=auto"), folder, continues=True) == configure(*TOY)
    with pytest.raises(
        ValueError, match="model.t: 1.0 -> 0.5. Give the old values, or choose another directory"
    ):
        resolve(configure(*TOY, "resume=auto", "model.t=0.5"), folder, continues=True)


def test_what_was_restarted_goes_on_and_torchrun_may_have_to_be_told_where(
    configure, tmp_path, monkeypatch, caplog
):
    (tmp_path / "config.yaml").write_text(keys.to_yaml(configure(*TOY)))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.pt").touch()
    given = dict(named=set(), is_named=False, in_sweep=False)
    with pytest.raises(ValueError, match="already holds a run"):
        begin_or_continue(configure(*TOY), tmp_path, **given)
    for asks, more in (
        ("resume=auto", {}),
        (f"resume={tmp_path}", {}),
        ("seed=0", {"in_sweep": True}),
    ):
        assert begin_or_continue(configure(*TOY, asks), tmp_path, **given | more) == (
            configure(*TOY),
            None,
        )
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert (
        begin_or_continue(configure(*TOY), tmp_path, **given) == (configure(*TOY), None)
        and not caplog.messages
    )
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    for asks, more in (("seed=0", {"is_named": True}), (f"resume={tmp_path}", {})):
        begin_or_continue(configure(*TOY, asks), tmp_path, **given | more)
    assert not caplog.messages
    begin_or_continue(configure(*TOY), tmp_path, **given)
    assert "torchrun may start this run again, in a new directory" in caplog.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(configure, tmp_path):
    with pytest.raises(ValueError, match="device=cuda:0: torch sees no GPU"):
        run(configure(*TOY, "device=cuda:0"), tmp_path, "test")


# Those with a trainer of their own need no model, and some a file: they run in the tests of that trainer.
EXPERIMENTS = sorted(
    path.stem
    for path in (ROOT / "conf" / "experiment").glob("*.yaml")
    if "override /trainer:" not in path.read_text()
)
SHRINK = ["model.num_layers=2", "model.hidden_channels=8", "train.epochs=2", "train.eval_every=1"]
SHRINK_MORE = {
    "ogbn_proteins_gat": [
        "model.hidden_channels=12",
        "loader.num_neighbors=[3,3]",
        "evaluation.num_neighbors=[4,4]",
    ],
    "ogbn_proteins_agdn": ["model.hidden_channels=12"],
    "ogbn_proteins_gipa": ["model.hidden_channels=20"],
}


# Each stands for others with the same loader, task and kind of data.
QUICK = ["ogbg_molhiv", "ogbl_collab", "ogbn_proteins"]


def test_experiments_compose(configure):
    for experiment in QUICK:
        assert configure(f"+experiment={experiment}").name == experiment


@pytest.mark.parametrize(
    "typed, changes, left_out",
    [
        (
            ["+experiment=digits", "model=custom", "model.path=a.B"],
            {"model.num_layers": 4, "train.epochs": 60},
            "another model: model.dropout=0.2",
        ),
        (
            [
                "+experiment=complex_math",
                "trainer=node_embedding",
                "data=edges",
                "data.path=a.txt",
                "trainer.dim=8",
            ],
            {"trainer.model": "deepwalk", "trainer.dim": 8, "train.lr": 0.1},
            "another data and trainer: trainer.n3=0.1, trainer.model=complex",
        ),
    ],
)
def test_an_experiment_gives_way_to_what_is_chosen_by_hand(
    typed, changes, left_out, configure, caplog
):
    caplog.set_level("INFO")
    composing._compose.cache_clear()
    found = {entry.name: entry.value for entry in keys.entries(configure(*typed))}
    assert {name: found[name] for name in changes} == changes
    assert f"left out, as the experiment means them for {left_out}" in caplog.text


@pytest.mark.exhaustive
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_with_every_model(experiment, configure):
    whole_graphs = configure(f"+experiment={experiment}").task.name == "graph"
    for model in MODEL_SCHEMAS:
        typed = [
            f"+experiment={experiment}",
            f"model={model}",
            *["model.path=a.B"] * (model == "custom"),
        ]
        if whole_graphs and model == "custom":
            with pytest.raises(
                ValueError, match="since the model must pool the nodes of each graph"
            ):
                configure(*typed)
        else:
            assert configure(*typed).model.name == model


@pytest.mark.parametrize(
    "experiment",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in EXPERIMENTS],
)
def test_every_experiment_runs_at_toy_size(experiment, configure, tmp_path, ogb_toy):
    full = configure(f"+experiment={experiment}")
    overrides = [*SHRINK, *SHRINK_MORE.get(experiment, [])]
    if full.data.source == "ogb_hetero":
        write_mag(tmp_path / "mag")
        overrides.append(f"data.folder={tmp_path / 'mag'}")
    elif full.data.source.startswith("ogb"):
        overrides.append(f"data.folder={ogb_toy(full.data.name)}")
    if experiment == "debian_typed":
        overrides.append(f"data.folder={write_typed_packages(tmp_path / 'tables')}")
    elif experiment == "recommend":
        overrides += [
            f"data.folder={write_packages(tmp_path / 'tables')}",
            "data.edges.path=relations.csv.gz",
        ]
    elif full.data.source == "tables":
        overrides += [f"data.folder={write_packages(tmp_path / 'tables')}", "partition.num_parts=4"]
    config = configure(f"+experiment={experiment}", *overrides)
    training.prepare(config)
    (tmp_path / "run").mkdir()
    summary = run(config, tmp_path / "run", "test")
    assert summary["experiment"] == experiment and summary["data_epochs"] == 2
    scores = restore.evaluate(EvaluateConfig(run=str(tmp_path / "run"), device="cpu"))
    # OGB's evaluator averages the tasks in an order of its own.
    assert scores["valid"] == pytest.approx(summary["best_valid"], rel=1e-15, abs=0) or math.isnan(
        scores["valid"]
    )


def test_prepare_fills_the_metis_cache(configure, tmp_path):
    training.prepare(configure(*TOY, "partition=metis"))
    assert len(list((tmp_path / "cache" / "partitions").glob("metis-*.pt"))) == 1


def test_a_file_that_changed_since_is_not_evaluated(configure, tmp_path):
    data = random_graph(60, 300, 0)
    data.edge_index = data.edge_index.as_tensor().long()
    data.train_mask = torch.arange(60) < 40
    data.valid_mask, data.test_mask = (
        torch.arange(60) >= 50,
        (torch.arange(60) >= 40) & (torch.arange(60) < 50),
    )
    torch.save(data, tmp_path / "graph.pt")
    (tmp_path / "run").mkdir()
    file = [
        "data=file",
        f"data.path={tmp_path / 'graph.pt'}",
        "train.epochs=2",
        "model.num_layers=2",
    ]
    summary = run(configure(*file), tmp_path / "run", "test")
    options = EvaluateConfig(run=str(tmp_path / "run"), device="cpu")
    assert restore.evaluate(options)["valid"] == pytest.approx(summary["best_valid"])
    data.x[0, 0] += 1
    torch.save(data, tmp_path / "graph.pt")
    with pytest.raises(
        ValueError, match="the dataset is not the one that this run was started with"
    ):
        restore.evaluate(options)


def test_evaluate_by_both_methods_saves_predictions_and_explains(configure, tmp_path):
    (tmp_path / "run").mkdir()
    run(configure(*TOY), tmp_path / "run", "test")
    options = EvaluateConfig(
        run=str(tmp_path / "run"), device="cpu", predictions=str(tmp_path / "logits.pt")
    )
    exact = restore.evaluate(options)
    assert torch.load(tmp_path / "logits.pt", weights_only=True)["logits"].shape == (240, 3)
    views = restore.evaluate(
        EvaluateConfig(
            run=str(tmp_path / "run"), method="views", num_views=2, num_parts=3, device="cpu"
        )
    )
    assert views != exact
    best = tmp_path / "run" / "checkpoints" / "best.pt"
    best.write_bytes(best.read_bytes()[:-50])
    with pytest.raises(ValueError, match="best.pt is damaged"):
        restore.evaluate(EvaluateConfig(run=str(tmp_path / "run")))


@pytest.mark.slow
def test_hydra_multirun(tmp_path):
    swept = shell("pipeline.train", "-m", "seed=0,1", *TOY, "hydra.sweep.dir=sweep", cwd=tmp_path)
    assert swept.returncode == 0, swept.stderr
    assert sorted(path.parent.name for path in (tmp_path / "sweep").glob("*/summary.json")) == [
        "0",
        "1",
    ]
    assert re.fullmatch(
        r"sweep in sweep: 2 of 2 runs finished; .* parallel-epochs report sweep",
        swept.stdout.splitlines()[-1],
    )


@pytest.mark.slow
def test_every_failure_of_a_sweep_is_in_its_log(tmp_path):
    swept = shell(
        "pipeline.train",
        "-m",
        "data.components=9,all,0",
        *TOY,
        "hydra.sweep.dir=sweep",
        cwd=tmp_path,
    )
    logs = [(tmp_path / "sweep" / str(i) / "train.log").read_text() for i in range(3)]
    assert swept.returncode == 1 and "Traceback" not in swept.stderr
    assert (
        "ERROR error: data.components=9" in logs[0]
        and "ERROR" not in logs[1]
        and "ERROR error: data.components=0" in logs[2]
    )
    assert swept.stdout.splitlines()[-1].startswith("sweep in sweep: 1 of 3 runs finished; ")
    last = swept.stderr.splitlines()[-1]
    assert last.startswith("error: data.components=9") and last.endswith(
        f"(log: {tmp_path}/sweep/0/train.log)"
    )


def test_who_stops_reading_an_answer_sees_no_error():
    code = "from parallel_epochs.pipeline.command import cli; cli.print_answer('x' * 10**6)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout.read(1) == b"x"
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.slow
def test_what_the_slurm_launcher_lacks_is_one_line(tmp_path):
    hidden = tmp_path / "hidden" / "hydra_plugins"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").touch()  # hides the installed ones
    for path, message in (
        (
            f"{hidden.parent}:{ROOT}",
            "error: hydra/launcher=slurm needs submitit: pip install "
            f"-c {shlex.quote(f'{ROOT}/constraints.txt')} -e '{ROOT}[slurm]'",
        ),
        (str(ROOT), 'error: Could not detect "srun", are you indeed on a slurm cluster?'),
    ):
        failed = subprocess.run(
            [sys.executable, "-m", "pipeline.train", "-m", "hydra/launcher=slurm"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "PATH": "/nowhere"},
        )
        assert (failed.returncode, failed.stderr.strip()) == (1, message)


def test_traceback_on_demand(tmp_path):
    failed = shell("pipeline.train", "data.components=0", cwd=tmp_path, PIPELINE_TRACEBACK="1")
    assert "Traceback" in failed.stderr and "ValueError: data.components=0" in failed.stderr


def test_an_exit_with_status_0_of_somebody_elses_code_is_an_error(monkeypatch, caplog):
    statuses, owner = [], os.getpid()
    monkeypatch.setattr(os, "_exit", statuses.append)
    exit_now = os._exit
    with cli.failing_exit():
        os._exit(0)
        os._exit(3)
        assert len(caplog.records) == 1
        monkeypatch.setattr(os, "getpid", lambda: owner + 1)
        os._exit(0)
    assert statuses == [1, 3, 0] and os._exit is exit_now
    assert caplog.text.count("os._exit(0) was called before there was a result") == 1


def test_the_job_of_a_command_has_its_name(tmp_path):
    """Hydra takes it from the module of a function that all these commands share."""
    done = shell("pipeline.check", "data=digits", "--cfg", "hydra", cwd=tmp_path)
    assert "    name: check\n" in done.stdout, done.stderr


@pytest.mark.parametrize("key", ["foo", "model.foo"])
def test_an_unknown_key_without_a_value_below_it_is_refused(key):
    with pytest.raises(Exception, match="Key 'foo' not in"):
        composing.compose_config((f"+{key}={{}}",), "config")
