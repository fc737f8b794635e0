"""The weight of the N3 penalty is chosen by validation."""

import json
import shutil

import pytest

from parallel_epochs.pipeline.command import cli, schema
from parallel_epochs.pipeline.config import write_config
from parallel_epochs.pipeline.knowledge import penalty
from tests.helpers.running import kill_and_finish, summary_of, train
from tests.pipeline.knowledge.test_trainer import TOY

AUTO = [*TOY, "trainer.n3=auto"]


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("n3")
    config = cli.compose_config([*AUTO, f"cache_dir={folder / 'cache'}"])
    return config, folder / "run", train(config, folder / "run")


def test_the_best_weight_by_validation_is_trained(chosen):
    _, folder, summary = chosen
    assert [(trial["setting"], trial["epochs"]) for trial in summary["trials"]] == [
        ("n3=0", 2),
        ("n3=0.01", 2),
        ("n3=0.05", 2),
    ]
    weights = {summary_of(path)["weights_sha256"] for path in folder.glob("setting_*")}
    assert len(weights) == 3  # each has its own penalty
    best = max(summary["trials"], key=lambda trial: trial["valid"])
    saved = schema.load(folder / "config.yaml")
    assert (
        f"n3={saved.trainer.n3:g}" == best["setting"]
        and saved.train.epochs == 4 == summary["data_epochs"]
    )


def test_a_run_that_was_killed_ends_the_same(chosen, tmp_path):
    config, folder, summary = chosen
    kept = json.loads((folder / "trials.json").read_text())["trials"]
    shutil.copytree(folder / "setting_n3=0", tmp_path / "run" / "setting_n3=0")
    (tmp_path / "run" / "trials.json").write_text(json.dumps({"trials": kept[:1]}))
    write_config(config, tmp_path / "run")
    again = train(config, tmp_path / "run")
    assert again["trials"][0] == kept[0] and again["weights_sha256"] == summary["weights_sha256"]


@pytest.mark.slow
def test_two_ranks_that_are_killed_while_they_compare_end_the_same(tmp_path):
    first, second = kill_and_finish(
        [*AUTO, "parallel.num_ranks=2", "train.epochs=60"], tmp_path, "setting_n3=0.01", 1
    )
    for name in ("weights_sha256", "best_valid", "test", "trials"):
        assert _without_seconds(first[name]) == _without_seconds(second[name])


def _without_seconds(found):
    return (
        [{key: value for key, value in each.items() if "seconds" not in key} for each in found]
        if isinstance(found, list)
        else found
    )


def test_large_graphs_take_the_usual_weight_at_once(configure, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(penalty, "MOST_TRIPLES", 10)
    assert "trials" not in train(configure(*AUTO, "train.epochs=1"), tmp_path / "run")
    assert schema.load(tmp_path / "run" / "config.yaml").trainer.n3 == penalty.USUAL
    assert "trainer.n3=auto: 0.05, without a comparison for more than 10 triples" in caplog.text


def test_new_runs_on_triples_choose_and_recipes_do_not(configure, tmp_path):
    triples = ["trainer=knowledge", "data=triples", f"data.folder={tmp_path}"]
    assert (
        configure(*triples).trainer.n3 == "auto"
        and configure(*triples, "trainer.n3=0").trainer.n3 == 0
    )
    for fixed in (
        [*triples, "trainer.model=rotate"],
        ["trainer=knowledge", "data=math"],
        ["+experiment=graphvite/complex_fb15k237", f"data.folder={tmp_path}"],
    ):
        assert configure(*fixed).trainer.n3 == 0
    assert configure("+experiment=complex_fb15k237", f"data.folder={tmp_path}").trainer.n3 == 0.05


@pytest.mark.parametrize(
    "given, message",
    [
        ("trainer.n3=some", "trainer.n3=some: give a number, or auto"),
        ("trainer.n3=-1", "trainer.n3 must be at least 0"),
        (
            ("trainer.model=transe", "trainer.n3=auto"),
            "trainer.n3=auto needs a model whose score is a product",
        ),
    ],
)
def test_what_does_not_fit_is_refused(given, message, configure):
    from parallel_epochs.pipeline.training import check

    with pytest.raises(ValueError, match=message):
        check(configure(*TOY, *([given] if isinstance(given, str) else given)))
