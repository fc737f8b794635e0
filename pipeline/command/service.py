"""The keys of `python -m pipeline.serve`. Nothing here imports torch."""

from dataclasses import dataclass

from parallel_epochs.pipeline.config import OpenConfig
from parallel_epochs.pipeline.keys import key


@dataclass
class ServeConfig(OpenConfig):
    """Keys of `python -m pipeline.serve`, which answers requests about a run over HTTP."""

    host: str = key(
        "127.0.0.1",
        "Address on which the service listens. One that other machines reach needs token=.",
    )
    port: int = key(
        8000, "Port on which the service listens; 0 takes a free one.", minimum=0, below=65536
    )
    token: str | None = key(
        None,
        "File with the token that clients must send (Authorization: Bearer TOKEN). Default: "
        "the environment variable PARALLEL_EPOCHS_TOKEN, if it is set.",
        is_path=True,
    )
