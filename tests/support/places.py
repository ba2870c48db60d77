"""Where the project and its tests lie, for tests that start processes of their own."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"
FOLDERS = ("processes", "ranks", "records", "steps", "traces")
PYTHONPATH = os.pathsep.join(map(str, [SUPPORT, *(SUPPORT / name for name in FOLDERS), ROOT]))
"""Lets a process import the project and the modules of tests/support."""
