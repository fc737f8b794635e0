"""RevGNN: its layers by hand, its gradients beside plain autograd's, and what it keeps of them."""

import pytest
import torch

from parallel_epochs.models import GENConv, RevGNN
from parallel_epochs.models.networks import reversible
from tests.helpers.graphs import random_graph
from tests.models.networks.test_deepgcn import count_saved_elements

DATA = random_graph(60, 300, 0)


def build(num_layers: int, **options) -> RevGNN:
    torch.manual_seed(0)
    return RevGNN(5, 24, 3, num_layers, **{"edge_dim": 3, "dropout": 0.3, **options})


def with_gradients(
    model: RevGNN, *, attr: bool = True, bf16: bool = False, data=DATA
) -> dict[str, torch.Tensor]:
    """The output, the gradients of everything and the running statistics, by name."""
    torch.manual_seed(1)
    dtype = model.head.weight.dtype
    inputs = {"x": data.x.to(dtype, copy=True).requires_grad_()}
    if attr:
        inputs["edge_attr"] = data.edge_attr.to(dtype, copy=True)
        inputs["edge_attr"].requires_grad_(not bf16)  # plain autograd would sum it up in 16 bits
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        out = model(inputs["x"], data.edge_index, inputs.get("edge_attr"))
    model.zero_grad()
    out.float().square().sum().backward()
    return {
        "out": out.detach(),
        **{name: b.clone() for name, b in model.named_buffers()},
        **{name: tensor.grad for name, tensor in inputs.items() if tensor.requires_grad},
        **{name: p.grad for name, p in model.named_parameters() if p.requires_grad},
    }


def test_layers_by_hand():
    model = build(2).eval()
    attr = model.edge_encoder(DATA.edge_attr)
    h = model.node_encoder(DATA.x)
    branches = iter(model.branches)
    for _ in range(2):
        groups, out = h.chunk(2, dim=1), []
        source = groups[1]
        for group in groups:
            branch = next(branches)
            source = group + branch.conv(
                branch.norm(source).relu(), DATA.edge_index, branch.edge_lin(attr)
            )
            out.append(source)
        h = torch.cat(out, dim=1)
    expected = model.head(model.norm(h).relu())
    torch.testing.assert_close(
        model(DATA.x, DATA.edge_index, DATA.edge_attr), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "options, how",
    [
        (dict(), dict()),
        (dict(tied=True), dict()),
        (dict(edge_dim=None), dict(attr=False)),
        (dict(norm="batch", edge_dropout=0.4, input_dropout=0.2), dict()),
        (dict(kernel="reference", norm="batch"), dict()),
        (dict(kernel="reference"), dict(bf16=True)),
        (dict(), dict(bf16=True)),
        (dict(aggr="softmax"), dict()),
    ],
)
def test_gradients_are_those_of_plain_autograd(options, how):
    num_layers = 4 if options or how else 12
    ours, plain = (
        with_gradients(build(num_layers, reversible=flag, **options), **how)
        for flag in (True, False)
    )
    assert ours.keys() == plain.keys() and len(ours) > (
        10 if options.get("tied") else 8 * num_layers
    )
    # The bits themselves: the layers' inputs come back as they were.
    assert not [name for name in plain if not torch.equal(ours[name], plain[name])]


@pytest.mark.parametrize(
    "num_layers, stream",
    [
        pytest.param(448, torch.float64, marks=pytest.mark.slow),
        pytest.param(448, torch.float32, marks=pytest.mark.exhaustive),
        pytest.param(1001, torch.float64, marks=pytest.mark.exhaustive),
    ],
)
def test_a_thousand_layers_give_the_gradients_of_plain_autograd(num_layers, stream, monkeypatch):
    monkeypatch.setattr(reversible, "STREAM", stream)
    ours, plain = (with_gradients(build(num_layers, reversible=flag)) for flag in (True, False))
    worst = max(float((ours[name] - plain[name]).norm() / plain[name].norm()) for name in plain)
    assert worst <= 1e-4 if stream == torch.float64 else worst > 1e-4  # why the stream is float64


def test_backward_may_be_called_again():
    model = build(3)
    loss = model(DATA.x, DATA.edge_index, DATA.edge_attr).square().sum()
    parameters = list(model.parameters())
    first, second = (torch.autograd.grad(loss, parameters, retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))
    with torch.no_grad():
        parameters[10].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, parameters)


@pytest.mark.parametrize("options", [dict(), dict(kernel="reference"), dict(norm="batch")])
def test_all_layers_drop_the_same_elements(options, monkeypatch):
    model, kept = build(3, **options), []
    for branch in model.branches:  # whose convolution reads ones but for what is dropped
        torch.nn.init.zeros_(branch.norm.weight)
        torch.nn.init.ones_(branch.norm.bias)
    forward = GENConv.forward

    def watch(self, x, *args, **kwargs):
        kept.append(x.detach() != 0)
        return forward(self, x, *args, **kwargs)

    monkeypatch.setattr(GENConv, "forward", watch)
    for _ in range(2):
        model(DATA.x, DATA.edge_index, DATA.edge_attr).sum().backward()
    once, again = kept[:12], kept[12:]
    # Six branches in forward, and the same six from the last to the first in backward.
    assert all(torch.equal(mask, once[i % 2]) for i, mask in enumerate(once[:6]))
    assert all(torch.equal(mask, once[1 - i % 2]) for i, mask in enumerate(once[6:]))
    assert not torch.equal(once[0], once[1]) and not torch.equal(once[0], again[0])
    assert 0.6 < once[0].float().mean() < 0.8
    kept.clear()
    model.eval()(DATA.x, DATA.edge_index, DATA.edge_attr)
    assert all(mask.all() for mask in kept)


def test_forward_keeps_the_same_of_any_number_of_layers():
    arguments = DATA.x, DATA.edge_index, DATA.edge_attr
    few, many, plain = (
        count_saved_elements(build(layers, reversible=flag, kernel=kernel), *arguments)
        for layers, flag, kernel in (
            (2, True, "reference"),
            (12, True, "reference"),
            (12, False, "reference"),
        )
    )
    assert few == many < 0.1 * plain
