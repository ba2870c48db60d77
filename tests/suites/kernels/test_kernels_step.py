"""The training step of the kernels suite: its parts can be replaced, and a wrong one does not pass."""

from __future__ import annotations

import gc
import weakref
from dataclasses import asdict, make_dataclass, replace
from types import SimpleNamespace

import pytest
import torch
import variants
from technique_cases import ALONE
from torch.utils.flop_counter import FlopCounterMode

from harness.config.optimizations import applies
from harness.config.run import load
from harness.config.validation import DeclaredTechnique, Role
from harness.records import Reading, Unavailable, WrongResult
from suites.kernels import adamw
from suites.kernels import suite as kernels
from suites.kernels.operations import OPERATIONS
from suites.kernels.training_step import OPERATION, PARTS, FixedBatchTrainer, contract_of
from suites.training import techniques
from suites.training.correctness import GRADIENT_FACTOR
from suites.training.declared import TECHNIQUES, Level
from suites.training.models.model import Transformer
from suites.training.step import EXACT, Within
from suites.training.workload import llama

RUN = load(["suite=kernels"])[0]
ARMS = {variant.name: variant for variant in RUN.variants}

TINY = {"operation": "training_step", "micro_batch_size": 2, "seq_len": 24, "hidden_size": 32}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_size": 8, "intermediate_size": 48}
TINY |= {"vocab_size": 64, "num_hidden_layers": 2}
STEPS = 4


def subject_of(**changes):
    return kernels.build({**TINY, **changes}, seed=3)


def applied(variant, subject):
    return checked(variants.applied("kernels", ARMS[variant], subject))


def checked(subject):
    session = kernels.prepare(subject)
    kernels.check(session)
    return session


def losses(subject):
    trainer = FixedBatchTrainer(subject)
    return [trainer.step().item() for _ in range(STEPS)]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_replaced_by_its_eager_function_is_called_and_leaves_the_losses_as_they_are(part):
    calls = []

    def counted(*inputs):
        calls.append(part)
        return OPERATIONS[part].eager(*inputs)

    subject = subject_of()
    plain, other = losses(subject), losses(replace(subject, replace={part: counted}))
    assert plain[-1] < plain[0]
    # of AdamW torch's own has its corrections as Python's numbers
    assert other == (pytest.approx(plain, rel=1e-5) if part == "adamw" else plain)
    per_step = {"rms_norm": 5, "rotary": 4, "attention": 2, "swiglu": 2}.get(part, 1)
    assert len(calls) == STEPS * per_step


def scaled_backward(part, factor):
    """Return a part's function whose gradient is too large by a factor."""

    def wrong(*inputs):
        result = OPERATIONS[part].eager(*inputs)
        return result.detach() + (result - result.detach()) * factor

    return wrong


@pytest.mark.parametrize("part", [part for part in PARTS if part != "adamw"])
def test_a_part_with_a_wrong_gradient_is_caught(part):
    subject = replace(subject_of(), replace={part: scaled_backward(part, 1.01)})
    with pytest.raises(WrongResult, match=r"gradient of .* is off by .* of its norm"):
        checked(subject)


def test_an_optimizer_that_does_not_decay_enough_is_caught():
    def wrong(parameters, gradients, exp_avgs, exp_avg_sqs, step_1):
        for one in parameters:
            one.mul_(1.01)
        return OPERATIONS["adamw"].eager(parameters, gradients, exp_avgs, exp_avg_sqs, step_1)

    with pytest.raises(WrongResult, match=r"loss of update 1 is .*, plain PyTorch's"):
        checked(replace(subject_of(), replace={"adamw": wrong}))


@pytest.mark.parametrize("part", ["all", "attention", "adamw", "swiglu"])
@pytest.mark.parametrize("variant", [one for one in ARMS if "compile" not in one])  # those: see below
def test_a_variant_trains_as_the_baseline_where_it_is_planned_and_is_unavailable_elsewhere(variant, part):
    subject = subject_of(part=part)
    fields = {**asdict(subject.workload), "device": "any"}
    if reason := variants.unavailable("kernels", ARMS[variant]):
        assert "GPU" in reason
        return
    if not applies(ARMS[variant].applies_to, fields, gpu=False):
        with pytest.raises(Unavailable, match=f"{variant}|interpreted|full training step"):
            applied(variant, subject)
        return
    session = applied(variant, subject)
    found = {one.metric: one.value for one in kernels.read_once(session) if isinstance(one, Reading)}
    assert found["tokens_per_step"] == 48
    assert found["max_error"] < GRADIENT_FACTOR * contract_of(session.subject).relative
    assert next(iter(kernels.sample(session))).value > 0


