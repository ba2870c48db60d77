"""Questions about the seconds of a step: of one layout, or of the fastest."""

from __future__ import annotations

from dataclasses import replace

from harness.ask.words import ADVISE, SEARCH, Mode, question_from
from harness.commands.grammar import CommandWords, device_of
from harness.config.validation import ConfigError
from harness.question import FieldOrigin, Question


def question_of(words: CommandWords, mode: Mode = ADVISE) -> Question:
    """Return what the words ask about seconds: of one layout, or of the fastest; raises ConfigError."""
    if "layout" not in words and "config" not in words:
        words = replace(words, values={**words.values, "layout": SEARCH})
    if "device" in words and not device_of(words.values["device"]).option:
        text = words.values["device"]
        raise ConfigError(f"device={text}: seconds need a GPU's rates; give a name of conf/hardware")
    question = question_from(words)
    if "devices" not in words and "config" not in words:
        raise ConfigError("gpus: missing; give the number of GPUs, as gpus=128")
    if "mine" in words and question.search:
        raise ConfigError("mine: needs the layout of your run, as layout=tp:8,pp:4, or config=FILE")
    if question.devices is not None:
        return question
    try:
        devices = question.dp_of() * question.model_ranks
    except ValueError as error:
        raise ConfigError(str(error).replace("devices", "gpus")) from error
    return question.with_fields(FieldOrigin("key", "dp"), devices=devices)


def searching(question: Question) -> Question:
    """Return the question about every layout in place of one."""
    plain = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "etp": None, "virtual_stages": 1, "dp": None, "replicas": 1}
    recipe = {"micro_batch_size": 1, "recompute": "none", "layers_per_stage": None, "layers_of_stages": ()}
    batch = question.global_batch_size or (
        question.micro_batch_size * question.micro_batches() * question.dp_of()
        if question.gradient_accumulation_steps
        else None
    )
    return question.with_fields(
        FieldOrigin("assumption", "every layout is tried"),
        **{**plain, **recipe, "search": True, "shard_size": None},
        global_batch_size=batch,
        gradient_accumulation_steps=None,
    )
