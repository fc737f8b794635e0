"""The products, one for each value of ``trainer=``: their keys, without torch, and their functions in a file each."""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parallel_epochs.pipeline.config import EvaluateConfig, RunConfig
from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNEvaluateConfig, GNNPredictConfig
from parallel_epochs.pipeline.knowledge.config import AnswersConfig, KnowledgeConfig
from parallel_epochs.pipeline.layout.config import LayoutConfig
from parallel_epochs.pipeline.node_embedding.config import NodeEmbeddingConfig

if TYPE_CHECKING:  # this imports torch
    from parallel_epochs.pipeline.products.base import Product


@dataclass(frozen=True)
class Keys:
    """The keys of a product: those of a run, and those of `python -m pipeline.evaluate` and `pipeline.predict`."""

    config: type[RunConfig]
    evaluate: type[EvaluateConfig] = EvaluateConfig
    predict: type[EvaluateConfig] = EvaluateConfig


PRODUCTS = {
    "gnn": Keys(GNNConfig, GNNEvaluateConfig, GNNPredictConfig),
    "node_embedding": Keys(NodeEmbeddingConfig),
    "knowledge": Keys(KnowledgeConfig, predict=AnswersConfig),
    "layout": Keys(LayoutConfig),
}


def keys_of(name: str | None) -> Keys:
    """Return the keys of the product of a value of ``trainer=``.

    Raises:
        ValueError: there is none.
    """
    if name not in PRODUCTS:
        raise ValueError(f"trainer.name={name} is unknown; choose one of {', '.join(PRODUCTS)}")
    return PRODUCTS[name]


def product_of(config: RunConfig) -> "Product[Any, Any, Any, Any]":
    """Import the functions of the product of a run: ``PRODUCT`` in the file of this folder that has its name."""
    return importlib.import_module(f"{__name__}.{config.trainer.name}").PRODUCT
