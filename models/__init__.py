"""Deep graph neural networks: torch and torch_geometric only, no configuration objects."""

from .conv import GENConv
from .deepgcn import DeeperGCN
from .equilibrium import EquilibriumGNN
from .link_predictor import LinkModel, LinkPredictor
from .reversible import RevGNN

__all__ = ["DeeperGCN", "EquilibriumGNN", "GENConv", "LinkModel", "LinkPredictor", "RevGNN"]
