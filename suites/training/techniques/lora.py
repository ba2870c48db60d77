"""Low-rank adapters (LoRA, arXiv 2106.09685): the model is frozen, and small matrices next to it are trained.

B A x times alpha / rank is added to the result of a layer, where A has `rank` rows and B as many columns.
Gradients and optimizer states exist for adapters alone. The frozen base may be stored in fewer bits (QLoRA,
arXiv 2305.14314, see `quantization.py`). With `dora` (DoRA, arXiv 2402.09353) the norm of each row of
the sum of both weights is trained, too. FSDP2 shards a base in nf4, but for its maxima.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.instruments import torch_internals
from harness.records import Unavailable
from suites.training.declared import LlamaAdapterSettings, LoRASettings
from suites.training.host_memory import Resources
from suites.training.models import mixture
from suites.training.models.model import Transformer, blocks_of
from suites.training.quantization import FrozenLinear, Int8Linear, Nf4Linear
from suites.training.step import CHANGES_THE_MATHEMATICS, DTYPES, Contract, TrainingStep
from suites.training.trainer import build_model
from suites.training.workload import Workload

Base = LoRASettings | LlamaAdapterSettings
"""Settings of a frozen base."""

Adapt = Callable[[str, nn.Module, nn.Linear], nn.Module]
"""Takes a layer's name, the layer as it is stored and as it was, and returns what takes its place."""

MORE_THAN_LINEAR = ("Router", "GroupedLinear", "DecoupledLinear")
"""Ends of the names of transformers' linear layers that do more than nn.Linear; Falcon's own does no more."""

NOTE = "LoRA: gradients and optimizer states of adapters of rank {rank} alone"

LAYERS = "layers"
"""The target that stands for every linear layer of the model's layers."""

OTHER_NAMES: tuple[tuple[str, ...], ...] = (
    ("q_proj", "k_proj", "v_proj", "query_key_value", "c_attn", "qkv_proj", "Wqkv", "qkv", "in_proj"),
    ("q_proj", "query", "q", "q_lin", "wq"),
    ("k_proj", "key", "k", "k_lin", "wk"),
    ("v_proj", "value", "v", "v_lin", "wv"),
    ("o_proj", "out_proj", "dense", "c_proj", "o", "out_lin", "wo", "output"),
    ("gate_proj", "up_proj", "gate_up_proj", "fc1", "fc_in", "dense_h_to_4h", "c_fc", "wi", "wi_0", "wi_1"),
    ("gate_proj", "gate", "w1"),
    ("up_proj", "up", "w3"),
    ("down_proj", "down", "fc2", "fc_out", "dense_4h_to_h", "w2"),
)
"""Names in transformers' models of the same layers: in each line, of one layer or of those that it joins.

A first entry joins queries, keys and values; peft's own choices (peft 0.17, utils/constants.py,
TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING) are names of it.
"""


def contract(settings: LoRASettings) -> Contract:
    """Return `CHANGES_THE_MATHEMATICS`: other parameters are trained."""
    return CHANGES_THE_MATHEMATICS


def applies_to(workload: Workload, settings: LoRASettings) -> str | None:
    """Return why adapters cannot be so; None where they can."""
    if settings.rank > workload.hidden_size:
        return f"rank={settings.rank}: allowed are 1 to hidden_size={workload.hidden_size}"
    if settings.ends and settings.lightning:
        return "ends: the output layer, which lightning quantizes, cannot be trained; leave one of them out"
    wanted = settings.targets
    listed = isinstance(wanted, list | tuple) and all(isinstance(one, str) for one in wanted)
    if not listed and not isinstance(wanted, str):
        return f"targets={wanted!r}: expected names of linear layers, or {LAYERS!r}"
    return None


def apply(step: TrainingStep, settings: LoRASettings) -> TrainingStep:
    """Return the step with a frozen model and adapters; raises `Unavailable` for unknown targets."""
    step = with_frozen_base("lora", step, settings.base)
    sharded = step.settings_of("fsdp2") is not None
    with torch.device("meta"):
        layers_to_adapt(build_model(step, 1 if step.layers_alike else None), settings.targets)
    return replace(
        step,
        wraps=(*step.wraps, partial(insert, settings, step.make_model is not None, sharded)),
        notes=(*step.notes, NOTE.format(rank=settings.rank)),
    )


