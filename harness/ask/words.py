"""The words of a command as a `Question`: one grammar for fit, advise and cost, and for the page's controls.

A word that a mode cannot use is refused by its name and the mode's. What the command gives replaces what a
file says, and each field keeps where it comes from.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from typing import Any, get_args

from harness import question as typed
from harness.commands.grammar import MOST, CommandWords, device_of, read
from harness.config.hf_config import (
    SIZES,
    USUAL_SEQ_LEN,
    has_own_code,
    parse_object,
    refuse_kinds,
    refuse_values,
    unknown_model_type,
    workload_from_file,
)
from harness.config.validation import ConfigError, unknown
from harness.question import FieldOrigin, NamedTechnique, Question
from harness.records import Unavailable

PARTS = ("dp", "tp", "pp", "cp", "ep", "etp", "virtual_stages", "zero", "shard_size", "sequence_parallel")
"""Parts of a layout."""

PART = re.compile(r"([a-z_]+)[:=]?(\d+)")
COUNTS = {"k": 1e3, "M": 1e6, "B": 1e9}
COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kMB]?)")
RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(gbit|gbit/s|gbps|tbit|tbit/s|gb/s|gbyte/s)(/node)?", re.IGNORECASE)

VERSION = re.compile(r"\d+\.\d+(?:\.|\+|$)")

NEARLY = 0.05
"""How far a power of two may be from a number of sequences that was given with k, M or B, to be meant."""

LINKS_IN_USE_B_PER_S = (1e8, 2e11)
"""Rates per device of networks that anybody has: 0.8 Gbit/s to 1.6 Tbit/s."""

SHARING_OF_PROGRAM = {program: how for how, program in typed.PROGRAM_OF_SHARING.items() if how != "ddp"}

UNDIVIDED = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "etp": None, "virtual_stages": 1, "dp": None}
OF_FILES = {"layers_per_stage": None, "layers_of_stages": (), "replicas": 1}
"""What `layout=` puts in place of a question's layout, and of what only a framework's file says of it."""

EVERY_LAYOUT = FieldOrigin("assumption", "every layout is tried")
NO_DEVICE = FieldOrigin("assumption", "no device was given")

NAMED = {
    **{"program": typed.ProgramName, "optimizer": typed.Optimizer, "precision": typed.PrecisionName},
    **{"recompute": typed.Recompute, "dispatcher": typed.Dispatcher},
}
CHOICES: Mapping[str, Mapping[str, Any]] = {
    **{key: {name: name for name in get_args(kind)} for key, kind in NAMED.items()},
    **{
        key: {"true": True, "false": False}
        for key in ("fused_loss", "fused_layers", "compiled", "expandable_segments")
    },
    "offload": {"none": (), "optimizer": ("optimizer",), "parameters": ("optimizer", "parameters")},
}
"""Words with a closed list, by what stands for what value."""

WORD_OF_FIELD = {"memory_B": "device", "network_B_per_s": "link", "network": "link", "compile": "compiled"}
"""Words of a command by the fields that they give, where the names differ."""


@dataclass(frozen=True)
class Mode:
    """What a command answers, and the words that only it or its neighbours use."""

    name: str  # as refusals have it
    own: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()  # of the words of a question


OF_MODEL = (
    *("model", "model_code", "config", "vocab_size", "device", "devices", "gpus", "gpus_per_node"),
    *("seq_len", "micro_batch_size"),
)
OF_RUN = ("global_batch_size", "tokens_per_batch", "layout", "program", "link")
OF_RECIPE = (
    *("techniques", "optimizer", "precision", "recompute", "recompute_modules", "dispatcher", "offload"),
    *("imbalance", "fused_loss", "fused_layers", "compiled", "expandable_segments", "torch"),
)
BESIDE_TECHNIQUES = ("optimizer", "expandable_segments", "torch")
"""Words of a recipe that stand next to a list of techniques."""

QUESTION = (*OF_MODEL, *OF_RUN, *OF_RECIPE)
"""Words that describe a run, in any command."""

NOT_OF_SECONDS = ("techniques", "recompute_modules", "model_code", "torch")

FIT = Mode("bytes (harness.fit)", ("what_ifs", "write", "show", "out"), ("link",))
OOM = Mode("an out-of-memory message (oom=)", ("oom",), ("link", "layout", "techniques", "program"))
ADVISE = Mode("seconds (harness.advise)", ("mine", "rate", "price", "write", "show", "out"), NOT_OF_SECONDS)
COST = Mode(
    "the price of a run (harness.cost)", ("tokens", "rate", "price", "prices", "show", "out"), NOT_OF_SECONDS
)
MODES = (FIT, OOM, ADVISE, COST)
ALL = tuple(dict.fromkeys([*QUESTION, *(key for mode in MODES for key in mode.own), "questions", "serve"]))

ALIASES = {"gpus": "devices", "price": "rate"}
"""Two names of one word."""


@contextmanager
def mistake(where: str = "") -> Iterator[None]:
    """Raise ConfigError in place of a ValueError or of `Unavailable`, with the words that it is about."""
    try:
        yield
    except (ValueError, Unavailable) as error:
        raise ConfigError(f"{where}{error}") from error


def words_of(argv: Sequence[str], mode: Mode) -> CommandWords:
    """Return the words of a command, checked for the mode; raises ConfigError."""
    words = read(argv, ALL)
    if words.paths:
        raise ConfigError(f"{words.paths[0]}: expected KEY=VALUE; keys: {', '.join(allowed(mode))}")
    for key in words.values:
        if key not in allowed(mode):
            uses = ", ".join(other.name for other in MODES if key in allowed(other))
            where = f"; {uses} has it" if uses else ""
            raise ConfigError(f"{key}: not used for {mode.name}{where}")
    words.one_of("show", ("all",), "")
    if "write" in words:
        from harness.frameworks.table import framework_named

        with mistake(f"{words.typed['write']}: "):
            framework_named(words.values["write"])
    return with_one_name(words)


def with_one_name(words: CommandWords) -> CommandWords:
    """Return the words, each by the first of its names; raises ConfigError where both are given."""
    for one, other in ALIASES.items():
        if one in words and other in words:
            raise ConfigError(f"{one}: {other} is given, too; they are two names of one key")

    def renamed(given: Mapping[str, str]) -> dict[str, str]:
        return {ALIASES.get(key, key): text for key, text in given.items()}

    return CommandWords(words.paths, renamed(words.values), renamed(words.typed))


def allowed(mode: Mode) -> tuple[str, ...]:
    """Return the keys that a mode has."""
    return tuple(key for key in (*QUESTION, *mode.own) if key not in mode.unused)


def question_from(words: CommandWords) -> Question:
    """Return what the words ask, on top of a framework's file where `config=` names one.

    Raises ConfigError.
    """
    with mistake():
        question = of_file(words) if "config" in words else of_model(words)
        for with_words in (with_sizes, with_cluster, with_recipe, with_layout):
            question = with_words(question, words)
        question = with_batch(of_device(question.undivided()), words)
    missing = [(name, origin.of) for name, origin in question.origins.items() if origin.kind == "missing"]
    for name, why in missing:
        where = "config" if words.values["config"].startswith("{") else words.typed["config"]
        raise ConfigError(f"{where}: {why}; give {WORD_OF_FIELD.get(name, name)}=")
    return question


def of_file(words: CommandWords) -> Question:
    """Return the question of a framework's file, with the model of `model=` where it is given."""
    from harness.frameworks.models import nearest_model
    from harness.frameworks.read import read_own_files, read_own_text

    text = words.values["config"]
    with mistake("config: " if text.startswith("{") else "config="):
        if text.startswith("{"):  # a file's content, as JSON
            question = read_own_text(text)
        else:
            question = read_own_files(list_of("config", words) if text.startswith("[") else [text])
    if "model" in words:
        question = with_model(question, words.values["model"])
    if question.config is None:
        why = "it names no model"
        if name := question.model_name:
            near = nearest_model(name)
            why = f"{name!r} has no published shape here{f'; the nearest is {near}' if near else ''}"
        counted = question.devices or question.dp or "devices" in words
        more = "" if counted else ", and devices=N, the number of GPUs"
        raise ValueError(
            f"model: missing; {question.format}: {why}; give model=PATH, a Hugging Face config.json{more}"
        )
    return question


