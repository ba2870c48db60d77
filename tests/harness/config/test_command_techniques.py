"""`techniques=[...]` of a command: one more variant, checked before anything runs."""

import pytest

from harness.commands.listing import choices
from harness.config.run import load
from harness.config.techniques import checked_techniques, names, settings_of
from harness.config.validation import NUMBERS, ConfigError


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


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("", "techniques=[]: lists no technique; only=[baseline] runs plain PyTorch alone"),
        ("zero.4", "techniques.zero.4: no such name; allowed: 1, 2, 3, block, device, disk, host, model"),
        ("gradient_accumulation.%", "steps='%': expected a whole number"),
        ("zero.host", "write {zero: {optimizer: host}} or {zero: {parameters: host}}"),
        ("activation_checkpointing.ful", "did you mean full?"),
        ("gradient_accumulation.0", "gradient_accumulation.steps=0: expected a whole number of at least 1"),
        ("{lora: {dropout: 1}}", "lora.dropout=1: expected a number of at least 0 and below 1"),
        ("{zero: {ratio: 1.5}}", "zero.ratio=1.5: expected a number of at least 0 and at most 1"),
        ("{zero: {stage: true}}", "zero.stage=true: expected one of 1, 2, 3"),
        ("bf16_states.2", "this technique has no settings"),
        ("{fsdp2: {shard_withing: 2}}", "did you mean shard_within?"),
        ("3", "expected a name, or {name: {setting: value}}"),
        ("fsdp2,fsdp2.bf16", "fsdp2 is listed twice"),
        ("fsdp2,zero.2", "fsdp2 and zero both decide how ranks share the model; choose one of them"),
        ("zero,compile", "zero does not combine with compile: deepspeed's engine"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(word, said):
    with pytest.raises(ConfigError) as error:
        run_of(f"techniques=[{word}]")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_every_number_of_a_technique_has_a_lower_bound():
    for name in names():
        for setting, allowed in settings_of(name).items():
            if allowed.get("type") in NUMBERS and "one_of" not in allowed:
                assert allowed.keys() & {"at_least", "above"}, (name, setting)


def test_a_suite_that_does_not_train_takes_no_techniques_and_completes_none():
    with pytest.raises(ConfigError, match=r"suite fabric takes none; suites that do: .*memory"):
        run_of("techniques=[fsdp2]", suite="fabric")
    with pytest.raises(ConfigError, match=r"^here='compile': expected a list"):
        checked_techniques("here", "compile")
    assert choices("python -m harness suite=fabric techniques=[") == []
    completed = choices("python -m harness suite=memory techniques=[zero.")
    assert completed[:3] == [f"techniques=[zero.{stage}" for stage in (1, 2, 3)]


def test_it_is_what_the_yaml_with_the_same_techniques_is():
    listed = "activation_checkpointing.full,attention,mixed_precision"
    _, yaml, command = run_of("only=[mixed_checkpointed]", f"techniques=[{listed}]").variants
    assert (yaml.module, command.module) == ("mixed_checkpointed", "techniques")
    full = {"activation_checkpointing": {"mode": "full"}}  # the default, which the YAML leaves out
    assert {**dict(yaml.techniques), **full} == dict(command.techniques)
    assert command.title == "activation checkpointing (mode=full) + attention + mixed precision"
