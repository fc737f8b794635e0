"""`pipeline.tune`: what is searched, and trials that are pruned, killed, stopped, failed or shared by workers."""

import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import optuna
import pytest

from parallel_epochs.pipeline import tune
from parallel_epochs.pipeline.command import space
from parallel_epochs.pipeline.run.errors import EXIT_TRY_AGAIN, Stopped
from tests.helpers.kill_runs import is_alive
from tests.helpers.running import TOY, command, forked, shell, status_of

# Behaves as `python -m pipeline.train` does towards who started it, in no time: a higher learning rate is better.
STAND_IN = """#!{python} -SE
import json, os, pathlib, signal, sys, time
given = dict(argument.split("=", 1) for argument in sys.argv[3:])
folder = pathlib.Path(given.get("resume") or given["hydra.run.dir"].strip("'"))
if "resume" in given:
    given = json.loads((folder / "config.yaml").read_text()) | {{"resumed": "yes"}}
folder.mkdir(parents=True, exist_ok=True)
(folder / "config.yaml").write_text(json.dumps(given | {{"pid": os.getpid()}}))
lr = float(given["train.lr"])
if lr > 1:
    sys.exit("error: loss is nan in round 1")
def stop(*_):
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / "last.pt").touch()
    os._exit(75)
signal.signal(signal.SIGTERM, stop)
for epoch in range(1, int(given.get("train.epochs", 3)) + 1):
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps({{"kind": "round", "round": epoch - 1, "epochs": epoch, "valid": lr * epoch}}) + "\\n")
    time.sleep(float(given.get("seconds", 0.02)))
(folder / "summary.json").write_text(json.dumps({{"best_valid": lr * epoch}}))
"""
PYTHON = sys.executable
# Writes the summary of a run, and dies of a signal.
ENDS = """
import os, pathlib, signal
folder = pathlib.Path("{folder}")
folder.mkdir(parents=True, exist_ok=True)
(folder / "summary.json").write_text('{{"best_valid": 0.25}}')
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Let trials run the stand-in, and composing pass what only it knows."""
    file = tmp_path / "stand_in"
    file.write_text(STAND_IN.format(python=sys.executable))
    file.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(file))
    monkeypatch.setattr(tune, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(space, "check_space", lambda search: {"train.lr": float})
    before = {
        signum: signal.getsignal(signum)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
    }
    yield tmp_path / "study"
    for signum, handler in before.items():
        signal.signal(signum, handler)


def open_worker(folder: Path, *arguments: str) -> tuple[tune.Worker, optuna.Study]:
    study, search, options = space.open_study(*space.read_command([f"study={folder}", *arguments]))
    return tune.Worker(study, search, options), study


def work(folder: Path, *arguments: str) -> optuna.Study:
    """Do what the command does."""
    worker, study = open_worker(folder, *arguments)
    worker.work()
    return study


def state(folder: Path, number: int) -> dict:
    return json.loads((folder / f"trial_{number:03d}" / "config.yaml").read_text())


def test_a_command_is_split_into_keys_fixed_overrides_and_space():
    given, search = space.read_command(
        [
            "study=runs/s",
            "trials=7",
            "+experiment=digits",
            "train.epochs=3",
            "train.lr=tag(log,interval(1e-4,1e-2))",
            "model.num_layers=2,3",
        ]
    )
    assert given == {"study": "runs/s", "trials": 7}
    assert search == space.Search(
        ["+experiment=digits", "train.epochs=3"],
        {"train.lr": "tag(log,interval(1e-4,1e-2))", "model.num_layers": "2,3"},
    )
    assert space.check_space(search) == {"train.lr": float, "model.num_layers": int}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["train.lr=1,2"], r"One argument is missing: study=DIR, .*parallel-epochs tune study=DIR"),
        (["study=s"], "nothing to search: give a key several values"),
        (["study=s", "train.lrr=1,2"], "train.lrr"),
        (["study=s", "train.lr=interval(-1,1)"], "train.lr must be more than 0"),
        (["study=s", "train.lr=1,2", "resume=runs/first"], "resume is chosen for each trial"),
        (["study=s", "train.lr=1,2", "trials=0"], "trials must be at least 1"),
        (["study=s", "train.lr=1,2", "trials=many"], "many"),
    ],
)
def test_what_is_wrong_is_said_before_any_trial(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=message) as caught:
        space.open_study(*space.read_command(arguments))
    from parallel_epochs.pipeline.command import cli

    assert cli.is_readable(caught.value)


