"""DeepSpeed's real ZeRO engine as a `TrainingStep`, for `zero1`, `zero2` and `zero3`.

The same engine runs on real tensors and on fake ones. On fake tensors no number can be read: there, what the
engine asks for is 1 (norms) or 0 (flags of overflow), and its checks that ranks agree are left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.instruments import torch_internals
from harness.instruments.distributed.deepspeed_init import initialize
from harness.records import HostInfo, Unavailable
from suites.memory.step import TrainingStep, Workload
from suites.memory.training import plain_optimizer, state_tensors

BUCKET = 500_000_000
"""Elements of deepspeed's communication buckets by default; here no more than the model has parameters.

Else a small model's figures would be those of the buckets alone: 2 GB in fp32.
"""

PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16_grads": {"bf16": {"enabled": True}},
}

HELD = (
    "deepspeed's ZeRO stage {stage}, rank 0: flat buffers of the shards; buckets of at most {bucket} elements"
)

TOO_LONG = (
    "deepspeed's engine has to be walked layer by layer and rank by rank, which takes minutes at this size; "
    "fsdp2 takes the same shards as ZeRO's stage 3"
)


def unavailable(host: HostInfo) -> str | None:
    """Why deepspeed cannot run here; None where it can."""
    if importlib.util.find_spec("deepspeed") is None:
        return "deepspeed is not installed"
    return None


def sharded(subject: TrainingStep, stage: int, ranks: int | None) -> TrainingStep:
    """The step as one of `ranks` ranks (None: the workload's) takes it under ZeRO `stage`."""
    precision = subject.features.precision
    if precision not in PRECISIONS:
        raise Unavailable(
            f"zero{stage} over {precision}: deepspeed is run in {' or '.join(PRECISIONS)} alone"
        )
    engine = Engine(stage, precision)
    return replace(
        subject,
        ranks=subject.workload.ranks if ranks is None else ranks,
        features=replace(subject.features, sharding=f"zero{stage}"),
        wrap=(*subject.wrap, engine.wrap),
        make_optimizer=engine.optimizer,
        layers_alike=False,  # flat buffers and buckets do not grow place by place
        walkable=None if subject.workload.train else TOO_LONG,
        notes=(*subject.notes, HELD.format(stage=stage, bucket=BUCKET)),
    )


class Engine:
    """Makes deepspeed's engine once the optimizer is asked for, around the model wrapped last."""

    def __init__(self, stage: int, precision: str):
        self._stage, self._precision = stage, precision
        self._wrapped: Any = None

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model, to be put into deepspeed's engine, which shards it over the present process group."""
        self._wrapped = EngineModel(model)
        return self._wrapped  # type: ignore[no-any-return]

    def optimizer(self, parameters: Any, workload: Workload) -> EngineOptimizer:
        """The engine's optimizer; the model wrapped last is in the engine from here on."""
        wrapped: EngineModel = self._wrapped
        self._wrapped = None
        parameters = list(parameters)
        fake = torch_internals.is_fake(parameters[0])
        optimizer = plain_optimizer(parameters, workload)
        count = sum(parameter.numel() for parameter in parameters)
        plain = functional.linear
        try:
            with untold_numbers(fake):
                engine = initialize(Resident(wrapped.module), optimizer, self._config(count, workload))
            wrapped.enter(engine, fake, functional.linear)  # stage 3 has put one of its own there, for good
        finally:
            functional.linear = plain
        return EngineOptimizer(engine, optimizer, fake, plain)

    def _config(self, parameters: int, workload: Workload) -> dict[str, Any]:
        bucket = min(BUCKET, parameters + parameters % 2)  # its engine asks for an even number
        sizes = {"reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
        config = {
            "train_micro_batch_size_per_gpu": workload.micro_batch_size,
            "gradient_clipping": workload.max_grad_norm or 0.0,
            "zero_optimization": {"stage": self._stage, **sizes},
            "zero_allow_untested_optimizer": True,
            **PRECISIONS[self._precision],
        }
        if (
            workload.gradient_accumulation_steps > 1
        ):  # the training loop divides the loss and says when to step
            config["managed_gradient_accumulation"] = False
        return config


class Resident(nn.Module):
    """A model whose parameters have the device and type that they shall have; fake ones cannot be moved."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """The model's loss."""
        return self.model(tokens_BT, targets_BT)  # type: ignore[no-any-return]

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Resident:
        return self


class EngineModel(nn.Module):
    """The engine's forward; from here to the end of the step, linear layers are the engine's."""

    fake: bool
    linear: Any

    def __init__(self, model: nn.Module):
        super().__init__()
        self.module = model

    def enter(self, engine: nn.Module, fake: bool, linear: Any) -> None:
        """From now on the model runs in `engine`."""
        self.module, self.fake, self.linear = engine, fake, linear

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """The model's loss; calling its `backward` reduces the gradients."""
        functional.linear = self.linear
        with untold_numbers(self.fake):
            return self.module(tokens_BT, targets_BT)  # type: ignore[no-any-return]


class EngineOptimizer:
    """The engine's step, which clips and lets the gradients go too."""

    def __init__(self, engine: Any, optimizer: torch.optim.Optimizer, fake: bool, linear: Any):
        self._engine, self._optimizer, self._fake, self._linear = engine, optimizer, fake, linear

    def step(self) -> None:
        """Update the shard, then gather the parameters from all ranks."""
        functional.linear = self._linear
        with untold_numbers(self._fake):
            self._engine.step()

    def zero_grad(self) -> None:
        """Done within the engine's step."""

    def clip_grad_norm(self, max_norm: float) -> None:
        """Done within the engine's step."""

    def state_tensors(self) -> list[Tensor]:
        """fp32 shards of the parameters, and the optimizer's states."""
        shards: list[Tensor] = [one for group in self._optimizer.param_groups for one in group["params"]]
        return [*shards, *state_tensors(self._optimizer)]

    def tensors_by_kind(self) -> Iterator[tuple[Tensor, str]]:
        """What the engine holds now in places of its own, with the kind of memory that it is."""
        zero = self._engine.optimizer
        for parameter in self._engine.module.parameters():
            if hasattr(parameter, "ds_tensor"):
                yield parameter.ds_tensor, "parameters"
        gradients = (zero.averaged_gradients, getattr(zero, "grad_partitions_flat_buffer", None))
        buffers = [bucket.buffer for bucket in zero.ipg_buckets.values()]
        for kind, held in (("gradients", gradients), ("communication", buffers)):
            yield from ((one, kind) for one in tree_leaves(held) if isinstance(one, Tensor))


def untold_numbers(fake: bool) -> AbstractContextManager[Any]:
    """Where tensors are fake: reading a number gives a plain one, and ranks are taken to agree."""
    return _untold_numbers() if fake else nullcontext()


@contextmanager
def _untold_numbers() -> Iterator[None]:
    from deepspeed.runtime.zero import partitioned_param_coordinator

    original = partitioned_param_coordinator.assert_ints_same_as_other_ranks
    partitioned_param_coordinator.assert_ints_same_as_other_ranks = lambda ints: None
    try:
        with PlainNumbers():  # type: ignore[no-untyped-call]
            yield
    finally:
        partitioned_param_coordinator.assert_ints_same_as_other_ranks = original


class PlainNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`tensor.item()` gives 1.0, or 0 for integers and flags."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run anything else as it is."""
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 0
        return func(*args, **(kwargs or {}))
