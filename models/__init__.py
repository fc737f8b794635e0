"""Deep graph neural networks: torch and torch_geometric only, no configuration objects."""

from .conv import GENConv
from .deepgcn import DeeperGCN

__all__ = ["DeeperGCN", "GENConv"]
