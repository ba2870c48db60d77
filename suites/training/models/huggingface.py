"""Build a model from a user's Hugging Face config.json, on the default device.

`make_model` is a `TrainingStep.make_model`; no weights are read, and on the meta device or under a fake
tensor mode none are allocated. Needs the extra `hf` (transformers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.config.hf_config import HEADS, HIDDEN, LAYERS, VOCAB, positions_unused
from harness.instruments import torch_internals
from harness.records import Unavailable, UnavailableWith
from suites.training.models import fake_transformers, huggingface_config
from suites.training.models.head_loss import UNCHANGED, HeadLoss, LogitChange
from suites.training.models.user_model import difference
from suites.training.step import TrainingStep
from suites.training.workload import Workload

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ATTENTION = {"explicit": "eager", "sdpa": "sdpa"}
"""Our names for attention, and transformers'."""

WIDTHS = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
"""Attributes for the width of the feed-forward layer in config classes; without one it is 4 x hidden_size."""

SIZES = {
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "vocab_size": VOCAB,
    **dict.fromkeys(WIDTHS, WIDTHS),
}
"""Attributes of config classes that decide a model's size, with all names that config.json files have."""

LOGITS_CHANGED_BY: Mapping[str, str] = {
    "granite": "logits_scaling",  # logits are divided by it
    "cohere": "logit_scale",
    "hyperclovax": "logits_scaling",
    "gemma": "final_logit_softcapping",
    "t5gemma": "final_logit_softcapping",
}
"""By the beginning of a model_type, the key of the number by which its logits are scaled or capped."""

DYNAMIC = "dynamic rotary embeddings read their positions' values, which fake tensors do not have"

PARTS = ("encoder", "decoder")
"""Modules with lists of layers, of models that have both."""

LAST_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "norm_f")
"""Attributes for the norm after the last layer."""


