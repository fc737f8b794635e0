"""A virtual node: one learned node of each graph that reads all nodes and is read by all."""
# ruff: noqa: F722 (shapes are strings)

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.utils import segment

from .blocks import NORMS

VIRTUAL_NODES = ("none", "add", "mean")


class VirtualNode(torch.nn.Module):
    """Virtual nodes with an MLP in front of every layer but the first, as for ogbg-molpcba.

    Args:
        channels: width of the layers.
        num_updates: number of layers but the first.
        pool: what it reads of a graph's nodes: their sum ("add") or their "mean".
        norm: norm in the MLPs: "layer" or "batch".
        dropout: probability that a channel of it is dropped in training.
    """

    def __init__(self, channels: int, num_updates: int, *, pool: str, norm: str, dropout: float):
        super().__init__()
        self.pool, self.norm, self.dropout = pool, norm, dropout
        self.embedding = torch.nn.Parameter(torch.zeros(1, channels))

        def layer() -> list[torch.nn.Module]:
            return [torch.nn.Linear(channels, channels), NORMS[norm](channels), torch.nn.ReLU()]

        self.mlps = torch.nn.ModuleList(torch.nn.Sequential(*layer(), *layer()) for _ in range(num_updates))

    def start(self, ptr: Int[Tensor, " num_graphs_plus_1"]) -> Float[Tensor, "num_graphs channels"]:
        """Return the virtual node of each graph in front of the first layer."""
        return self.embedding.expand(ptr.numel() - 1, -1)

    def forward(self, update: int, state: Float[Tensor, "num_graphs channels"], h: Float[Tensor, "num_nodes channels"],
                ptr: Int[Tensor, " num_graphs_plus_1"]) -> Float[Tensor, "num_graphs channels"]:
        """Read the nodes.

        Args:
            update: number of the update, from 0.
            state: the virtual nodes so far.
            h: what the next layer's convolution would read without them.
            ptr: where each graph's nodes begin.

        Raises:
            ValueError: batch norm is asked for the statistics of a single virtual node.
        """
        if self.norm == "batch" and self.training and state.size(0) == 1:
            raise ValueError("a batch of one graph has one virtual node, of which batch norm has no variance: set "
                             "model.norm=layer, or batches of more graphs")
        pooled = segment(h, ptr, reduce="sum" if self.pool == "add" else "mean")
        return F.dropout(self.mlps[update](pooled + state), self.dropout, self.training)


def spread(state: Float[Tensor, "num_graphs channels"], ptr: Int[Tensor, " num_graphs_plus_1"],
           num_nodes: int) -> Float[Tensor, "num_nodes channels"]:
    """Give every node the virtual node of its graph."""
    return state.repeat_interleave(ptr.diff(), dim=0, output_size=num_nodes)
