"""The same step on as many GPUs of another kind, with the layout and the price that go with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.bounds import Bounds, PositiveInt
from suites.step_gains.subject import Subject, changed


@dataclass(frozen=True, slots=True)
class Settings:
    """`device`: a name of conf/hardware. `tp`: most tensor-parallel ranks, since its memory is larger."""

    device: str
    gpus_per_node: PositiveInt
    network_B_per_s: Annotated[float, Bounds(above=0)]
    gpu_hour_USD: Annotated[float, Bounds(above=0)]
    tp: PositiveInt


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the step on these GPUs; ranks that tensor parallelism no longer has are data-parallel ones."""
    layout = subject.workload.layout
    fewer = {**layout, "tp": min(int(layout.get("tp", 1)), settings.tp)}
    return changed(
        subject,
        device=settings.device,
        gpus_per_node=settings.gpus_per_node,
        network_B_per_s=settings.network_B_per_s,
        gpu_hour_USD=settings.gpu_hour_USD,
        layout=fewer,
    )
