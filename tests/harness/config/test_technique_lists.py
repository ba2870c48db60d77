"""Techniques, by any word for them, mean the same in every suite that trains."""

import re
from importlib import import_module

import pytest

from harness.commands.grammar import device_file, device_of
from harness.commands.listing import choices
from harness.config.optimizations import code_of
from harness.config.run import load
from harness.config.techniques import IN_LISTS, checked_techniques, combination, declared
from harness.config.validation import ConfigError, Role
from harness.records import Unavailable
from suites.kernels.training_step import step_of
from suites.training.techniques import build_step, combined, named, role_of
from suites.training.workload import Workload

SMALL = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
SMALL |= {"intermediate_size": 24, "vocab_size": 32, "micro_batch_size": 2, "seq_len": 8}
STEPS = ["memory llama_12m", "kernels step_5m_128", "interconnect fsdp2", "offload llama_5m"]
LISTS = {
    "activations": [{"activation_checkpointing": {"mode": "selective"}}],
    "split batch": [{"gradient_accumulation": {"steps": 2}}],
    "another strategy": ["fsdp2", "mixed_precision"],
    "what another needs": [{"ddp": {"buckets": 1}}, {"powersgd": {"rank": 1}}],
}


def subject_of(where):
    suite, workload = where.split()
    module = import_module(code_of(suite).module)
    return module, module.build({**load([f"suite={suite}"])[0].workloads[workload], **SMALL}, 1)


def step_with(where, further):
    suite, subject = subject_of(where)
    both = (subject, suite.apply_techniques(subject, named(further)))
    return [step_of(one) if where.startswith("kernels") else one.step for one in both]


@pytest.mark.parametrize("given", LISTS)
@pytest.mark.parametrize("where", STEPS)
def test_a_list_means_the_same_in_every_suite(where, given):
    further = LISTS[given]
    if "kernels" in where and any(role_of(name) is Role.PARALLELISM for name, _ in named(further)):
        with pytest.raises(Unavailable, match="this step runs in one process"):
            step_with(where, further)
        return
    plain, changed = step_with(where, further)
    assert changed.techniques == combined(plain.techniques, further)
    assert changed.ranks == plain.ranks or plain.ranks == 1
    kept = [(name, own) for name, own in plain.techniques if role_of(name) is None]
    for name, settings in (*named(further), *kept):
        assert changed.settings_of(name).items() >= settings.items()


def test_settings_of_an_own_technique_are_joined_and_what_needs_a_replaced_one_is_refused():
    own = [{"ddp": {"buckets": 4, "reduce_dtype": "fp32"}}, "attention"]
    joined = dict(combined(own, [{"ddp": {"buckets": 1}}]))
    assert joined == {"ddp": {"buckets": 1, "reduce_dtype": "fp32"}, "attention": {}}
    replaced = combined([{"ddp": {"buckets": 1}}, "powersgd"], ["fsdp2"])
    assert dict(replaced).keys() == {"powersgd", "fsdp2"}
    with pytest.raises(Unavailable, match="powersgd needs ddp, and this step has fsdp2"):
        build_step(Workload(**SMALL), replaced)


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
