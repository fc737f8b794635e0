"""Logits that begin at the scores of texts."""

import copy

import pytest
import torch

from parallel_epochs.pipeline.command import cli
from parallel_epochs.pipeline.data.graph import Graph
from parallel_epochs.pipeline.gnn.base import bases
from parallel_epochs.pipeline.gnn.base.fit import Base
from parallel_epochs.pipeline.gnn.kinds.nodes import NodeKind
from parallel_epochs.pipeline.gnn.model import build_model
from parallel_epochs.pipeline.gnn.tasks.node import NodeTask

TABLES = [
    "data=tables",
    "data.edges.path=README.md",
    "data.nodes.path=README.md",
    "data.nodes.text=[a]",
    "data.nodes.label=b",
    "data.nodes.text_features=scores",
]


def graph() -> Graph:
    """Draw a graph whose scores are the columns 1 to 3 of x, which ends with the one-hot category."""
    torch.manual_seed(0)
    masks = {
        f"{split}_mask": torch.arange(9) % 3 == place
        for place, split in enumerate(("train", "valid", "test"))
    }
    return Graph(
        x=torch.randn(9, 6),
        y=torch.randint(3, (9, 1)),
        edge_index=torch.empty(2, 0, dtype=torch.int64),
        num_categories=2,
        metric="acc",
        out_channels=3,
        text_scores=1,
        n_id=torch.arange(9),
        target=torch.ones(9, dtype=torch.bool),
        **masks,
    )


class Nothing(torch.nn.Module):
    """Predicts 0."""

    def forward(self, x, edge_index, edge_attr):
        return torch.zeros(len(x), 3, requires_grad=True)


def test_logits_begin_at_the_scores():
    data = graph()
    scores = data.x[:, 1:4].clone()
    task = NodeTask(data, text_scores=1.5, label_input=0.5)
    graph_x, data = (
        data.x,
        copy.copy(data),
    )  # the task keeps the graph, whose x is narrower than that of a batch
    data.x = torch.cat([torch.randn(9, 4), graph_x], dim=1)  # rows of a learned table
    _, found = task.predict(Nothing(), data)
    assert torch.equal(found, 1.5 * scores)
    rng = torch.Generator().manual_seed(0)
    hidden = data.train_mask & ~(torch.rand(9, generator=torch.Generator().manual_seed(0)) < 0.5)
    loss, count = task.loss(Nothing(), data, rng)
    expected = torch.nn.functional.cross_entropy(
        1.5 * scores[hidden], data.y[hidden, 0], reduction="sum"
    )
    assert count == hidden.sum() and torch.allclose(loss, expected)


def test_a_simple_method_is_the_start_in_place_of_the_scores(configure):
    data, rows = graph(), torch.randn(9, 3)
    for candidate, start in (
        ("network", 1.5 * data.x[:, 1:4]),
        ("inputs", 1.5 * data.x[:, 1:4]),
        ("offset", rows),
    ):
        config = configure("data=digits", "task.base=linear", f"task.candidate={candidate}")
        shown = bases.show(config, data, Base("linear", "a line", rows, {}, False, 0.0, {}))
        _, found = NodeTask(shown, text_scores=1.5).predict(Nothing(), shown)
        torch.testing.assert_close(found, start)


def test_a_new_model_adds_nothing_to_the_scores(configure):
    data = graph()
    task = NodeTask(data, text_scores=1.5)
    model = build_model(NodeKind(configure("data=digits", "model.num_layers=1")), data, task)
    data.x = data.x.clone()
    assert not torch.equal(task.predict(model, data)[1], 1.5 * data.x[:, 1:4])
    config = configure("data=digits", "model.num_layers=1")
    config.task.text_scores = 1.5
    assert torch.equal(
        NodeKind(config).task(data).predict(Nothing(), data)[1], 1.5 * data.x[:, 1:4]
    )
    model = build_model(NodeKind(config), data, task)
    assert torch.equal(task.predict(model, data)[1], 1.5 * data.x[:, 1:4])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [*TABLES, "data.nodes.text_features=hashed"],
            "task.text_scores=2 needs scores of texts among the features: "
            "data=tables with data.nodes.text_features=scores. Leave it out",
        ),
        (["data=digits"], "task.text_scores=2 needs scores of texts"),
        ([*TABLES, "task=link"], "task.text_scores=2 needs task=node"),
        ([*TABLES, "features=embedding"], "features.concat=true"),
    ],
)
def test_what_has_no_scores_is_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        cli.compose_config([*overrides, "task.text_scores=2"])


def test_a_store_without_scores_is_refused(configure):
    data = graph()
    del data.text_scores
    config = configure("data=file", "data.path=graph.store")
    config.task.text_scores = 2.0
    with pytest.raises(
        ValueError,
        match="task.text_scores=2 needs scores of texts among the features, and graph.store "
        "has none. Leave it out",
    ):
        NodeKind(config).check_data(data)
