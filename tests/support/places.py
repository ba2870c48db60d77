"""Where the project and its tests lie, for tests that start processes of their own."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"
PYTHONPATH = os.pathsep.join([str(SUPPORT), str(SUPPORT / "ranks"), str(ROOT)])
"""Lets a process import the project and the modules of tests/support."""