def with_frozen_base(name: str, step: TrainingStep, base: str | None) -> TrainingStep:
    """Return the step of the technique `name` with its base's type; raises `Unavailable` if it is sharded."""
    for other in ("fsdp2", "zero"):
        sharded = (name, base, other) == ("lora", "nf4", "fsdp2")
        if base in ("nf4", "int8") and not sharded and step.settings_of(other) is not None:
            raise Unavailable(f"{name}: {other} shards parameters, and a base in {base} consists of buffers")
    unlike = "the formula trains all parameters; here adapters alone are trained"
    return replace(
        step,
        features=step.features.but(states=unlike),
        model_dtype=step.model_dtype if base is None else torch.bfloat16,
    )


def insert(
    settings: LoRASettings, foreign: bool, sharded: bool, model: nn.Module, resources: Resources
) -> nn.Module:
    """Freeze the model, quantize its layers and add adapters.

    `foreign`: the step's model is not `Transformer`; where that stands for it, its layers are adapted.
    `sharded`: FSDP2 shards the base.
    """
    there = {name.rpartition(".")[2] for name in linear_layers(model)}
    wanted = [settings.targets] if isinstance(settings.targets, str) else settings.targets
    stands_in = foreign and isinstance(model, Transformer) and not there.issuperset(wanted)
    targets = LAYERS if stands_in else settings.targets
    adapted = layers_to_adapt(model, targets)
    kind = DoRALinear if settings.dora else LoRALinear
    mixtures = [one for one in model.modules() if has_experts(one) and settings.base in ("nf4", "int8")]
    if settings.experts in ("linear", "tensor"):
        for experts in mixtures:
            quantize_experts(experts, settings, sharded)

    def adapt(name: str, base: nn.Module, layer: nn.Linear) -> nn.Module:
        return kind(base, layer, settings) if name in adapted else base

    freeze(model, settings, adapt, sharded)
    for wide in [model] if settings.rest == "fp32" else mixtures if settings.experts == "fp32" else []:
        widen_rest(wide)
    if settings.ends:  # copies of the token embedding and the output layer, next to the frozen ones
        embedding, _, head = model.ends()  # type: ignore[operator]
        for end in (embedding, head):
            end.frozen_weight, end.weight = end.weight, nn.Parameter(end.weight.detach().clone())
    return model


def widen_rest(model: nn.Module) -> None:
    """Store in fp32 every frozen parameter that is not the indices of a quantized one."""
    wide: dict[int, nn.Parameter] = {}  # by the narrow one, which several modules may share
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not parameter.requires_grad and name != "packed":
                if id(parameter) not in wide:
                    wide[id(parameter)] = nn.Parameter(parameter.detach().float(), requires_grad=False)
                setattr(module, name, wide[id(parameter)])


EXPERTS = ("gate_up_proj", "down_proj")


def has_experts(module: nn.Module) -> bool:
    """Return whether a module of transformers has experts as tensors of (experts, rows, columns)."""
    return all(getattr(getattr(module, name, None), "ndim", 0) == 3 for name in EXPERTS)


def quantize_experts(experts: Any, settings: LoRASettings, sharded: bool) -> None:
    """Store a layer's experts as a base is stored."""

    def stored(weight: Tensor) -> FrozenLinear:
        shell = nn.Linear(1, 1, bias=False)
        shell.weight = nn.Parameter(weight.detach(), requires_grad=False)
        found = quantized(shell, settings, sharded)
        assert isinstance(found, FrozenLinear)
        return found

    whole = {name: getattr(experts, name) for name in EXPERTS}
    sorted_by_expert = len(signature(experts.forward).parameters) == 1  # Llama 4's, stored (inputs, outputs)
    transposed = getattr(experts, "is_transposed", sorted_by_expert)
    for name, weight in whole.items():
        delattr(experts, name)
        if settings.experts == "tensor":
            setattr(experts, f"{name}_in_bits", stored(weight.flatten(0, 1)))
        else:
            each = [one.t().contiguous() if transposed else one for one in weight]
            setattr(experts, f"{name}_in_bits", nn.ModuleList(stored(one) for one in each))
    if settings.experts == "tensor":
        shapes = {name: weight.shape for name, weight in whole.items()}
        experts.register_forward_pre_hook(partial(widen_experts, shapes))
        experts.register_forward_hook(forget_experts)
    else:
        experts.forward = partial(each_on_its_part if sorted_by_expert else one_by_one, experts)


