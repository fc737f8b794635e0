"""The short commands of docs/results.md are the long ones that its numbers were measured with."""

import pytest
from running import train

from pipeline import keys

YEAST = ["+experiment=ogbn_proteins", "data.folder=../shared/data/yeast", "data.node_features=log_sum",
         "evaluation=exact", "model.gradient_checkpointing=false"]
LONG = {
    "proteins_small": [*YEAST, "model.num_layers=7", "partition.num_parts=4", "train.lr=0.005", "train.epochs=250"],
    "proteins_labels": [*YEAST, "model.num_layers=3", "model.dropout=0.3", "partition.num_parts=2", "train.lr=0.01",
                        "train.epochs=700", "train.label_input=0.7"]}


@pytest.mark.parametrize("name", LONG)
def test_an_experiment_is_what_its_long_command_composes(name, configure):
    short = configure(f"+experiment={name}", "data.folder=../shared/data/yeast")
    assert keys.differences(configure(*LONG[name]), short) == {"name": f"name: ogbn_proteins -> {name}"}


def test_the_ranks_of_the_results_are_what_they_were_measured_with(configure):
    more = ["train.warmup_steps=20", "train.epochs=250", "train.eval_every=4"]
    short = configure("+experiment=proteins_small", "data.folder=../shared/data/yeast", "partition.num_parts=10",
                      "train.lr=0.001", *more)
    assert list(keys.differences(configure(*YEAST, "model.num_layers=7", *more), short)) == ["name"]


@pytest.mark.parametrize("name", LONG)
def test_both_commands_train_the_same_weights(name, configure, tmp_path, ogb_toy):
    small = [f"data.folder={ogb_toy()}", "model.hidden_channels=8", "train.epochs=2"]
    weights = [train(configure(*overrides, *small), tmp_path / str(i))["weights_sha256"]
               for i, overrides in enumerate(([f"+experiment={name}"], LONG[name]))]
    assert weights[0] == weights[1]
