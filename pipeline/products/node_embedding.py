"""Node embeddings (trainer=node_embedding): a vector for each node, learned from the edges alone."""

from functools import partial

from parallel_epochs.pipeline.block_training.open import describe_graph
from parallel_epochs.pipeline.block_training.vectors import OpenVectors
from parallel_epochs.pipeline.data.opened import open_whole
from parallel_epochs.pipeline.node_embedding import build, predictions
from parallel_epochs.pipeline.products.base import Product

PRODUCT: Product = Product(
    check=build.check,
    open_data=partial(open_whole, check=build.check_graph, describe=describe_graph),
    build=build.build_trainer,
    evaluate=predictions.evaluate,
    predict=predictions.predict,
    open_warm=partial(OpenVectors, read=predictions.vectors_of),
)
