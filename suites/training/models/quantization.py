"""Whether a training step honours the `quantization_config` of a config.json; if not, it is refused.

Frozen weights in 4 or 8 bits are the technique lora with its `base`; other quantized weights are not trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.config.user_inputs.config_values import shown
from harness.records import Unavailable

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
