"""One training step as a description: plain data, and what techniques made of it.

`techniques.build_step` makes it, each technique changes it, `trainer.Trainer` builds and runs it on any
tensors, and `estimates.py` reads `Features` alone. `Contract` is what a technique promises about its results,
compared with plain PyTorch's on the same sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from suites.training.host_memory import Resources
from suites.training.models.model import Functions
from suites.training.optimizers import RankOptimizer
from suites.training.workload import Workload


@dataclass(frozen=True, slots=True)
class Contract:
    """How far a loss may be from plain PyTorch's, as a share of the first loss; infinite: it must only learn.

    `correctness.py` checks it; `correctness.require_learning` states what learning means.
    """

    relative: float

    @property
    def compared(self) -> bool:
        """Return whether losses are compared with plain PyTorch's."""
        return math.isfinite(self.relative)

    def __str__(self) -> str:
        return f"within {self.relative:g}" if self.compared else "changes the mathematics"


def Within(relative: float) -> Contract:
    """The same mathematics in lower precision: losses within `relative` of the first loss."""
    return Contract(relative)


EXACT = Contract(1e-5)
"""The same mathematics in the same types: sums may be taken in another order, and no more."""

CHANGES_THE_MATHEMATICS = Contract(math.inf)
"""Another update than plain PyTorch's: it only has to learn."""


DTYPES = {None: None, "fp32": torch.float32, "bf16": torch.bfloat16}
"""Types as techniques' settings name them; None: whatever there is."""


def loosest(contracts: Iterable[Contract]) -> Contract:
    """Return the contract of a combination; of no technique at all it is `EXACT`."""
    return max(contracts, key=lambda one: one.relative, default=EXACT)


@dataclass(frozen=True, slots=True)
class Features:
    """Features of a step for closed formulas and claims' conditions."""

    precision: str = "fp32"  # fp32 | autocast | bf16_grads (16 B/param) | fp32_grads (18 B/param) | bf16
    attention: str = "explicit"  # explicit | sdpa | unknown: the user's own code
    recompute: str = "none"  # none | selective | full | per_op, or one of them ", every k"
    # none | ddp | zero1 | zero2 | zero3, or any of tensor, expert, context and pipeline, joined by ", ",
    # after zero3 where states are sharded too
    sharding: str = "none"
    sequence_parallel: bool = False  # with tensor parallelism: activations between matrices are sharded too
    activations_on: str = "device"  # device | host | host_prefetched
    optimizer_on: str = "device"  # device | host | disk: fp32 states
    parameters_on: str = "device"  # device | host | disk
    offload_ratio: float = 1.0  # share of the states that is not on the device
    model_code: str = "suites.training.models.model"  # or Hugging Face's, or the user's
    states_unlike: tuple[str, ...] = ()  # how model states differ from those that formulas count
    activations_unlike: tuple[str, ...] = ()  # how activations do

    def but(self, *, states: str = "", activations: str = "", **changes: Any) -> Features:
        """Return changed features; `states`, `activations`: how they, too, differ from those of formulas."""
        states_unlike = (*self.states_unlike, states) if states else self.states_unlike
        unlike = (*self.activations_unlike, activations) if activations else self.activations_unlike
        return replace(self, states_unlike=states_unlike, activations_unlike=unlike, **changes)


Wrap = Callable[[nn.Module, Resources], nn.Module]
MakeOptimizer = Callable[[nn.Module, Workload, Resources], RankOptimizer]
MakeModel = Callable[["TrainingStep", int], nn.Module]
Around = Callable[[str], AbstractContextManager[Any]]
Reducing = Callable[[nn.Module, bool], AbstractContextManager[Any]]
Passes = Callable[[Any, Iterable[tuple[Tensor, Tensor]], int], Tensor]


def no_context(device_type: str) -> AbstractContextManager[Any]:
    """Return no context around the forward pass: fp32."""
    return nullcontext()


