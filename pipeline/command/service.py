"""The keys of `python -m pipeline.serve`. Nothing here imports torch."""

from dataclasses import dataclass

from parallel_epochs.pipeline.config import OpenConfig
from parallel_epochs.pipeline.keys import key


@dataclass
class ServeConfig(OpenConfig):
    """Keys of `python -m pipeline.serve`, which answers requests about a run over HTTP."""

    host: str = key(
        "127.0.0.1",
        "Address on which the service listens. One that other machines reach needs token= or "
        "insecure=true.",
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
    insecure: bool = key(
        False, "Listen on an address that other machines reach although no token is asked for."
    )
    max_neighbors: int | None = key(
        None,
        "Largest number of edges of a known node, drawn by a hash, from which a "
        "new row is predicted. The answer then says whether some were left out (bounded). "
        "Default: all edges.",
        minimum=1,
    )
    seconds: float = key(
        30.0,
        "Longest time for a client to send a request, and for an answer to be computed.",
        above=0.0,
    )