@pytest.mark.parametrize("factor", [0.0, 1.1])
def test_a_wrong_backward_of_attention_is_caught_under_autocast(factor):
    subject = replace(subject_of(), replace={"attention": scaled_backward("attention", factor)})
    with pytest.raises(WrongResult, match=r"gradient of .* is off by .*, allowed 5e-02"):
        applied("autocast_bf16", subject)


@pytest.mark.parametrize("variant", ["torch_compile", "compile_sdpa", "compile_sdpa_autocast"])
def test_a_step_is_compiled_in_full(variant, monkeypatch):
    modes = []
    monkeypatch.setattr("torch.nn.Module.compile", lambda model, **given: modes.append(given["mode"]))
    subject = variants.applied("kernels", ARMS[variant], subject_of())
    FixedBatchTrainer(subject)
    assert (modes, subject.compiles) == (["default"], True)


@pytest.mark.parametrize("part", ["all", "adamw"])
def test_the_fused_optimizer_of_a_step_is_torchs(part):
    fused = variants.applied("kernels", ARMS["fused_optimizer"], subject_of(part=part))
    made, plain = (FixedBatchTrainer(one).optimizer.inner for one in (fused, subject_of()))
    assert isinstance(made, torch.optim.AdamW)
    assert made.defaults["fused"] is True
    assert {**made.defaults, "fused": None} == plain.defaults
    settings = [plain.defaults[name] for name in ("lr", "betas", "eps", "weight_decay")]
    assert settings == [adamw.LEARNING_RATE, adamw.BETAS, adamw.EPSILON, adamw.WEIGHT_DECAY]


ONE_PROCESS = [
    (name, given)
    for name, given in ALONE
    if techniques.role_of(name) in (None, Role.ACTIVATIONS) and not techniques.declared(name).needs
]


@pytest.mark.parametrize(
    ("name", "given"),
    [(name, given) for name, given in ONE_PROCESS if name != "compile" and given.get("split", True)],
    ids=str,
)
def test_each_technique_of_one_process_passes_the_check_as_its_contract_states(name, given):
    """A compiled step is tried in tests/project/test_every_optimization.py."""
    deep = subject_of(micro_batch_size=8, num_hidden_layers=3)  # llama_adapter starts in the third layer
    subject = kernels.apply_techniques(deep, [(name, given)])
    contract_by = getattr(techniques.load(name), "contract", lambda _: EXACT)
    contract = contract_by(techniques.settings_of(name, given))
    assert contract_of(subject) == contract
    assert checked(subject).max_error < GRADIENT_FACTOR * contract.relative
    assert kernels.conditions(kernels.prepare(subject))["precision"] == (
        "bf16" if name in ("mixed_precision", "bf16_states") else "fp32"
    )


@pytest.mark.parametrize(
    ("changes", "replaced", "allowed"),
    [
        ({}, {}, EXACT),
        ({}, {"swiglu": OPERATIONS["swiglu"].eager}, Within(1e-4)),
        ({"dtype": "bf16"}, {}, Within(2e-2)),
    ],
    ids=["plain", "a function replaced", "bf16"],
)
def test_the_suites_own_tolerance_is_for_its_functions_and_for_other_types(changes, replaced, allowed):
    assert contract_of(replace(subject_of(**changes), replace=replaced)) == allowed


def test_an_optimizer_in_the_backward_pass_with_wrong_gradients_is_caught(monkeypatch):
    """It releases gradients, and AdamW divides their scale away."""
    subject = kernels.apply_techniques(subject_of(), [("optimizer_in_backward", {})])
    module = techniques.load("optimizer_in_backward")
    right = module.apply

    def spoil(model, resources):
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: 3 * gradient)
        return model

    def apply(step, settings):
        step = right(step, settings)
        return replace(step, wraps=(*step.wraps, spoil))

    monkeypatch.setattr(module, "apply", apply)
    with pytest.raises(WrongResult, match=r"loss of update \d+ .* \(probing the scale of gradients\)"):
        checked(subject)


