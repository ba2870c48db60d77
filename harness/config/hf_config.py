"""Read a user's own model, a Hugging Face config.json, as far as the parent can without torch.

Values that no architecture can have are refused before anything is built, and so is a `model_type` that the
installed transformers' source does not have; nothing of it is imported. What depends on the architecture is
found by the worker: `suites.training.models.config_fault`.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.validation import nearest

OF_TEXT = ("text_config", "llm_config", "language_config")
"""Sections of the language model: transformers', InternVL's and DeepSeek-VL2's."""

OBJECTS = (*OF_TEXT, "quantization_config", "rope_scaling", "rope_parameters")
TEXTS = ("hidden_act", "activation_function", "hidden_activation", "torch_dtype", "dtype", "model_type")
LISTS = ("layer_types", "architectures")
FLAGS = ("tie_word_embeddings", "use_cache", "is_decoder", "is_encoder_decoder")

KINDS: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(OBJECTS, (dict, "an object")),
    **dict.fromkeys(TEXTS, (str, "text")),
    **dict.fromkeys(LISTS, (list, "a list")),
    **dict.fromkeys(FLAGS, (bool, "true or false")),
}
"""What a key has in every architecture, where it is not null."""

COUNTED = re.compile(r"(num_|n_|moe_).*(layers?|experts?|blocks?)|n_layers?|.*_layers|num_.*heads|n_heads?")
"""Keys that count modules, each of which is built."""

NEVER_NEGATIVE = re.compile(r"(num|n)_.*|.*_(size|dim|rank|heads|layers|width)")
SHARE = re.compile(r"drop(out)?$|dropout_(prob|rate|p)$|pdrop$|^(partial_rotary_factor|rotary_pct|rope_pct)$")
"""Keys of probabilities, and of the share of a head's dimensions that is rotated."""

UNLIMITED = re.compile(r"window|chunk|context")
"""Parts of keys whose negative values mean that there is no limit."""

MOST_LAYERS = 1024
MOST_COUNTED = 16_384
"""Modules of one kind at most. Ten times as many as any published model has are too many to be built."""

LARGEST_NUMBER = 2**63 - 1  # torch's sizes are int64
SHOWN = 60  # characters of a value that an error message shows


def parse_object(text: str) -> Any:
    """Return the JSON value of `text`; raises ValueError where a key of an object is given twice."""
    return json.loads(text, object_pairs_hook=_without_doubles)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise ValueError(f"{_word(key)} is given twice")
    return dict(pairs)


def shown(value: Any) -> str:
    """Return a value as JSON, shortened in the middle."""
    try:
        text = json.dumps(value)
    except ValueError:  # a number of more digits than Python prints
        text = "a number of thousands of digits"
    half = SHOWN // 2
    return text if len(text) <= SHOWN else f"{text[: half - 1]} … {text[-half + 2 :]}"


def fault(key: str, value: Any, expected: str) -> str:
    """Return in a line what a key has and what it must have."""
    return f"{_word(key)} is {shown(value)}; it must be {expected}"


def refuse_kinds(file: Path, config: Mapping[str, Any]) -> None:
    """Raise ValueError where a key that every architecture has is of another type."""
    for path, key, value in _entries(config):
        kind, words = KINDS.get(key, (object, ""))
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{file}: {fault(path, value, words)}")


def refuse_values(file: Path, config: Mapping[str, Any]) -> None:
    """Raise ValueError where a number is none, or is too large or too small for any architecture."""
    for path, key, value in _entries(config):
        if expected := _expected_number(key, value):
            raise ValueError(f"{file}: {fault(path, value, expected)}")


