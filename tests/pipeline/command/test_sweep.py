import os

import pytest
from hydra.core.utils import setup_globals
from omegaconf import OmegaConf

from parallel_epochs.pipeline.command.sweep import claim, describe


def test_the_last_line_of_a_sweep(tmp_path):
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "train.log").touch()
        if number:
            (tmp_path / str(number) / "summary.json").write_text("{}")
    assert describe(tmp_path) == (
        f"sweep in {tmp_path}: 2 of 3 runs finished; a table with means over seeds: "
        f"python -m scripts.report {tmp_path}"
    )


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
