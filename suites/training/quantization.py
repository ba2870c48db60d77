"""Block-wise quantization (arXiv 2110.02861, 2305.14314): indices into a table, and one maximum per block.

AdamW's 8-bit states, in the bytes of bitsandbytes: both moments are indices into a table of 256 values, one
byte per element, with one fp32 maximum per block of 256 elements. Parameters of fewer than 4,096 elements
have fp32 moments. bitsandbytes updates in one kernel. Here a slice is widened at a time, which takes a few
times `SLICE` elements in fp32 that its kernel does not.

Linear layers whose frozen weight is stored in 4 or 8 bits and widened to bf16 for each product. nf4 is
QLoRA's: half a byte per element, and a maximum per block of 64, as fp32 or, with double quantization, as one
byte with an fp32 maximum per 256 of them. int8 has a byte per element and an fp32 maximum per row. A weight
is widened a slice at a time, in the forward pass and again in the backward pass.

Shapes: E elements of a flat tensor, C values of a table, in increasing order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.instruments import torch_internals
from harness.instruments.memory.dry_run.fake_tensors import repeatable

DECADES = 7
"""Powers of ten that the table of dynamic quantization spans."""

SLICE = 1 << 20
"""Elements that are widened at once, a multiple of every block."""


def slices(flat_E: Tensor, at_once: int = SLICE) -> list[slice]:
    """Return the slices of a flat tensor, one after the other; of a fake one those of each size.

    A slice's temporaries are freed with it, and fake tensors have no values: the first stands for all but a
    shorter last one.
    """
    count = flat_E.numel()
    starts = list(range(0, count, at_once))
    if torch_internals.is_fake(flat_E):
        starts = [*starts[:1], *starts[1:][-1:]] if count % at_once else starts[:1]
    return [slice(start, min(start + at_once, count)) for start in starts]


@cache
def dynamic_codes(signed: bool) -> tuple[float, ...]:
    """Return the 256 values of dynamic quantization, in increasing order, from -1 or 0 to 1.

    arXiv 2110.02861, section 1.3: each power of ten has twice as many equal steps between 0.1 and 1 as the
    one below; a value is the middle of a step. Besides there are 0 and 1.
    """
    values = [0.0, 1.0]
    for decade in range(DECADES):
        steps = 2**decade if signed else 2 ** (decade + 1)
        scale = 10.0 ** (decade - DECADES + 1)
        middles = [scale * (0.1 + 0.9 * (index + 0.5) / steps) for index in range(steps)]
        values += [*middles, *(-one for one in middles)] if signed else middles
    return tuple(sorted(values))


def quantize(values_E: Tensor, table_C: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return the index (uint8) of each value's nearest code, and each block's maximum (fp32)."""
    padded = nn.functional.pad(values_E.abs(), (0, -len(values_E) % block))
    maxima = padded.view(-1, block).amax(1).float()
    del padded
    scaled_E = values_E / spread(maxima, block, len(values_E)).clamp_(min=torch.finfo(torch.float32).tiny)
    middles = (table_C[:-1] + table_C[1:]) / 2
    return torch.bucketize(scaled_E, middles, out_int32=True).to(torch.uint8), maxima


def widen(indices_E: Tensor, maxima: Tensor, table_C: Tensor, block: int) -> Tensor:
    """Return the values that indices and maxima represent, fp32."""
    return table_C.index_select(0, indices_E.int()).mul_(spread(maxima, block, len(indices_E)))


def spread(maxima: Tensor, block: int, count: int) -> Tensor:
    """Return each of `count` elements' maximum."""
    return maxima.repeat_interleave(block)[:count]


BLOCK = 256
"""Elements with a maximum of their own; bitsandbytes' Optimizer2State since 0.44 (2,048 before)."""

LEAST = 4096
"""Elements from which moments are 8-bit: bitsandbytes' `min_8bit_size`."""


