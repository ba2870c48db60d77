"""Read a config.json's content into transformers' own config object, for `models.huggingface`.

Any error becomes `Unavailable`, one line that names the key at fault where there is one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from harness.config.hf_config import OWN_CODE, has_own_code, shown
from harness.instruments import torch_internals
from harness.records import Unavailable
from suites.training.models import fake_transformers
from suites.training.models.config_fault import IGNORED, explained, one_line


def unavailable() -> str | None:
    """Return why no config.json can be built here; None where it can."""
    if find_spec("transformers") is None:
        return "transformers is not installed; the extra `hf` brings it: pip install 'throughput-harness[hf]'"
    return None


def parse(config: Mapping[str, Any]) -> Any:
    """Return `config` as transformers' own config object; raises as the module describes."""
    if (reason := unavailable()) is not None:
        raise Unavailable(reason)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    fake_transformers.install()
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    model_type = str(config.get("model_type"))
    if model_type not in CONFIG_MAPPING_NAMES:
        own = f"; {OWN_CODE}" if has_own_code(config) else ""
        raise Unavailable(f"model_type {model_type!r} is unknown to transformers {version()}{own}")

    fake_transformers.install_for(model_type)

    def make(config: Mapping[str, Any]) -> Any:
        values = {key: value for key, value in config.items() if key not in IGNORED}
        return AutoConfig.for_model(model_type, use_cache=False, **values)

    parsed = guarded(config, make)
    parsed = _of_the_text(parsed)
    _refuse_other_than_language_models(parsed.model_type, parsed)
    return parsed


def without_dropout(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with every probability of dropout 0, those of its class's defaults too."""
    parsed = parse(config)
    rates = [name for name, value in vars(parsed).items() if "drop" in name and isinstance(value, float)]
    return {**config, **dict.fromkeys(rates, 0.0)}


def with_layers(config: Mapping[str, Any], num_hidden_layers: int) -> dict[str, Any]:
    """Return `config` with its first `layers` layers only; lists with an entry per layer are shortened.

    Raises ValueError where `layers` is not between 1 and the config's own number.
    """
    parsed = parse(config)
    available = number_of_layers(parsed)
    if not isinstance(getattr(parsed, "num_hidden_layers", None), int):
        raise ValueError(f"model_type {parsed.model_type!r} has a number of layers in each of its sections")
    if not 1 <= num_hidden_layers <= available:
        raise ValueError(
            f"num_hidden_layers={num_hidden_layers}: the config has {available}; allowed: 1 to {available}"
        )
    shorter = {
        key: value[:num_hidden_layers] if isinstance(value, list) and len(value) == available else value
        for key, value in config.items()
    }
    name = type(parsed).attribute_map.get("num_hidden_layers", "num_hidden_layers")
    shorter.pop("num_hidden_layers", None)
    return shorter | {name: num_hidden_layers}


def is_encoder(parsed: Any) -> bool:
    """Return whether the model is an encoder: it is trained to predict masked tokens."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    return parsed.model_type in MASKED and not getattr(parsed, "is_decoder", False)


def _of_the_text(parsed: Any) -> Any:
    """Return the config of the language model in a multimodal one whose config.json leaves it out."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    text = getattr(parsed, "text_config", None)
    if text is None or isinstance(text, dict):
        return parsed
    if text.model_type not in CAUSAL and parsed.model_type in CAUSAL:
        if causal_class(parsed).config_class is not type(text):
            return parsed
        _OF_SECTIONS[type(text)] = parsed
    return text if text.model_type in CAUSAL or type(text) in _OF_SECTIONS else parsed


_OF_SECTIONS: dict[type, Any] = {}
"""By the class of a text section: a config whose language model is built from that section alone."""


def causal_class(parsed: Any) -> Any:
    """Return the class of the causal language model that is built from a config."""
    import transformers

    parsed = _OF_SECTIONS.get(type(parsed), parsed)
    if (name := _of_pretraining().get(parsed.model_type)) is not None:
        return getattr(transformers, name)
    return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(parsed)]


