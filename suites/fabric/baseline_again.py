"""The baseline again: how much two timings of the same routing differ, the noise of the run."""

from __future__ import annotations

from suites.fabric.baseline import Settings, apply, unavailable

__all__ = ["Settings", "apply", "unavailable"]
