"""The equilibrium GNN: its fixed point, and gradients beside those of the block applied many times."""

import pytest
import torch

from parallel_epochs.models import EquilibriumGNN
from parallel_epochs.models.networks.equilibrium import solve
from tests.helpers.graphs import random_graph

DATA = random_graph(30, 90, 0)


def build(num_layers: int = 200, **options) -> EquilibriumGNN:
    torch.manual_seed(0)
    model = EquilibriumGNN(
        5,
        8,
        2,
        num_layers,
        **{"edge_dim": 3, "tolerance": 1e-9, "dropout": 0.3, "kernel": "reference", **options},
    )
    with torch.no_grad():  # a block that draws states together, however it is applied
        model.convs[0].mlp[-1].weight.mul_(0.1)
    return model.double()


def gradients(model: EquilibriumGNN) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    inputs = {
        "x": DATA.x.double().requires_grad_(),
        "edge_attr": DATA.edge_attr.double().requires_grad_(),
    }
    model.zero_grad()
    model(inputs["x"], DATA.edge_index, inputs["edge_attr"]).square().sum().backward()
    return {
        **{name: tensor.grad for name, tensor in inputs.items()},
        **{name: p.grad for name, p in model.named_parameters()},
    }


@pytest.mark.parametrize(
    "options",
    [dict(norm="layer", edge_dropout=0.2, input_dropout=0.2), dict(norm="batch")],
    ids=["layer", "batch"],
)
def test_gradients_are_those_of_the_block_applied_many_times(options, monkeypatch):
    model = build(**options)
    ours = gradients(model)
    assert model.residual <= 1e-9 and not model._has_said

    def unroll(block, z):
        for _ in range(200):
            z = block(z)
        return z

    monkeypatch.setattr(model, "_find_equilibrium", unroll)
    for name, expected in gradients(model).items():
        assert (ours[name] - expected).norm() <= 1e-4 * expected.norm() + 1e-9, name


def test_anderson_solves_what_plain_iteration_cannot():
    matrix = torch.diag(
        torch.tensor([-1.5, 0.9, 0.5], dtype=torch.float64)
    )  # the first grows under iteration
    z, residual = solve(
        lambda z: matrix @ z + 1,
        torch.zeros(3, dtype=torch.float64),
        tolerance=1e-8,
        max_applications=20,
    )
    torch.testing.assert_close(z, 1 / (1 - matrix.diagonal()))
    assert residual <= 1e-8


def test_the_best_state_is_returned_where_the_search_ends_worse():
    results = iter([torch.tensor([1.1]), torch.tensor([9.0])])
    z, residual = solve(
        lambda z: next(results), torch.tensor([1.0]), tolerance=1e-8, max_applications=2
    )
    assert z.tolist() == [1.0] and residual == pytest.approx(0.1 / 1.1)


def test_the_search_ends_as_soon_as_the_tolerance_is_reached():
    applied = []
    z, residual = solve(
        lambda z: applied.append(z) or 0.5 * z + 1,
        torch.tensor([0.0]),
        tolerance=1e-6,
        max_applications=50,
    )
    # A line is known from two points of it; the third is the fixed point.
    assert z.tolist() == pytest.approx([2.0], abs=1e-5) and residual <= 1e-6 and len(applied) == 3


def test_it_says_once_when_there_is_no_fixed_point(caplog):
    model = build(num_layers=2)
    for _ in range(2):
        gradients(model)
    said = [
        line
        for line in caplog.messages
        if "equilibrium: no fixed point in forward after 2 applications" in line
    ]
    assert len(said) == 1 and model.residual > 1e-9


def test_batch_norms_count_a_batch_once():
    model = build(norm="batch")
    gradients(model)
    assert {
        int(b) for name, b in model.named_buffers() if name.endswith("num_batches_tracked")
    } == {1}


def test_no_tolerance():
    with pytest.raises(ValueError, match="^tolerance must be more than 0, not 0.0"):
        build(tolerance=0.0)
