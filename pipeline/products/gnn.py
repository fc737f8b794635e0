"""Graph networks (trainer=gnn)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from parallel_epochs.pipeline.gnn.config import GNNConfig, GNNEvaluateConfig, GNNPredictConfig
from parallel_epochs.pipeline.products.base import Product

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from parallel_epochs.pipeline.data.opened import OpenData, Part
    from parallel_epochs.pipeline.gnn.setup import Setup
    from parallel_epochs.pipeline.gnn.trainer import GNNTrainer
    from parallel_epochs.pipeline.run.baseline_file import Baseline
    from parallel_epochs.pipeline.run.contract import Trainer
    from parallel_epochs.pipeline.run.ranks import Ranks
    from parallel_epochs.pipeline.run.saved import SavedRun
    from parallel_epochs.pipeline.run.stop import StopRequest


class GNN(Product[GNNConfig, "Setup", GNNEvaluateConfig, GNNPredictConfig]):
    """Predicts labels of nodes, graphs or links by a graph network."""

    name = "gnn"
    config = GNNConfig
    evaluate_keys = GNNEvaluateConfig
    predict_keys = GNNPredictConfig
    has_baselines = True
    learns_vectors = False

    def check(self, config: GNNConfig) -> None:
        from parallel_epochs.pipeline.gnn import build
        build.check(config)

    def open_data(self, config: GNNConfig, device: "torch.device", *, content_hash: str | None = None) -> "OpenData":
        from parallel_epochs.pipeline.gnn import build
        return build.open_data(config, device, content_hash=content_hash)

    def build(self, part: "Setup", *, ranks: "Ranks", stop: "StopRequest | None" = None) -> "Trainer":
        from parallel_epochs.pipeline.gnn import build
        return build.build_trainer(part, ranks=ranks, stop=stop)

    def evaluate(self, run: "SavedRun[GNNConfig]", asked: GNNEvaluateConfig) -> dict[str, float]:
        from parallel_epochs.pipeline.gnn import predict
        return predict.evaluate(run, asked)

    def predict(self, run: "SavedRun[GNNConfig]", asked: GNNPredictConfig) -> None:
        from parallel_epochs.pipeline.gnn import predict
        predict.predict(run, asked)

    def prepare(self, part: "Setup") -> None:
        from parallel_epochs.pipeline.gnn import build
        build.prepare(part)

    def memory_of(self, part: "Setup") -> str:
        from parallel_epochs.pipeline.gnn import memory
        return memory.describe(part)

    def report(self, part: "Setup") -> None:
        from parallel_epochs.pipeline.gnn import build
        build.report(part)

    def write_start(self, part: "Setup", folder: Path) -> None:
        from parallel_epochs.pipeline.gnn import new_data
        new_data.write_start(part, folder)

    def write_best(self, part: "Setup", trainer: "Trainer", folder: Path) -> None:
        from parallel_epochs.pipeline.gnn import label_scores
        label_scores.write_best(part, cast("GNNTrainer", trainer), folder)

    def finish(self, part: "Setup", trainer: "Trainer", folder: Path, *, ranks: "Ranks",
               stop: "StopRequest | None" = None) -> dict[str, Any]:
        from parallel_epochs.pipeline.gnn import smoothing
        return smoothing.finish(part, trainer, folder, ranks=ranks, stop=stop)

    def train_parts(self, train_one: "Callable[[Part, Path], dict]", opened: "OpenData", folder: Path, *,
                    ranks: "Ranks") -> dict:
        if opened.parts[0].number is None:
            return super().train_parts(train_one, opened, folder, ranks=ranks)
        from parallel_epochs.pipeline.gnn import components
        return components.train_components(train_one, opened, folder, ranks=ranks)

    def baselines(self, part: "Setup") -> "tuple[str, Iterator[Baseline]]":
        return part.task.metric, part.kind.baselines(part.data, part.task)

    def predict_in_memory(self, run: "SavedRun[GNNConfig]", data: object,
                          pairs: "Tensor | None") -> "tuple[Tensor, str]":
        from parallel_epochs.pipeline.gnn import predict
        return predict.predict_in_memory(run, data, pairs)

    def export(self, run: "SavedRun[GNNConfig]", path: Path) -> None:
        from parallel_epochs.pipeline.gnn import new_data
        new_data.export(run, path)
