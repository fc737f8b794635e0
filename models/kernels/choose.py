"""Chooses between the fused kernels of an operation and its reference. The log announces the choice once, and why."""

import functools
import importlib
import importlib.util
import logging
from collections.abc import Callable
from importlib import metadata
from types import ModuleType

import torch

from parallel_epochs.models.kernels.operator import is_transformed

KERNELS = ("auto", "fused", "reference")
log = logging.getLogger(__name__)


class Fused:
    """The fused kernels of an operation: C++ on a CPU, Triton on a GPU.

    Args:
        name: what the log calls the operation.
        cpu: module whose ``LIBRARY`` is the :class:`NativeLibrary` of the kernels in C++.
        gpu: name of the module in the same folder whose ``register()`` registers the kernels in Triton; none: there are
            none.
    """

    def __init__(self, name: str, cpu: ModuleType, gpu: str = ""):
        self.name, self._cpu, self._gpu = name, cpu, gpu

    def why_reference(self, kernel: str, device: str, why_not: Callable[[], str]) -> str:
        """Return the reason why the reference runs, or an empty text if the fused kernels run.

        Args:
            kernel: one of :data:`KERNELS`.
            device: type of the tensors' device.
            why_not: returns the reason why the kernels cannot compute this call, or an empty text.

        Raises:
            ValueError: `kernel` is unknown, or it is "fused" and there is a reason.
        """
        if kernel not in KERNELS:
            raise ValueError(f"kernel={kernel} is unknown; choose one of {', '.join(KERNELS)}")
        if kernel == "reference":
            return "kernel=reference"
        reason = self.why_not(device, why_not)
        if reason and kernel == "fused":
            raise ValueError(
                f"kernel=fused cannot run: {reason}. Use kernel=auto to fall back to the reference."
            )
        if not torch.compiler.is_compiling():
            self._announce(reason, device)
        return reason

    def why_not(self, device: str, why_not: Callable[[], str]) -> str:
        """Return the reason why the fused kernels cannot run, whatever the user prefers, or an empty text."""
        if not torch.compiler.is_compiling() and is_transformed():
            return "the kernel supports neither torch.func nor torch.jit.trace nor forward-mode derivatives"
        return why_not() or self.missing(device)

    @torch.compiler.assume_constant_result
    def missing(self, device: str) -> str:
        """Return the reason why there are no kernels on a device, or an empty text."""
        if device == "cuda" and self._gpu:
            return (
                "" if self._register_gpu() else "the GPU kernel needs Triton (pip install triton)"
            )
        if device != "cpu":
            return f"tensors are on '{device}', but the kernels run on 'cpu' and 'cuda' only"
        return self._cpu.LIBRARY.missing()

    @functools.cache  # noqa: B019 (there are few of these objects, and they live as long as the process)
    def _register_gpu(self) -> bool:
        if importlib.util.find_spec("triton") is None:
            return False
        # Triton takes a second to import and is not everywhere.
        importlib.import_module(f"{self._cpu.__package__}.{self._gpu}").register()
        return True

    def describe(self, reason: str, device: str) -> str:
        """Name the implementation, as "fused-cpu (avx512)", "fused-gpu (triton 3.6.0)" or "reference (its reason)"."""
        if reason:
            return f"reference ({reason})"
        return (
            f"fused-cpu ({self._cpu.LIBRARY.find_simd()})"
            if device == "cpu"
            else f"fused-gpu (triton {metadata.version('triton')})"
        )

    @functools.cache  # noqa: B019
    def _announce(self, reason: str, device: str) -> None:
        log.info("%s: %s", self.name, self.describe(reason, device))
