"""`python .ci/build_sparse.py FOLDER`: build wheels of torch_scatter and torch_sparse, which have none on PyPI.

Their 31 files of C++ are compiled in two goes instead of one by one, for each takes a minute to read torch's headers.
The operators of a package then lie in one of its libraries, and the others are empty; importing it loads them all.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGES = ("torch_scatter", "torch_sparse")
# Behind the flags of Python's own, whose -g takes half of the time for symbols that are stripped in the end.
FLAGS = {"CFLAGS": "-g0", "CXXFLAGS": "-g0 -DNDEBUG -fwrapv"}


def merge(csrc: Path) -> None:
    """Put all files of a package into the one that defines its version; the others stay as empty ones."""
    mains, parts = sorted(csrc.glob("*.cpp")), sorted((csrc / "cpu").glob("*.cpp"))
    lines = []
    # The latter use whole namespaces, in which names of the former would mean two things.
    for path in [*mains, *parts]:
        moved = path.rename(path.with_suffix(".inc"))
        lines += [
            f"#define registry registry_of_{path.stem}",
            f'#include "{moved.relative_to(csrc)}"',
            "#undef registry",
        ]
    for path in mains:
        path.write_text("")
    (csrc / "version.cpp").write_text("\n".join([*lines, ""]))


def main(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    root = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(
            [
                *pip,
                "download",
                "--no-binary",
                ",".join(PACKAGES),
                "--no-deps",
                "--no-build-isolation",
                "-c",
                str(root / "constraints.txt"),
                "--dest",
                work,
                *PACKAGES,
            ],
            check=True,
        )
        for path in Path(work).glob("*.tar.gz"):
            with tarfile.open(path) as archive:
                archive.extractall(work, filter="data")
            source = path.with_name(path.name.removesuffix(".tar.gz"))
            merge(source / "csrc")
            subprocess.run(
                [
                    *pip,
                    "wheel",
                    "--no-build-isolation",
                    "--no-deps",
                    "--wheel-dir",
                    str(folder),
                    str(source),
                ],
                check=True,
                env=os.environ | FLAGS,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
