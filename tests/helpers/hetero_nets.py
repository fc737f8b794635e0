"""Models of graphs with several types of nodes, as a user of PyG writes them."""

import torch
from torch_geometric.nn import HeteroConv, HGTConv, SAGEConv, to_hetero


class Sage(torch.nn.Module):
    def __init__(self, hidden_channels, out_channels):
        super().__init__()
        self.first = SAGEConv((-1, -1), hidden_channels)
        self.second = SAGEConv((-1, -1), out_channels)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


class ToHetero(torch.nn.Module):
    """A model of one type, made one of several types by PyG; it returns a dict by type."""

    def __init__(self, hidden_channels, out_channels, metadata):
        super().__init__()
        self.net = to_hetero(Sage(hidden_channels, out_channels), metadata)

    def forward(self, x_dict, edge_index_dict):
        return self.net(x_dict, edge_index_dict)


class Hgt(torch.nn.Module):
    """HGT as in PyG's examples; it returns the rows of the type with labels."""

    def __init__(self, in_channels, hidden_channels, out_channels, num_layers, schema):
        super().__init__()
        self.labelled = schema.labelled
        self.lins = torch.nn.ModuleDict(
            {name: torch.nn.Linear(width, hidden_channels) for name, width in in_channels.items()}
        )
        self.convs = torch.nn.ModuleList(
            HGTConv(hidden_channels, hidden_channels, schema.metadata, heads=2)
            for _ in range(num_layers)
        )
        self.head = torch.nn.Linear(hidden_channels, out_channels)

    def forward(self, x_dict, edge_index_dict):
        x_dict = {name: self.lins[name](x).relu() for name, x in x_dict.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return self.head(x_dict[self.labelled])


class Weighted(torch.nn.Module):
    """A HeteroConv whose layers read the features of edges through a linear map."""

    def __init__(self, in_channels, out_channels, edge_dim, schema):
        super().__init__()
        self.conv = HeteroConv(
            {
                relation: SAGEConv(
                    (in_channels[relation[0]], in_channels[relation[2]]), out_channels
                )
                for relation in schema.relations
            }
        )
        self.edges = torch.nn.Linear(edge_dim, out_channels)

    def forward(self, x_dict, edge_index_dict, edge_attr_dict):
        seen = sum(self.edges(attr).sum() for attr in edge_attr_dict.values())
        return {name: x + 0.01 * seen for name, x in self.conv(x_dict, edge_index_dict).items()}


class Missing(ToHetero):
    """One that returns no rows of the type with labels."""

    def forward(self, x_dict, edge_index_dict):
        return {"item": super().forward(x_dict, edge_index_dict)["item"]}
