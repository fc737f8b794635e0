"""RevGNN from PyG's own modules: GroupAddRev around GENConv, with our parameters."""

import torch
from torch_geometric import nn as pyg

from models import RevGNN
from models.encoders import fold


class PyGBranch(torch.nn.Module):
    """Norm, relu, the shared dropout mask and PyG's convolution; its edge encoder is our folded one."""

    def __init__(self, norm: torch.nn.LayerNorm, conv: pyg.GENConv):
        super().__init__()
        self.norm, self.conv = norm, conv

    def forward(self, h: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor,
                mask: torch.Tensor) -> torch.Tensor:
        return self.conv(self.norm(h).relu() * mask, edge_index, edge_attr)


class PyGRevGNN(torch.nn.Module):
    """The function of a RevGNN of two groups with max aggregation, and raw edge features folded into each layer.

    Encoded edges of as many columns as the nodes GroupAddRev would cut into groups, and keep.

    Args:
        model: where the parameters come from.
    """

    def __init__(self, model: RevGNN):
        super().__init__()
        self.node_encoder, self.norm, self.head = model.node_encoder, model.norm, model.head
        self.dropout = model.dropout
        branches = []
        for ours in model.branches:
            channels = ours.norm.normalized_shape[0]
            conv = pyg.GENConv(channels, channels, "max", num_layers=2, norm="layer", bias=True,
                               edge_dim=model.edge_encoder.in_features)
            state = {name.removeprefix("conv."): value for name, value in ours.state_dict().items()
                     if name.startswith("conv.")}
            weight, bias = fold(ours.edge_lin, model.edge_encoder)
            conv.load_state_dict({**state, "lin_edge.weight": weight.detach(), "lin_edge.bias": bias.detach()})
            norm = torch.nn.LayerNorm(channels)
            norm.load_state_dict(ours.norm.state_dict())
            branches.append(PyGBranch(norm, conv))
        self.layers = torch.nn.ModuleList(pyg.GroupAddRev(torch.nn.ModuleList(pair))
                                          for pair in zip(branches[::2], branches[1::2]))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
        h = self.node_encoder(x)
        mask = torch.nn.functional.dropout(torch.ones_like(h), self.dropout, self.training)
        for layer in self.layers:
            h = layer(h, edge_index, edge_attr, mask)
        return self.head(torch.nn.functional.dropout(self.norm(h).relu(), self.dropout, self.training))
