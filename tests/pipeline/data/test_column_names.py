"""What the log says of the inputs of a model."""

import pytest
import torch

from parallel_epochs.pipeline.data.base_config import DataConfig
from parallel_epochs.pipeline.data.column_names import describe_inputs
from parallel_epochs.pipeline.data.prepare import prepare
from tests.helpers.graphs import make_graph
from tests.helpers.hetero_toys import typed_graph

DEGREE = (
    "the graph brings no features of nodes: features=embedding learns a row for each node, and "
    "train.label_input=0.5 shows labels of training nodes"
)


@pytest.mark.parametrize(
    "attributes, options, text",
    [
        ({"x": torch.rand(3, 4)}, {}, "x: x (4)"),
        ({"x": torch.rand(3, 4)}, {"num_learned": 7}, "x: 7 learned features"),
        (
            {"x": torch.rand(3, 4)},
            {"num_learned": 7, "concat": True},
            "x: x (4), 7 learned features",
        ),
        (
            {"edge_attr": torch.rand(2, 2), "species": torch.arange(3)},
            {},
            "x: features of its edges (2), species (3); 2 features of each edge",
        ),
        ({}, {}, f"x: features of its edges (1); {DEGREE}"),
        ({}, {"num_learned": 1}, "x: 1 learned feature"),
    ],
)
def test_it_says_what_the_model_gets(attributes, options, text):
    data = prepare(make_graph([(0, 1), (1, 0)], 3, **attributes), origin="graph.pt")
    assert describe_inputs(DataConfig(), data, **options) == text


@pytest.mark.parametrize(
    "averages, options, tag",
    [
        (False, {}, "x of item: x (1); x of tag: one learned vector for all its nodes"),
        (True, {}, "x of item: x (1); x of tag: means of neighbours (1)"),
        (
            False,
            {"num_learned": 7, "learned_types": ["tag"]},
            "x of item: x (1); x of tag: 7 learned features",
        ),
        (
            True,
            {"num_learned": 7, "concat": True, "learned_types": ["item", "tag"]},
            "x of item: x (1), 7 learned features; x of tag: means of neighbours (1), 7 learned "
            "features",
        ),
    ],
)
def test_it_says_what_the_model_gets_of_each_type(averages, options, tag):
    data = typed_graph(averages=averages)
    told = describe_inputs(DataConfig(), data, **options)
    assert told == f"x of user: x (2); {tag}; 2 features of each edge"
