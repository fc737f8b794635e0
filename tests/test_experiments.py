"""The short commands of docs/evidence/results.md are the long ones that its numbers were measured with."""

from pathlib import Path

import numpy as np
import pytest

from parallel_epochs.pipeline import keys
from tests.helpers.files import write_triples
from tests.helpers.running import ROOT, train

YEAST = [
    "+experiment=ogbn_proteins",
    "data.folder=../shared/data/yeast",
    "data.node_features=log_sum",
    "evaluation=exact",
    "model.gradient_checkpointing=false",
]
LONG = {
    "proteins_small": [
        *YEAST,
        "model.num_layers=7",
        "partition.num_parts=4",
        "train.lr=0.005",
        "train.epochs=250",
    ],
    "proteins_labels": [
        *YEAST,
        "model.num_layers=3",
        "model.dropout=0.3",
        "partition.num_parts=2",
        "train.lr=0.01",
        "train.epochs=700",
        "train.label_input=0.7",
    ],
}


@pytest.mark.parametrize("name", LONG)
def test_an_experiment_is_what_its_long_command_composes(name, configure):
    short = configure(f"+experiment={name}", "data.folder=../shared/data/yeast")
    assert keys.differences(configure(*LONG[name]), short) == {
        "name": f"name: ogbn_proteins -> {name}"
    }


def test_the_ranks_of_the_results_are_what_they_were_measured_with(configure):
    more = ["train.warmup_steps=20", "train.epochs=250", "train.eval_every=4"]
    short = configure(
        "+experiment=proteins_small",
        "data.folder=../shared/data/yeast",
        "partition.num_parts=10",
        "train.lr=0.001",
        *more,
    )
    assert list(keys.differences(configure(*YEAST, "model.num_layers=7", *more), short)) == ["name"]


FOLDER = ROOT / "conf" / "experiment" / "graphvite"
BASELINES = sorted(path.stem for path in FOLDER.glob("[!_]*.yaml"))
KNOWLEDGE = [
    name
    for name in BASELINES
    if "knowledge" in (FOLDER / f"{name}.yaml").read_text() or "wikidata5m" in name
]
LAYOUTS = [name for name in BASELINES if name.startswith("largevis")]
GRAPHS = [name for name in BASELINES if name not in KNOWLEDGE + LAYOUTS]


def toy_of(name: str, folder: Path) -> list[str]:
    """Data of a baseline that take no time."""
    if name in KNOWLEDGE:
        return [f"data.folder={write_triples(folder / 'triples')}"]
    rng = np.random.default_rng(0)
    if name in LAYOUTS:
        np.save(folder / "points.npy", rng.standard_normal((240, 12)).astype(np.float32))
        return [f"data.path={folder / 'points.npy'}"]
    rows = [
        (a, b)
        for a in range(40)
        for b in range(a)
        if rng.random() < (0.5 if a // 20 == b // 20 else 0.1)
    ]
    (folder / "edges.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    (folder / "labels.tsv").write_text("".join(f"{a} {'xy'[a // 20]}\n" for a in range(40)))
    return [f"data.path={folder / 'edges.tsv'}", f"data.labels={folder / 'labels.tsv'}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [KNOWLEDGE, GRAPHS, LAYOUTS], ids=["knowledge", "graphs", "layouts"]
)
def test_every_baseline_trains_at_toy_size(names, configure, tmp_path):
    for name in names:
        config = configure(
            f"+experiment=graphvite/{name}",
            *toy_of(name, tmp_path),
            "train.epochs=2",
            "train.eval_every=2",
            *([] if name in LAYOUTS else ["trainer.dim=16"]),
            *(["trainer.holdout=0.2"] if "hyperlink" in name else []),
        )
        summary = train(config, tmp_path / name)
        assert summary["experiment"] == f"graphvite_{name}" and summary["data_epochs"] == 2
        assert 0 < summary["test"] <= 1
        assert summary["metric"] in ("mrr", "auc", "micro_f1", "trustworthiness")
