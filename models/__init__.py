"""Deep graph neural networks and their layers. They need torch and torch_geometric, and know nothing of configurations.

Every layer takes the arguments of PyG's layer of the same name and loads its state_dict.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parallel_epochs.models.convs.attention_convs import GATConv, GATv2Conv, TransformerConv
    from parallel_epochs.models.convs.gated_conv import ResGatedGraphConv
    from parallel_epochs.models.convs.gen_conv import GENConv
    from parallel_epochs.models.convs.hgt_conv import HGTConv
    from parallel_epochs.models.convs.relation_conv import RGCNConv
    from parallel_epochs.models.convs.sum_convs import (
        GCNConv,
        GINConv,
        GINEConv,
        GraphConv,
        SAGEConv,
    )
    from parallel_epochs.models.networks.deepgcn import DeeperGCN
    from parallel_epochs.models.networks.link_predictor import LinkModel, LinkPredictor
    from parallel_epochs.models.networks.relational import HGT, RGCN
    from parallel_epochs.models.networks.reversible import RevGNN

__all__ = [
    "HGT",
    "RGCN",
    "DeeperGCN",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GENConv",
    "GINConv",
    "GINEConv",
    "GraphConv",
    "HGTConv",
    "LinkModel",
    "LinkPredictor",
    "RGCNConv",
    "ResGatedGraphConv",
    "RevGNN",
    "SAGEConv",
    "TransformerConv",
]
# Imported when they are first used, as torch takes seconds: the options of models are read without it.
_MODULES = (
    "convs.attention_convs",
    "convs.gated_conv",
    "convs.gen_conv",
    "convs.hgt_conv",
    "convs.relation_conv",
    "convs.sum_convs",
    "networks.deepgcn",
    "networks.link_predictor",
    "networks.relational",
    "networks.reversible",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in (f"parallel_epochs.models.{module}" for module in _MODULES):
            found = getattr(importlib.import_module(module), name, None)
            if found is not None and found.__module__ == module:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
