"""Deep graph neural networks. They need torch and torch_geometric, and know nothing of configurations."""

from parallel_epochs.models.conv import GENConv
from parallel_epochs.models.deepgcn import DeeperGCN
from parallel_epochs.models.equilibrium import EquilibriumGNN
from parallel_epochs.models.link_predictor import LinkModel, LinkPredictor
from parallel_epochs.models.reversible import RevGNN

__all__ = ["DeeperGCN", "EquilibriumGNN", "GENConv", "LinkModel", "LinkPredictor", "RevGNN"]
