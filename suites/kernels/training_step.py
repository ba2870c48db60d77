"""The operation `training_step`: a full step of the training layer's model under AdamW.

Techniques of `suites.training.techniques` change it, and functions of the kernels suite take an operation's
place, alone or in it. `Workload.part` names the operation that a variant may replace, so that each kernel's
gain is measured alone and in the step.

The model of a user's config.json in the training step is transformers' own, with all that the config says.
Only dropout is left out, because variants are compared loss by loss. Its parameters are counted without
weights, on the meta device.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from harness.records import Unavailable
from suites.kernels.subject import Inputs, Operation, Subject
from suites.kernels.workload import Workload
from suites.training import optimizers, trainer
from suites.training.models import huggingface, huggingface_config
from suites.training.optimizers import RankOptimizer
from suites.training.step import Contract, TrainingStep, Within, loosest
from suites.training.techniques import build_step, combined
from suites.training.workload import llama

STATES_B = 16
"""Bytes per parameter of a step in fp32: weight, gradient and AdamW's two moments."""

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Attributes for the number of experts of a layer in transformers' config classes."""


class Counts(NamedTuple):
    """Parameters of a model: all, and those that multiply for each token."""

    parameters: int
    multiplied: float


def adopted(workload: Workload) -> Workload:
    """Return the workload with its config's sizes and without dropout; raises `Unavailable`."""
    config = workload.hf_config
    if config is None:
        return workload
    if workload.operation != "training_step" or workload.part != "all":
        raise Unavailable("a config.json describes a model: operation=training_step part=all trains it")
    return huggingface.adopted(workload, config)


def counts(workload: Workload) -> Counts:
    """Return the parameters of the workload's config; of experts those that a token reaches multiply."""
    return _counts(json.dumps(workload.hf_config, sort_keys=True))


@lru_cache(maxsize=8)
def _counts(config: str) -> Counts:
    with torch.device("meta"):
        model = huggingface.build(json.loads(config))
    tables = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
    tables -= {id(parameter) for parameter in model.output_layer().parameters()}  # tied: it multiplies there
    reached = share_of_experts(model.model.config)
    multiplied = sum(
        parameter.numel() * (reached if ".experts." in name else 1.0)
        for name, parameter in model.named_parameters()
        if parameter.dim() > 1 and id(parameter) not in tables
    )
    return Counts(sum(one.numel() for one in model.parameters()), multiplied)


def share_of_experts(parsed: Any) -> float:
    """Return the share of a layer's experts that one token reaches; 1 without experts."""
    count = next((value for name in EXPERTS if (value := getattr(parsed, name, None))), None)
    return float(getattr(parsed, "num_experts_per_tok", None) or count) / count if count else 1.0


def has_experts(workload: Workload) -> bool:
    """Return whether the config's layers choose among experts, which a rounding can change."""
    config = workload.hf_config
    return config is not None and share_of_experts(huggingface_config.parse(config)) < 1


def layers_that_fit(workload: Workload, room_B: float, activations_B: Callable[[Workload], float]) -> str:
    """Return in words which part of the config's model would fit into `room_B`; layers are taken as alike."""
    config = workload.hf_config or {}
    one, two = (
        counts(replace(workload, hf_config=huggingface_config.with_layers(config, count))).parameters
        for count in (1, min(2, workload.num_hidden_layers))
    )
    for count in range(workload.num_hidden_layers - 1, 0, -1):
        states_B = states_in_memory_B(one + (count - 1) * (two - one))
        if states_B + activations_B(replace(workload, num_hidden_layers=count)) <= room_B:
            return f"suite.hf_defaults.num_hidden_layers={count} would fit"
    return "one layer with the embeddings does not fit either; try a smaller suite.hf_defaults.seq_len"


def states_in_memory_B(parameters: float) -> float:
    """Return the bytes of a step that variants share, of one being checked, and of compared gradients."""
    return (2 * STATES_B + 4) * parameters


PARTS = ("rms_norm", "swiglu", "rotary", "linear_cross_entropy", "attention", "adamw")
"""Operations in the step that have a function of their own."""

OPTIMIZER_B = 28
"""AdamW moves per fp32 parameter: gradient read; parameter and two moments read and written."""