def _entries(value: Any, path: str = "", key: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield the path, the key and the value of every entry, at any depth; items of lists have no key."""
    if path:
        yield path, key, value
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _entries(one, f"{path}.{name}" if path else name, name)
    elif isinstance(value, list):
        for one in value:
            yield from _entries(one, path)


def _expected_number(key: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if math.isnan(value) or (key and math.isinf(value)):
        return "a finite number"
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        return f"at most {LARGEST_NUMBER} in size"
    if value < 0 and key in BUILT:
        return "a number of at least 1"
    if value < 0 and NEVER_NEGATIVE.fullmatch(key) and not UNLIMITED.search(key):
        return "a number of at least 0"
    if SHARE.search(key) and not 0 <= value <= 1:
        return "a number from 0 to 1"
    if COUNTED.fullmatch(key) and value > (most := MOST_LAYERS if "layer" in key else MOST_COUNTED):
        return f"at most {most:,}"
    return ""


def _word(key: str) -> str:
    """Return a key for display: as it is where it is a name."""
    return key if re.fullmatch(r"[\w.-]{1,80}", key) else shown(key)


ENTRY = re.compile(r"""["']([\w.-]+)["'][,:]\s*["']\w+Config["']""")
"""A `model_type` with its config class, in the tables of transformers.models.auto."""


def models_folder() -> Path | None:
    """Return the folder of all architectures; None where transformers is not installed."""
    spec = find_spec("transformers")
    return Path(spec.origin).parent / "models" if spec and spec.origin else None


@cache
def model_types() -> frozenset[str]:
    """Return every `model_type` that has a config class; empty where that cannot be read."""
    folder = models_folder()
    files = sorted(folder.glob("auto/*.py")) if folder else []
    tables = [file for file in files if file.stem in ("auto_mappings", "configuration_auto")]
    return frozenset(name for file in tables for name in ENTRY.findall(file.read_text(encoding="utf-8")))


OWN_CODE = (
    "its own code is not run: give the config.json of its language model, or its code as "
    "model_code= (suite.model= of a suite)"
)


def has_own_code(config: Mapping[str, Any]) -> bool:
    """Return whether a model of an unknown type has code of its own: it names it, or has a tower."""
    return "auto_map" in config or any(tower in config for tower in TOWERS)


def unknown_model_type(model_type: str, own_code: bool) -> str:
    """Return why transformers cannot build a model; "" where it can, or where that is not known here."""
    known = model_types()
    if not known or model_type in known:
        return ""
    near = "" if own_code else nearest(model_type, known)
    hint = f"; did you mean {near}?" if near else ""
    own = f"; {OWN_CODE}" if own_code else ""
    from importlib.metadata import version  # 30 ms, for an error's text alone

    return f"model_type {model_type!r} is unknown to transformers {version('transformers')}{hint}{own}"


def has_size(model_type: str, name: str) -> bool:
    """Return whether an architecture's config class has a size; True where that cannot be read."""
    folder = models_folder()
    names = (model_type.replace("-", "_"), model_type.removesuffix("_text"))
    files = [folder / one / f"configuration_{one}.py" for one in names] if folder else []
    source = next((file.read_text(encoding="utf-8") for file in files if file.is_file()), name)
    return name in source


LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads")
WIDTHS = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
VOCAB = ("vocab_size",)
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
"""Names under which config.json files give a size; transformers' config classes map each to one attribute."""

SIZES = {
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_VALUE_HEADS,
    "intermediate_size": WIDTHS,
    "vocab_size": VOCAB,
}
"""Sizes of a model, by the names of a workload's fields."""

BUILT = frozenset(name for names in SIZES.values() for name in names)
"""Names of sizes without which there is nothing to build."""

AFTER_PADDING = frozenset(
    ["camembert", "data2vec-text", "ibert", "longformer", "roberta", "roberta-prelayernorm", "xlm-roberta"]
)
"""Architectures whose positions begin after the padding token's number: 1 unless a config says more."""

USUAL_SEQ_LEN = 2048  # sequence length where `suite.hf_defaults.seq_len` is not given

OF_ALL_SECTIONS = ("tie_word_embeddings", "quantization_config")
"""Keys next to a `text_config` that also concern the language model."""

TOWERS = ("vision_config", "audio_config", "vision_tower")
"""Keys of a model that has a tower for images or sound next to its language model."""

LANGUAGE_MODELS = {
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), "qwen2"),
    **{"qwen2_5_omni_text": "qwen2", "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe"},
    **{"glm4v_text": "glm4", "gemma3": "gemma3_text", "gemma3n": "gemma3n_text"},
    **dict.fromkeys(("llava", "llava_next", "llava_next_video", "video_llava", "idefics3"), "llama"),
    **dict.fromkeys(("mistral3", "pixtral"), "mistral"),
    **dict.fromkeys(("paddleocr_vl", "paddleocr_vl_text"), "ernie4_5"),
    **dict.fromkeys(("granite4_vision_text", "granite_docling_text"), "granite"),
    **{"qwen3_omni_moe_text": "qwen3_moe", "glm4v_moe_text": "glm4_moe"},
}
"""The architecture of the language model in a multimodal one, by its own model_type or its section's.

Both have the same parameters in transformers 5.23.0.
"""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")  # name of a model on the Hub: owner/model
LARGEST_FILE_B = 10_000_000  # no config.json comes near this size; weights given by mistake are not read