def widen_experts(shapes: Mapping[str, torch.Size], experts: Any, inputs: Any) -> None:
    """Widen all experts of a layer before its forward pass, as bitsandbytes' parametrization does."""
    for name, shape in shapes.items():
        setattr(experts, name, getattr(experts, f"{name}_in_bits").weight().view(shape))


def forget_experts(experts: Any, inputs: Any, output: Any) -> None:
    """Drop the widened experts, which autograd alone may still have."""
    for name in EXPERTS:
        delattr(experts, name)


def one_by_one(experts: Any, hidden_ND: Tensor, chosen_NK: Tensor, weights_NK: Tensor) -> Tensor:
    """Return the weighted outputs of a layer's experts, each a pair of quantized linear layers.

    Shapes: N tokens of a batch, K experts per token, D hidden size.
    """
    result_ND = torch.zeros_like(hidden_ND)
    count = len(experts.down_proj_in_bits)
    own = mixture.shares(chosen_NK.numel(), count) if torch_internals.is_fake(hidden_ND) else None
    for expert in range(count):
        if own is None:
            rows, places = torch.where(chosen_NK == expert)
        else:  # fake tensors have no values: each expert has an equal share
            rows, places = (chosen_NK.new_zeros(own[expert]) for _ in range(2))
        both = with_bias(experts, "gate_up_proj", expert, hidden_ND[rows])
        output = with_bias(experts, "down_proj", expert, gated(experts, both))
        result_ND.index_add_(0, rows, (output * weights_NK[rows, places, None]).to(result_ND.dtype))
    return result_ND


def each_on_its_part(experts: Any, hidden_MD: Tensor) -> Tensor:
    """Return the outputs of a layer's experts for rows that come sorted, as many for each.

    Shapes: M rows, D hidden size.
    """
    parts = hidden_MD.chunk(len(experts.down_proj_in_bits))
    inner = (gated(experts, with_bias(experts, "gate_up_proj", at, part)) for at, part in enumerate(parts))
    return torch.cat([with_bias(experts, "down_proj", at, one) for at, one in enumerate(inner)])


def with_bias(experts: Any, name: str, expert: int, x: Tensor) -> Tensor:
    """Return the result of one of an expert's two layers."""
    result: Tensor = getattr(experts, f"{name}_in_bits")[expert](x)
    bias = getattr(experts, f"{name}_bias", None)
    return result if bias is None else result + bias[expert]


def gated(experts: Any, both: Tensor) -> Tensor:
    """Return the product of an expert's gate and its other half, as its module computes it."""
    if hasattr(experts, "_apply_gate"):
        return experts._apply_gate(both)  # type: ignore[no-any-return]
    gate, up = both.chunk(2, dim=-1)
    return experts.act_fn(gate) * up  # type: ignore[no-any-return]


def freeze(model: nn.Module, settings: Base, adapt: Adapt, sharded: bool = False) -> None:
    """Freeze the model, store its layers' weights as a base, and apply `adapt` to each linear layer.

    With `lightning` every linear layer's weights, as Lightning's plugin does with bitsandbytes 0.42.
    """
    inside = {id(one) for one in (model if settings.lightning else blocks_of(model)).modules()}
    model.requires_grad_(False)
    inputs: list[Tensor] = []
    if settings.lightning:
        model.register_forward_hook(partial(keep_until_the_next, inputs, []))
    for name, layer in linear_layers(model).items():
        stored = quantized(layer, settings, sharded) if id(layer) in inside else layer
        if settings.lightning and isinstance(stored, FrozenLinear):
            stored.inputs = inputs
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, adapt(name, stored, layer))


def keep_until_the_next(inputs: list[Tensor], before: list[Tensor], *_: Any) -> None:
    """Keep a forward pass's `inputs` until the next one ends: a script's `loss` refers to their graph."""
    before[:] = inputs
    inputs.clear()


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the model's linear layers by name, without those that are more than their product."""
    return {
        name: one
        for name, one in model.named_modules()
        if isinstance(one, nn.Linear) and not type(one).__name__.endswith(MORE_THAN_LINEAR)
    }