def of_model(words: CommandWords) -> Question:
    """Return the question of `model=` alone, with this project's defaults."""
    if "model" not in words:
        raise ConfigError(
            "model: missing; give model=PATH, a Hugging Face config.json or its folder, or config=FILE"
        )
    return with_model(_assumed(Question(), devices=1), words.values["model"])


def with_sizes(question: Question, words: CommandWords) -> Question:
    """Return the question with the vocabulary, and the user's own code of the model, of the command."""
    if "model_code" in words:
        from harness.config.workloads import check_model

        code = check_model("model_code", words.values["model_code"])
        question = _from_command(question, {"model_code": code})
    if "vocab_size" in words:
        config = {**(question.config or {}), "vocab_size": words.whole("vocab_size", 1)}
        keys = tuple(key for key in question.keys if (key.key, key.status) != ("vocab_size", "not modelled"))
        question = _from_command(question, {"config": config, "keys": keys}, "vocab_size")
    return question


def with_model(question: Question, name: str) -> Question:
    """Return the question about another model: a config.json, its folder or content, or a published name."""
    from harness.frameworks.models import nearest_model, published_model, with_model_parts

    of, exists = FieldOrigin("command", "model"), os.path.exists(name)
    if name.startswith("{"):
        sizes = config_of_text(name)
        return question.with_fields(of, config=sizes, model_name="sizes", model_source="the command")
    if not exists and (shape := published_model(name)) is not None:
        config = dict(shape.config)
        return with_model_parts(
            question.with_fields(of, config=config, model_name=name, model_source=shape.source)
        )
    try:
        config = workload_from_file(Path(name)).fields["hf_config"]
    except ValueError as error:
        near = "" if exists or name.endswith(".json") else nearest_model(name)
        hint = f"; of published shapes {near} is the nearest name" if near else ""
        raise ConfigError(f"model: {error}{hint}") from None
    if reason := unknown_model_type(config["model_type"], has_own_code(config)):
        raise ConfigError(f"model: {name}: {reason}")
    file = Path(name)
    title = f"{file.parent.name}/{file.name}".strip("/") if file.name == "config.json" else file.name
    return with_model_parts(question.with_fields(of, config=config, model_name=title, model_source=name))