class FileWorkload(NamedTuple):
    """What a config.json describes. `missing`: of `SIZES`, those that it leaves to its config class."""

    name: str
    fields: dict[str, Any]
    missing: tuple[str, ...]


def read_workload_file(path: str | Path) -> dict[str, Any]:
    """Return the config of the language model in a file, see `_read`."""
    return _read(Path(path))[0]


def _read(file: Path) -> tuple[dict[str, Any], str]:
    """Return the config of the language model in the config.json `file`, or in that folder, and its origin.

    For a multimodal model it is the `text_config`. Sizes that the file has are checked; those that it
    leaves out are the defaults of transformers' config class. Raises ValueError with one line that names the
    file, what is wrong and what is allowed.
    """
    if file.is_dir():
        file = file / "config.json"
    config = _parse(file, _text(file))
    if not isinstance(config, dict):
        kinds = {list: "list", str: "string", bool: "boolean", int: "number", float: "number"}
        kind = kinds.get(type(config), "null")
        raise ValueError(f"{file}: is a JSON {kind}; a config.json is one object")
    whole = config
    refuse_kinds(file, config)
    origin = section = ""
    if isinstance(config.get("thinker_config"), dict):
        config = config["thinker_config"]
    towers: dict[str, Any] = {key: {} for key in TOWERS if config.get(key) is not None}
    if name := next((one for one in OF_TEXT if config.get(one) is not None), None):
        origin, section = f"{config.get('model_type')}: its {name}, ", f"{name}."
        own = {key: config[key] for key in OF_ALL_SECTIONS if config.get(key) is not None}
        usual = LANGUAGE_MODELS.get(str(config.get("model_type")))
        config = own | ({"model_type": usual} if usual else {}) | config[name]
    if towers and config.get("model_type") in LANGUAGE_MODELS:
        config = config | {"model_type": LANGUAGE_MODELS[config["model_type"]]}
    config = config | towers
    if not (model_type := config.get("model_type")):
        raise ValueError(
            f"{file}: {section}model_type is missing; it names the architecture, such as 'llama'"
        )
    for names in (LAYERS, HIDDEN, HEADS, VOCAB):
        given = [name for name in names if name in config]
        if _size(file, config, names) is None and given:
            raise ValueError(f"{file}: {fault(given[0], None, 'a whole number above 0')}")
    refuse_values(file, whole)
    return config, f"config.json of {origin}{model_type}, given by the user"


def _text(file: Path) -> str:
    try:
        if not stat.S_ISREG((found := file.stat()).st_mode):
            raise ValueError(f"{file}: is not a file; give a config.json or the folder of one")
        if found.st_size > LARGEST_FILE_B:
            raise ValueError(f"{file}: larger than {LARGEST_FILE_B / 1e6:g} MB, so it is not a config.json")
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: is not text in UTF-8, so it is not a config.json") from error
    except OSError as error:
        name, hub = file.as_posix(), ""
        if HUB_ID.fullmatch(name) and file.suffix != ".json":
            hub = f"; for a model on the Hub: hf download {name} config.json --local-dir ."
        reason = error.strerror or error
        raise ValueError(f"{file}: {reason}; give a config.json or the folder of one{hub}") from error


