"""A CUDA device that is not there, for whole programs: ``python -m tests.helpers.pretended_cuda LIBRARY MODULE``.

``LIBRARY`` is what :func:`build` has compiled of pretended_cuda.cpp, for the torch that is installed. Tensors of the
device lie in the memory of the CPU and say that they are on cuda:0. Operations are computed by the CPU; those that mix
devices fail. Triton's kernels are only called, and write nothing: numbers
are those of a broken GPU, but a program takes each line that it takes on a GPU. At the end, the last line of standard
error counts what happened.
"""

import collections
import contextlib
import ctypes
import importlib.util
import inspect
import json
import os
import runpy
import sys
import time
import types
from pathlib import Path
from typing import Any

MEMORY = 80 * 10**9
FREE = int(float(os.environ.get("PRETENDED_FREE", MEMORY)))
COUNTS = collections.Counter[str]()
DEVICE: Any = None  # what :func:`load` has loaded
# What an extension of torch's needs of it.
LIBRARIES = (
    "libtorch_global_deps.so",
    "libc10.so",
    "libtorch_cpu.so",
    "libtorch.so",
    "libtorch_python.so",
)


def build(folder: Path) -> Path:
    """Compile the device, in half a minute."""
    from torch.utils import cpp_extension

    cpp_extension.load(
        "pretended_cuda",
        [str(Path(__file__).with_suffix(".cpp"))],
        build_directory=str(folder),
        extra_cflags=["-O1", "-g0"],
        is_python_module=False,
    )
    return folder / "pretended_cuda.so"


def load(library: Path) -> None:
    """Load the device before torch, which asks for devices when it is imported."""
    global DEVICE
    assert "torch" not in sys.modules
    folder = Path(importlib.util.find_spec("torch").submodule_search_locations[0]) / "lib"
    for path in (*(folder / name for name in LIBRARIES), library):
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    import torch  # noqa: F401 - the library needs its types

    spec = importlib.util.spec_from_file_location("pretended_cuda", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    DEVICE = module


class Stream:
    def __init__(self, of=None, priority=0, number=None):
        self.stream_id = self.cuda_stream = DEVICE.new_stream() if number is None else number
        self.device_index, self.device_type = 0, 1

    def wait_stream(self, other):
        assert isinstance(other, Stream)

    def wait_event(self, event):
        assert isinstance(event, Event)

    def record_event(self, event=None):
        return event or Event()

    def synchronize(self):
        assert not DEVICE.capturing()

    def query(self):
        return True

    def __eq__(self, other):
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self):
        return hash(self.stream_id)


class Event:
    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        self.at = time.perf_counter()

    def record(self, stream=None):
        self.at = time.perf_counter()

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)

    def wait(self, stream=None):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True


def speak_of_it() -> None:
    """Let torch.cuda speak of the device."""
    import torch

    cuda = torch.cuda

    def begin():
        cuda._initialized, cuda.default_generators = True, (DEVICE.default_generator(),)
        while cuda._queued_calls:
            cuda._queued_calls.pop(0)[0]()

    @contextlib.contextmanager
    def on_stream(stream):
        before = DEVICE.current_stream()
        if stream is not None:
            DEVICE.set_stream(stream.stream_id)
        yield
        DEVICE.set_stream(before)

    properties = types.SimpleNamespace(
        name="a pretended GPU",
        total_memory=MEMORY,
        major=9,
        minor=0,
        multi_processor_count=4,
        L2_cache_size=2**20,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=2**16,
        shared_memory_per_block=48 * 2**10,
        shared_memory_per_block_optin=227 * 2**10,
        shared_memory_per_multiprocessor=228 * 2**10,
    )
    always = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
        "get_device_properties": properties,
        "get_device_capability": (9, 0),
        "get_device_name": properties.name,
        "is_bf16_supported": True,
    }
    asked = {
        "_lazy_init": begin,
        "mem_get_info": lambda of=None: (FREE - DEVICE.allocated(), MEMORY),
        "memory_allocated": lambda of=None: DEVICE.allocated(),
        "memory_reserved": lambda of=None: DEVICE.allocated(),
        "max_memory_allocated": lambda of=None: DEVICE.peak(),
        "reset_peak_memory_stats": lambda of=None: DEVICE.reset_peak(),
        "current_stream": lambda of=None: Stream(number=DEVICE.current_stream()),
        "default_stream": lambda of=None: Stream(number=0),
        "set_stream": lambda stream: DEVICE.set_stream(stream.stream_id),
        "stream": on_stream,
        "is_current_stream_capturing": DEVICE.capturing,
    }
    answers = (
        asked
        | {"Stream": Stream, "Event": Event}
        | {name: lambda *args, value=value, **options: value for name, value in always.items()}
    )
    for place in (cuda, cuda.random, cuda.memory, cuda.graphs):
        for name, answer in answers.items():
            if place is cuda or hasattr(place, name):
                setattr(place, name, answer)
    cuda._initialized, cuda.default_generators = False, (DEVICE.default_generator(),)
    cuda._queued_calls.clear()
    torch._C._cuda_isCurrentStreamCapturing = DEVICE.capturing
    torch._C._host_emptyCache = lambda: None
    torch._C._cuda_endAllocateToPool = lambda index, pool: None
    torch.Tensor.record_stream = lambda tensor, stream: None


def move_storages() -> None:
    """Let storages move to the device and be copied there, for which torch asks a build for CUDA."""
    import torch

    move, copy = torch.storage._to, torch.storage._StorageBase.clone

    def allocate(storage):
        return torch.empty(storage.nbytes(), dtype=torch.uint8, device="cuda").untyped_storage()

    def to(self, device, non_blocking=False):
        if torch.device(device).type == "cuda" and self.device.type == "cpu":
            return allocate(self).copy_(self, non_blocking)
        return move(self, device, non_blocking)

    torch.storage._to = torch._utils._to = to
    torch.storage._StorageBase.clone = torch.UntypedStorage.clone = lambda self: (
        allocate(self).copy_(self) if self.device.type == "cuda" else copy(self)
    )


def only_call_kernels() -> None:
    """Let Triton's kernels check what they are given, and do nothing."""
    import torch
    from torch.utils._pytree import tree_leaves
    from triton.runtime import interpreter

    def call(self, *args, **kwargs):
        tensors = [
            value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)
        ]
        assert any(tensor.is_cuda for tensor in tensors), (
            f"{self.fn.__name__}: no tensor is on the GPU"
        )
        assert all(
            tensor.is_cuda or tensor.is_pinned() or not tensor.numel() for tensor in tensors
        ), f"{self.fn.__name__}: a tensor of the CPU"
        options = {"num_warps", "num_stages", "enable_fp_fusion"}
        inspect.signature(self.fn).bind(
            *args, **{name: kwargs[name] for name in kwargs.keys() - options}
        )
        COUNTS["kernels"] += 1

    interpreter.GridExecutor.__call__ = call


def main(library: str, module: str, *arguments: str) -> None:
    """Run a module as the main program, on the device."""
    os.environ["TRITON_INTERPRET"] = "1"
    load(Path(library))
    import torch

    torch.set_num_threads(1)
    speak_of_it()
    move_storages()
    only_call_kernels()
    from parallel_epochs.pipeline.command import cli

    cli._check_driver = lambda name: None
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        print(json.dumps(COUNTS | {"waits": DEVICE.counts()[0]}), file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
