"""The fused attention."""


def why_no_kernel(device: str) -> str:
    """Return the reason why the kernel cannot run on a device, or an empty text."""
    return "there is no kernel yet"


def name_kernel(device: str) -> str:
    """Name the kernel of a device."""
    return ""


def attention(*args, **kwargs):
    """Compute."""
    raise NotImplementedError
