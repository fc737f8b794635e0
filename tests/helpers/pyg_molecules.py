"""DeeperGCN for molecules of PyG's GENConv and OGB's encoders, with our parameters."""

import torch
from ogb.graphproppred.mol_encoder import AtomEncoder, BondEncoder
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from parallel_epochs.models import DeeperGCN
from parallel_epochs.models.networks.categories import TableEncoder


class PyGMolecules(torch.nn.Module):
    """``res+`` blocks of softmax GENConvs with a BondEncoder each, and the mean over the atoms of each molecule.

    Args:
        model: model whose parameters are copied, with one-layer MLPs, batch norm and no virtual node.
    """

    def __init__(self, model: DeeperGCN):
        super().__init__()
        channels = model.head.in_features
        self.dropout, self.head = model.dropout, model.head
        self.atom_encoder = _copy(AtomEncoder(channels).atom_embedding_list, model.node_encoder)
        self.bond_encoders, self.convs, self.norms = (torch.nn.ModuleList() for _ in range(3))
        for conv, tables, norm in zip(model.convs, model.edge_lins, model.norms):
            self.bond_encoders.append(_copy(BondEncoder(channels).bond_embedding_list, tables))
            theirs = pyg.GENConv(
                channels,
                channels,
                "softmax",
                t=1.0,
                learn_t=True,
                num_layers=1,
                norm="batch",
                bias=True,
            )
            theirs.load_state_dict(conv.state_dict())
            self.convs.append(theirs)
            self.norms.append(torch.nn.BatchNorm1d(channels))
            self.norms[-1].load_state_dict(norm.state_dict())

    def forward(
        self,
        x: torch.Tensor,
        edge_index: torch.Tensor,
        edge_attr: torch.Tensor,
        batch: torch.Tensor,
    ) -> torch.Tensor:
        h = _sum(self.atom_encoder, x)
        h = self.convs[0](h, edge_index, _sum(self.bond_encoders[0], edge_attr))
        for norm, conv, bonds in zip(self.norms, self.convs[1:], self.bond_encoders[1:]):
            read = torch.nn.functional.dropout(norm(h).relu(), self.dropout, self.training)
            h = h + conv(read, edge_index, _sum(bonds, edge_attr))
        h = torch.nn.functional.dropout(self.norms[-1](h), self.dropout, self.training)
        return self.head(pyg.global_mean_pool(h, batch))


def _copy(embeddings: torch.nn.ModuleList, tables: TableEncoder) -> torch.nn.ModuleList:
    with torch.no_grad():
        for embedding, table in zip(embeddings, tables.weight.split(tables.sizes), strict=True):
            embedding.weight.copy_(table)
    return embeddings


def _sum(embeddings: torch.nn.ModuleList, columns: torch.Tensor) -> torch.Tensor:
    return sum(embedding(columns[:, i]) for i, embedding in enumerate(embeddings))


def split_into_list(data: Data) -> list[Data]:
    """Split a disjoint union into the list of graphs that PyG's DataLoader takes."""
    src, dst = data.edge_index.as_tensor().long()
    ptr, indptr = data.ptr, data.edge_index.get_csc()[0][0].long()
    return [
        Data(
            x=data.x[a:b].long(),
            edge_attr=data.edge_attr[first:last].long(),
            y=data.y[i : i + 1],
            edge_index=torch.stack([src[first:last], dst[first:last]]) - a,
        )
        for i, (a, b, first, last) in enumerate(
            zip(
                ptr[:-1].tolist(),
                ptr[1:].tolist(),
                indptr[ptr[:-1]].tolist(),
                indptr[ptr[1:]].tolist(),
            )
        )
    ]
