"""Run directories written by hand, for the tests of the report."""

import json
import math
from pathlib import Path

import numpy as np
import yaml


def write_run(
    folder: Path,
    valid: list[float | None],
    *,
    seed: int = 0,
    num_ranks: int = 1,
    lr: float = 0.01,
    epochs: int | None = None,
    finished: bool = True,
    data: str = "digits",
    lrs: list[float] | None = None,
    **summary,
) -> Path:
    """Write a run: two steps and a second an epoch, half of it training, the test metric .01 below that of validation.

    Args:
        valid: the validation metric of each round; none where it was not evaluated.
        epochs: passes over the graph that were asked for, if not as many as rounds.
        lrs: the learning rate of each round.
        summary: what the summary says otherwise.
    """
    folder.mkdir(parents=True)
    config = {
        "seed": seed,
        "cache_dir": str(folder),
        "data": {"source": data},
        "model": {"name": "deepergcn"},
        "train": {"lr": lr, "epochs": epochs or len(valid)},
        "parallel": {"num_ranks": num_ranks},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    records = [partition(0) | {"metric": summary.get("metric", "acc")}]
    records += [
        {
            "kind": "round",
            "round": i,
            "epochs": num_ranks * (i + 1),
            "step": 2 * (i + 1),
            "loss": 1 / (i + 1),
            "lr": (lrs or [lr] * len(valid))[i],
            "grad_norm": 1.0,
            "seconds": 0.5,
            "draw_seconds": 0.2,
            "hidden": 0.5,
            "sync_seconds": 0.1,
            "wall_seconds": i + 1.0,
            **({} if value is None else {"valid": value, "test": value - 0.01, "train": value}),
        }
        for i, value in enumerate(valid)
    ]
    write_records(folder, records)
    (folder / "components.json").write_text(json.dumps(components([20])))
    if finished:
        best = max((value for value in valid if value is not None), default=math.nan)
        (folder / "summary.json").write_text(
            json.dumps(
                {
                    "experiment": "toy",
                    "metric": "acc",
                    "best_epoch": 1,
                    "best_valid": best,
                    "test": best - 0.01,
                    "train": best,
                    "seed": seed,
                    "data_epochs": len(valid) * num_ranks,
                    "wall_seconds": float(len(valid)),
                    "num_ranks": num_ranks,
                    "peak_memory_bytes": 2**30,
                    "num_parameters": 1234,
                    "kernel": "fused-cpu (avx2)",
                    "versions": {"torch": "2.13", "ogb": "1.3.6"},
                    "command": "python -m pipeline.train -m seed=0,1,2",
                    **summary,
                }
            )
        )
    return folder


def write_records(folder: Path, records: list[dict]) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def partition(round_: int, sizes: tuple[int, ...] = (11, 9)) -> dict:
    return {
        "kind": "partition",
        "name": "random",
        "metric": "acc",
        "round": round_,
        "sizes": list(sizes),
        "kept_edges": list(sizes),
        "num_edges": 100,
        "cut": 0.8,
        "imbalance": 1.1,
        "seconds": 0.002,
    }


def components(sizes: list[int]) -> dict:
    return {
        "num_components": len(sizes),
        "num_single_nodes": sizes.count(1),
        "largest": [
            {"num_nodes": size, "num_edges": 2 * size, "num_labelled": size, "num_train": size}
            for size in sizes
        ],
    }


def write_scores(folder: Path, kind: str, num_labels: int = 3, /, **fields) -> Path:
    """Write what a run leaves of each label: two rows of a class are right, and one is taken for the next class.

    Args:
        kind: "classes", "binary tasks", "real values" or "links".
        fields: what the record says otherwise; a field of the splits is one of every split.
    """
    confusion = [
        [2 * (i == j) + (j == (i + 1) % num_labels) for j in range(num_labels)]
        for i in range(num_labels)
    ]
    each = {
        "classes": {"labels": [3] * num_labels, "confusion": confusion},
        "links": {"negatives": 50},
        "binary tasks": {
            "labels": [40] * num_labels,
            "positive": [10] * num_labels,
            "score": [None, *(0.5 + i / 10**4 for i in range(1, num_labels))],
        },
        "real values": {"labels": [40] * num_labels, "score": [0.25] * num_labels},
    }[kind]
    of_splits = {"rows": 1200, **each}
    of_splits |= {
        key: fields.pop(key) for key in [*of_splits, "curve", "ranking", "each"] if key in fields
    }
    record = {
        "epoch": 2,
        "kind": kind,
        "metric": {"classes": "acc", "real values": "rmse", "links": "mrr"}.get(kind, "rocauc"),
        "unit": "nodes",
        "num_labels": num_labels,
        "names": None,
        **fields,
    }
    (folder / "scores.json").write_text(
        json.dumps({"splits": {split: of_splits for split in ("train", "valid", "test")}, **record})
    )
    return folder


def write_layout(folder: Path, **parts) -> Path:
    """Write a run that left a layout: four points of two classes, if not told otherwise; a part that is None is left
    out.
    """
    write_run(folder, [0.5, 0.6])
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"trainer": {"name": "layout"}}))
    parts = {
        "position": np.array([[0, 0], [1, 0], [0, 1], [4, 2]], np.float32),
        "names": np.array(list("abcd")),
        "labels": np.array([0, 1, 1, -1]),
        "label_names": np.array(["left", "right"]),
        "title": np.array("toy"),
        **parts,
    }
    np.savez(
        folder / "layout.npz", **{name: part for name, part in parts.items() if part is not None}
    )
    return folder


def many_points(num_points: int, num_classes: int, *, dimensions: int = 2) -> dict:
    """Parts of a layout: classes lie on a ring, the larger the lower their number, the last tenth of none."""
    rng = np.random.default_rng(0)
    labels = np.floor(num_classes * rng.random(num_points) ** 2).astype(np.int64)
    around = 2 * np.pi * labels / num_classes
    centre = 8 * np.stack([np.cos(around), np.sin(around), 0 * around], 1)[:, :dimensions]
    labels[-(num_points // 10) :] = -1
    return {
        "position": (centre + rng.standard_normal((num_points, dimensions))).astype(np.float32),
        "names": np.array([f"package-{i}" for i in range(num_points)]),
        "labels": labels,
        "label_names": np.array([f"section {i}" for i in range(num_classes)]),
        "title": np.array("many"),
    }


def typed_record(names: tuple[str, ...] = ("paper", "author", "field", "institution")) -> dict:
    """What the scores of a run on a typed graph hold of its schema: a relation between the first type and each type,
    and its reverse one.
    """
    forward = [
        {
            "source": names[0],
            "name": f"to_{name}",
            "target": name,
            "edges": 10 * (number + 1),
            "is_reverse": False,
        }
        for number, name in enumerate(names)
    ]
    reverse = [
        {
            **relation,
            "source": relation["target"],
            "target": relation["source"],
            "is_reverse": True,
            "name": f"rev_{relation['name']}",
        }
        for relation in forward
    ]
    near = [
        {
            "relation": number,
            "with": {"rows": 3, "score": 0.75},
            "without": {"rows": 0, "score": None},
        }
        for number, relation in enumerate([*forward, *reverse])
        if relation["target"] == names[0]
    ]
    return {
        "types": [
            {"name": name, "nodes": 10 ** (number + 1), "columns": number}
            for number, name in enumerate(names)
        ],
        "labelled": names[0],
        "relations": [*forward, *reverse],
        "neighbours": near,
    }
