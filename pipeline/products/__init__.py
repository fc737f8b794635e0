"""The products, one for each value of ``trainer=``. Only their methods import torch, when they are called."""

from typing import Any

from parallel_epochs.pipeline.products.base import Product
from parallel_epochs.pipeline.products.gnn import GNN
from parallel_epochs.pipeline.products.knowledge import Knowledge
from parallel_epochs.pipeline.products.layout import Layout
from parallel_epochs.pipeline.products.node_embedding import NodeEmbedding

PRODUCTS: dict[str, Product[Any, Any, Any, Any]] = {
    "gnn": GNN(),
    "node_embedding": NodeEmbedding(),
    "knowledge": Knowledge(),
    "layout": Layout(),
}


def product_of(name: str | None) -> Product[Any, Any, Any, Any]:
    """Return the product of a value of ``trainer=``.

    Raises:
        ValueError: there is none.
    """
    if name not in PRODUCTS:
        raise ValueError(f"trainer.name={name} is unknown; choose one of {', '.join(PRODUCTS)}")
    return PRODUCTS[name]