def test_optuna_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r"pip install -c constraints.txt -e '.\[optuna\]'"):
        space.open_study(*space.read_command([f"study={tmp_path}", "train.lr=1,2"]))


def test_values_are_drawn_as_they_were_typed():
    several = {
        "train.lr": "tag(log,interval(1e-4,1e-2))",
        "model.dropout": "interval(0,0.5)",
        "model.num_layers": "interval(2,4)",
        "model.hidden_channels": "range(16,65,16)",
        "partition": "random,metis",
        "train.warmup_steps": "range(0,5)",
    }
    search = space.Search([], several)
    types = space.check_space(search)
    drawn: dict[str, set] = {key: set() for key in several}
    for seed in range(60):
        trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()
        chosen = space.suggest(trial, search, types)
        if seed == 0:
            space.compose_with(search, chosen)
        for override in chosen:
            key, _, value = override.partition("=")
            drawn[key].add(value)
    assert drawn["partition"] == {"random", "metis"} and drawn["model.num_layers"] == {
        "2",
        "3",
        "4",
    }
    assert drawn["model.hidden_channels"] == {"16", "32", "48", "64"}
    assert drawn["train.warmup_steps"] == set("01234")
    assert (
        all(0 <= float(value) <= 0.5 for value in drawn["model.dropout"])
        and len(drawn["model.dropout"]) > 50
    )
    lr = sorted(map(float, drawn["train.lr"]))
    assert (
        1e-4 <= lr[0] and lr[-1] <= 1e-2 and 5e-4 < lr[30] < 2e-3
    )  # the median of a logarithmic scale


def test_a_study_runs_its_trials_and_names_the_best(stand_in, caplog, monkeypatch):
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "tune",
            f"study={stand_in}",
            "trials=3",
            "train.lr=interval(0.0,1.0)",
            "seconds=0",
        ],
    )
    caplog.set_level("INFO")
    tune.main()
    values = {n: float(state(stand_in, n)["train.lr"]) for n in range(3)}
    best = max(values, key=values.get)
    assert len(set(values.values())) == 3
    assert caplog.messages[-1] == f"python -m pipeline.train seconds=0 train.lr={values[best]:.4g}"
    assert caplog.messages[-2] == f"best: trial {best}, in {stand_in / f'trial_{best:03d}'}"
    assert (
        f"trial {best}  {3 * values[best]:.4f}  train.lr={values[best]:.4g}" in caplog.messages[-3]
    )
    # Given again it has nothing to do; with more trials it goes on; with another space it is refused.
    study = work(stand_in)
    assert len(study.trials) == 3
    assert len(work(stand_in, "trials=4").trials) == 4
    with pytest.raises(
        ValueError, match=r"searches something else: seconds=0 'train.lr=interval\(0.0,1.0\)'. Give"
    ):
        work(stand_in, "train.lr=interval(0.0,0.5)")


def test_a_study_of_one_worker_can_be_repeated(stand_in):
    first = work(stand_in / "a", "trials=2", "train.lr=interval(0.0,1.0)", "seconds=0")
    again = work(stand_in / "b", "trials=2", "train.lr=interval(0.0,1.0)", "seconds=0")
    assert [trial.params for trial in first.trials] == [trial.params for trial in again.trials]


def test_errors_are_reported_with_the_sign_of_a_merit(tmp_path, monkeypatch):
    records = [{"kind": "graph", "metric": "rmse"}, {"kind": "round", "epochs": 1, "valid": 0.5}]
    monkeypatch.setattr(tune, "read_records", lambda path: records)
    trial, seen = types.SimpleNamespace(number=0, intermediate_values={}), []
    trial.report = lambda *told: seen.append(told)
    study = types.SimpleNamespace(get_trials=lambda deepcopy: [trial])
    tune.Worker._report(types.SimpleNamespace(_study=study), trial, tmp_path)
    assert seen == [(-0.5, 1)]


def test_a_trial_below_the_median_is_stopped(stand_in, monkeypatch):
    monkeypatch.setattr(optuna.pruners.MedianPruner.__init__, "__defaults__", (1, 0, 1))
    study = work(stand_in, "trials=4", "train.lr=interval(0.0,1.0)", "train.epochs=20")
    states = {trial.number: trial.state.name for trial in study.trials}
    assert set(states.values()) == {"COMPLETE", "PRUNED"} and states[0] == "COMPLETE"
    for number, found in states.items():
        assert (stand_in / f"trial_{number:03d}" / "summary.json").exists() == (found == "COMPLETE")
        if found == "PRUNED":
            assert (
                study.trials[number].last_step < 20
                and study.trials[number].value < study.best_value
            )