def config_of_text(text: str) -> dict[str, Any]:
    """Return the content of a config.json, or sizes without an architecture; raises ConfigError."""
    try:
        config = parse_object(text)
    except ValueError as error:
        raise ConfigError(f"model={text[:60]}: {error}") from None
    with mistake():
        refuse_kinds(Path("model"), config)
        refuse_values(Path("model"), config)
    if "model_type" in config:
        if reason := unknown_model_type(config["model_type"], has_own_code(config)):
            raise ConfigError(f"model: {reason}")
    elif missing := [name for name in SIZES if name not in config]:
        raise ConfigError(f"model={text[:60]}: {missing[0]} is missing, and so is model_type")
    return dict(config)


def positions_of(question: Question) -> int | None:
    """Return the positions of a question's model that tokens can have; None where its config has none."""
    from harness.config.hf_config import POSITIONS, positions_unused

    config = question.config or {}
    unused = positions_unused(str(config.get("model_type")), config.get("pad_token_id"))
    return next((int(config[name]) - unused for name in POSITIONS if config.get(name)), None)


def with_cluster(question: Question, words: CommandWords) -> Question:
    """Return the question with the command's devices and network."""
    fields: dict[str, Any] = {
        key: words.whole(key, 1) for key in ("devices", "gpus_per_node") if key in words
    }
    if "device" in words:
        device, memory_B = device_of(words.values["device"])
        if device:
            fields["device"] = device
        else:
            question = _assumed(question, device=Question().device)
        fields["memory_B"] = memory_B
    elif question.origin("device").kind == "assumption":
        question = question.with_fields(NO_DEVICE, device=question.device)
    if "link" in words:
        fields |= link_of(words.values["link"], fields.get("gpus_per_node", question.gpus_per_node))
    return _from_command(question, fields)


