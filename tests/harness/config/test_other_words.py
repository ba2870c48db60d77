"""Words that people use for techniques, and names that are nearly right."""

import re

import pytest

from harness.commands.grammar import device_file, device_of
from harness.config.techniques import IN_LISTS, combination, declared
from harness.config.validation import ConfigError


@pytest.mark.parametrize("word", sorted(IN_LISTS))
def test_a_word_that_people_use_names_a_technique_that_exists(word):
    entry = IN_LISTS[word]
    assert word not in declared()
    assert any(name in entry for name in declared())
    for typed in {word, word.replace("_", "-").upper()}:
        with pytest.raises(ConfigError, match=rf"^techniques\.{typed}: no such name; .*{re.escape(entry)}"):
            combination([typed])
    if entry.endswith("}"):
        name, _, settings = entry.partition(": ")
        given = [one.split(": ") for one in settings.strip("{}").split(", ")]
        values = {key: int(value) if value.isdigit() else value == "true" or value for key, value in given}
        assert combination([{name: values}])[0][0] == name


def test_a_variant_of_a_device_has_about_as_much_memory():
    for variant in ("h800", "gh200", "mi325x", "h100_96gb", "a100_64gb", "h100_80gb_500w"):
        assert device_of(variant) == (variant, None)
        assert device_file(variant)
    for typed in ("a100_8gb", "h100_9999gb", "h100_fast"):
        with pytest.raises(ConfigError, match=f"^device={typed}: expected a size"):
            device_of(typed)
