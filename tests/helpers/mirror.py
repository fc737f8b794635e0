"""`python -m tests.helpers.mirror FILE`: find the tests of a source file or folder, for `make test-of`."""

import sys
from pathlib import Path


def find_tests(source: Path, root: Path = Path()) -> list[Path]:
    """Find the file of tests/ that mirrors a file, else the tests of its folder; all those below a folder.

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
    mirrored = below.with_name(f"test_{source.stem}.py")
    if (root / mirrored).is_file():
        return [mirrored]
    beside = [path.relative_to(root) for path in sorted((root / below.parent).glob("test_*.py"))]
    return beside or find_tests(source.parent, root)


if __name__ == "__main__":
    print(*find_tests(Path(sys.argv[1]) if len(sys.argv) > 1 else sys.exit("make test-of FILE=pipeline/loop.py")))
