"""The same training over another link; `link.3200g` is the paper's InfiniBand, eight ports of 400 Gbit/s."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from harness.bounds import Bounds

if TYPE_CHECKING:
    from suites.interconnect.subject import Subject


@dataclass(frozen=True, slots=True)
class Settings:
    """`rate_B_per_s`: of a node's link in each direction, at the scale of the paper's run."""

    rate_B_per_s: Annotated[float, Bounds(at_least=1)]


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject behind that link."""
    return replace(subject, link_B_per_s=settings.rate_B_per_s)
