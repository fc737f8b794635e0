"""Knowledge graphs (trainer=knowledge): vectors of entities and relations."""

from functools import partial

from parallel_epochs.pipeline.data.opened import open_whole
from parallel_epochs.pipeline.knowledge import build, penalty, predictions
from parallel_epochs.pipeline.knowledge.baselines import find_baselines
from parallel_epochs.pipeline.products.base import Product, do_nothing

PRODUCT: Product = Product(
    check=build.check,
    open_data=partial(open_whole, check=do_nothing, describe=build.describe),
    build=build.build_trainer,
    train_parts=penalty.train_parts,
    finish=predictions.finish,
    evaluate=predictions.evaluate,
    predict=predictions.predict,
    open_warm=predictions.OpenTriples,
    baselines=lambda part: ("mrr", find_baselines(part)),
)
