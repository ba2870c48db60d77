"""The training step of the kernels suite: its parts can be replaced, and a wrong one does not pass."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
import variants
from small_kernels import ARMS, checked
from torch.utils.flop_counter import FlopCounterMode

from harness.records import Reading, Unavailable, WrongResult
from suites.kernels import suite as kernels
from suites.kernels.operations import OPERATIONS
from suites.kernels.training_step import OPERATION, PARTS, FixedBatchTrainer, contract_of
from suites.training import techniques
from suites.training.correctness import GRADIENT_FACTOR
from suites.training.models.model import Transformer
from suites.training.step import EXACT
from suites.training.workload import llama

TINY = {"operation": "training_step", "micro_batch_size": 2, "seq_len": 24, "hidden_size": 32}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_size": 8, "intermediate_size": 48}
TINY |= {"vocab_size": 64, "num_hidden_layers": 2}
STEPS = 4


def subject_of(**changes):
    return kernels.build({**TINY, **changes}, seed=3)


def applied(variant, subject):
    return checked(variants.applied("kernels", ARMS[variant], subject))


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


@pytest.mark.parametrize("part", ["attention", "rms_norm"])
def test_a_part_with_a_wrong_gradient_is_caught(part):
    subject = replace(subject_of(), replace={part: scaled_backward(part, 1.01)})
    with pytest.raises(WrongResult, match=r"gradient of .* is off by .* of its norm"):
        checked(subject)
    if part == "attention":
        subject = replace(subject_of(), replace={part: scaled_backward(part, 1.1)})
        with pytest.raises(WrongResult, match=r"gradient of .* is off by .*, allowed 5e-02"):
            applied("autocast_bf16", subject)


def test_an_optimizer_that_does_not_decay_enough_is_caught():
    def wrong(parameters, gradients, exp_avgs, exp_avg_sqs, step_1):
        for one in parameters:
            one.mul_(1.01)
        return OPERATIONS["adamw"].eager(parameters, gradients, exp_avgs, exp_avg_sqs, step_1)

    with pytest.raises(WrongResult, match=r"loss of update 1 is .*, plain PyTorch's"):
        checked(replace(subject_of(), replace={"adamw": wrong}))


@pytest.mark.parametrize(
    ("name", "given"),
    [("mixed_precision", {}), ("activation_checkpointing", {}), ("lora", {"base": "nf4"})],
    ids=str,
)
def test_a_technique_of_one_process_passes_the_check_as_its_contract_states(name, given):
    subject = kernels.apply_techniques(subject_of(micro_batch_size=8), [(name, given)])
    contract_by = getattr(techniques.load(name), "contract", lambda _: EXACT)
    contract = contract_by(techniques.settings_of(name, given))
    assert contract_of(subject) == contract
    assert checked(subject).max_error < GRADIENT_FACTOR * contract.relative
    expected = "bf16" if name == "mixed_precision" else "fp32"
    assert kernels.conditions(kernels.prepare(subject))["precision"] == expected


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


def formulas_of(subject):
    """What is calculated for one call."""
    readings = [one for one in kernels.read_once(kernels.prepare(subject)) if isinstance(one, Reading)]
    names = ("bytes_moved", "flops", "tokens_per_step")
    return {one.metric: one.value for one in readings if one.metric in names}


def test_tokens_flops_and_bytes_are_those_of_the_step_that_is_built():
    plain, half = formulas_of(subject_of()), formulas_of(subject_of(micro_batch_size=1))
    accumulated = kernels.apply_techniques(subject_of(), [("gradient_accumulation", {"steps": 2})])
    assert formulas_of(accumulated) == plain
    assert (half["tokens_per_step"], half["flops"]) == (24, plain["flops"] / 2)


@pytest.mark.slow
def test_an_adapter_whose_first_updates_a_rounding_hides_is_found_to_learn():
    adapter = ("llama_adapter", {"start_layer": 0})
    session = checked(kernels.apply_techniques(subject_of(), [("bf16_states", {}), adapter]))
    assert session.compared.startswith("3 losses and no gradients")


def test_techniques_that_need_ranks_or_a_full_step_are_refused():
    with pytest.raises(Unavailable, match="fsdp2: this step runs in one process"):
        kernels.apply_techniques(subject_of(), [("fsdp2", {})])
    with pytest.raises(Unavailable, match="training_step swiglu: techniques change a full training step"):
        kernels.apply_techniques(subject_of(part="swiglu"), [("attention", {})])


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


def test_what_a_step_holds_at_once_is_about_its_formula():
    session = applied("baseline", subject_of(micro_batch_size=1, seq_len=512, num_key_value_heads=4))
    subject = session.subject
    peak_B = next(one.value for one in kernels.read_once(session) if one[0] == "peak_memory")
    held_B = peak_B + 12 * llama(subject.workload).parameters
    assert held_B <= OPERATION.eager_B(subject.workload) <= 1.6 * held_B


def test_close_lets_the_model_go():
    session = applied("baseline", subject_of())
    model = weakref.ref(session.trainer.model)
    kernels.close(session)
    gc.collect()
    assert model() is None
    assert torch.is_grad_enabled()
