"""Relations in the aggregation: against the reference in float64, and that against one-hot columns."""

import os
import re
import shutil

import pytest
import torch

from parallel_epochs.models.aggregate import AGGREGATIONS, aggregate, cpu
from tests.helpers.tensors import same_for_any_threads
from tests.models.aggregate.test_fused import assert_close, check, graph, off_the_bounds, run

pytestmark = [
    pytest.mark.skipif(
        shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"
    ),
    pytest.mark.usefixtures("poisoned_memory"),
]
SCALARS = dict(t=torch.tensor([1.3]), p=torch.tensor([1.7]))


@pytest.fixture(autouse=True, scope="module")
def compiled():
    assert cpu.LIBRARY.get() is not None, cpu.LIBRARY.missing()


def related_graph(num_src, num_dst, num_edges, num_relations, edge_dim=None, **options):
    """A graph of test_fused.py with a random relation of each edge; the last relation has no edge if there are more."""
    edge_index, inputs, grad = graph(num_src, num_dst, num_edges, edge_dim=edge_dim, **options)
    g = torch.Generator().manual_seed(1)
    relation = torch.randint(max(num_relations - 1, 1), (num_edges, 1), generator=g).float()
    attr = inputs["edge_attr"]
    inputs["edge_attr"] = relation if attr is None else torch.cat([relation, attr], dim=1)
    table = (torch.randn(num_relations, inputs["x"].size(1), generator=g) * 32).round() / 32
    return edge_index, inputs | {"table": table}, grad


def one_hot(inputs):
    """The same features with a column for each relation, and the table as columns of the weight."""
    table, attr, weight = inputs["table"], inputs["edge_attr"], inputs["weight"]
    columns = torch.nn.functional.one_hot(attr[:, 0].long(), table.size(0)).to(attr.dtype)
    return inputs | {
        "table": None,
        "edge_attr": torch.cat([columns, attr[:, 1:]], dim=1),
        "weight": table.t() if weight is None else torch.cat([table.t(), weight], dim=1),
    }


@pytest.mark.parametrize("aggr", AGGREGATIONS)
@pytest.mark.parametrize(
    "edge_dim, num_relations, channels, dtype",
    [
        (None, 3000, 16, torch.int32),
        (3, 1, 40, torch.int64),
        (17, 8, 33, torch.int32),
        (0, 5, 3, torch.int64),
    ],
)
def test_output_and_gradients_of_the_reference(aggr, edge_dim, num_relations, channels, dtype):
    edge_index, inputs, grad = related_graph(
        50, 40, 3000, num_relations, edge_dim, channels=channels, dtype=dtype, hub=1200
    )
    inputs |= SCALARS
    if aggr.startswith("power"):
        inputs = {name: value if value is None else value.abs() for name, value in inputs.items()}
        inputs["x"] += 0.125
        rows = {"edge_attr": inputs["table"][inputs["edge_attr"][:, 0].long()], "weight": None}
        if edge_dim is not None:
            rows["edge_attr"] = rows["edge_attr"] + torch.nn.functional.linear(
                inputs["edge_attr"][:, 1:], inputs["weight"], inputs["bias"]
            )
        grad = off_the_bounds(edge_index, inputs | rows, grad)
    check(edge_index, inputs, grad, aggr=aggr)


@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("aggr", ["softmax", "max"])
def test_the_reference_is_that_of_one_hot_columns(aggr, edge_dim):
    edge_index, inputs, grad = related_graph(20, 30, 200, 6, edge_dim)
    ours = run(edge_index, inputs, grad, aggr=aggr, kernel="reference", dtype=torch.float64)
    plain = run(
        edge_index, one_hot(inputs), grad, aggr=aggr, kernel="reference", dtype=torch.float64
    )
    of_table = plain["weight"][:, :6].t() if plain["weight"] is not None else None
    torch.testing.assert_close(ours["out"], plain["out"])
    torch.testing.assert_close(ours["x"], plain["x"])
    torch.testing.assert_close(ours["table"], of_table)
    assert (ours["table"][-1] == 0).all()
    if edge_dim:
        torch.testing.assert_close(ours["weight"], plain["weight"][:, 6:])
        torch.testing.assert_close(ours["bias"], plain["bias"])
        torch.testing.assert_close(ours["edge_attr"][:, 1:], plain["edge_attr"][:, 6:])
        assert (ours["edge_attr"][:, 0] == 0).all()


@pytest.mark.parametrize(
    "num_relations, channels", [(4, 40), (30_000, 16)]
)  # as many partial tables as chunks, and 16
def test_threads_do_not_change_a_bit(num_relations, channels):
    edge_index, inputs, grad = related_graph(
        500, 400, 50_000, num_relations, 2, channels=channels, hub=9000
    )
    ours = same_for_any_threads(
        lambda: run(edge_index, inputs, grad, aggr="softmax", kernel="fused")
    )
    exact = run(edge_index, inputs, grad, aggr="softmax", kernel="reference", dtype=torch.float64)
    assert_close(ours, exact)


@pytest.mark.parametrize("kernel", ["fused", "reference"])
@pytest.mark.parametrize(
    "wrong", [-1.0, 5.0, 1.5, float("nan"), float("inf"), -float("inf"), 3e38, -0.25]
)
def test_a_wrong_relation_is_refused(wrong, kernel):
    edge_index, inputs, _ = related_graph(20, 30, 2000, 5, 3)
    inputs["edge_attr"][1234, 0] = wrong
    text = re.escape(
        f"holds the relation {wrong:g} at edge 1234, but relations are the whole numbers 0 to 4"
    )
    with pytest.raises(IndexError, match=text):
        aggregate(
            inputs["x"],
            edge_index,
            inputs["edge_attr"],
            inputs["weight"],
            inputs["bias"],
            num_dst=30,
            table=inputs["table"],
            kernel=kernel,
        )


def test_a_relation_that_becomes_wrong_before_backward_is_refused():
    edge_index, inputs, _ = related_graph(20, 30, 200, 5)
    x, attr = inputs["x"].requires_grad_(), inputs["edge_attr"]
    out = aggregate(x, edge_index, attr, num_dst=30, table=inputs["table"], kernel="fused")
    attr.data[7, 0] = 1e9  # which autograd does not notice
    with pytest.raises(IndexError, match="the relation 1e[+]09 at edge 7"):
        out.sum().backward()


@pytest.mark.parametrize("edge_dim", [None, 0, 2])
def test_an_empty_graph(edge_dim):
    for aggr in AGGREGATIONS:
        edge_index, inputs, grad = related_graph(3, 4, 0, 5, edge_dim)
        ours = run(edge_index, inputs, grad, aggr=aggr, kernel="fused")
        exact = run(edge_index, inputs, grad, aggr=aggr, kernel="reference")
        assert torch.equal(ours["out"], exact["out"])
        assert (ours["x"] == 0).all() and (ours["table"] == 0).all()
