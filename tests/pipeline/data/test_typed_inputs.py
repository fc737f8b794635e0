"""What the log says of the inputs of a model on a graph with several types of nodes."""

import pytest

from parallel_epochs.pipeline.data.inputs import describe_inputs
from tests.helpers.hetero_toys import typed_graph

WIDE = "x of user: 2 features; item: 1 feature; tag: "


@pytest.mark.parametrize(
    "averages, options, text",
    [
        (
            False,
            {},
            WIDE + "one learned vector for all its nodes; of each edge: the relation and 1 feature",
        ),
        (
            True,
            {},
            WIDE + "1 mean of neighbours' features; of each edge: the relation and 1 feature",
        ),
        (
            False,
            {"label_input": 0.5},
            WIDE + "one learned vector for all its nodes; of each edge: the relation and 1 "
            "feature; labels of training nodes of user (train.label_input=0.5)",
        ),
        (
            False,
            {"num_learned": 7, "learned_types": ["tag"]},
            WIDE + "7 learned features of each node; of each edge: the relation and 1 feature",
        ),
        (
            True,
            {"num_learned": 7, "learned_types": ["item", "tag"]},
            "x of user: 2 features; item: 7 learned features of each node; tag: 7 learned features of each node; of each "
            "edge: the relation and 1 feature",
        ),
        (
            True,
            {"num_learned": 7, "concat": True, "learned_types": None},
            "x of user: 2 features and 7 learned features of each node; item: 1 feature and 7 learned features of each node; "
            "tag: 1 mean of neighbours' features and 7 learned features of each node; of each edge: the relation and 1 "
            "feature",
        ),
    ],
)
def test_it_says_what_the_model_gets_of_each_type(averages, options, text):
    data = typed_graph(averages=averages)
    options = {"label_input": 0.0, **options}
    assert describe_inputs(data, is_file=True, node_features="sum", **options) == text
