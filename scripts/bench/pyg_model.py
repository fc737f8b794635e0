"""DeeperGCN of PyG's modules, built like PyG's example ogbn_proteins_deepgcn.py, with our parameters."""

import copy

import torch
from torch_geometric import nn as pyg

from parallel_epochs.models import DeeperGCN


class PyGDeeperGCN(torch.nn.Module):
    """``res+`` blocks of softmax GENConvs with norm and ReLU at the end.

    The example adds the shared encoding of the edges to the messages of every layer. DeepGCN and our model have one
    more linear map in each layer. It is ``lin_edge`` here, which PyG's GENConv creates only if the sizes differ.

    Args:
        model: model whose parameters are copied.
    """

    def __init__(self, model: DeeperGCN):
        super().__init__()
        self.node_encoder, self.head = model.node_encoder, model.head
        self.edge_encoder, self.layers = model.edge_encoder, torch.nn.ModuleList()
        channels = model.convs[0].in_channels
        for layer, ours in enumerate(model.convs):
            conv = pyg.GENConv(
                channels, channels, "softmax", t=1.0, learn_t=True, norm="layer", bias=True
            )
            conv.load_state_dict(ours.state_dict())
            conv.lin_edge = copy.deepcopy(model.edge_lins[layer])
            norm = torch.nn.LayerNorm(channels)
            # A DeepGCNLayer normalises before it convolves. The first block is a bare convolution; its norm comes last.
            norm.load_state_dict(model.norms[layer - 1].state_dict())
            self.layers.append(
                pyg.DeepGCNLayer(
                    conv,
                    norm,
                    torch.nn.ReLU(inplace=True),
                    block="res+",
                    dropout=model.dropout,
                    ckpt_grad=layer % 3,
                )
            )

    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor
    ) -> torch.Tensor:
        edge_attr = self.edge_encoder(edge_attr)
        x = self.layers[0].conv(self.node_encoder(x), edge_index, edge_attr)
        for layer in self.layers[1:]:
            x = layer(x, edge_index, edge_attr)
        x = self.layers[0].act(self.layers[0].norm(x))
        return self.head(torch.nn.functional.dropout(x, self.layers[0].dropout, self.training))