def _parse(file: Path, text: str) -> Any:
    try:
        return parse_object(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{file}: not JSON at {where}: {error.msg}") from error
    except RecursionError as error:
        raise ValueError(f"{file}: nested too deeply to be a config.json") from error
    except ValueError as error:
        raise ValueError(f"{file}: {str(error).partition(';')[0]}") from error


def _size(file: Path, config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """Return the first of `names` that the config gives, an integer above 0; None where it gives none.

    A width may be a list with an entry per layer, of which the largest is returned.
    """
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        each = value if names is WIDTHS and isinstance(value, list) and value else [value]
        if not all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in each):
            raise ValueError(f"{file}: {fault(name, value, 'a whole number above 0')}")
        return int(max(each))
    return None


def positions_unused(model_type: str, pad_token_id: Any) -> int:
    """Return how many of a model's positions no token can have."""
    if model_type not in AFTER_PADDING:
        return 0
    return (pad_token_id if isinstance(pad_token_id, int) else 1) + 1


def workload_from_file(
    path: Path, num_hidden_layers: int | None = None, usual_seq_len: int = USUAL_SEQ_LEN
) -> FileWorkload:
    """Return a name for the workload that the file describes, and its fields: the config and its sizes.

    `num_hidden_layers`: its first layers alone; None: all. `usual_seq_len`: the length where the model has as
    many positions.

    The name is the file's, or its folder's where the file is called config.json. Sizes that a config leaves
    to its architecture's class get placeholders, which the worker replaces by the model's own.
    """
    config, source = _read(path)
    file = path / "config.json" if path.is_dir() else path
    if num_hidden_layers is not None:
        source += f", the first {num_hidden_layers} of {_size(file, config, LAYERS)} layers"
        config = _first_layers(file, config, num_hidden_layers)
    name = file.resolve().parent.name if file.stem == "config" else file.stem
    fields, missing = workload_of_config(config, file, source, usual_seq_len)
    return FileWorkload(name or str(config["model_type"]), fields, missing)


def workload_of_config(
    config: Mapping[str, Any],
    file: Path = Path("config.json"),
    source: str = "",
    usual_seq_len: int = USUAL_SEQ_LEN,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields of a workload that a config describes, and the sizes that it leaves out.

    `file`: for error messages. Raises ValueError with one line.
    """
    found, model_type = {size: _size(file, config, of) for size, of in SIZES.items()}, config["model_type"]
    own_heads, shared = found["num_attention_heads"], found["num_key_value_heads"]
    if own_heads and shared and own_heads % shared and has_size(model_type, "num_key_value_heads"):
        raise ValueError(
            f"{file}: num_attention_heads is {own_heads}; it must be a multiple of num_key_value_heads, "
            f"{shared}"
        )
    max_position_embeddings = _size(file, config, POSITIONS) or 2**20
    longest = max_position_embeddings - positions_unused(model_type, config.get("pad_token_id"))
    left_out = [size for size in ("num_hidden_layers", "hidden_size", "vocab_size") if found[size] is None]
    defaults = f"; {', '.join(left_out)}: default of its class" if left_out else ""
    # Placeholders that each field allows: an MLP of four hidden sizes, as many heads.
    hidden_size = found["hidden_size"] or 1
    heads = found["num_attention_heads"] or found["num_key_value_heads"] or 1
    fields = {
        "num_hidden_layers": found["num_hidden_layers"] or 1,
        "hidden_size": hidden_size,
        "num_attention_heads": heads,
        "num_key_value_heads": found["num_key_value_heads"] or heads,
        "intermediate_size": found["intermediate_size"] or 4 * hidden_size,
        "vocab_size": found["vocab_size"] or 2,
        "max_position_embeddings": max_position_embeddings,
        "seq_len": min(usual_seq_len, longest),
        "hf_config": config,
        "source": source + defaults,
    }
    return fields, tuple(size for size, value in found.items() if value is None)


def _first_layers(file: Path, config: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the config with its first layers; lists with an entry per layer are shortened."""
    available = _size(file, config, LAYERS) or 0
    if not available:
        raise ValueError(f"{file}: does not give its number of layers, so it cannot be shortened")
    if count > available:
        raise ValueError(f"{file}: has {available} layers; suite.hf_defaults.num_hidden_layers={count}")
    shorter = {
        key: value[:count] if isinstance(value, list) and len(value) == available else value
        for key, value in config.items()
    }
    return shorter | {name: count for name in LAYERS if name in config}
