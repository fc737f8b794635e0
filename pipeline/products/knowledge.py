"""Knowledge graphs (trainer=knowledge)."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from parallel_epochs.pipeline.config import EvaluateConfig
from parallel_epochs.pipeline.knowledge.config import AnswersConfig, KnowledgeConfig
from parallel_epochs.pipeline.products.base import Product

if TYPE_CHECKING:
    import torch

    from parallel_epochs.pipeline.data.opened import OpenData, Part
    from parallel_epochs.pipeline.knowledge.trainer import KnowledgeTrainer
    from parallel_epochs.pipeline.run.baseline_file import Baseline
    from parallel_epochs.pipeline.run.contract import Trainer
    from parallel_epochs.pipeline.run.ranks import Ranks
    from parallel_epochs.pipeline.run.saved import SavedRun
    from parallel_epochs.pipeline.run.stop import StopRequest


class Knowledge(Product[KnowledgeConfig, "Part", EvaluateConfig, AnswersConfig]):
    """Learns vectors of the entities and relations of a knowledge graph."""

    name = "knowledge"
    config = KnowledgeConfig
    evaluate_keys = EvaluateConfig
    predict_keys = AnswersConfig
    has_baselines = True

    def check(self, config: KnowledgeConfig) -> None:
        from parallel_epochs.pipeline.knowledge import build
        build.check(config)

    def open_data(self, config: KnowledgeConfig, device: "torch.device", *,
                  content_hash: str | None = None) -> "OpenData":
        from parallel_epochs.pipeline.data.opened import open_whole
        from parallel_epochs.pipeline.knowledge import build
        return open_whole(config, device, build.check_data, build.describe, content_hash)

    def build(self, part: "Part", *, ranks: "Ranks", stop: "StopRequest | None" = None) -> "Trainer":
        from parallel_epochs.pipeline.knowledge import build
        return build.build_trainer(part, ranks=ranks, stop=stop)

    def evaluate(self, run: "SavedRun[KnowledgeConfig]", asked: EvaluateConfig) -> dict[str, float]:
        from parallel_epochs.pipeline.knowledge import predictions
        return predictions.evaluate(run, asked)

    def predict(self, run: "SavedRun[KnowledgeConfig]", asked: AnswersConfig) -> None:
        from parallel_epochs.pipeline.knowledge import predictions
        predictions.predict(run, asked)

    def finish(self, part: "Part", trainer: "Trainer", folder: Path, *, ranks: "Ranks",
               stop: "StopRequest | None" = None) -> dict[str, Any]:
        from parallel_epochs.pipeline.knowledge import predictions
        return predictions.finish(part, cast("KnowledgeTrainer", trainer), folder, ranks=ranks, stop=stop)

    def baselines(self, part: "Part") -> "tuple[str, Iterator[Baseline]]":
        from parallel_epochs.pipeline.knowledge import baselines
        return "mrr", baselines.find_baselines(part)
