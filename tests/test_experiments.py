"""The short commands of docs/evidence/results.md are the long ones that its numbers were measured with, and the baselines of
GraphVite are what their heads say.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from parallel_epochs.models.embedding.triples import MODELS
from parallel_epochs.pipeline import config as effects, keys, training
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


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "proteins_small" else pytest.mark.slow)
        for name in LONG
    ],
)
def test_both_commands_train_the_same_weights(name, configure, tmp_path, ogb_toy):
    small = [f"data.folder={ogb_toy()}", "model.hidden_channels=8", "train.epochs=2"]
    weights = [
        train(configure(*overrides, *small), tmp_path / str(i))["weights_sha256"]
        for i, overrides in enumerate(([f"+experiment={name}"], LONG[name]))
    ]
    assert weights[0] == weights[1]


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


def head_of(name: str) -> str:
    """What stands above the keys of a baseline, as one line."""
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    return " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))


def test_every_baseline_of_graphvite_has_a_file():
    sets = ("fb15k", "fb15k237", "wn18", "wn18rr", "wikidata5m")
    assert (
        KNOWLEDGE == sorted(f"{model}_{data}" for model in MODELS for data in sets)
        and len(KNOWLEDGE) == 30
    )
    walked = ("flickr", "friendster", "friendster_small", "hyperlink_pld", "youtube")
    assert GRAPHS == sorted(
        [
            *(f"{model}_{data}" for model in ("deepwalk", "line") for data in walked),
            "node2vec_youtube",
            "line_blogcatalog",
        ]
    )
    assert LAYOUTS == ["largevis_imagenet", "largevis_mnist", "largevis_mnist_3d"]


@pytest.mark.slow
def test_baselines_are_what_their_heads_say(configure, tmp_path):
    """The numbers of each file are those that its head tells of GraphVite's, translated as the shared files say."""
    for name in KNOWLEDGE + GRAPHS:
        config, head = (
            configure(f"+experiment=graphvite/{name}", *toy_of(name, tmp_path)),
            head_of(name),
        )
        trainer, train_ = config.trainer, config.train
        assert config.name == f"graphvite_{name}" and trainer.model == name.partition("_")[0]
        assert (
            f"python -m pipeline.train +experiment=graphvite/{name} data." in head
            and "Published" in head
        )
        said = {
            key: float(value)
            for key, value in re.findall(r"\b(lr|margin|l3|temperature|lr x) ([\d.e-]*\d)", head)
        }
        assert trainer.dim == int(re.search(r"(\d+) numbers", head)[1])
        epochs = int(re.search(r"(\d+) (of its )?epochs", head)[1])
        if name in GRAPHS:
            assert train_.epochs == epochs / 2 == train_.eval_every and train_.lr == 0.025
            assert trainer.augmentation_distance == int(re.search(r"up to (\d+) step", head)[1])
            assert (trainer.p, trainer.q) == ((4, 2) if "p 4, q 2" in head else (1, 1))
            continue
        factor = 2 * trainer.batch_size if "SGD" in head else 16
        assert trainer.optimizer == ("sgd" if "SGD" in head else "adam") and train_.epochs == epochs
        assert (
            train_.lr == pytest.approx(factor * said["lr"])
            and trainer.temperature == said["temperature"]
        )
        assert trainer.relation_lr == said.get("lr x", 1)
        assert (
            (trainer.margin == said["margin"])
            if "margin" in said
            else (trainer.l3 == said["l3"] > 0)
        )
        assert effects.explain_idle_keys(config) is None, name
        training.check(config)


def test_layouts_are_what_their_heads_say(configure, tmp_path):
    for name in LAYOUTS:
        config, head = (
            configure(f"+experiment=graphvite/{name}", *toy_of(name, tmp_path)),
            head_of(name),
        )
        said = [
            int(number)
            for number in re.search(
                r"(\d) dimensions, perplexity (\d+), (\d+) epochs", head
            ).groups()
        ]
        assert [config.trainer.dim, config.trainer.perplexity, config.train.epochs] == said
        assert (
            f"python -m pipeline.train +experiment=graphvite/{name} data." in head
            and "Published" in head
        )
        assert config.name == f"graphvite_{name}" and effects.explain_idle_keys(config) is None
        training.check(config)


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
