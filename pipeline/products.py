"""The four products: one record for each value of ``trainer=``. Nothing here imports torch.

A product is a folder of pipeline/ with two or three modules. `build` has

- ``check(config)``: refuse what the configuration and the machine rule out, before anything is opened or written;
- ``open_data(config, device, content_hash=None) -> OpenData``: open the dataset, check that it fits, describe it in the
  log;
- ``build_trainer(part, ranks, stop) -> Trainer``: what trains a part of the opened data;
- ``prepare(part)``: fill the caches that training would fill;
- ``report(part)``, if the memory of a run is known beforehand: log it;
- ``write_best(part, trainer, folder)``, if there is more to write than a checkpoint after the best evaluation so far;
- ``write_results(part, folder)``, if there is more to write than a summary at the end of a run.

`baselines`, which a product may lack, has ``find_baselines(part)``: score the simple methods that its runs should be
better than; and ``metric_of(part)``, by which they are compared.

`predictions` has ``evaluate(run, ...)`` and ``predict(run, ...)``, which use a
:class:`~pipeline.run.saved.SavedRun`. Their other arguments have the names of the keys that the record gives them. If
the ranks predict once more when training has ended, it has ``finish(part, trainer, folder, ranks, stop)``, which
returns what that adds to the summary.
"""

import importlib
from dataclasses import dataclass
from types import ModuleType

from parallel_epochs.pipeline.config import EvaluateConfig, RunConfig
from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNEvaluateConfig, GNNPredictConfig
from parallel_epochs.pipeline.knowledge.config import AnswersConfig, KnowledgeConfig
from parallel_epochs.pipeline.layout.config import LayoutConfig
from parallel_epochs.pipeline.node_embedding.config import NodeEmbeddingConfig, PredictVectorsConfig


@dataclass(frozen=True)
class Product:
    """A kind of training.

    Attributes:
        name: of its folder, and the value of ``trainer=``.
        config: the keys of a run.
        predict: the keys of `python -m pipeline.predict`.
        evaluate: the keys of `python -m pipeline.evaluate`.
        has_baselines: whether simple methods are known that its runs should be better than.
    """

    name: str
    config: type[RunConfig]
    predict: type[EvaluateConfig] = EvaluateConfig
    evaluate: type[EvaluateConfig] = EvaluateConfig
    has_baselines: bool = False

    @property
    def build(self) -> ModuleType:
        """The module that builds its trainer; it imports torch."""
        return importlib.import_module(f"parallel_epochs.pipeline.{self.name}.build")

    @property
    def baselines(self) -> ModuleType:
        """The module that scores simple methods; it imports torch."""
        return importlib.import_module(f"parallel_epochs.pipeline.{self.name}.baselines")

    @property
    def predictions(self) -> ModuleType:
        """The module that reads its runs; it imports torch."""
        return importlib.import_module(f"parallel_epochs.pipeline.{self.name}.predictions")


PRODUCTS: dict[str, Product] = {
    "gnn": Product("gnn", GNNConfig, predict=GNNPredictConfig, evaluate=GNNEvaluateConfig, has_baselines=True),
    "node_embedding": Product("node_embedding", NodeEmbeddingConfig, predict=PredictVectorsConfig),
    "knowledge": Product("knowledge", KnowledgeConfig, predict=AnswersConfig, has_baselines=True),
    "layout": Product("layout", LayoutConfig),
}


def product_of(name: str | None) -> Product:
    """Return the product of a value of ``trainer=``.

    Raises:
        ValueError: there is none.
    """
    if name not in PRODUCTS:
        raise ValueError(f"trainer.name={name} is unknown; choose one of {', '.join(PRODUCTS)}")
    return PRODUCTS[name]
