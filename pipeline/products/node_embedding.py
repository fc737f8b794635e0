"""Node embeddings (trainer=node_embedding)."""

from typing import TYPE_CHECKING

from parallel_epochs.pipeline.config import EvaluateConfig
from parallel_epochs.pipeline.node_embedding.config import NodeEmbeddingConfig, PredictVectorsConfig
from parallel_epochs.pipeline.products.base import Product

if TYPE_CHECKING:
    import torch

    from parallel_epochs.pipeline.data.opened import OpenData, Part
    from parallel_epochs.pipeline.run.contract import Trainer
    from parallel_epochs.pipeline.run.ranks import Ranks
    from parallel_epochs.pipeline.run.saved import SavedRun
    from parallel_epochs.pipeline.run.stop import StopRequest


class NodeEmbedding(Product[NodeEmbeddingConfig, "Part", EvaluateConfig, PredictVectorsConfig]):
    """Learns a vector for each node from the edges alone."""

    name = "node_embedding"
    config = NodeEmbeddingConfig
    evaluate_keys = EvaluateConfig
    predict_keys = PredictVectorsConfig

    def check(self, config: NodeEmbeddingConfig) -> None:
        from parallel_epochs.pipeline.node_embedding import build
        build.check(config)

    def open_data(self, config: NodeEmbeddingConfig, device: "torch.device", *,
                  content_hash: str | None = None) -> "OpenData":
        from parallel_epochs.pipeline.block_training.open import describe_graph
        from parallel_epochs.pipeline.data.opened import open_whole
        from parallel_epochs.pipeline.node_embedding import build
        return open_whole(config, device, build.check_graph, describe_graph, content_hash)

    def build(self, part: "Part", *, ranks: "Ranks", stop: "StopRequest | None" = None) -> "Trainer":
        from parallel_epochs.pipeline.node_embedding import build
        return build.build_trainer(part, ranks=ranks, stop=stop)

    def evaluate(self, run: "SavedRun[NodeEmbeddingConfig]", asked: EvaluateConfig) -> dict[str, float]:
        from parallel_epochs.pipeline.node_embedding import predictions
        return predictions.evaluate(run, asked)

    def predict(self, run: "SavedRun[NodeEmbeddingConfig]", asked: PredictVectorsConfig) -> None:
        from parallel_epochs.pipeline.node_embedding import predictions
        predictions.predict(run, asked)
