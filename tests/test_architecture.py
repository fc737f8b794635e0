"""The rules of the house that a program can check."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_imports_go_down_only():
    # import-linter's own command, as a developer would run it.
    result = subprocess.run([str(Path(sys.executable).with_name("lint-imports"))], cwd=ROOT, capture_output=True,
                            text=True)
    assert result.returncode == 0, result.stdout
