"""Words that people use for techniques, and names of devices that are nearly right."""

import pytest

from harness.commands.grammar import device_of
from harness.config.run import names
from harness.config.techniques import IN_LISTS, combination, declared
from harness.config.validation import ConfigError


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("fp16", "mixed_precision"),
        ("qlora", "lora: {base: nf4}"),
        ("QLoRA", "lora: {base: nf4}"),
        ("zero3", "zero: {stage: 3}"),
        ("zero-2", "zero: {stage: 2}"),
        ("gradient_checkpointing", "activation_checkpointing"),
    ],
)
def test_a_word_that_people_use_names_what_it_means(word, meant):
    with pytest.raises(ConfigError, match=rf"techniques\.{word}: no such name; write ") as caught:
        combination([word])
    assert meant in str(caught.value)


def test_ddp_is_a_name():
    assert combination(["ddp"]) == (("ddp", {}),)


@pytest.mark.parametrize("word", sorted(IN_LISTS))
def test_what_is_meant_exists(word):
    entry = IN_LISTS[word]
    assert word not in declared()
    assert any(name in entry for name in declared())
    if entry.endswith("}"):
        name, _, settings = entry.partition(": ")
        given = dict(one.split(": ") for one in settings.strip("{}").split(", "))
        values = {
            key: {"true": True}.get(value, int(value) if value.isdigit() else value)
            for key, value in given.items()
        }
        assert combination([{name: values}])[0][0] == name


@pytest.mark.parametrize("name", ["v100_32gb", "rtx3090", "a10g", "t4", "l4", "a40", "RTX_A6000"])
def test_common_cards_are_there(name):
    assert device_of(name)[0] == name.lower()


@pytest.mark.parametrize(
    ("typed", "meant"), [("rtx_3090", "rtx3090"), ("a100", "a100_"), ("h100_80g", "h100_80gb")]
)
def test_a_device_that_is_misspelt_has_a_hint(typed, meant):
    assert meant in " ".join(names("hardware"))
    with pytest.raises(ConfigError, match=f"did you mean {meant}"):
        device_of(typed)
