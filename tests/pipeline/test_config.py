"""Keys that every product reads."""

import pytest


@pytest.mark.parametrize(
    "overrides, expected",
    [
        ([], "auto"),
        (["trainer=node_embedding", "data=digits"], "cpu"),
        (["trainer=node_embedding", "data=digits", "device=cuda"], "cuda"),
        (["trainer=layout", "data=digits"], "cpu"),
        (["trainer=knowledge", "data=math"], "cpu"),
    ],
)
def test_only_graph_neural_networks_choose_a_gpu_by_themselves(overrides, expected, configure):
    assert configure(*overrides).device_name == expected