def _of_pretraining() -> dict[str, str]:
    """Return by model_type the causal classes that stand in the map of pretraining alone, as mistral4's."""
    from transformers.models.auto import modeling_auto

    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    every = modeling_auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES.items()
    return {kind: name for kind, name in every if kind not in causal and str(name).endswith("ForCausalLM")}


def has_encoder_and_decoder(parsed: Any) -> bool:
    """Return whether the model is an encoder with a decoder, both of which read token numbers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES as BOTH

    return bool(getattr(parsed, "is_encoder_decoder", False)) and parsed.model_type in BOTH


def _refuse_other_than_language_models(model_type: str, parsed: Any) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    causal = model_type in {*CAUSAL, *_of_pretraining()} or type(parsed) in _OF_SECTIONS
    if not causal and not is_encoder(parsed) and not has_encoder_and_decoder(parsed):
        raise Unavailable(
            f"transformers {version()} has no causal or masked language model for model_type {model_type!r}"
            ": give a function that makes it as model_code= (suite.model= of a suite)"
        )
    if not number_of_layers(parsed):
        raise Unavailable(f"model_type {model_type!r} does not state its number of layers")


def number_of_layers(parsed: Any) -> int:
    """Return a model's number of layers, its decoder's where it has sections; 0 where it states none."""
    layers = getattr(parsed, "num_hidden_layers", None)
    if isinstance(layers, int):
        return layers
    section = getattr(parsed, "decoder", None)
    return 0 if section is None else number_of_layers(section)


def guarded(config: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Return `make(config)`; any exception about the config becomes `Unavailable` with the key at fault."""
    model_type = config["model_type"]
    try:
        with values_not_needed(model_type):
            return make(config)
    except Unavailable:
        raise
    except Exception as error:  # values that are not checked fail with any
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        why = explained(config, error, make, CONFIG_MAPPING[model_type].attribute_map)
        raise Unavailable(f"config.json of model_type {model_type!r}: {why}") from error


@contextmanager
def values_not_needed(model_type: str) -> Iterator[None]:
    """Raise a readable error where a model cannot run on fake tensors."""
    try:
        yield
    except torch_internals.errors_for_want_of_values() as error:
        needs = f"needs values that fake tensors do not have: {one_line(error)}"
        raise Unavailable(f"model_type {model_type!r} {needs}") from error


def version() -> str:
    """Return the version of the installed transformers."""
    import transformers

    return str(transformers.__version__)


KEY = "quantization_config"
INSTEAD = "remove quantization_config to ask about training the dequantized weights"


def refuse_quantized(config: Mapping[str, Any], lora: Mapping[str, Any] | None = None) -> None:
    """Raise `Unavailable` unless the recipe stores weights as the config does.

    `lora`: the settings of the technique lora; None: the step has no such technique.
    """
    section = config.get(KEY)
    if section is None:
        return
    base = base_of(section)
    if base is None:
        method = shown(section.get("quant_method"))
        raise Unavailable(
            f"{KEY}.quant_method is {method}; it must be bitsandbytes (nf4 or 8 bits) with the technique "
            f"lora, or {INSTEAD}"
        )
    if lora is None or lora.get("base") != base:
        raise Unavailable(
            f"{KEY} stores weights as {base}, which are trained by techniques=[{{lora: {{base: {base}}}}}]; "
            f"or {INSTEAD}"
        )
    double = bool(section.get("bnb_4bit_use_double_quant", False))
    if base == "nf4" and lora.get("double_quantization", True) != double:
        word = str(double).lower()
        raise Unavailable(
            f"{KEY}.bnb_4bit_use_double_quant is {word}; the technique needs lora: {{base: nf4, "
            f"double_quantization: {word}}}"
        )


def base_of(section: Mapping[str, Any]) -> str | None:
    """Return the `base` of lora that stores weights so; None where there is none."""
    if section.get("quant_method", "bitsandbytes") != "bitsandbytes":
        return None
    if section.get("load_in_8bit") is True:
        return "int8"
    four_bits = section.get("load_in_4bit") is True
    return "nf4" if four_bits and section.get("bnb_4bit_quant_type") == "nf4" else None