def layers_to_adapt(model: nn.Module, targets: Sequence[str] | str) -> set[str]:
    """Return the names of the layers that get adapters; raises `Unavailable` for an unknown target."""
    names = linear_layers(model)
    if targets == LAYERS:
        inside = {id(one) for one in blocks_of(model).modules()}
        found = {name for name, layer in names.items() if id(layer) in inside}
        if not found:
            raise Unavailable("lora: the model's layers have no nn.Linear to which adapters could be added")
        return found
    wanted = [targets] if isinstance(targets, str) else list(targets)
    own = {name: name.rpartition(".")[2] for name in names}
    there = set(own.values())
    # peft passes over single names that the model does not have
    found = there.intersection(wanted) or elsewhere(wanted, there)
    return {name for name, last in own.items() if last in found}


def elsewhere(wanted: Sequence[str], there: set[str]) -> set[str]:
    """Return the names, of those that a model has, of the layers that other models name as wanted.

    Raises `Unavailable` where it has none of them.
    """
    joined, *single = OTHER_NAMES
    found = {one for names in single for one in there.intersection(names) if {*names}.intersection(wanted)}
    if {*joined}.intersection(wanted):
        found |= there.intersection(joined[3:])
    if {*joined[3:]}.intersection(wanted):
        found |= there.intersection(joined[:3])
    if not found:
        missing = ", ".join(wanted) or "by targets"
        raise Unavailable(f"lora: no linear layer is named {missing}; there are {', '.join(sorted(there))}")
    return found


def quantized(layer: nn.Linear, settings: Base, sharded: bool) -> nn.Module:
    """Return a layer of the model's layers, as its base is stored."""
    if settings.base == "nf4":
        return Nf4Linear(layer, settings.double_quantization, sharded)
    return Int8Linear(layer) if settings.base == "int8" else layer


class LoRALinear(nn.Module):
    """A frozen linear layer and its adapter."""

    def __init__(self, base: nn.Module, shape: nn.Linear, settings: LoRASettings) -> None:
        super().__init__()
        dtype = shape.weight.dtype if settings.adapter_dtype is None else DTYPES[settings.adapter_dtype]
        with torch.device(shape.weight.device):
            self.down = nn.Linear(shape.in_features, settings.rank, bias=False, dtype=dtype)
            self.up = nn.Linear(settings.rank, shape.out_features, bias=False, dtype=dtype)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)  # so that training starts from the base (section 4.1)
        self.base, self.scale, self.dropout = base, settings.alpha / settings.rank, settings.dropout

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features), in the base's type."""
        result: Tensor = self.base(x)
        return result + (self.product(x) * self.scale).to(result.dtype)

    def product(self, x: Tensor) -> Tensor:
        """Return B A x, in the adapter's type."""
        x = F.dropout(x.to(self.down.weight.dtype), self.dropout, self.training)
        return self.up(self.down(x))  # type: ignore[no-any-return]


class DoRALinear(LoRALinear):
    """A frozen linear layer and its adapter, the rows of whose sum are scaled to trained norms.

    As in peft and torchtune the rows' own norms, constants to autograd (section 4.3), are computed from the
    full sum in every forward pass, and autograd keeps the results of both layers.
    """

    def __init__(self, base: Any, shape: nn.Linear, settings: LoRASettings) -> None:
        super().__init__(base, shape, settings)
        self.bias, base.bias = base.bias, None  # it is not scaled
        self.magnitude = nn.Parameter(self.norms())

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features), in the base's type."""
        result: Tensor = self.base(x)
        share = self.magnitude / self.norms()
        change = (share - 1) * result + share * self.product(x) * self.scale
        result = result + change.to(result.dtype)
        return result if self.bias is None else result + self.bias

    @torch.no_grad()
    def norms(self) -> Tensor:
        """Return the norms of the rows of W + scale B A, in the adapter's type."""
        base: Any = self.base
        weight = base.weight() if isinstance(base, FrozenLinear) else base.weight
        full = weight + self.scale * (self.up.weight @ self.down.weight)
        norms: Tensor = torch.linalg.vector_norm(full, dim=1).to(self.up.weight.dtype)
        return norms
