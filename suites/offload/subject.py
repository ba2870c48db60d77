"""What a variant of the offload suite is: a training step with the tiers of its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from suites.offload.workload import Workload
from suites.training.step import TrainingStep
from suites.training.techniques import Techniques, apply_techniques, build_step, strategy_of

DEVICE, HOST, DISK = "device", "host", "disk"
"""The tiers of memory, from fast to large. Without a GPU each is emulated by the one below it: private
memory represents the device, files that are mapped into memory the host."""


def shared_techniques(workload: Workload) -> Techniques:
    """Return the techniques that plain PyTorch has too where a variant is compared with it."""
    mixed = ["mixed_precision"] if workload.precision == "bf16" else []
    return [{"attention": {"kernel": "flash"}}, *mixed]


def baseline_techniques(workload: Workload) -> Techniques:
    """Return DDP with everything on the device; gradients are views into its buckets."""
    recompute = [{"activation_checkpointing": {"mode": "full"}}] if workload.recompute else []
    return [*shared_techniques(workload), {"ddp": {"gradient_as_bucket_view": True}}, *recompute]


@dataclass(frozen=True, slots=True)
class MemoryPlacement:
    """Where a variant's memory is, for formulas and conditions.

    `engine`: deepspeed | managed | the technique by which ranks share the model. `stage` is ZeRO's.
    `optimizer` and `parameters` name the tier of fp32 states and of parameters; only the share `ratio` of the
    states is not on the device.
    `activations`: kept | recomputed | offloaded | offloaded_ahead. `resident`: bytes of device memory per
    byte of parameters, gradients and states in managed memory; None: no bound.
    """

    engine: str = "ddp"
    stage: int = 0
    optimizer: str = DEVICE
    parameters: str = DEVICE
    ratio: float = 1.0
    activations: str = "kept"
    resident: float | None = None


ACTIVATIONS = {"device": "kept", "host": "offloaded", "host_prefetched": "offloaded_ahead"}


@dataclass(frozen=True, slots=True)
class Managed:
    """The working set in managed memory; `resident`: see `MemoryPlacement`."""

    resident: float | None


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: a training step; `managed` where all of its working set is in managed memory."""

    workload: Workload
    seed: int
    step: TrainingStep
    managed: Managed | None = None

    @property
    def placement(self) -> MemoryPlacement:
        """Return where its memory is."""
        features, strategy = self.step.features, strategy_of(self.step) or ""
        kept = "recomputed" if features.recompute == "full" else ACTIVATIONS[features.activations_on]
        if self.managed is not None:
            return MemoryPlacement("managed", activations=kept, resident=self.managed.resident)
        return MemoryPlacement(
            engine="deepspeed" if strategy == "zero" else strategy,
            stage=int(features.sharding.removeprefix("zero")) if strategy == "zero" else 0,
            optimizer=features.optimizer_on,
            parameters=features.parameters_on,
            ratio=features.offload_ratio,
            activations=kept,
        )

    @property
    def delay_after(self) -> int:
        """Return the steps before updates are delayed."""
        return int((self.step.settings_of("host_update") or {}).get("delay_after", 0))

    @property
    def immediate(self) -> Subject:
        """Return the subject with updates delayed from the first step on, where they are delayed at all."""
        if not self.delay_after:
            return self
        return self.with_techniques([{"host_update": {"delay_after": 0}}])

    def with_techniques(self, techniques: Techniques) -> Subject:
        """Return the subject with the techniques of an optimization's list."""
        return replace(self, step=apply_techniques(self.step, techniques))

    def at_depth(self, num_hidden_layers: int) -> Subject:
        """Return the same variant of a model with that many layers."""
        workload = replace(self.workload, num_hidden_layers=num_hidden_layers)
        return replace(
            self, workload=workload, step=build_step(workload.training, self.step.techniques, self.seed)
        )


def baseline(workload: Workload, seed: int) -> Subject:
    """Return the baseline's subject."""
    return Subject(workload, seed, build_step(workload.training, baseline_techniques(workload), seed))