def wait_for(condition, seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_killed_worker_takes_its_trial_with_it_and_the_next_one_continues_it(stand_in):
    slow = ["trials=2", "train.lr=interval(0.0,1.0)", "train.epochs=20", "seconds=0.03"]
    pid = forked(work, stand_in, *slow)
    metrics = stand_in / "trial_000" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 3)
    os.kill(pid, signal.SIGKILL)
    assert status_of(pid) == -signal.SIGKILL
    trial = state(stand_in, 0)
    wait_for(lambda: not is_alive(trial["pid"]))
    assert (stand_in / "trial_000" / "checkpoints" / "last.pt").exists(), "it was not asked to save"
    study = work(stand_in)
    assert [t.state.name for t in study.trials] == ["COMPLETE", "COMPLETE"]
    assert state(stand_in, 0)["resumed"] == "yes" and "resumed" not in state(stand_in, 1)
    assert state(stand_in, 0)["train.lr"] == trial["train.lr"]


def test_a_signal_stops_the_trial_and_leaves_it_to_be_continued(stand_in):
    pid = forked(
        work, stand_in, "trials=1", "train.lr=interval(0.0,1.0)", "train.epochs=400", "seconds=0.05"
    )
    wait_for(lambda: (stand_in / "trial_000" / "metrics.jsonl").exists())
    os.kill(pid, signal.SIGINT)
    assert status_of(pid) == EXIT_TRY_AGAIN
    assert (stand_in / "trial_000" / "checkpoints" / "last.pt").exists()
    study = optuna.load_study(
        study_name="study",
        storage=optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(stand_in / "study.journal"))
        ),
    )
    assert [trial.state.name for trial in study.trials] == ["RUNNING"]


def test_workers_share_a_study(stand_in):
    arguments = ["trials=5", "train.lr=interval(0.0,1.0)"]
    pids = [forked(work, stand_in, *arguments) for _ in range(3)]
    assert [status_of(pid) for pid in pids] == [0, 0, 0]
    study = work(stand_in, *arguments)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 5
    assert len({state(stand_in, number)["pid"] for number in range(5)}) == 5
    assert all(
        (stand_in / f"trial_{n:03d}" / "metrics.jsonl").read_text().count("\n") == 3
        for n in range(5)
    )


def test_a_signal_after_the_last_word_of_a_run_loses_no_trial(stand_in, monkeypatch):
    def start(command, **options):  # the run has written its summary, and is killed on its way out
        return subprocess.Popen(
            [PYTHON, "-SEc", ENDS.format(folder=stand_in / "trial_000")], **options
        )

    monkeypatch.setattr(
        tune,
        "subprocess",
        types.SimpleNamespace(
            Popen=start, TimeoutExpired=subprocess.TimeoutExpired, DEVNULL=subprocess.DEVNULL
        ),
    )
    study = work(stand_in, "trials=1", "train.lr=0.1,0.2")
    assert [(trial.state.name, trial.value) for trial in study.trials] == [("COMPLETE", 0.25)]


