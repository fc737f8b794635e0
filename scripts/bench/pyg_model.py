"""DeeperGCN of PyG's modules, built like PyG's example ogbn_proteins_deepgcn.py, with our parameters."""

import copy

import torch
from torch_geometric import nn as pyg

from parallel_epochs.models import DeeperGCN


class PyGBlocks(torch.nn.Module):
    """``res+`` blocks of softmax GENConvs with norm and ReLU at the end.

    Args:
        model: model whose parameters are copied.
        norm: of the blocks and of the MLPs in the convolutions, "layer" or "batch".
        num_mlp_layers: layers of these MLPs.
        checkpointing: whether backward recomputes two of three layers.
    """

    def __init__(
        self,
        model: DeeperGCN,
        *,
        norm: str = "batch",
        num_mlp_layers: int = 1,
        checkpointing: bool = False,
    ):
        super().__init__()
        channels, self.layers = model.convs[0].in_channels, torch.nn.ModuleList()
        kind = {"layer": torch.nn.LayerNorm, "batch": torch.nn.BatchNorm1d}[norm]
        for layer, ours in enumerate(model.convs):
            conv = pyg.GENConv(
                channels,
                channels,
                "softmax",
                t=1.0,
                learn_t=True,
                num_layers=num_mlp_layers,
                norm=norm,
                bias=True,
            )
            conv.load_state_dict(ours.state_dict())
            normalise = kind(channels)
            # A DeepGCNLayer normalises before it convolves. The first block is a bare convolution; its norm comes last.
            normalise.load_state_dict(model.norms[layer - 1].state_dict())
            self.layers.append(
                pyg.DeepGCNLayer(
                    conv,
                    normalise,
                    torch.nn.ReLU(inplace=True),
                    block="res+",
                    dropout=model.dropout,
                    ckpt_grad=layer % 3 if checkpointing else False,
                )
            )

    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor | None = None
    ) -> torch.Tensor:
        x = self.layers[0].conv(x, edge_index, edge_attr)
        for layer in self.layers[1:]:
            x = layer(x, edge_index, edge_attr)
        return self.layers[0].act(self.layers[0].norm(x))


class PyGDeeperGCN(PyGBlocks):
    """The model of PyG's example. Backward recomputes two of three layers, as there.

    The example adds the shared encoding of the edges to the messages of every layer. DeepGCN and our model have one
    more linear map in each layer. It is ``lin_edge`` here, which PyG's GENConv creates only if the sizes differ.

    Args:
        model: model whose parameters are copied.
    """

    def __init__(self, model: DeeperGCN, *, checkpointing: bool = True):
        super().__init__(model, norm="layer", num_mlp_layers=2, checkpointing=checkpointing)
        self.node_encoder, self.head, self.edge_encoder = (
            model.node_encoder,
            model.head,
            model.edge_encoder,
        )
        for layer, encoder in zip(self.layers, model.edge_lins, strict=True):
            layer.conv.lin_edge = copy.deepcopy(encoder)

    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor
    ) -> torch.Tensor:
        x = super().forward(self.node_encoder(x), edge_index, self.edge_encoder(edge_attr))
        return self.head(torch.nn.functional.dropout(x, self.layers[0].dropout, self.training))