def _from_command(question: Question, fields: Mapping[str, Any], word: str = "") -> Question:
    for name, value in fields.items():
        of = word or WORD_OF_FIELD.get(name, name)
        question = question.with_fields(FieldOrigin("command", of), **{name: value})
    return question


def _assumed(question: Question, **fields: Any) -> Question:
    return question.with_fields(FieldOrigin("assumption"), **fields)


def link_of(text: str, gpus_per_node: int) -> dict[str, Any]:
    """Return a device's share of the network and its kind; raises ConfigError.

    `400gbit` is a port of each device, `3.2tbit/node` that of a node; `,efa` names AWS's network.
    """
    rate, _, kind = text.partition(",")
    network = kind or "infiniband"
    kinds = get_args(typed.NetworkName)
    if network not in kinds:
        raise ConfigError(f"link={text}: expected {' or '.join(kinds)} after the comma")
    match = RATE.fullmatch(rate.strip())
    if match is None:
        raise ConfigError(
            f"link={text}: expected a rate per GPU as 400gbit, or of a node as 3200gbit/node; ,efa after it "
            "is AWS's network"
        )
    value, unit = float(match[1]), match[2].lower()
    if unit in ("gb/s", "gbyte/s"):
        raise ConfigError(
            f"link={text}: did you mean {match[1]}gbit or {value * 8:g}gbit? Give the rate in bits"
        )
    bits = value * (1e12 if unit.startswith("t") else 1e9) / (gpus_per_node if match[3] else 1)
    low, high = LINKS_IN_USE_B_PER_S
    if not low <= bits / 8 <= high:
        raise ConfigError(
            f"link={text}: {bits / 1e9:g} Gbit/s per GPU; expected {low * 8 / 1e9:g} to {high * 8 / 1e9:g}"
        )
    return {"network_B_per_s": bits / 8, "network": network}


def with_recipe(question: Question, words: CommandWords) -> Question:
    """Return the question with the command's recipe and program."""
    if "techniques" in words:
        for key in OF_RECIPE[1:]:
            if key in words and key not in BESIDE_TECHNIQUES:
                raise ConfigError(f"{key}: techniques= is the whole recipe; name it there")
    fields: dict[str, Any] = {
        "compile" if key == "compiled" else key: values[words.one_of(key, values, "")]
        for key, values in CHOICES.items()
        if key in words
    }
    if "imbalance" in words:
        says = "tokens of the busiest experts over the mean, as 1.1"
        fields["imbalance"] = words.number("imbalance", says)
        if fields["imbalance"] < 1:
            raise ConfigError(f"{words.typed['imbalance']}: expected {says}; it is at least 1")
    if "recompute_modules" in words:
        fields["recompute_modules"] = tuple(map(str, list_of("recompute_modules", words)))
        fields.setdefault("recompute", "selective")
    if "techniques" in words:
        fields["techniques"] = techniques_of(words)
    if "torch" in words:
        if not VERSION.match(words.values["torch"]):
            raise ConfigError(f"{words.typed['torch']}: expected a version of torch, as 2.4")
        fields["torch"] = words.values["torch"]
    return _from_command(question, fields)


