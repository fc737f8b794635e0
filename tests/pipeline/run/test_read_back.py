from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from parallel_epochs.pipeline.run.errors import DamagedFile
from parallel_epochs.pipeline.run.read_back import check_values

NAN = torch.tensor([float("nan")], dtype=torch.float64)


@pytest.mark.parametrize(
    "annotation, good, odd",
    [
        (int, [0, 7], [-1, 2**48, 10**30, True, 1.0, "1", None]),
        (str, ["a", "é"], ["\ud800", 1, None, b"a"]),
        (list[int], [[], [1, 2]], [[-1], [None], (1,), {}]),
        (dict[str, list[int]], [{}, {"a": [1]}], [{1: []}, {"a": 1}, []]),
        (tuple[int, str], [(1, "a"), [1, "a"]], [(1,), (1, 1), "1a"]),
        (int | None, [None, 1], [-1, "1"]),
        (Literal["rocauc", 1], ["rocauc", 1], ["acc", None, [], True, 1.0]),
        (
            Float[Tensor, "2 channels"] | None,
            [None, torch.ones(2, 3)],
            [
                torch.ones(3, 2),
                torch.ones(2),
                torch.ones(2, 3).long(),
                torch.ones(2, 3).to_sparse(),
                "x",
                torch.ones(2, 3, dtype=torch.complex64),
                NAN.expand(2, 3),
            ],
        ),
        (
            UInt8[Tensor, " bytes"],
            [torch.zeros(3, dtype=torch.uint8)],
            [torch.zeros(3), torch.zeros(1, 3).byte()],
        ),
        (Any, [None, 1, []], []),
    ],
)
def test_values_have_the_types_that_they_were_written_with(annotation, good, odd):
    for value in good:
        check_values(Path("file.pe"), {"name": value, "other": object()}, {"name": annotation})
    for value in odd:
        with pytest.raises(
            DamagedFile,
            match="file.pe is damaged, or somebody changed it: name is .*, and it should",
        ):
            check_values(Path("file.pe"), {"name": value}, {"name": annotation})


def test_sizes_of_one_name_are_equal():
    types = {"x": Float[Tensor, "num_nodes channels"], "mask": Float[Tensor, " num_nodes"]}
    check_values(Path("a"), {"x": torch.ones(3, 2), "mask": torch.ones(3)}, types)
    with pytest.raises(DamagedFile, match=r"mask is torch.float32 of \[4\], and it should be"):
        check_values(Path("a"), {"x": torch.ones(3, 2), "mask": torch.ones(4)}, types)