class LanguageModel(nn.Module):
    """A transformers model with its loss, like `Transformer`. Shapes: B batch, T tokens.

    An encoder's loss is that of all positions: its library computes the logits of all, masked or not.
    """

    def __init__(self, model: nn.Module, num_hidden_layers: int, given: Mapping[str, Any]):
        """`given`: the config that the model was built from."""
        super().__init__()
        self.model, self._given = model, given
        self._both = huggingface_config.has_encoder_and_decoder(model.config)
        self._path = _path_of_layers(model, num_hidden_layers)
        self._model_type = str(getattr(model.config, "model_type", ""))
        positions = size_of(model.config, "max_position_embeddings")
        self._positions = positions if positions and positions > 0 else None  # XLNet has -1: no limit
        if self._positions is not None:
            self._positions -= positions_unused(self._model_type, getattr(model.config, "pad_token_id", None))
        self.head_loss: HeadLoss | None = None  # in place of the output layer's logits

    @property
    def logit_change(self) -> LogitChange:
        """Return what the model does to its logits; of an architecture not known to change them, nothing."""
        text: Any = self.model.config.get_text_config()  # type: ignore[union-attr,operator]
        for name, key in LOGITS_CHANGED_BY.items():
            number = getattr(text, key, None)
            if number is not None and self._model_type.startswith(name):
                if "softcapping" in key:
                    return LogitChange(cap=float(number))
                return LogitChange(scale=1 / float(number) if name == "granite" else float(number))
        return UNCHANGED

    def output_layer(self) -> nn.Module:
        """Return the layer that makes logits."""
        layer: Any = self.model.get_output_embeddings()  # type: ignore[operator]
        if not isinstance(layer, nn.Module):
            raise Unavailable(f"{type(self.model).__name__} does not name its output layer")
        return layer

    def ends(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        """Return the token embedding, the last norm and the output layer."""
        decoder = self.model.get_submodule(self._path.rpartition(".")[0])
        norm = next((getattr(decoder, name) for name in LAST_NORMS if hasattr(decoder, name)), None)
        embedding: Any = self.model.get_input_embeddings()  # type: ignore[operator]
        if not isinstance(norm, nn.Module) or not isinstance(embedding, nn.Module):
            raise Unavailable(f"{type(self.model).__name__} does not name its embedding and last norm")
        return embedding, norm, self.output_layer()

    @property
    def blocks(self) -> nn.ModuleList:
        """Return the layers, those of an encoder before those of its decoder."""
        if self._both:
            return nn.ModuleList(layer for part in layers_of_parts(self.model) for layer in part)
        module = self.model.get_submodule(self._path)
        assert isinstance(module, nn.ModuleList)
        return module

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean cross-entropy of predicting `targets_BT` (int64), as an fp32 scalar tensor."""
        length = tokens_BT.shape[1]
        if self._positions is not None and length > self._positions:
            raise ValueError(f"a sequence of {length} tokens is longer than the {self._positions} positions")
        try:
            with huggingface_config.values_not_needed(self._model_type), fake_transformers.every_layer_kept():
                return self._loss(tokens_BT, targets_BT)
        except Unavailable:
            raise
        except Exception:
            if torch_internals.active_fake_mode() is not None:
                refuse_failing(self._given, length)
            raise

    def _loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        if self.head_loss is not None:
            return self.head_loss.run(lambda: self._logits(tokens_BT), targets_BT)
        logits_BTV = self._logits(tokens_BT)
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten())

    def _logits(self, tokens_BT: Tensor) -> Tensor:
        cache: dict[str, Any] = (
            {} if huggingface_config.is_encoder(self.model.config) else {"use_cache": False}
        )
        if self._both:  # the decoder reads as many tokens as the encoder
            cache["decoder_input_ids"] = tokens_BT
        return self.model(input_ids=tokens_BT, **cache).logits  # type: ignore[no-any-return]


def refuse_failing(config: Mapping[str, Any], seq_len: int) -> None:
    """Raise `Unavailable` with the key at fault where the plain model of a config cannot run.

    It runs on fake tensors of its own, so that an error of a technique is not taken for one of the config.
    """

    def run(one: Mapping[str, Any]) -> None:
        with torch_internals.no_modes(), torch_internals.fake_tensor_mode():
            tokens_BT = torch.zeros(1, seq_len, dtype=torch.int64)
            build(one)._loss(tokens_BT, tokens_BT)

    huggingface_config.guarded(config, run)


def adopt(step: TrainingStep) -> TrainingStep:
    """Return the step with its workload's `hf_config` as the model, and the workload's shape from it.

    Raises as `build` does, before anything is allocated.
    """
    config = step.workload.hf_config
    assert config is not None
    rotary = getattr(huggingface_config.parse(config), "rope_parameters", None) or {}
    return replace(
        step,
        workload=complete(step.workload),
        given=complete(step.given),
        make_model=make_model,
        features=replace(step.features, model_code=model_code(config)),
        layers_alike=unlike_layers(config) is None,
        no_dry_run=step.no_dry_run or (DYNAMIC if "dynamic" in str(rotary.get("rope_type")) else None),
    )


def model_code(config: Mapping[str, Any]) -> str:
    """Return the library, its version and the class that the model is built from."""
    return (
        f"transformers {huggingface_config.version()}: {_class_of(huggingface_config.parse(config)).__name__}"
    )


def make_model(step: TrainingStep, num_hidden_layers: int) -> nn.Module:
    """Return the model of `step.workload.hf_config` with `layers` layers, in the default dtype."""
    config = step.workload.hf_config
    assert config is not None
    huggingface_config.refuse_quantized(config, step.settings_of("lora"))
    return build(config, num_hidden_layers, step.attention)


def build(
    config: Mapping[str, Any], num_hidden_layers: int | None = None, attention: str = "explicit"
) -> LanguageModel:
    """Return the model of `config` with `num_hidden_layers` (None: all), in the default dtype and device.

    `attention`: "explicit" or "sdpa". Raises `Unavailable` where transformers is missing or has no such
    language model or attention, ValueError where it refuses the values; one line each.
    """
    parsed_from, parsed = config, huggingface_config.parse(config)
    if num_hidden_layers not in (None, huggingface_config.number_of_layers(parsed)):
        parsed_from = huggingface_config.with_layers(config, num_hidden_layers)
        parsed = huggingface_config.parse(parsed_from)
    made_of = _class_of(parsed)
    if attention == "sdpa" and not getattr(made_of, "_supports_sdpa", False):
        raise UnavailableWith(
            f"transformers {huggingface_config.version()} has no SDPA attention for {made_of.__name__}",
            "attention",
        )
    model = huggingface_config.guarded(parsed_from, lambda one: _instance(one, attention))
    return LanguageModel(model, huggingface_config.number_of_layers(parsed), parsed_from)


def _instance(config: Mapping[str, Any], attention: str) -> Any:
    """Return transformers' model of a config, in the default dtype and device."""
    parsed = huggingface_config.parse(config)
    return _class_of(parsed)._from_config(
        parsed, attn_implementation=ATTENTION[attention], dtype=torch.get_default_dtype()
    )


def _class_of(parsed: Any) -> Any:
    """Return the class of the language model, causal or of an encoder's masked tokens."""
    import transformers

    if huggingface_config.has_encoder_and_decoder(parsed):
        return transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[type(parsed)]
    if huggingface_config.is_encoder(parsed):
        return transformers.MODEL_FOR_MASKED_LM_MAPPING[type(parsed)]
    return huggingface_config.causal_class(parsed)


Adopting = TypeVar("Adopting", bound="DataclassInstance")


def adopted(workload: Adopting, config: Mapping[str, Any]) -> Adopting:
    """Return a suite's workload with a config's sizes, without dropout; raises `Unavailable`."""
    huggingface_config.refuse_quantized(config)
    whole = complete(
        Workload.of({**asdict(workload), "hf_config": huggingface_config.without_dropout(config)})
    )
    common = {one.name for one in fields(workload)} & {one.name for one in fields(whole)}
    return replace(workload, **{name: getattr(whole, name) for name in common})


def complete(workload: Workload) -> Workload:
    """Return the workload with its shape from its `hf_config`; what that does not contain is unchanged.

    `norm`, `mlp`, `position`, `bias` and `dropout` concern `suites.training.models.model` and are unchanged.
    """
    if workload.hf_config is None:
        return workload
    parsed = huggingface_config.parse(workload.hf_config)
    section = getattr(parsed, "decoder", None) or parsed.get_text_config()
    heads = size_of(parsed, "num_attention_heads") or size_of(section, "num_attention_heads") or 1
    hidden_size = size_of(parsed, "hidden_size") or size_of(section, "hidden_size")
    vocab_size = size_of(parsed, "vocab_size") or size_of(section, "vocab_size")
    if hidden_size is None or vocab_size is None:
        missing = "vocab_size" if hidden_size else "hidden_size"
        raise Unavailable(f"model_type {parsed.model_type!r} does not state its {missing}")
    widths = (size_of(parsed, name) for name in WIDTHS)
    return replace(
        workload,
        num_hidden_layers=huggingface_config.number_of_layers(parsed),
        hidden_size=hidden_size,
        num_attention_heads=heads,
        num_key_value_heads=size_of(parsed, "num_key_value_heads") or heads,
        intermediate_size=next(filter(None, widths), 4 * hidden_size),
        vocab_size=vocab_size,
        max_position_embeddings=max(size_of(parsed, "max_position_embeddings") or 0, 0)
        or workload.max_position_embeddings,
        tie_word_embeddings=bool(getattr(parsed, "tie_word_embeddings", False)),
    )


def size_of(parsed: Any, name: str) -> int | None:
    """Return a size of a config, the largest of those of its layers; None where it states none."""
    try:
        size = getattr(parsed, name, None)
    except Exception:  # some classes refuse what differs between layers, each with an error of its own
        return None
    if isinstance(size, list) and size and all(isinstance(one, int) for one in size):
        return int(max(size))
    return size if isinstance(size, int) else None


def by_default(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return a sentence about the sizes that a config leaves to its class; none where it gives them all."""
    parsed = None if config is None else huggingface_config.parse(config)
    own = getattr(parsed, "attribute_map", {})
    sizes = [
        f"{name} {size}"
        for name, names in SIZES.items()
        if not any(other in (config or {}) for other in (*names, own.get(name, name)))
        and isinstance(size := getattr(parsed, name, None), int)
    ]
    return (f"by default: {', '.join(sizes)}",) if sizes else ()


def unlike_layers(config: Mapping[str, Any]) -> str | None:
    """Return how layers differ, so that each must be traced; None where they are uniform.

    That is where `difference` finds none and each list in the config with an entry per layer repeats one.
    """
    parsed = huggingface_config.parse(config)
    if huggingface_config.has_encoder_and_decoder(parsed):
        return "an encoder's layers are not a decoder's"
    for name, value in vars(parsed).items():
        of_layers = isinstance(value, list) and len(value) == parsed.num_hidden_layers
        if of_layers and len(set(map(repr, value))) > 1:
            return f"{name} is not the same for all layers"
    with torch.device("meta"):
        layers = build(config).blocks
    if len(layers) != parsed.num_hidden_layers:
        return f"the model has a list of {len(layers)} layers"
    return difference(layers)


def layers_of_parts(model: nn.Module) -> list[nn.ModuleList]:
    """Return the lists of an encoder's and of its decoder's layers; raises `Unavailable` without."""
    found: dict[str, nn.ModuleList] = {}
    lists = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m)]
    for name, module in sorted(lists, key=lambda one: one[0].count(".")):  # the outermost first
        part = next((one for one in name.split(".")[:-1] if one in PARTS), None)
        if part is not None:
            found.setdefault(part, module)
    if len(found) < len(PARTS):
        raise Unavailable(f"{type(model).__name__} keeps its layers in no list of an encoder and a decoder")
    return [found[part] for part in PARTS]


def _path_of_layers(model: nn.Module, num_hidden_layers: int) -> str:
    """Return the name of the outermost list of exactly `layers` modules."""
    every: dict[str, int] = {
        n: len(m) for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m)
    }
    if not every:
        raise Unavailable(f"{type(model).__name__} keeps no list of its {num_hidden_layers} layers")
    exactly = [name for name, length in every.items() if length == num_hidden_layers]
    return min(exactly or every, key=lambda name: name.count("."))  # some count each layer twice
