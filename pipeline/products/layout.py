"""Layouts (trainer=layout)."""

from pathlib import Path
from typing import TYPE_CHECKING

from parallel_epochs.pipeline.config import EvaluateConfig
from parallel_epochs.pipeline.layout.config import LayoutConfig
from parallel_epochs.pipeline.products.base import Product

if TYPE_CHECKING:
    import torch

    from parallel_epochs.pipeline.data.opened import OpenData, Part
    from parallel_epochs.pipeline.run.contract import Trainer
    from parallel_epochs.pipeline.run.ranks import Ranks
    from parallel_epochs.pipeline.run.saved import SavedRun
    from parallel_epochs.pipeline.run.stop import StopRequest


class Layout(Product[LayoutConfig, "Part", EvaluateConfig, EvaluateConfig]):
    """Places the nodes of a graph, or vectors, in two or three dimensions."""

    name = "layout"
    config = LayoutConfig
    evaluate_keys = EvaluateConfig
    predict_keys = EvaluateConfig

    def check(self, config: LayoutConfig) -> None:
        from parallel_epochs.pipeline.layout import build
        build.check(config)

    def open_data(self, config: LayoutConfig, device: "torch.device", *, content_hash: str | None = None) -> "OpenData":
        from parallel_epochs.pipeline.data.opened import open_whole
        from parallel_epochs.pipeline.layout import build
        return open_whole(config, device, build.check_data, build.describe, content_hash)

    def build(self, part: "Part", *, ranks: "Ranks", stop: "StopRequest | None" = None) -> "Trainer":
        from parallel_epochs.pipeline.layout import build
        return build.build_trainer(part, ranks=ranks, stop=stop)

    def evaluate(self, run: "SavedRun[LayoutConfig]", asked: EvaluateConfig) -> dict[str, float]:
        from parallel_epochs.pipeline.layout import predictions
        return predictions.evaluate(run, asked)

    def predict(self, run: "SavedRun[LayoutConfig]", asked: EvaluateConfig) -> None:
        from parallel_epochs.pipeline.layout import predictions
        predictions.predict(run, asked)

    def prepare(self, part: "Part") -> None:
        from parallel_epochs.pipeline.layout import build
        build.prepare(part)

    def write_results(self, part: "Part", folder: Path) -> None:
        from parallel_epochs.pipeline.layout import build
        build.write_results(part, folder)
