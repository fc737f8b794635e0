"""`python .ci/version.py v1.2.3`: end with an error unless the tag is that of the version in pyproject.toml."""

import sys
import tomllib
from pathlib import Path

version = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"][
    "version"
]
tag = " ".join(sys.argv[1:])
if tag != f"v{version}":
    sys.exit(
        f"the tag is {tag or 'missing'}, and pyproject.toml has version {version}: tag v{version}"
    )
