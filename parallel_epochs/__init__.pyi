from parallel_epochs.pipeline.api import Stopped as Stopped, embed as embed, train as train
from parallel_epochs.pipeline.library import (
    ClusterLoader as ClusterLoader,
    GradientSync as GradientSync,
    NeighborLoader as NeighborLoader,
    partition as partition,
)
from parallel_epochs.pipeline.model import (
    Model as Model,
    Result as Result,
    evaluate as evaluate,
    load as load,
    predict as predict,
)
