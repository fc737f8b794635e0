"""OGB's Evaluator, whose numbers ours must equal."""

import torch
from torch import Tensor

from parallel_epochs.pipeline.data.readers.ogb_node import ogb

DATASETS = {"rocauc": "ogbg-molhiv", "ap": "ogbg-molpcba", "acc": "ogbg-ppa"}


def score(metric: str, y: Tensor, logits: Tensor) -> float:
    """Score logits of tasks, or of classes."""
    evaluator = ogb.graphproppred.Evaluator(DATASETS[metric])
    evaluator.num_tasks = y.size(1)
    y_pred = logits.argmax(1, keepdim=True) if metric == "acc" else logits
    return float(evaluator.eval({"y_true": y, "y_pred": y_pred})[metric])


def score_pairs(metric: str, positive: Tensor, negative: Tensor) -> float:
    """Score pairs by hits@K or mrr; the negatives of mrr may be those of each pair."""
    evaluator = ogb.linkproppred.Evaluator("ogbl-citation2" if metric == "mrr" else "ogbl-collab")
    evaluator.eval_metric = metric
    if metric != "mrr":
        evaluator.K = int(metric.removeprefix("hits@"))
    elif negative.dim() == 1:
        negative = negative.expand(len(positive), -1)
    found = evaluator.eval({"y_pred_pos": positive, "y_pred_neg": negative})
    return float(torch.as_tensor(found["mrr_list" if metric == "mrr" else metric]).double().mean())
