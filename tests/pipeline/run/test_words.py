"""What a run says of itself at its end: the commands that come next, and what its numbers suggest."""

import pytest

from parallel_epochs.pipeline.run.summary import remarks
from parallel_epochs.pipeline.run.words import command_of, count
from tests.helpers.running import ROOT


@pytest.mark.parametrize("place, said", [
    (ROOT, ["python -m scripts.report", "python -m pipeline.predict"]),
    (ROOT / "pipeline", ["parallel-epochs report", "parallel-epochs predict"])])
def test_a_command_is_named_as_it_can_be_typed_here(place, said, monkeypatch):
    monkeypatch.chdir(place)
    assert [command_of("report"), command_of("predict")] == said


SHORT, OVERFITS = "the last epoch is the best one", "the model overfits: acc is 1.0000 in training and 0.7000 in"


@pytest.mark.parametrize("values, schedule, said", [
    ({}, "none", []), ({"best_epoch": 250}, "none", [SHORT]), ({"best_epoch": 250}, "cosine", []),
    ({"best_epoch": 250, "best_valid": float("nan")}, "none", []), ({"best_epoch": 250, "num_rounds": 1}, "none", []),
    ({"train": 1.0}, "none", [OVERFITS]), ({"train": 1.0, "best_epoch": 250}, "plateau", [SHORT, OVERFITS]),
    ({"train": 1.0, "metric": "rmse"}, "none", []), ({"train": None}, "none", [])])
def test_the_end_of_a_run_says_what_its_numbers_suggest(values, schedule, said):
    summary = {"metric": "acc", "train": 0.9, "best_valid": 0.7, "best_epoch": 240, "data_epochs": 250,
               "num_rounds": 250, "num_parameters": 84617} | values
    found = remarks(summary, schedule=schedule, num_labels=100)
    assert len(found) == len(said) and all(text.startswith(start) for text, start in zip(found, said))
    assert all("84,617 parameters and 100 training labels" in text for text in found if text.startswith(OVERFITS))


@pytest.mark.parametrize("arguments, text", [
    ((1, "edge"), "1 edge"), ((0, "edge"), "0 edges"), ((1200, "edge"), "1,200 edges"),
    ((1, "category", "categories"), "1 category"), ((2, "category", "categories"), "2 categories")])
def test_the_noun_agrees_with_its_number(arguments, text):
    assert count(*arguments) == text
