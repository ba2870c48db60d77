"""An optimization's list of techniques means the same in every suite that trains."""

from importlib import import_module

import pytest

from harness.config.optimizations import code_of
from harness.config.run import load
from harness.config.validation import Role
from harness.records import Unavailable
from suites.kernels.training_step import step_of
from suites.training.techniques import build_step, combined, named, role_of, strategy_of
from suites.training.workload import Workload

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 32,
    "micro_batch_size": 2,
    "seq_len": 8,
}
PLAIN, ON_RANKS = ["memory llama_12m", "kernels step_5m_128"], ["interconnect fsdp2", "interconnect zero3"]
ON_RANKS += ["interconnect ddp", "offload llama_5m"]


def subject_of(where):
    """The suite, and the baseline of one of its workloads, made small."""
    suite, workload = where.split()
    module = import_module(code_of(suite).module)
    return module, module.build({**load([f"suite={suite}"])[0].workloads[workload], **SMALL}, 1)


def step_with(where, further):
    """Return the baseline's step, and the step with further techniques."""
    suite, subject = subject_of(where)
    changed = suite.apply_techniques(subject, named(further))
    return [
        step_of(one) if suite.__name__ == "suites.kernels.suite" else one.step for one in (subject, changed)
    ]


LISTS = {
    "no role": ["attention", "mixed_precision", {"optimizer": {"impl": "foreach"}}],
    "activations": [{"activation_checkpointing": {"mode": "selective"}}],
    "split batch": [{"gradient_accumulation": {"steps": 2}}],
    "another strategy": ["fsdp2", "mixed_precision"],
    "the same strategy": [{"ddp": {"reduce_dtype": "bf16"}}],
    "what another needs": [{"ddp": {"buckets": 1}}, {"powersgd": {"rank": 1}}],
}


@pytest.mark.parametrize("given", LISTS)
@pytest.mark.parametrize("where", PLAIN + ON_RANKS)
def test_a_list_means_the_same_in_every_suite(where, given):
    further = LISTS[given]
    if "kernels" in where and any(role_of(name) is Role.PARALLELISM for name, _ in named(further)):
        with pytest.raises(Unavailable, match="this step runs in one process"):
            step_with(where, further)
        return
    plain, changed = step_with(where, further)
    assert changed.techniques == combined(plain.techniques, further)
    assert changed.ranks == plain.ranks or plain.ranks == 1
    for name, settings in named(further):
        assert changed.settings_of(name).items() >= settings.items()
    for name, settings in plain.techniques:  # what no listed technique replaced stays
        if role_of(name) is None:
            assert changed.settings_of(name).items() >= settings.items()


@pytest.mark.parametrize("where", ON_RANKS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "zero", "local_sgd", "host_update"])
def test_a_listed_strategy_takes_the_place_of_the_workloads(where, strategy):
    _, changed = step_with(where, [strategy])
    assert strategy_of(changed) == strategy
    assert [role_of(name) for name, _ in changed.techniques].count(Role.PARALLELISM) == 1
    suite, subject = subject_of(where)
    placed = suite.apply_techniques(subject, [(strategy, {})])
    if suite.__name__ == "suites.interconnect.suite":
        assert placed.strategy == ("zero3" if strategy == "zero" else strategy)
    else:
        assert placed.placement.engine == ("deepspeed" if strategy == "zero" else strategy)


@pytest.mark.parametrize(
    ("where", "further", "words"),
    [
        ("interconnect fsdp2", ["powersgd"], "powersgd needs ddp, and this step has fsdp2; list ddp too"),
        ("offload llama_5m", ["powersgd"], "powersgd needs ddp: {buckets: 1}"),
        ("interconnect ddp", ["fsdp2", "zero"], "fsdp2 and zero both decide how ranks share the model"),
        ("interconnect zero3", ["compile"], "zero does not combine with compile"),
        (
            "offload llama_5m",
            ["tensor_parallel"],
            "tensor_parallel does not combine with ddp: ranks form a mesh",
        ),
        ("offload llama_5m", ["fsdp2", "tensor_parallel"], "and this step has tp_size=1"),
        ("interconnect fsdp2", ["context_parallel"], "needs several ranks per sequence"),
        ("kernels step_5m_128", ["tensor_parallel"], "this step runs in one process"),
        ("kernels step_5m_128", [{"gradient_accumulation": {"split": False}}], "more sequences than"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_line(where, further, words):
    with pytest.raises(Unavailable) as caught:
        step_with(where, further)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_needs_a_replaced_technique_is_refused():
    own = [{"ddp": {"buckets": 1}}, "powersgd"]
    assert dict(combined(own, ["fsdp2"])).keys() == {"powersgd", "fsdp2"}
    with pytest.raises(Unavailable, match="powersgd needs ddp, and this step has fsdp2"):
        build_step(Workload(**SMALL), combined(own, ["fsdp2"]))


def test_settings_of_an_own_technique_are_joined_and_the_listed_ones_win():
    own = [{"ddp": {"buckets": 4, "reduce_dtype": "fp32"}}, "attention"]
    joined = dict(combined(own, [{"ddp": {"buckets": 1}}]))
    assert joined == {"ddp": {"buckets": 1, "reduce_dtype": "fp32"}, "attention": {}}


def test_the_parts_of_a_split_batch_are_all_that_a_kernels_step_trains_on():
    from suites.kernels.training_step import FixedBatchTrainer

    suite, subject = subject_of("kernels step_5m_128")
    split = suite.apply_techniques(subject, [("gradient_accumulation", {"steps": 2})])
    calls = []
    trainer = FixedBatchTrainer(split)
    trainer.model.register_forward_pre_hook(lambda module, given: calls.append(given[0].shape[0]))
    losses = [trainer.step().item() for _ in range(3)]
    assert calls == [1] * 6
    plain = FixedBatchTrainer(subject)
    assert losses == pytest.approx([plain.step().item() for _ in range(3)], rel=1e-5)
