"""Deep graph neural networks: torch and torch_geometric only, no configuration objects."""

from models.conv import GENConv
from models.deepgcn import DeeperGCN

__all__ = ["DeeperGCN", "GENConv"]