class FunctionAdamW(RankOptimizer):
    """AdamW by a function with the signature of `operations.adamw.eager`; states as torch's."""

    def __init__(self, function: Callable[..., Any], model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.function = function
        self.exp_avgs = [torch.zeros_like(one) for one in self.parameters]
        self.exp_avg_sqs = [torch.zeros_like(one) for one in self.parameters]
        self.step_1 = torch.zeros(1, device=self.parameters[0].device)

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter."""
        self.step_1 += 1
        gradients = [one.grad for one in self.parameters]
        parameters = [one.detach() for one in self.parameters]
        self.function(parameters, gradients, self.exp_avgs, self.exp_avg_sqs, self.step_1)

    def zero_grad(self, keep: bool = False) -> None:
        """Release the gradients."""
        for parameter in self.parameters:
            parameter.grad = None


class FixedBatchTrainer:
    """The training layer's trainer on one fixed batch; `step()` is the work that is timed."""

    def __init__(self, subject: Subject):
        self._trainer = trainer.Trainer(step_of(subject), subject.device)
        self._whole = subject.whole
        self.model, self.optimizer = self._trainer.plain, self._trainer.optimizer
        self.update, self.gradients = self._trainer.update, self._trainer.gradients
        generator = torch.Generator(subject.device).manual_seed(subject.seed)
        tokens_BT, targets_BT = inputs(subject.workload, generator, subject.device)
        count = self._trainer.step.workload.gradient_accumulation_steps
        self._micro_batches = list(zip(tokens_BT.chunk(count), targets_BT.chunk(count), strict=True))

    def loss_and_gradients(self) -> Tensor:
        """Run the forward and the backward pass; the gradients are left in the parameters."""
        count = len(self._micro_batches)
        with self._whole():
            losses = [self._trainer.backward(*one, i, count) for i, one in enumerate(self._micro_batches)]
        return losses[0] if count == 1 else torch.stack(losses).mean()

    def step(self) -> Tensor:
        """Run one training step and return its loss, a scalar tensor."""
        loss = self.loss_and_gradients()
        self.update()
        return loss


def step_of(subject: Subject) -> TrainingStep:
    """Return the subject's step: its techniques, and its functions in the place of the model's own."""
    workload = asdict(subject.workload) | {"adam_epsilon": optimizers.EPSILON}
    workload |= {"learning_rate": optimizers.LEARNING_RATE, "weight_decay": optimizers.WEIGHT_DECAY}
    step = build_step(workload, subject.techniques, subject.seed)
    functions = {name: one for name, one in subject.replace.items() if name != "adamw"}
    step = replace(step, functions={**step.functions, **functions})
    if subject.workload.dtype == "bf16":
        step = replace(step, model_dtype=torch.bfloat16)
    if "adamw" not in subject.replace:
        return step
    function = subject.replace["adamw"]
    return replace(step, make_optimizer=lambda model, workload, resources: FunctionAdamW(function, model))


def contract_of(subject: Subject) -> Contract:
    """Return how closely the subject's step follows plain PyTorch's in fp32: as its techniques state.

    The suite's own tolerance counts, too, for functions in place of the model's and for other precisions.
    """
    contract = step_of(subject).contract
    own = bool(subject.replace) or subject.precision != "fp32"
    return loosest([contract, Within(subject.tolerance)]) if own else contract


def with_techniques(subject: Subject, techniques: Sequence[tuple[str, Mapping[str, Any]]]) -> Subject:
    """Return the subject with further techniques of its step, checked as their contracts say.

    Raises `Unavailable` where they do not combine, or need more than one process.
    """
    changed = replace(subject, techniques=combined(subject.techniques, techniques))
    step = step_of(changed)
    names = [name for name, _ in changed.techniques]
    if step.batches_per_update > 1:
        raise Unavailable("an update of more sequences than the baseline's cannot be timed next to it")
    if step.ranks > 1 or step.features.sharding != "none":
        raise Unavailable(f"{', '.join(names)}: this step runs in one process, without ranks to shard over")
    compiles = subject.compiles or "compile" in names
    return replace(
        changed,
        attention=step.features.attention if subject.attention == "explicit" else subject.attention,
        precision="bf16" if step.features.precision != "fp32" else subject.precision,
        compiles=compiles,
        compiler_cache=compiles,
    )


def workload_of_step(subject: Subject) -> Workload:
    """Return the workload of the step that is built: techniques may change it, its batch included.

    `micro_batch_size` has the sequences of all micro-batches of an update.
    """
    built = step_of(subject).workload
    common = {one.name for one in fields(Workload)} & {one.name for one in fields(built)}
    changed = {name: getattr(built, name) for name in common}
    return replace(subject.workload, **{**changed, "micro_batch_size": built.sequences})


def inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> Inputs:
    """Return random tokens and the tokens that follow them, int64, each (B, T)."""
    size = (workload.micro_batch_size, workload.seq_len + 1)
    drawn = torch.randint(workload.vocab_size, size, generator=generator, device=device)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def eager(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """Raise NotImplementedError: a step has a state, see `FixedBatchTrainer`."""
    raise NotImplementedError("a training step is not a function of its tokens; use a Trainer")


def bytes_moved(workload: Workload) -> float:
    """Return the weights' traffic: read forward and backward, gradients written, and what AdamW moves.

    Activations are left out, so that the bound of memory is low for a step; its bound is its arithmetic.
    """
    weights = parameters(workload)
    return float(weights * (3 * workload.element_B + OPTIMIZER_B * workload.element_B // 4))


def flops(workload: Workload) -> float:
    """Return 6 P per token and 12 L h T^2 per sequence (arXiv 2307.08691, 4.2), half that if causal.

    P: of parameters that multiply, so without the table of token embeddings and without norms' weights.
    """
    per_layer = 6.0 * workload.hidden_size * workload.seq_len**2 * workload.micro_batch_size
    scores = workload.num_hidden_layers * per_layer
    if workload.hf_config is not None:
        return 6.0 * counts(workload).multiplied * workload.rows + scores
    shape = llama(workload)
    norms = (2 * shape.num_hidden_layers + 1) * shape.hidden_size
    multiplied = shape.parameters - shape.vocab_size * shape.hidden_size - norms
    return 6.0 * multiplied * workload.rows + scores


def parameters(workload: Workload) -> int:
    """Return the parameters of the step's model."""
    if workload.hf_config is not None:
        return counts(workload).parameters
    return llama(workload).parameters


def eager_B(workload: Workload) -> float:
    """Return the bytes of weights, gradients and two moments, and of each layer's saved activations.

    An estimate. The peak adds the scores of one layer 2.5 times, or the logits in fp32 three times.
    """
    return 4.0 * parameters(workload) * workload.element_B + activations_B(workload)


def activations_B(workload: Workload, attention: str = "explicit") -> float:
    """Return the bytes of a step's activations at its peak, with or without attention's scores."""
    scores = workload.rows * workload.num_attention_heads * workload.seq_len * workload.element_B
    scores = scores if attention == "explicit" else 0
    kept = workload.rows * (14 * workload.hidden_size + 5 * workload.intermediate_size) * workload.element_B
    logits = 3 * workload.rows * workload.vocab_size * 4
    return workload.num_hidden_layers * (scores + kept) + max(2.5 * scores, logits)


OPERATION = Operation("training_step", inputs, eager, bytes_moved, flops, eager_B)
STEP = OPERATION.name

PRODUCTS = ("attention", "linear_cross_entropy", STEP)
"""Operations with products of matrices: aten/src/ATen/autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP."""

BF16_TOLERANCE = 2e-2
"""Tolerance relative to the largest value: a bf16 rounding is 2^-9, and a result passes several."""


def replace_operation(
    subject: Subject, functions: Mapping[str, Callable[..., Any]], variant: str, **changes: Any
) -> Subject:
    """Return the subject with `functions`, by operation, in place of eager ones; in a step those of its part.

    Raises `Unavailable` where none of them applies.
    """
    name, part = subject.workload.operation, subject.workload.part
    if name != STEP:
        if name not in functions:
            raise Unavailable(f"{variant} has no {name}; it has {', '.join(functions)}")
        return replace(subject, function=functions[name], **changes)
    if subject.workload.hf_config is not None:
        raise Unavailable(f"{variant} replaces operations of this project's model, and this is transformers'")
    operations = PARTS if part == "all" else (part,)
    chosen = {one: functions[one] for one in operations if one in functions}
    if not chosen:
        raise Unavailable(f"{variant} has no {part} to replace in the step; it has {', '.join(functions)}")
    return replace(subject, replace={**subject.replace, **chosen}, **changes)


def require_full_step(subject: Subject, variant: str) -> None:
    """Raise `Unavailable` for a step of which only one part is replaced."""
    if subject.workload.operation == STEP and subject.workload.part != "all":
        alone = f"here {subject.workload.part} alone is to change"
        raise Unavailable(f"{variant} changes the full step, and {alone}")


def missing(module: str, extra: str) -> str | None:
    """Return why a variant that needs a package of an extra cannot run; None where it is installed."""
    if importlib.util.find_spec(module) is not None:
        return None
    return f"needs the extra {extra}: pip install 'throughput-harness[{extra}]'"
