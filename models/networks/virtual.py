"""Virtual nodes: an additional learned node for each graph, which reads all its nodes and which all of them read."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.nn import functional as F

from parallel_epochs.models.networks.heads import graph_of, reduce_graphs
from parallel_epochs.models.residual import NORMS


class VirtualNode(torch.nn.Module):
    """Virtual nodes with an MLP in front of every layer except the first, as in OGB's models of ogbg-molpcba.

    Args:
        channels: width of the layers.
        num_updates: number of layers except the first.
        pool: how it aggregates the nodes of its graph: their sum ("add") or their mean ("mean").
        norm: norm in the MLPs: "layer" or "batch".
        dropout: probability that a channel of a virtual node is dropped in training.
    """

    def __init__(self, channels: int, num_updates: int, *, pool: str, norm: str, dropout: float):
        super().__init__()
        self.pool, self.norm, self.dropout = pool, norm, dropout
        self.embedding = torch.nn.Parameter(torch.zeros(1, channels))

        def layer() -> list[torch.nn.Module]:
            return [torch.nn.Linear(channels, channels), NORMS[norm](channels), torch.nn.ReLU()]

        self.mlps = torch.nn.ModuleList(
            torch.nn.Sequential(*layer(), *layer()) for _ in range(num_updates)
        )

    def start(self, ptr: Int[Tensor, " num_graphs_plus_1"]) -> Float[Tensor, "num_graphs channels"]:
        """Return the virtual node of each graph in front of the first layer."""
        return self.embedding.expand(ptr.numel() - 1, -1)

    def forward(
        self,
        update: int,
        state: Float[Tensor, "num_graphs channels"],
        h: Float[Tensor, "num_nodes channels"],
        ptr: Int[Tensor, " num_graphs_plus_1"],
    ) -> Float[Tensor, "num_graphs channels"]:
        """Update the virtual nodes from the nodes of their graphs.

        Args:
            update: number of the update, from 0.
            state: the virtual nodes so far.
            h: input of the next layer's convolution, without virtual nodes.
            ptr: index of each graph's first node.

        Raises:
            ValueError: batch norm gets a single virtual node, whose variance is undefined.
        """
        if self.norm == "batch" and self.training and state.size(0) == 1:
            raise ValueError(
                "batch norm needs several virtual nodes, but this batch has one graph and so one virtual "
                "node: set model.norm=layer, or put more graphs into a batch"
            )
        pooled = reduce_graphs(h, ptr, "sum" if self.pool == "add" else "mean")
        return F.dropout(self.mlps[update](pooled + state), self.dropout, self.training)


def spread(
    state: Float[Tensor, "num_graphs channels"],
    ptr: Int[Tensor, " num_graphs_plus_1"],
    num_nodes: int,
) -> Float[Tensor, "num_nodes channels"]:
    """Return, for every node, the virtual node of its graph."""
    if torch.compiler.is_exporting():
        return state.index_select(0, graph_of(ptr, num_nodes))
    if state.is_cuda:
        return Spread.apply(state, ptr, num_nodes)
    return state.repeat_interleave(ptr.diff(), dim=0, output_size=num_nodes)


class Spread(torch.autograd.Function):
    """Repeats rows. The gradient has the same bits in every run, while torch's is a sum of atomics on a GPU."""

    @staticmethod
    def forward(ctx: BackwardCFunction, state: Tensor, ptr: Tensor, num_nodes: int) -> Tensor:
        ctx.save_for_backward(ptr)
        return state.repeat_interleave(ptr.diff(), dim=0, output_size=num_nodes)

    @staticmethod
    def backward(ctx: BackwardCFunction, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return (
            reduce_graphs(grad.float().contiguous(), ctx.saved_tensors[0], "sum").to(grad.dtype),
            None,
            None,
        )