def always_reduce(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Reduce the gradients of every micro-batch, or let the model decide."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One rank's training step; `described` is all that another process needs to make it again.

    What techniques change, besides `workload` and `features`:

    - `ranks`: over how many ranks it runs; one process is one of them.
    - `tensor_ranks`: how many neighbouring ranks share each layer, and so take the same data.
    - `context_ranks`: how many neighbouring ranks share each sequence, and so take the same data, too.
    - `expert_ranks`: how many ranks share each layer's experts; they take different tokens.
    - `expert_tensor_ranks`: how many of the ranks that share each layer share each of these experts.
    - `shard_within`: how many neighbouring ranks have one copy of the states together (hybrid sharding);
      None: all ranks that have the same layers, or the same part of each.
    - `ranks_multiple_of`: what divides `ranks`, whatever their number.
    - `pipeline_ranks`: how many neighbouring ranks share the layers, and so take the same data, too;
      each has `stages_per_rank` stages.
    - `contract`: how closely its losses follow plain PyTorch's.
    - `attention`: "explicit" or "sdpa"; `functions`: replacements for parts of it, see `model.Functions`.
    - `model_dtype`: the type in which parameters are built.
    - `make_model(step, num_hidden_layers)`: a module whose forward(tokens, targets) is the loss.
    - `wraps`: each takes the built model and `Resources` and returns the model, in this order.
    - `around(device_type)`: the context of forward pass and loss.
    - `reducing(model, last)`: the context of a micro-batch, the `last` of an update or not.
    - `passes(trainer, batches, count)`: runs the passes of an update's micro-batches and returns their mean
      loss; None: one micro-batch after the other.
    - `make_optimizer(model, workload, resources)`: see `optimizers.RankOptimizer`.
    - `keep_gradients`: gradients are zeroed in place after an update, not released.
    - `after_update`: each takes a trainer and returns what is called with it after every update.
    - `batches_per_update`: how many batches of the workload an update takes.
    - `updates_between_syncs`: updates after which all ranks have the same parameters.
    - `settling_updates`: updates after which all states exist: the optimizer's after one.
    - `layers_alike`: whether a dry run of few layers determines the rest.
    - `no_dry_run`: why fake tensors cannot show the step; None: they can.
    - `notes`: which tensors are stored in which type.
    """

    given: Workload
    workload: Workload
    seed: int
    techniques: tuple[tuple[str, Mapping[str, Any]], ...] = field(default=(), hash=False)
    features: Features = Features()
    ranks: int = 1
    tensor_ranks: int = 1
    context_ranks: int = 1
    expert_ranks: int = 1
    expert_tensor_ranks: int = 1
    shard_within: int | None = None
    ranks_multiple_of: int = 1
    pipeline_ranks: int = 1
    stages_per_rank: int = 1
    contract: Contract = EXACT
    attention: str = "explicit"
    functions: Functions = field(default_factory=dict, hash=False)
    model_dtype: torch.dtype = torch.float32
    make_model: MakeModel | None = None
    wraps: tuple[Wrap, ...] = ()
    around: Around = no_context
    reducing: Reducing = always_reduce
    passes: Passes | None = None
    make_optimizer: MakeOptimizer | None = None
    keep_gradients: bool = False
    after_update: tuple[Callable[[Any], Callable[[Any], None]], ...] = ()
    batches_per_update: int = 1
    updates_between_syncs: int = 1
    settling_updates: int = 1
    layers_alike: bool = True
    no_dry_run: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def data_ranks(self) -> int:
        """Return how many ranks, or groups of `same_data_ranks`, take different data."""
        return self.ranks // self.same_data_ranks

    @property
    def same_data_ranks(self) -> int:
        """Return how many neighbouring ranks take the same data."""
        return self.tensor_ranks * self.context_ranks * self.pipeline_ranks

    @property
    def shard_ranks(self) -> int:
        """Return the number of ranks that can share one copy of the states of one part of each layer."""
        return self.shard_within or self.ranks // (self.tensor_ranks * self.pipeline_ranks)

    @property
    def stages(self) -> int:
        """Return into how many stages the layers are split."""
        return self.pipeline_ranks * self.stages_per_rank

    @property
    def described(self) -> dict[str, Any]:
        """Return the arguments of `techniques.build_step` that rebuild this step, as JSON data."""
        techniques = [[name, dict(settings)] for name, settings in self.techniques]
        return {"workload": asdict(self.given), "techniques": techniques, "seed": self.seed}

    def settings_of(self, technique: str) -> Mapping[str, Any] | None:
        """Return the settings of a technique; None where the step has no such technique."""
        return dict(self.techniques).get(technique)
