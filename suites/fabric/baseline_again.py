"""The baseline once more: how far two times of the very same routing differ here, the noise of the run."""

from __future__ import annotations

from suites.fabric.baseline import Settings, apply, unavailable

__all__ = ["Settings", "apply", "unavailable"]
