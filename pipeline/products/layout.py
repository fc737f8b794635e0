"""Layouts (trainer=layout) place the nodes of a graph, or vectors, in two or three dimensions."""

from functools import partial

from parallel_epochs.pipeline.block_training.vectors import OpenVectors
from parallel_epochs.pipeline.data.opened import open_whole
from parallel_epochs.pipeline.layout import build, predictions
from parallel_epochs.pipeline.products.base import Product

PRODUCT: Product = Product(
    check=build.check,
    open_data=partial(open_whole, check=build.check_data, describe=build.describe),
    build=build.build_trainer,
    prepare=build.prepare,
    write_results=build.write_results,
    evaluate=predictions.evaluate,
    predict=predictions.predict,
    open_warm=partial(OpenVectors, read=predictions.positions_of),
)