def list_of(key: str, words: CommandWords) -> list[Any]:
    """Return a list as JSON or in Hydra's grammar; raises ConfigError."""
    from harness.config.overrides import parse

    with suppress(ValueError):
        if isinstance(found := json.loads(words.values[key]), list):
            return found
    (override,) = parse([f"{key}={words.values[key]}"])
    value = override.value()
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ConfigError(f"{words.typed[key]}: expected a list, as in {key}=[{words.values[key]}]")
    return value


def techniques_of(words: CommandWords) -> tuple[NamedTechnique, ...]:
    """Return the techniques of `techniques=` with their settings, checked; raises ConfigError."""
    from harness.config.techniques import combination

    given = list_of("techniques", words)
    if words.text("optimizer", "adamw") != "adamw":
        given = [*given, {"optimizer": {"name": words.values["optimizer"]}}]
    return tuple((name, dict(settings)) for name, settings in combination(given))


def with_layout(question: Question, words: CommandWords) -> Question:
    """Return the question with the command's layout, and what a program does where nothing was said."""
    text = words.text("layout", "")
    if question.model_code and (text or max(question.model_ranks, question.ep) > 1):
        raise ConfigError(
            "model_code: not used where tp, pp, cp or ep divide the model, whose code is not run"
        )
    if text:
        if question.techniques is not None:
            raise ConfigError(
                "techniques: not used with layout=, whose recipe is recompute=, precision=, ..."
            )
        parts = {} if text == "search" else parts_of(text, question.devices or 1)
        question = question.with_fields(
            FieldOrigin("command", "layout") if "layout" in words.typed else EVERY_LAYOUT,
            **{**UNDIVIDED, **parts, "search": text == "search"},
            **(OF_FILES if "config" in words else {}),
        )
    if "config" in words:
        if "techniques" in words and max(question.model_ranks, question.ep) > 1:
            raise ConfigError("techniques: not used with a file that divides the model by tp, pp, cp or ep")
        return question
    if not text and question.program is None:
        several = question.techniques is None and (question.devices or 1) > 1
        return _assumed(question, sharing="fsdp2", zero=3) if several else question
    program = question.program or "megatron"
    assumed: dict[str, Any] = {"sharing": SHARING_OF_PROGRAM[program]}
    if question.program is None:
        assumed["program"] = program
    if "sequence_parallel" not in text:
        assumed["sequence_parallel"] = True
    if "zero" not in text:
        assumed["zero"] = 3 if program == "torchtitan" else 1
    return _assumed(question, **assumed)


def parts_of(text: str, devices: int) -> dict[str, Any]:
    """Return the parts of a layout as they were typed; raises ConfigError.

    `tp:8,pp:4` and `tp8,pp4` are the same. A `dp` must be what the others leave of the devices.
    """
    parts: dict[str, Any] = {}
    for one in text.strip("{}").split(","):
        match = PART.fullmatch(one.replace(" ", ""))
        if match is None:
            known = ", ".join(PARTS)
            raise ConfigError(
                f"layout={text}: expected search, or parts such as tp:8,pp:4,zero:1; parts: {known}"
            )
        name, size = match[1], int(match[2])
        if name not in PARTS:
            raise unknown(f"layout={one}", name, PARTS)
        if name in parts:
            raise ConfigError(f"layout={one}: {name} is given twice")
        least, most = {"sequence_parallel": (0, 1), "zero": (0, 3)}.get(name, (1, MOST))
        if not least <= size <= most:
            raise ConfigError(f"layout={one}: expected {name}:{least} to {name}:{most}")
        parts[name] = bool(size) if name == "sequence_parallel" else size
    dp = parts.pop("dp", None)
    ranks = parts.get("tp", 1) * parts.get("pp", 1) * parts.get("cp", 1)
    if dp is not None and dp * ranks != devices:
        raise ConfigError(
            f"layout=dp:{dp}: dp × tp × pp × cp = {dp * ranks}, and devices={devices}; give "
            f"devices={dp * ranks}, or no dp"
        )
    return parts


