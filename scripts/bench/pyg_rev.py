"""RevGNN of PyG's modules, GroupAddRev and GENConv, with our parameters."""

import torch
from torch_geometric import nn as pyg

from parallel_epochs.models import RevGNN
from parallel_epochs.models.networks.encoders import fold


class PyGBranch(torch.nn.Module):
    """Norm, ReLU, the shared dropout mask and PyG's convolution with our folded edge encoder."""

    def __init__(self, norm: torch.nn.LayerNorm, conv: pyg.GENConv):
        super().__init__()
        self.norm, self.conv = norm, conv

    def forward(
        self, h: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        return self.conv(self.norm(h).relu() * mask, edge_index, edge_attr)


class PyGRevGNN(torch.nn.Module):
    """Computes a RevGNN of two groups with max aggregation. Each layer has a folded encoder of raw edge features.

    GroupAddRev would split encoded edges into groups like the nodes, and keep them.

    Args:
        model: model whose parameters are copied.
    """

    def __init__(self, model: RevGNN):
        super().__init__()
        self.node_encoder, self.norm, self.head = model.node_encoder, model.norm, model.head
        self.dropout = model.dropout
        branches = []
        for ours in model.branches:
            channels = ours.norm.normalized_shape[0]
            conv = pyg.GENConv(
                channels,
                channels,
                "max",
                num_layers=2,
                norm="layer",
                bias=True,
                edge_dim=model.edge_encoder.in_features,
            )
            state = {
                name.removeprefix("conv."): value
                for name, value in ours.state_dict().items()
                if name.startswith("conv.")
            }
            weight, bias = fold(ours.edge_lin, model.edge_encoder)
            conv.load_state_dict(
                {**state, "lin_edge.weight": weight.detach(), "lin_edge.bias": bias.detach()}
            )
            norm = torch.nn.LayerNorm(channels)
            norm.load_state_dict(ours.norm.state_dict())
            branches.append(PyGBranch(norm, conv))
        self.layers = torch.nn.ModuleList(
            pyg.GroupAddRev(torch.nn.ModuleList(pair))
            for pair in zip(branches[::2], branches[1::2])
        )

    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor
    ) -> torch.Tensor:
        h = self.node_encoder(x)
        mask = torch.nn.functional.dropout(torch.ones_like(h), self.dropout, self.training)
        for layer in self.layers:
            h = layer(h, edge_index, edge_attr, mask)
        return self.head(
            torch.nn.functional.dropout(self.norm(h).relu(), self.dropout, self.training)
        )
