import json
import os

import pytest
from hydra.core.utils import setup_globals
from omegaconf import OmegaConf

from parallel_epochs.pipeline.command.sweep import claim, describe


def member(metric="acc", valid=0.5, test=0.25, command="train seed=0") -> dict:
    return {"metric": metric, "best_valid": valid, "test": test, "command": command}


@pytest.mark.parametrize(
    "members, text",
    [
        (
            [member(), member(valid=0.7, test=0.35, command="train seed=1"), None],
            "2 of 3 runs finished; valid acc 0.6000 ± 0.1414, test acc 0.3000 ± 0.0707 (mean ± standard deviation)",
        ),
        ([member()], "1 of 1 run finished; valid acc 0.5000, test acc 0.2500"),
        (
            [
                member("mae", command="train train.lr=1"),
                member("mae", 0.25, 0.125, command="train train.lr=2"),
            ],
            "2 of 2 runs finished; the best is {}/1: valid mae 0.2500, test mae 0.1250",
        ),
        (
            [member(command="train seeds=0"), member(valid=0.7, command="train seeds=1")],
            "2 of 2 runs finished; the best is {}/1: valid acc 0.7000, test acc 0.2500",
        ),
        (
            [
                {**member("trust", valid, None, f"train seed={valid}"), "scores": {"trust": valid}}
                for valid in (0.5, 0.7)
            ],
            "2 of 2 runs finished; trust 0.6000 ± 0.1414 (mean ± standard deviation)",
        ),
        ([member(), member("mae")], "2 of 2 runs finished; their metrics differ: acc, mae"),
        (
            [member(valid=None), member()],
            "2 of 2 runs finished, 1 with a metric; valid acc 0.5000, test acc 0.2500",
        ),
        ([None, None], "0 of 2 runs finished"),
        ([{}, None], "0 of 2 runs finished"),
    ],
)
def test_the_last_line_of_a_sweep(tmp_path, members, text):
    for number, summary in enumerate(members):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "train.log").touch()
        if summary is not None:
            (tmp_path / str(number) / "summary.json").write_text(json.dumps(summary))
    table = f"; a table with means over seeds: python -m scripts.report {tmp_path}"
    assert describe(tmp_path) == f"sweep in {tmp_path}: {text.format(tmp_path)}{table}"


@pytest.mark.parametrize(
    "resume, ranks, pattern, num_folders",
    [(None, None, "%Y-%S", 2), (None, None, "%Y", 0), ("DIR", None, "%S", 0), (None, "0", "%S", 0)],
)
def test_two_that_start_in_one_second_have_two_folders(
    tmp_path, monkeypatch, resume, ranks, pattern, num_folders
):
    setup_globals()
    monkeypatch.delenv("RANK", raising=False)
    if ranks is not None:
        monkeypatch.setenv("RANK", ranks)
    for _ in range(2):
        config = OmegaConf.create(
            {"resume": resume, "place": {"dir": f"{tmp_path}/runs/${{now:{pattern}}}"}}
        )
        claim(config, config.place)
        assert num_folders == 0 or os.path.isdir(config.place.dir)
    assert len(list(tmp_path.glob("runs/*"))) == num_folders


@pytest.mark.parametrize("block", [lambda path: path.symlink_to("gone"), lambda path: path.touch()])
def test_what_is_in_the_way_of_a_run_directory_is_left_to_hydra(tmp_path, monkeypatch, block):
    setup_globals()
    monkeypatch.delenv("RANK", raising=False)
    block(tmp_path / "runs")
    config = OmegaConf.create({"resume": None, "place": {"dir": f"{tmp_path}/runs/${{now:%S}}"}})
    claim(config, config.place)
    assert not os.path.isdir(config.place.dir)
