"""`techniques=[...]` of a command: one more variant, checked before anything runs."""

import pytest

from harness.commands.listing import choices
from harness.config.run import load
from harness.config.techniques import checked_techniques
from harness.config.validation import ConfigError


def run_of(*words, suite="memory"):
    (run,) = load([f"suite={suite}", *words])
    return run


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("fsdp2,attention", {"attention": {}, "fsdp2": {}}),
        ("activation_checkpointing.full", {"activation_checkpointing": {"mode": "full"}}),
        ("fsdp2.bf16", {"fsdp2": {"reduce_dtype": "bf16"}}),  # the only setting with such a choice
        ("zero.2", {"zero": {"stage": 2}}),
        ("gradient_accumulation.4", {"gradient_accumulation": {"steps": 4}}),  # the first setting
        ("host_update.true", {"host_update": {"delay": True}}),
        ("{zero: {stage: 3, parameters: host}}", {"zero": {"stage": 3, "parameters": "host"}}),
    ],
)
def test_a_technique_is_a_name_a_name_with_a_value_or_a_mapping(word, expected):
    assert dict(run_of(f"techniques=[{word}]").variants[-1].techniques) == expected
    if "zero.2" in word:  # a YAML has the same grammar
        assert checked_techniques("here", [word]) == checked_techniques("here", [expected])


def test_a_suite_that_does_not_train_takes_no_techniques_and_completes_none():
    with pytest.raises(ConfigError, match=r"^here='compile': expected a list"):
        checked_techniques("here", "compile")
    assert choices("python -m harness suite=fabric techniques=[") == []
    completed = choices("python -m harness suite=memory techniques=[zero.")
    assert completed[:3] == [f"techniques=[zero.{stage}" for stage in (1, 2, 3)]
