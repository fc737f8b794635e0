"""Keys that do not go with each other, or with the data, which only :mod:`pipeline.build` asks about."""

from torch_geometric.data import Data

from pipeline.config import Config
from pipeline.metrics import hits_at


def check_edge_features(config: Config, data: Data) -> None:
    """Refuse edge features where the model links nodes by edges of its own.

    Raises:
        ValueError: names the key.
    """
    knn = getattr(config.model, "knn", 0)
    if knn and data.edge_attr is not None:
        raise ValueError(f"model.knn={knn} links nodes by edges of its own, and the {data.edge_attr.size(1)} features "
                         f"of the edges of {config.data.origin()} would be lost: leave model.knn out, or save the "
                         "graph without edge_attr")


def check_link(config: Config) -> None:
    """Refuse what training pairs cannot be drawn with.

    Raises:
        ValueError: names the key.
    """
    if config.loader.name != "cluster":
        raise ValueError(f"task=link with loader={config.loader.name}: training pairs lie within clusters, so set "
                         "loader=cluster. evaluation=neighbor predicts links from sampled neighbours")
    if config.data.components != "all":
        raise ValueError(f"task=link with data.components={config.data.components}: pairs may lie in several "
                         "components, so set data.components=all")
    if config.train.label_input:
        raise ValueError(f"task=link with train.label_input={config.train.label_input:g}: links have no labels of "
                         "nodes that could be shown")
    if config.task.metric is not None:
        hits_at(config.task.metric)


def check_on_disk(config: Config) -> None:
    """Refuse to leave on the disk what is not read from there.

    Raises:
        ValueError: names the key.
    """
    if config.data.on_disk and config.data.holds != "graph":
        raise ValueError(f"data.on_disk=true: {config.data.origin()} holds {config.data.holds}, which lie in a file "
                         "that is mapped into memory anyway; leave it out")
