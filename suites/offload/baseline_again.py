"""The baseline once more: how far two times of the very same step differ here, the noise of the run."""

from __future__ import annotations

from suites.offload.baseline import Settings, apply, unavailable

__all__ = ["Settings", "apply", "unavailable"]