def test_tokens_flops_and_bytes_are_those_of_the_step_that_is_built(monkeypatch):
    """A technique that leaves out one of the two sequences, and one that takes them one by one."""
    one_sequence = SimpleNamespace(contract=lambda _: EXACT)
    one_sequence.apply = lambda step, _: replace(step, workload=replace(step.workload, micro_batch_size=1))
    load_real = techniques.load
    declaration = DeclaredTechnique(Level.WORKLOAD, make_dataclass("NoSettings", []), None, {}, (), "")
    monkeypatch.setitem(TECHNIQUES, "one_sequence", declaration)
    monkeypatch.setattr(
        techniques, "load", lambda name: one_sequence if name == "one_sequence" else load_real(name)
    )
    plain, half = subject_of(), subject_of(micro_batch_size=1)
    accumulated = kernels.apply_techniques(plain, [("gradient_accumulation", {"steps": 2})])
    halved = kernels.apply_techniques(plain, [("one_sequence", {})])
    assert formulas_of(accumulated) == formulas_of(plain)
    assert formulas_of(halved) == formulas_of(half)
    assert formulas_of(half)["tokens_per_step"] == 24
    assert formulas_of(half)["flops"] == formulas_of(plain)["flops"] / 2


def formulas_of(subject):
    """What is calculated for one call."""
    readings = [one for one in kernels.read_once(kernels.prepare(subject)) if isinstance(one, Reading)]
    names = ("bytes_moved", "flops", "tokens_per_step")
    return {one.metric: one.value for one in readings if one.metric in names}


def test_a_technique_that_does_not_learn_is_caught():
    still = [("optimizer", {"name": "adafactor", "learning_rate": 1e-30})]
    with pytest.raises(WrongResult, match=r"it does not learn: loss \d"):
        checked(kernels.apply_techniques(subject_of(), still))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["mixed_precision", "bf16_states"])
def test_an_adapter_whose_first_updates_a_rounding_hides_is_found_to_learn(precision):
    session = checked(
        kernels.apply_techniques(subject_of(), [(precision, {}), ("llama_adapter", {"start_layer": 0})])
    )
    assert session.compared.startswith("3 losses and no gradients")


def test_techniques_that_need_ranks_or_a_full_step_are_refused():
    with pytest.raises(Unavailable, match="fsdp2: this step runs in one process"):
        kernels.apply_techniques(subject_of(), [("fsdp2", {})])
    with pytest.raises(Unavailable, match="training_step swiglu: techniques change a full training step"):
        kernels.apply_techniques(subject_of(part="swiglu"), [("attention", {})])


def test_of_a_step_one_part_is_compiled():
    subject = variants.applied("kernels", ARMS["torch_compile"], subject_of(part="swiglu"))
    assert (set(subject.replace), subject.techniques, subject.compiles) == ({"swiglu"}, (), True)


def test_a_steps_arithmetic_is_what_torch_counts():
    """Its counter has all of the causal scores, ours half of them: the other half is added here."""
    subject = subject_of(num_key_value_heads=4)
    workload = subject.workload
    trainer = FixedBatchTrainer(subject)
    with FlopCounterMode(display=False) as counted:
        trainer.loss_and_gradients()
    half = 6 * workload.num_hidden_layers * workload.hidden_size * workload.seq_len * workload.rows
    assert OPERATION.flops(workload) + half == counted.get_total_flops()


def test_a_steps_weights_are_counted_by_the_model_itself():
    workload = subject_of().workload
    weights = sum(one.numel() for one in Transformer(llama(workload)).parameters())
    assert OPERATION.bytes_moved(workload) == weights * (3 * 4 + 7 * 4)


@pytest.mark.parametrize("seq_len", [64, 512])
def test_what_a_step_holds_at_once_is_about_its_formula(seq_len):
    session = applied("baseline", subject_of(micro_batch_size=1, seq_len=seq_len, num_key_value_heads=4))
    subject = session.subject
    peak_B = next(one.value for one in kernels.read_once(session) if one[0] == "peak_memory")
    held_B = peak_B + 12 * llama(subject.workload).parameters
    assert held_B <= OPERATION.eager_B(subject.workload) <= 1.6 * held_B


def test_the_step_is_the_same_for_the_same_seed():
    assert losses(subject_of()) == losses(subject_of())
    assert losses(replace(subject_of(), seed=4)) != losses(subject_of())


def test_close_lets_the_model_go():
    session = applied("baseline", subject_of())
    model = weakref.ref(session.trainer.model)
    kernels.close(session)
    gc.collect()
    assert model() is None
    assert torch.is_grad_enabled()
