"""`techniques=[...]` of a command: one more variant, checked before anything runs."""

import json
import subprocess
import sys

import pytest

from harness.commands.listing import choices
from harness.config.code_fingerprint import ROOT
from harness.config.run import load
from harness.config.techniques import checked_techniques, names, settings_of
from harness.config.validation import NUMBERS, ConfigError
from harness.sweep.plan import plan
from suites.training.declared import TECHNIQUES


def run_of(*words, suite="memory"):
    (run,) = load([f"suite={suite}", *words])
    return run


def listed(word):
    """Return what the variant of `techniques=[word]` has."""
    return dict(run_of(f"techniques=[{word}]").variants[-1].techniques)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("fsdp2", {"fsdp2": {}}),
        ("fsdp2,attention", {"attention": {}, "fsdp2": {}}),
        ("activation_checkpointing.full", {"activation_checkpointing": {"mode": "full"}}),
        ("fsdp2.bf16", {"fsdp2": {"reduce_dtype": "bf16"}}),  # the only setting with such a choice
        ("zero.2", {"zero": {"stage": 2}}),
        ("gradient_accumulation.4", {"gradient_accumulation": {"steps": 4}}),  # the first setting
        ("host_update.true", {"host_update": {"delay": True}}),
        ("{fsdp2: {shard_within: 4}}", {"fsdp2": {"shard_within": 4}}),
        ("{zero: {stage: 3, parameters: host}}", {"zero": {"stage": 3, "parameters": "host"}}),
    ],
)
def test_a_technique_is_a_name_a_name_with_a_value_or_a_mapping(word, expected):
    assert listed(word) == expected


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("[fsdp3]", "did you mean fsdp2?"),
        ("[]", "techniques=[]: lists no technique; only=[baseline] runs plain PyTorch alone"),
        ("[zero.4]", "techniques.zero.4: no such name; allowed: 1, 2, 3, block, device, disk, host, model"),
        ("[zero.host]", "write {zero: {optimizer: host}} or {zero: {parameters: host}}"),
        ("[activation_checkpointing.ful]", "did you mean full?"),
        ("[gradient_accumulation.many]", "steps='many': expected a whole number"),
        ("[gradient_accumulation.%]", "steps='%': expected a whole number"),
        (
            "[gradient_accumulation.0]",
            "gradient_accumulation.steps=0: expected a whole number of at least 1",
        ),
        ("[gradient_accumulation.-1]", "steps=-1: expected a whole number of at least 1"),
        ("[lora.0]", "techniques.lora.rank=0: expected a whole number of at least 1"),
        ("[{lora: {dropout: 1}}]", "lora.dropout=1: expected a number of at least 0 and below 1"),
        ("[{local_sgd: {inner_steps: 0}}]", "local_sgd.inner_steps=0: expected a whole number of at least 1"),
        ("[{optimizer: {learning_rate: 0}}]", "learning_rate=0: expected a number above 0 or null"),
        ("[{zero: {ratio: 1.5}}]", "zero.ratio=1.5: expected a number of at least 0 and at most 1"),
        ("[{fsdp2: {shard_within: 0}}]", "shard_within=0: expected a whole number of at least 1 or null"),
        ("[zero.true]", "techniques.zero.true: no such name; allowed: 1, 2, 3"),
        ("[{zero: {stage: true}}]", "zero.stage=true: expected one of 1, 2, 3"),
        ("[bf16_states.2]", "this technique has no settings"),
        ("[{fsdp2: {shard_withing: 2}}]", "did you mean shard_within?"),
        ("[3]", "expected a name, or {name: {setting: value}}"),
        ("[fsdp2,fsdp2.bf16]", "fsdp2 is listed twice"),
        ("[fsdp2,zero.2]", "fsdp2 and zero both decide how ranks share the model; choose one of them"),
        ("[ddp,pipeline]", "pipeline does not combine with ddp"),
        ("[zero,compile]", "zero does not combine with compile: deepspeed's engine"),
        ("3", "expected a list, as in techniques=[a,b]"),
        ("fsdp2,attention", "use techniques=[fsdp2,attention]"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(word, said):
    with pytest.raises(ConfigError) as error:
        run_of(f"techniques={word}")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", names())
def test_every_number_has_a_lower_bound(name):
    for setting, allowed in settings_of(name).items():
        if allowed.get("type") in NUMBERS and "one_of" not in allowed:
            assert allowed.keys() & {"at_least", "above"}, setting


def test_every_exclusion_that_is_declared_is_refused():
    pairs = [(name, *pair) for name in names() for pair in TECHNIQUES[name].excludes.items()]
    by_role = {}
    for name in names():
        by_role.setdefault(TECHNIQUES[name].role, []).append(name)
    pairs += [(*two[:2], str(role)) for role, two in by_role.items() if role is not None and len(two) > 1]
    assert len(pairs) >= 4
    for name, other, reason in pairs:
        with pytest.raises(ConfigError, match=r"\w") as error:
            run_of(f"techniques=[{name},{other}]")
        assert reason in str(error.value)


def test_a_suite_that_does_not_train_takes_no_techniques():
    with pytest.raises(ConfigError, match=r"suite fabric takes none; suites that do: .*memory"):
        run_of("techniques=[fsdp2]", suite="fabric")
    with pytest.raises(ConfigError, match="name one suite"):
        load(["suite=all", "techniques=[fsdp2]"])


def test_the_baseline_and_that_variant_run_and_what_else_is_named():
    run = run_of("techniques=[fsdp2,mixed_precision]")
    assert [one.name for one in run.variants] == ["baseline", "techniques.fsdp2+mixed_precision"]
    assert run.variants[1].title == "fsdp2 + mixed precision"
    more = run_of("techniques=[fsdp2]", "only=[zero1]")
    assert [one.name for one in more.variants] == ["baseline", "zero1", "techniques.fsdp2"]
    assert [one.name for one in run_of("techniques=[fsdp2]", "selection=quick").variants] == [
        "baseline",
        "techniques.fsdp2",
    ]


@pytest.mark.parametrize("suite", ["interconnect", "kernels", "memory", "offload"])
def test_each_suite_that_trains_plans_it_where_its_own_lists_of_techniques_apply(suite):
    run = run_of("techniques=[activation_checkpointing.full]", suite=suite)
    groups = plan(run, "env", lambda variant: "code", gpu=True)
    planned = [cell for group in groups for cell in group.cells if cell.module == "techniques"]
    assert planned
    for cell in planned:
        assert cell.config["techniques"] == [["activation_checkpointing", {"mode": "full"}]]
        assert cell.optimization == "techniques.activation_checkpointing(mode=full)"


def ids(words):
    groups = plan(run_of(*words), "env", lambda variant: "code")
    return [cell.id for group in groups for cell in group.cells if cell.module == "techniques"]


def test_a_cell_is_the_same_in_any_order_of_the_list_and_another_with_another_setting():
    assert ids(["techniques=[fsdp2,attention]"]) == ids(["techniques=[attention,fsdp2]"])
    assert not set(ids(["techniques=[zero.2]"])) & set(ids(["techniques=[zero.3]"]))


def test_what_is_completed_is_accepted():
    words = choices("python -m harness suite=memory techniques=[activation_checkpointing")
    assert "techniques=[activation_checkpointing.selective" in words
    for word in words:
        assert run_of(f"{word}]").variants[-1].module == "techniques"
    assert choices("python -m harness suite=fabric techniques=[") == []
    literal = [f"zero.{one}" for one in settings_of("zero")["stage"]["one_of"]]
    assert set(literal) <= {
        one.partition("[")[2] for one in choices("python -m harness suite=memory techniques=[z")
    }


def test_a_yaml_has_the_same_grammar():
    assert checked_techniques("here", ["zero.2"]) == checked_techniques("here", [{"zero": {"stage": 2}}])


@pytest.mark.slow
def test_it_runs_as_the_yaml_with_the_same_techniques_does_and_not_twice(tmp_path):
    words = ["suite=memory", "workloads=[gpt_5m]", "only=[mixed_checkpointed]", f"out={tmp_path}"]
    words += ["techniques=[activation_checkpointing.full,attention,mixed_precision]"]
    tiny = {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "vocab_size": 67,
        "seq_len": 16,
    }
    words += [f"suite.workloads.gpt_5m.{name}={value}" for name, value in tiny.items()]

    def sweep():
        done = subprocess.run(
            [sys.executable, "-m", "harness", *words], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]

    records = {record["cell"]["module"]: record for record in sweep()}
    assert {record["status"] for record in records.values()} == {"ok"}

    def peaks(module):
        found = [one for one in records[module]["measurements"] if one[0] == "peak_memory"]
        return {one[3]: one[4] for one in found if one[3] != "measured"}

    assert peaks("techniques") == peaks("mixed_checkpointed") != peaks("baseline")
    assert (
        "activation checkpointing (mode=full) + attention + mixed precision"
        in (tmp_path / "report.md").read_text()
    )
    assert len(sweep()) == len(records) == 3
