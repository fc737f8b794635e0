"""Pickle streams of protocols 4 and 5, rewritten for torch's safe loader, which knows protocol 2 alone.

ogb calls ``torch.save(..., pickle_protocol=4)``. Nothing here runs what a stream says: its operations are copied or
replaced by others, and torch's loader decides about each class.
"""

import contextlib
import pickle
import pickletools
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

# torch reads protocol 3 as it is.
LAST_KNOWN = b"\x03"


@contextlib.contextmanager
def readable(path: Path) -> Iterator[Path | IO[bytes]]:
    """Yield a file of torch.save as it is or, if its protocol is 4 or later, a copy in protocol 2.

    Raises:
        ValueError: the stream is damaged, or holds operations that protocol 2 lacks.
    """
    if not zipfile.is_zipfile(path):
        yield path
        return
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryFile() as file:
        pickled = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
        stream = b"" if pickled is None else archive.read(pickled)
        if stream[:1] != pickle.PROTO or stream[1:2] <= LAST_KNOWN:
            yield path
            return
        with zipfile.ZipFile(file, "w") as copy:
            for name in archive.namelist():
                copy.writestr(
                    name, to_protocol_2(stream) if name == pickled else archive.read(name)
                )
        file.seek(0)
        yield file


def to_protocol_2(stream: bytes) -> bytes:
    """Rewrite a pickle stream such that it has the operations of protocol 2 and the same meaning.

    A text stands where it is used, and is not looked up in the memo: so the two texts that name a class are there.

    Raises:
        ValueError: the stream is damaged, or names a class by something else than two texts.
    """
    out: list[bytes | str] = []
    memo: dict[int, bytes | str] = {}
    operations = list(pickletools.genops(stream))
    ends = [*(start for _, _, start in operations[1:]), len(stream)]
    for (operation, argument, start), end in zip(operations, ends, strict=True):
        match operation.name:
            case "PROTO":
                out.append(pickle.PROTO + b"\x02")
            case "FRAME":
                pass
            case "SHORT_BINUNICODE" | "BINUNICODE" | "BINUNICODE8":
                out.append(str(argument))
            case "MEMOIZE" | "BINPUT" | "LONG_BINPUT":
                number = len(memo) if argument is None else argument
                memo[number] = out[-1] if out else b""
                if not isinstance(memo[number], str):
                    out.append(pickle.LONG_BINPUT + struct.pack("<I", number))
            case "BINGET" | "LONG_BINGET" if isinstance(known := memo.get(int(argument or 0)), str):
                out.append(known)
            case "STACK_GLOBAL":
                module, name = out[-2:] if len(out) > 1 else (b"", b"")
                if not (isinstance(module, str) and isinstance(name, str)) or "\n" in module + name:
                    raise ValueError("a class is named by something else than two texts")
                out[-2:] = [pickle.GLOBAL + f"{module}\n{name}\n".encode()]
            case _:
                out.append(stream[start:end])
    return b"".join(part if isinstance(part, bytes) else _text(part) for part in out)


def _text(text: str) -> bytes:
    content = text.encode("utf-8", "surrogatepass")
    return pickle.BINUNICODE + struct.pack("<I", len(content)) + content
