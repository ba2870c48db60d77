"""Single changes of a layout that does not fit, or recomputes: which of them fit, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from harness.records import Origin, Reading, Unavailable
from suites.layouts.subject import Subject, subject_of
from suites.training.layouts.search import fits, largest_micro_batch


class LayoutChange(NamedTuple):
    """One change of a workload's fields."""

    title: str
    fields: Mapping[str, Any]


def possible(subject: Subject) -> Iterator[LayoutChange]:
    """Yield changes in order of what they usually cost: memory that is free first, then time.

    A sharded optimizer and a loss without its copies cost next to nothing; recomputing attention's kernel
    little; more ranks per model communicate more; full recompute adds a third of the forward pass's time; the
    host's link is slower than any of these.
    """
    now = subject.workload
    if now.zero == 0 and now.gpus // (now.tp * now.pp) > 1:
        yield LayoutChange("ZeRO-1", {"zero": 1})
    if now.program == "torchtitan" and not now.fused_loss:
        yield LayoutChange("loss in chunks", {"fused_loss": True})
    if now.program in ("torchtitan", "deepspeed") and now.zero < 3:
        yield LayoutChange(f"ZeRO-{now.zero + 1}", {"zero": now.zero + 1})
    if now.micro_batch_size > 1:
        yield LayoutChange(
            f"micro-batch {now.micro_batch_size // 2}", {"micro_batch_size": now.micro_batch_size // 2}
        )
    if now.recompute == "none":
        yield LayoutChange("selective recompute", {"recompute": "selective"})
    for name in ("tp", "pp", "cp", "ep"):
        size = 2 * getattr(now, name)
        if name == "ep" and not subject.shape.num_experts:
            continue
        yield LayoutChange(f"{name} {size}", {name: size})
    if now.recompute != "full":
        yield LayoutChange("full recompute", {"recompute": "full"})
        yield LayoutChange(f"full recompute and tp {2 * now.tp}", {"recompute": "full", "tp": 2 * now.tp})
        yield LayoutChange(f"full recompute and pp {2 * now.pp}", {"recompute": "full", "pp": 2 * now.pp})
    yield LayoutChange(f"{2 * now.gpus:,} GPUs", {"gpus": 2 * now.gpus})
    if now.offload == "none" and now.program in ("torchtitan", "deepspeed"):
        yield LayoutChange("states on the host", {"offload": "optimizer", "zero": 3})


def changes(subject: Subject) -> Iterator[Reading]:
    """Return what each change needs, whether it fits and its largest micro-batch, in that order."""
    for change in possible(subject):
        try:
            changed = subject_of(replace(subject.workload, **change.fields))
        except Unavailable:
            continue
        if changed.workload.tp > changed.cluster.gpus_per_node:
            continue
        of = fits(changed.shape, changed.layout, changed.training, changed.cluster)
        largest = largest_micro_batch(
            changed.shape,
            changed.layout,
            changed.training,
            changed.cluster,
            changed.workload.global_batch_size,
        )
        of_change: tuple[tuple[str, str, float], ...] = (
            ("needed_memory", "B", float(of.needed[0])),
            ("fits", "1", int(of.fits[0])),
            ("largest_micro_batch", "1", int(largest[0])),
        )
        for metric, unit, value in of_change:
            yield Reading(f"with_change/{metric}", unit, value, Origin.CALCULATED, change.title)
