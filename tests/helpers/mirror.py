"""`python -m tests.helpers.mirror FILE`: find the tests of a source file or folder, for `make test-of`."""

import sys
from pathlib import Path

from tools.architecture import imports_of


def find_tests(source: Path, root: Path = Path()) -> list[Path]:
    """Find the file of tests/ that mirrors a file, and those beside it that import the file.

    Where there is none, these are all tests of its folder, or of the one above. A folder has all those below it.

    Raises:
        SystemExit: the file does not exist.
    """
    if not (root / source).exists():
        sys.exit(f"error: {source} does not exist")
    if source.parts[:1] == ("tests",):
        return [source]
    below = "tests" / source
    if (root / below).is_dir():
        return [below]
    beside = sorted((root / below.parent).glob("test_*.py"))
    module = ".".join(source.with_suffix("").parts)
    found = [
        path
        for path in beside
        if path.stem == f"test_{source.stem}" or imports_of(path, {module: source})
    ]
    return [path.relative_to(root) for path in found or beside] or find_tests(source.parent, root)


if __name__ == "__main__":
    print(
        *find_tests(
            Path(sys.argv[1])
            if len(sys.argv) > 1
            else sys.exit("make test-of FILE=pipeline/loop.py")
        )
    )