def test_a_run_that_is_ended_before_it_could_save_is_no_failure(stand_in, monkeypatch):
    start = [PYTHON, "-SEc", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"]
    monkeypatch.setattr(
        tune,
        "subprocess",
        types.SimpleNamespace(
            Popen=lambda command, **options: subprocess.Popen(start, **options),
            TimeoutExpired=subprocess.TimeoutExpired,
            DEVNULL=subprocess.DEVNULL,
        ),
    )
    worker, study = open_worker(stand_in, "trials=1", "train.lr=1,2")
    with pytest.raises(Stopped):
        worker.work()
    assert [trial.state.name for trial in study.trials] == ["RUNNING"]


def test_a_study_in_which_all_trials_failed_is_an_error(stand_in, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tune", f"study={stand_in}", "trials=2", "train.lr=2.0,3.0"])
    for _ in range(2):  # given again, too
        with pytest.raises(
            ValueError,
            match="no trial of .*study has a result: all 2 have failed, the last one with: "
            "error: loss is nan in round 1",
        ):
            tune.main()


def test_a_trial_that_exits_with_0_and_no_result_has_failed(stand_in, monkeypatch, caplog):
    Path(sys.executable).write_text(f"#!{PYTHON} -SE\n")
    with pytest.raises(ValueError, match="3 trials in a row have failed"):
        work(stand_in, "trials=9", "train.lr=2.0,3.0")
    assert "trial 0 failed: it ended without a result; did its code call sys.exit?" in caplog.text


def journal_of(folder: Path) -> bytes:
    study, _search, _ = space.open_study(
        *space.read_command([f"study={folder}", "trials=1", "train.lr=0.1,0.2"])
    )
    trial = study.ask()
    trial.set_user_attr("overrides", ["train.lr=0.1"])
    study.tell(trial, 1.0)
    return (folder / "study.journal").read_bytes()


# Damages of a journal, and what is said of each.
DAMAGED = {
    "cut at its beginning": lambda text: text[40:],
    "binary": lambda text: bytes(range(256)) * 20 + b"\n",
    "of another program": lambda text: b"Dear diary\n" * 3,
    "with a list": lambda text: b"[1, 2]\n",
    "nested deeply": lambda text: b"[" * 100_000 + b"\n",
    "overwritten": lambda text: text.replace(b'"op_code":4', b'"op_code":\xff', 1),
    "of a later Optuna": lambda text: text.replace(b'"op_code":4', b'"op_code":99', 1),
    "of another study": lambda text: text.replace(
        b'"study_name":"study"', b'"study_name":"mine"', 1
    ),
    "with another search": lambda text: text.replace(b'"fixed"', b'"first"', 1),
    "with numbers": lambda text: text.replace(b'"0.1,0.2"', b"[0.1,0.2]", 1),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_journal_is_an_error_of_one_line(name, stand_in):
    text = journal_of(stand_in)
    (stand_in / "study.journal").write_bytes(damaged := DAMAGED[name](text))
    with pytest.raises(
        ValueError, match=r"study.journal is damaged, or was not written by"
    ) as error:
        space.open_study(*space.read_command([f"study={stand_in}"]))
    assert damaged != text and "\n" not in str(error.value)
    assert (stand_in / "study.journal").read_bytes() == damaged


def test_a_journal_that_lacks_its_end_goes_on_and_an_empty_one_beside_trials_does_not(stand_in):
    text = journal_of(stand_in)
    for cut in (text[:-1], text[:-20], b"".join(text.splitlines(keepends=True)[:-1])):
        (stand_in / "study.journal").write_bytes(cut)
        study, _, _ = space.open_study(*space.read_command([f"study={stand_in}"]))
        assert not study.trials[0].state.is_finished()
        study.set_user_attr("more", 1)
        lines = (stand_in / "study.journal").read_text().splitlines()
        assert all(json.loads(line) for line in lines)
    (stand_in / "study.journal").write_bytes(b"")
    (stand_in / "trial_000").mkdir()
    with pytest.raises(ValueError, match="missing or empty, but there are trials"):
        space.open_study(*space.read_command([f"study={stand_in}"]))


def test_failures_are_told_and_several_in_a_row_end_the_search(stand_in, caplog):
    with pytest.raises(
        ValueError, match="3 trials in a row have failed, the last one with: error: loss is nan"
    ):
        work(stand_in, "trials=9", "train.lr=2.0,3.0")
    assert caplog.text.count("failed: error: loss is nan in round 1") == 3
    study = work(stand_in.with_name("some"), "trials=4", "train.lr=0.1,3.0", "seconds=0")
    assert {trial.state.name for trial in study.trials} == {"COMPLETE", "FAIL"}


@pytest.mark.slow
def test_a_search_over_real_runs_that_is_killed_and_continued(tmp_path):
    arguments = [
        "study=study",
        "trials=3",
        "train.lr=tag(log,interval(1e-4,1e-1))",
        "model.aggr=softmax,mean",
        *TOY,
        "train.epochs=60",
    ]
    process = command("pipeline.tune", *arguments, cwd=tmp_path)
    wait_for(lambda: (tmp_path / "study" / "trial_001" / "metrics.jsonl").exists(), 300)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    result = shell("pipeline.tune", "study=study", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "trial 1 was interrupted and continues" in result.stdout
    assert "parallel-epochs train" in result.stdout.splitlines()[-1]
    report = shell("scripts.report", *map(str, (tmp_path / "study").glob("trial_*")), cwd=tmp_path)
    assert report.returncode == 0, report.stderr