def of_device(question: Question) -> Question:
    """Return a file's question with micro-batches of a device's share of the step at most, as Composer's are.

    (llm-foundry 8c8dd48, utils/config_utils.py, calculate_batch_size_info)
    """
    if question.format != "llm_foundry" or not question.devices or not question.global_batch_size:
        return question
    share = question.global_batch_size // question.dp_of()
    origin = FieldOrigin("key", "global_train_batch_size")
    fewer = 1 <= share < question.micro_batch_size
    return question.with_fields(origin, micro_batch_size=share) if fewer else question


def with_batch(question: Question, words: CommandWords) -> Question:
    """Return the question with the command's lengths and batch; a length that nothing gives is assumed."""
    sizes = {key: words.whole(key, 1) for key in ("seq_len", "micro_batch_size") if key in words}
    question = _from_command(question, sizes)
    if question.seq_len is None:
        usual = min(USUAL_SEQ_LEN, positions_of(question) or USUAL_SEQ_LEN)
        question = question.with_fields(FieldOrigin("assumption", "no length was given"), seq_len=usual)
    given = [key for key in ("global_batch_size", "tokens_per_batch") if key in words]
    if len(given) > 1:
        raise ConfigError(
            f"{words.typed['tokens_per_batch']}: global_batch_size is given, too; give one of the two"
        )
    if not given:
        return question
    batch = words.whole("global_batch_size", 1)
    if given == ["tokens_per_batch"]:
        batch = sequences_of(words, question.seq_len or USUAL_SEQ_LEN)
    fields = {"global_batch_size": batch, "gradient_accumulation_steps": None}
    return _from_command(question, fields, *given)


def sequences_of(words: CommandWords, seq_len: int) -> int:
    """Return how many sequences have `tokens_per_batch` tokens; raises ConfigError."""
    typed_ = words.typed["tokens_per_batch"]
    match = COUNT.fullmatch(words.values["tokens_per_batch"])
    if match is None:
        raise ConfigError(f"{typed_}: expected a number of tokens, as 4M, 512k or 4194304")
    sequences = float(match[1]) * COUNTS.get(match[2], 1.0) / seq_len
    if match[2] and sequences >= 1:  # 4M stands for 4,194,304 tokens as often as for 4,000,000
        power = 2.0 ** round(log2(sequences))
        sequences = power if abs(power / sequences - 1) < NEARLY else round(sequences)
    if not 1 <= sequences <= MOST or sequences != int(sequences):
        raise ConfigError(
            f"{typed_}: no whole number of sequences of seq_len={seq_len} tokens, from 1 to {MOST:,}"
        )
    return int(sequences)


def step_question(words: CommandWords) -> Question:
    """Return what the words ask about seconds: of one layout, or of the fastest; raises ConfigError."""
    if "layout" not in words and "config" not in words:
        words = replace(words, values={**words.values, "layout": "search"})
    if "device" in words and not device_of(words.values["device"])[0]:
        text = words.values["device"]
        raise ConfigError(f"device={text}: seconds need a GPU's rates; give a name of conf/hardware")
    question = question_from(words)
    if "devices" not in words and "config" not in words:
        raise ConfigError("gpus: missing; give the number of GPUs, as gpus=128")
    if "mine" in words and question.search:
        raise ConfigError("mine: needs the layout of your run, as layout=tp:8,pp:4, or config=FILE")
    if question.devices is None:
        with mistake():
            question = question.with_fields(FieldOrigin("key", "dp"), devices=question.all_devices())
    return question


def searching(question: Question) -> Question:
    """Return the question about every layout in place of one."""
    batch = question.global_batch_size
    if not batch and question.gradient_accumulation_steps:
        batch = question.sequences_per_step()
    recipe = {"micro_batch_size": 1, "recompute": "none", "shard_size": None, "search": True}
    count = {"global_batch_size": batch, "gradient_accumulation_steps": None}
    return question.with_fields(EVERY_LAYOUT, **UNDIVIDED, **OF_FILES, **recipe, **count)
