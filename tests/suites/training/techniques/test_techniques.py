"""Every technique, alone and combined, on a tiny workload: its contract holds, and a breach is caught."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_steps import LLAMA
from technique_cases import ALONE
from torch._dynamo.backends.debugging import aot_eager

from harness.records import Unavailable, WrongResult
from suites.training import techniques
from suites.training.correctness import check, require_learning
from suites.training.dry_run.dry_run import among_ranks
from suites.training.step import CHANGES_THE_MATHEMATICS, EXACT, Within, loosest
from suites.training.techniques import build_step
from suites.training.trainer import Trainer

TINY = replace(LLAMA, num_key_value_heads=2, micro_batch_size=8, tp_size=2, cp_size=2)

COMPANIONS = {"powersgd": [{"ddp": {"buckets": 1}}], "pipeline": ["gradient_accumulation"]}
"""What a technique needs next to it."""

MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "ep_size": 2}
CHANGES = {"pipeline": {"pp_size": 2}, "expert_parallel": MIXTURE}
"""What a technique needs of its workload."""


def step_of(name, given, workload=TINY):
    workload = replace(workload, **CHANGES.get(name, {}))
    return build_step(workload, [*COMPANIONS.get(name, []), {name: given}], seed=1)


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that torch.compile captured, forward and backward; the eager backend runs them.

    test_kernels_step.py has a step compiled by Inductor, which takes much longer.
    """
    found = []

    def backend(graph, inputs):
        found.append(graph)
        return aot_eager(graph, inputs)

    real = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda module, mode, **given: real(module, backend=backend, **given)
    )
    yield found
    torch._dynamo.reset()


@pytest.mark.parametrize(("name", "given"), [one for one in ALONE if one[0] != "compile"], ids=str)
def test_a_technique_keeps_its_contract(name, given):
    check(step_of(name, given))


@pytest.mark.slow
@pytest.mark.parametrize(
    "given", [["compile"], [{"compile": {"scope": "blocks"}}, "fsdp2", "mixed_precision"]], ids=str
)
def test_a_compiled_step_keeps_its_contract(given, graphs):
    check(build_step(TINY, given, seed=1))
    assert len(graphs) == 1  # without a break, and the same for all layers


@pytest.mark.parametrize("name", techniques.names())
def test_a_technique_says_what_it_is(name):
    one = techniques.declared(name)
    assert techniques.load(name).__doc__.strip()
    assert one.about
    for field in one.settings.__dataclass_fields__:
        assert f"`{field}`" in one.settings.__doc__, f"{name}.{field} has no sentence"
    assert one.settings.__dataclass_params__.frozen
    assert {*one.excludes, *one.needs} <= set(techniques.names())


def test_every_module_is_declared():
    folder = Path(techniques.__file__).parent
    modules = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    assert modules == set(techniques.names())


COMBINED = {
    "flash, mixed": ["attention", "mixed_precision"],
    "all of one device": [
        "attention",
        "mixed_precision",
        "activation_checkpointing",
        "gradient_accumulation",
        {"optimizer": {"impl": "fused"}},
    ],
    "design.md's example": [
        "fsdp2",
        {"mixed_precision": {"gradients": "bf16"}},
        {"attention": {"kernel": "flash"}},
    ],
    "offloaded": [{"activation_offload": {"prefetch": True}}, "ddp", "mixed_precision"],
    "zero, checkpointed": [{"zero": {"stage": 2}}, "activation_checkpointing", "gradient_accumulation"],
    "zero-3, loss in chunks": ["zero", {"loss": {"chunks": 4, "chunked": "recompute"}}],
    "zero-3, fused loss": ["zero", {"loss": {"fused": True}}],
    "fsdp2, adapters": [{"fsdp2": {"head": "apart"}}, "lora", {"loss": {"chunks": 4}}, "bf16_states"],
    "adapters under ZeRO-2": [{"zero": {"stage": 2}}, "lora"],
    "tensor parallel": ["tensor_parallel", "mixed_precision", "activation_checkpointing", "attention"],
    "shared sequences": ["context_parallel", "fsdp2", "attention", {"loss": {"chunks": 2}}],
    "a mesh of three": ["tensor_parallel", "context_parallel", "fsdp2", "attention"],
    "a mesh of ranks": ["tensor_parallel", "fsdp2", "mixed_precision", "activation_checkpointing"],
    "adafactor, in bf16": ["mixed_precision", {"optimizer": {"name": "adafactor", "impl": "for_loop"}}],
}


