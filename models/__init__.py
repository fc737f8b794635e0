"""Deep graph neural networks and their layers. They need torch and torch_geometric, and know nothing of configurations.

Every layer takes the arguments of PyG's layer of the same name and loads its state_dict.
"""

from parallel_epochs.models.convs.attention_convs import GATConv, GATv2Conv, TransformerConv
from parallel_epochs.models.convs.gated_conv import ResGatedGraphConv
from parallel_epochs.models.convs.gen_conv import GENConv
from parallel_epochs.models.convs.pna_conv import PNAConv
from parallel_epochs.models.convs.relation_conv import RGCNConv
from parallel_epochs.models.convs.sum_convs import GCNConv, GINConv, GINEConv, GraphConv, SAGEConv
from parallel_epochs.models.networks.deepgcn import DeeperGCN
from parallel_epochs.models.networks.equilibrium import EquilibriumGNN
from parallel_epochs.models.networks.link_predictor import LinkModel, LinkPredictor
from parallel_epochs.models.networks.relational import HGT, RGCN
from parallel_epochs.models.networks.reversible import RevGNN

__all__ = ["HGT", "RGCN", "DeeperGCN", "EquilibriumGNN", "GATConv", "GATv2Conv", "GCNConv", "GENConv", "GINConv",
           "GINEConv", "GraphConv", "LinkModel", "LinkPredictor", "PNAConv", "RGCNConv", "ResGatedGraphConv",
           "RevGNN", "SAGEConv", "TransformerConv"]
