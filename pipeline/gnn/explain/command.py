"""The command `explain`: one explanation, or some for the report."""

import numpy as np
import torch

from parallel_epochs.pipeline.config import ExplainConfig
from parallel_epochs.pipeline.gnn.config import GNNConfig
from parallel_epochs.pipeline.gnn.predict.warm import Warm
from parallel_epochs.pipeline.names import WHY
from parallel_epochs.pipeline.run import files, pulse
from parallel_epochs.pipeline.run.saved import SavedRun
from parallel_epochs.pipeline.run.seeds import stream


def explain(run: SavedRun[GNNConfig], asked: ExplainConfig) -> None:
    """Explain predictions of a run, and print or write them.

    Raises:
        ValueError: an id names nothing, or there is no such class.
    """
    warm = Warm(run, None, {})
    if asked.examples is not None:
        files.write_json(run.folder / WHY, explain_examples(warm, asked))
        print(f"wrote {run.folder / WHY}, which the report of the run shows")
    else:
        of_pair = asked.pair is not None
        id = asked.pair.split(",") if asked.pair is not None else asked.node
        found = warm.explain(id, asked.top, asked.label, "pair" if of_pair else "node")
        if asked.output is None:
            print(found)
        else:
            found.write(asked.output)
            print(f"{found.summary}\nwrote {asked.output}")


def explain_examples(warm: Warm, asked: ExplainConfig) -> dict[str, list[dict]]:
    """Explain predictions of test rows that are drawn: some that are right, and some that are wrong.

    Of values, those with the smallest and with the largest errors are taken. A row of several tasks is right if the
    likeliest task is.
    """
    explainer = warm.explainer
    rows = stream("explanations", 0).permutation(warm.test_rows)
    error = warm.errors(torch.from_numpy(rows))
    rows, error = rows[~np.isnan(error)], error[~np.isnan(error)]
    order = rows[np.argsort(error, kind="stable")]
    num_right = len(rows) // 2 if explainer.are_values else int((error == 0).sum())
    found = dict[str, list[dict]]()
    for which, chosen in (("right", order[:num_right]), ("wrong", order[num_right:][::-1])):
        found[which] = []
        for row in chosen[: asked.examples].tolist():
            pulse.renew()
            one = explainer.explain(row, str(explainer.ids[row]), top=asked.top, label=asked.label)
            found[which].append(one.to_dict() | {"truth": explainer.label_of(row)})
    return found