@pytest.mark.parametrize("name", COMBINED)
def test_a_combination_keeps_the_loosest_contract(name):
    step = build_step(TINY, COMBINED[name], seed=1)
    modules = [(techniques.load(one), techniques.settings_of(one, given)) for one, given in step.techniques]
    assert step.contract == loosest(module.contract(settings) for module, settings in modules)
    check(step)


@pytest.mark.parametrize("name", COMBINED)
def test_plain_data_make_the_same_step_again_in_whatever_order(name):
    step = build_step(TINY, COMBINED[name], seed=7)
    again = build_step(**json.loads(json.dumps(step.described)))
    assert again.described == step.described
    turned = build_step(TINY, list(reversed(COMBINED[name])), seed=7)
    for one in (again, turned):
        assert (one.features, one.ranks, one.contract) == (step.features, step.ranks, step.contract)
        assert one.workload == step.workload
        assert one.model_dtype == step.model_dtype
        assert len(one.wraps) == len(step.wraps)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["fsdp2", "zero"], "fsdp2 and zero both decide how ranks share the model"),
        (["activation_offload", "activation_checkpointing"], "both decide what becomes of activations"),
        (["compile", "fsdp2"], "use compile: {scope: blocks}"),
        (["compile", "zero"], "zero does not combine with compile: deepspeed's engine"),
        (["powersgd"], "powersgd needs ddp; list ddp too"),
        (["powersgd", "fsdp2"], "powersgd needs ddp, and this step has fsdp2; list ddp too"),
        ([{"ddp": {"reduce_dtype": "bf16"}}, "powersgd"], "powersgd is DDP's communication hook"),
        (["fsdp2", {"optimizer": {"name": "adafactor"}}], "Adafactor does not work on distributed tensors"),
        (["ddp", "powersgd"], "buckets: 1"),
        ([{"gradient_accumulation": {"steps": 3}}], "3 micro-batches cannot share micro_batch_size=8"),
        ([{"loss": {"chunks": 49}}], "chunks=49: allowed are 1 to seq_len=48"),
        (["pipeline"], "pp_size=1 is a single stage"),
        (["loss", "tensor_parallel"], "logits that are sharded by vocabulary"),
        ([{"activation_checkpointing": {"every": 5}}], "every=5: allowed are 1 to num_hidden_layers=4"),
        ([{"fsdp2": {"reshard_after_forward": 3}}], "reshard_after_forward=3: expected true, false"),
    ],
)
def test_what_does_not_combine_is_refused_in_one_line(given, words):
    with pytest.raises(Unavailable) as caught:
        build_step(TINY, given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["fsdp3"], "did you mean 'fsdp2'"),
        ([{"fsdp2": {"reshard": True}}], "no setting 'reshard'; it has reduce_dtype"),
        ([{"zero": {"stage": 4}}], "technique zero: stage=4: expected one of 1, 2, 3"),
        ([{"zero": {"stage": 2, "parameters": "host"}}], "stage 3 alone"),
        ([{"loss": {"chunked": "head"}}], "chunked='head': expected one of loss, output, recompute"),
        ([{"loss": {"chunks": 0}}], "loss: chunks=0: expected a whole number of at least 1"),
        ([{"fsdp2": {"shard_within": 0}}], "fsdp2: shard_within=0: expected a whole number of at least 1"),
        ([{"lora": {"dropout": 1.0}}], "lora: dropout=1.0: expected a number of at least 0 and below 1"),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line(given, words):
    with pytest.raises(ValueError) as caught:
        build_step(TINY, given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_of_a_technique_listed_twice_are_joined():
    step = build_step(TINY, [{"ddp": {"buckets": 2}}])
    joined = techniques.apply_techniques(step, [{"ddp": {"reduce_dtype": "bf16"}}])
    assert joined.settings_of("ddp") == {"buckets": 2, "reduce_dtype": "bf16"}
    assert joined.contract == techniques.load("ddp").contract(
        techniques.settings_of("ddp", joined.settings_of("ddp"))
    )


WRONG = {
    "negated": lambda gradient: -gradient,
    "zeroed": lambda gradient: 0 * gradient,
    "three times": lambda gradient: 3 * gradient,
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(
    "given", [[], ["mixed_precision"], ["activation_checkpointing"], ["gradient_accumulation"]], ids=str
)
def test_wrong_gradients_are_caught(given, wrong):
    step = build_step(TINY, given, seed=1)

    def spoil(model, resources):
        for parameter in model.parameters():
            parameter.register_hook(WRONG[wrong])
        return model

    with pytest.raises(WrongResult, match="loss of update"):
        check(replace(step, wraps=(*step.wraps, spoil)))


def test_fewer_sequences_than_the_workload_has_are_caught():
    step = build_step(TINY, ["gradient_accumulation"], seed=1)
    half = replace(step, workload=replace(step.workload, gradient_accumulation_steps=1))
    with pytest.raises(WrongResult, match="loss of update"):
        check(half)


def test_more_sequences_than_an_update_should_have_are_caught():
    step = build_step(TINY, [{"gradient_accumulation": {"split": False}}], seed=1)
    assert step.batches_per_update == 2
    with pytest.raises(WrongResult, match="loss of update"):
        check(replace(step, batches_per_update=1))


def test_what_changes_the_mathematics_must_learn():
    step = build_step(TINY, [{"optimizer": {"name": "adafactor"}}], seed=1)
    assert step.contract is CHANGES_THE_MATHEMATICS
    check(step)
    still = replace(step, workload=replace(step.workload, learning_rate=0.0))
    with pytest.raises(WrongResult, match="it does not learn"):
        check(still)


def test_learning_is_a_line_that_falls():
    require_learning([5.0, 4.9, 4.95, 4.7, 4.6, 4.65, 4.4])
    for losses in ([5.0] * 8, [4.0, 4.2, 4.1, 4.3, 4.5, 4.4], [5.0, 4.0, float("nan"), 3.0, 2.0, 1.0]):
        with pytest.raises(WrongResult):
            require_learning(losses)
    with pytest.raises(ValueError, match="3 losses"):
        require_learning([3.0, 2.0, 1.0])


def test_contracts_are_ordered():
    assert loosest([]) == EXACT
    assert loosest([EXACT, Within(5e-3), Within(1e-4)]) == Within(5e-3)
    assert loosest([Within(5e-3), CHANGES_THE_MATHEMATICS]) == CHANGES_THE_MATHEMATICS
    assert not CHANGES_THE_MATHEMATICS.compared


@pytest.mark.parametrize("given", [[], ["fsdp2"], ["fsdp1"], ["tensor_parallel"], ["ddp"]], ids=str)
def test_full_tensors_have_the_plain_models_names_and_shapes(given):
    plain = Trainer(build_step(TINY, (), 1))
    batch = [torch.arange(2 * 9).view(2, 9) % 500] * 2
    plain.backward(*batch)
    step = build_step(TINY, given, 1)
    from suites.training.correctness import one_rank

    with one_rank(bool(given)):
        ours = Trainer(step)
        ours.backward(*batch)
        for found, expected in (
            (ours.parameters(), plain.parameters()),
            (ours.gradients(), plain.gradients()),
        ):
            assert found.keys() == expected.keys()
            for name, one in found.items():
                torch.testing.assert_close(one, expected[name], rtol=1e-4, atol=1e-6)


def test_another_number_of_ranks_than_there_is_needs_a_group():
    with pytest.raises(RuntimeError, match="no process group"):
        Trainer(build_step(replace(TINY, dp_size=2), ["fsdp2"]))
    with among_ranks(build_step(replace(TINY, dp_size=2), ["fsdp2"])):
        Trainer(build_step(replace(TINY, dp_size=2), ["fsdp2"]))