class Moment:
    """One moment of a parameter of `like`'s elements, (E), zero at first.

    `tensors`: indices into the table (uint8) and one fp32 maximum per block; fp32 elements if it is small.
    """

    def __init__(self, like: Tensor, signed: bool) -> None:
        self.signed, self.small = signed, len(like) < LEAST
        if self.small:
            self.tensors = [torch.zeros_like(like, dtype=torch.float32)]
        else:
            indices = torch.full_like(like, dynamic_codes(signed).index(0.0), dtype=torch.uint8)
            maxima = torch.zeros(-(-len(like) // BLOCK), dtype=torch.float32, device=like.device)
            self.tensors = [indices, maxima]

    def read(self, here: slice, table: Tensor) -> Tensor:
        """Return the elements `here`, fp32, in memory of their own; the slice starts at a block."""
        if self.small:
            return self.tensors[0][here].clone()
        indices, maxima = self.tensors
        return widen(indices[here], maxima[blocks_of(here)], table, BLOCK)

    def write(self, here: slice, values: Tensor, table: Tensor) -> None:
        """Replace the elements `here`, each by the nearest value that its block can have."""
        if self.small:
            self.tensors[0][here] = values
            return
        indices, maxima = self.tensors
        indices[here], maxima[blocks_of(here)] = quantize(values, table, BLOCK)


def blocks_of(here: slice) -> slice:
    """Return the blocks of some elements."""
    return slice(here.start // BLOCK, -(-here.stop // BLOCK))


class AdamW8bit(torch.optim.Optimizer):
    """AdamW whose moments are quantized by blocks. Of a DTensor each rank updates its shard alone."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float,
        eps: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "eps": eps, "betas": betas}
        super().__init__(parameters, defaults)
        device = local(self.param_groups[0]["params"][0]).device
        self._tables = [torch.tensor(dynamic_codes(signed), device=device) for signed in (True, False)]
        self._moments: dict[nn.Parameter, tuple[Moment, Moment]] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        weights = local(parameter).view(-1)
        gradients = local(parameter.grad).reshape(-1)  # type: ignore[arg-type]
        state = self.state[parameter]
        if not state:
            moments = Moment(weights, signed=True), Moment(weights, signed=False)
            tensors = [one for moment in moments for one in moment.tensors]
            state |= {"step": 0, **{f"tensor{index}": one for index, one in enumerate(tensors)}}
            self._moments[parameter] = moments
        state["step"] += 1
        for here in slices(weights):
            self._update_slice(parameter, weights[here], gradients[here].float(), here, group)

    def _update_slice(
        self,
        parameter: nn.Parameter,
        weights: Tensor,
        gradients: Tensor,
        here: slice,
        group: dict[str, Any],
    ) -> None:
        """Update some elements: torch.optim.AdamW's formula, on moments that are widened and stored again."""
        (beta1, beta2), step = group["betas"], self.state[parameter]["step"]
        moments = self._moments[parameter]
        mean, square = (moment.read(here, table) for moment, table in zip(moments, self._tables, strict=True))
        mean.lerp_(gradients, 1 - beta1)
        square.mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
        for moment, values, table in zip(moments, (mean, square), self._tables, strict=True):
            moment.write(here, values, table)
        scale = square.div_(1 - beta2**step).sqrt_().add_(group["eps"])
        weights.mul_(1 - group["lr"] * group["weight_decay"])
        weights.add_(mean.div_(scale), alpha=-group["lr"] / (1 - beta1**step))


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""The 16 values of NormalFloat (arXiv 2305.14314, appendix E)."""

NF4_BLOCK = 64
"""Weights with a maximum of their own (arXiv 2305.14314, section 3)."""

MAXIMA_BLOCK = 256
"""Maxima with a maximum of their own, under double quantization."""


class FrozenLinear(nn.Module):
    """A linear layer with a quantized weight, which gets no gradient.

    `inputs`: as bitsandbytes 0.41 and 0.42, whose `MatMul4Bit` keeps its input, which its backward pass does
    not need (pull request 1270 removed that), and widens weights by way of fp16, from which Lightning
    quantizes them. Inputs are kept as attributes, which autograd does not free; this list has each.
    """

    inputs: list[Tensor] | None = None

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = layer.weight.shape
        self.bias = layer.bias

    @abstractmethod
    def fill(self, wide: Tensor) -> None:
        """Widen the weight into a tensor, in its type, a slice at a time."""

    def weight(self, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Return the weight in `dtype`, (out_features, in_features)."""
        size, device = (self.out_features, self.in_features), next(self.buffers()).device
        wide = torch.empty(size, dtype=dtype, device=device)
        kinds = (dtype, *(one.dtype for one in self.buffers()))
        repeatable((type(self).__name__, *size, *kinds), partial(self.fill, wide))
        return wide

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features), in the input's type."""
        result: Tensor = WidenedProduct.apply(x, self)  # type: ignore[no-untyped-call]
        return result if self.bias is None else result + self.bias


class WidenedProduct(torch.autograd.Function):
    """The product with a weight that exists during the product alone."""

    @staticmethod
    def forward(context: Any, x: Tensor, layer: FrozenLinear) -> Tensor:
        """Return x W^T, computed in bf16, in the type of x."""
        context.layer = layer
        if layer.inputs is not None:
            context.kept = x
            layer.inputs.append(x)
        return F.linear(x.to(torch.bfloat16), widened(layer)).to(x.dtype)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of x; the weight has none."""
        return (gradient.to(torch.bfloat16) @ widened(context.layer)).to(gradient.dtype), None


def widened(layer: FrozenLinear) -> Tensor:
    """Return the weight in bf16, from where the layer's library widens it."""
    return layer.weight() if layer.inputs is None else layer.weight(torch.half).to(torch.bfloat16)


class Nf4Linear(FrozenLinear):
    """A linear layer in nf4, with or without double quantization."""

    packed: (
        Tensor  # two indices per byte; of a weight that is sharded, the same bytes as a frozen bf16 parameter
    )
    maxima: Tensor  # fp32; under double quantization, indices
    table: Tensor
    mean: Tensor  # of the maxima
    second: Tensor  # maxima of the maxima
    codes: Tensor

    def __init__(self, layer: nn.Linear, double: bool, sharded: bool = False) -> None:
        """`sharded`: FSDP gathers the indices, as those of bitsandbytes' bnb_4bit_quant_storage=bfloat16."""
        super().__init__(layer)
        flat = layer.weight.detach().flatten()
        self.register_buffer("table", torch.tensor(NF4, device=flat.device))
        indices, maxima = quantize(flat.float(), self.table, NF4_BLOCK)
        indices = F.pad(indices, (0, -len(indices) % 4))
        packed = indices[::2] * 16 + indices[1::2]
        if sharded:
            self.packed = nn.Parameter(packed.view(torch.bfloat16), requires_grad=False)
        else:
            self.register_buffer("packed", packed)
        self.twice = double
        if double:
            self.register_buffer("mean", maxima.mean())
            self.register_buffer("codes", torch.tensor(dynamic_codes(signed=True), device=flat.device))
            maxima, second = quantize(maxima - self.mean, self.codes, MAXIMA_BLOCK)
            self.register_buffer("second", second)
        self.register_buffer("maxima", maxima)

    def fill(self, wide: Tensor) -> None:
        """See `FrozenLinear`."""
        flat = wide.view(-1)
        for here in slices(flat):
            flat[here] = self._elements(here)

    def _elements(self, here: slice) -> Tensor:
        pairs = self.packed.detach().view(torch.uint8)[here.start // 2 : -(-here.stop // 2)]
        indices = torch.stack([pairs >> 4, pairs & 15], 1).flatten()[: here.stop - here.start]
        blocks = slice(here.start // NF4_BLOCK, -(-here.stop // NF4_BLOCK))
        return widen(indices, self._maxima(blocks), self.table, NF4_BLOCK)

    def _maxima(self, blocks: slice) -> Tensor:
        if not self.twice:
            return self.maxima[blocks]
        second = self.second[blocks.start // MAXIMA_BLOCK : -(-blocks.stop // MAXIMA_BLOCK)]
        return widen(self.maxima[blocks], second, self.codes, MAXIMA_BLOCK).add_(self.mean)


class Int8Linear(FrozenLinear):
    """A linear layer in int8, with one fp32 maximum per row (as arXiv 2208.07339 stores weights)."""

    rows: Tensor
    maxima: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        weight = layer.weight.detach().float()
        maxima = weight.abs().amax(1).clamp_(min=torch.finfo(torch.float32).tiny)
        self.register_buffer("rows", (weight * (127 / maxima.unsqueeze(1))).round_().to(torch.int8))
        self.register_buffer("maxima", maxima)

    def fill(self, wide: Tensor) -> None:
        """See `FrozenLinear`."""
        for here in slices(self.maxima, max(1, SLICE // self.in_features)):
            wide[here] = self.rows[here] * (self.maxima[here] / 127).unsqueeze(1)
