"""Models that a user might bring; the processes import them by name."""

import torch
from torch.nn import functional as F
from torch_geometric.nn import GATConv


class Net(torch.nn.Module):
    """Attention with batch norm and dropout."""

    def __init__(self, in_channels, out_channels, edge_dim=None, width=8, heads=2):
        super().__init__()
        self.first = GATConv(in_channels, width, heads=heads, edge_dim=edge_dim, dropout=0.2)
        self.norm = torch.nn.BatchNorm1d(width * heads)
        self.second = GATConv(width * heads, out_channels, edge_dim=edge_dim)

    def forward(self, x, edge_index, edge_attr):
        h = self.norm(self.first(x, edge_index, edge_attr)).relu()
        return self.second(F.dropout(h, 0.3, self.training), edge_index, edge_attr)


class Lazy(torch.nn.Module):
    """No edges, and a layer that learns its own width."""

    def __init__(self, out_channels):
        super().__init__()
        self.lin = torch.nn.LazyLinear(out_channels)

    def forward(self, x, edge_index):
        return self.lin(x)


class Weighted(Lazy):
    """A weight for each edge."""

    def forward(self, x, edge_index, edge_weight=None):
        self.seen = edge_weight
        return self.lin(x)


class Third(Lazy):
    """Edge features by another name."""

    def forward(self, x, edge_index, features):
        self.seen = features
        return self.lin(x)


class Flat(Lazy):
    def forward(self, x, edge_index):
        return self.lin(x).sum(1)


class Pair(Lazy):
    def forward(self, x, edge_index):
        return self.lin(x), None


class PairInTraining(Lazy):
    def forward(self, x, edge_index):
        return (self.lin(x), None) if self.training else self.lin(x)


class Detached(Lazy):
    def forward(self, x, edge_index):
        return self.lin(x).detach()


class Endless(Lazy):
    def forward(self, x, edge_index):
        return self.lin(x) / 0


class Exits(Lazy):
    def forward(self, x, edge_index):
        raise SystemExit(0)


class Double(Lazy):
    def forward(self, x, edge_index):
        return self.lin(x).double()


class Frozen(torch.nn.Module):
    def forward(self, x, edge_index):
        return x[:, :2]


class Broken(Lazy):
    def forward(self, x, edge_index):
        return self.lin(x) @ x


NOT_A_CLASS = 3


class Headed(torch.nn.Module):
    """A layer of one's own and a head."""

    def __init__(self, in_channels, out_channels, hidden_channels):
        super().__init__()
        self.first, self.head = (
            GATConv(in_channels, hidden_channels),
            torch.nn.Linear(hidden_channels, out_channels),
        )

    def forward(self, x, edge_index):
        return self.head(self.first(x, edge_index).relu())
