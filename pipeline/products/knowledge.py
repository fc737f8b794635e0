"""Knowledge graphs (trainer=knowledge): vectors of entities and relations."""

from functools import partial

from parallel_epochs.pipeline.config import EvaluateConfig
from parallel_epochs.pipeline.data.opened import Part, open_whole
from parallel_epochs.pipeline.knowledge import build, predictions
from parallel_epochs.pipeline.knowledge.baselines import find_baselines
from parallel_epochs.pipeline.knowledge.config import AnswersConfig, KnowledgeConfig
from parallel_epochs.pipeline.products.base import Product

PRODUCT = Product[KnowledgeConfig, Part, EvaluateConfig, AnswersConfig](
    check=build.check, open_data=partial(open_whole, check=build.check_data, describe=build.describe),
    build=build.build_trainer, finish=predictions.finish, evaluate=predictions.evaluate, predict=predictions.predict,
    baselines=lambda part: ("mrr", find_baselines(part)))
