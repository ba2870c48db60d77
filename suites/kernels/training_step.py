"""The operation `training_step`: a whole step of the transformer of suites/model.py under AdamW.

`Workload.part` names the operation in it that a variant may replace, so that each kernel's gain is had
alone and
in the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from suites.kernels.operations import adamw
from suites.kernels.subject import Inputs, Operation, Subject, Workload
from suites.training.model import Transformer, llama

PARTS = ("rms_norm", "swiglu", "rotary", "linear_cross_entropy", "attention", "adamw")
"""Operations in the step that have a function of their own."""

OPTIMIZER_B = 28
"""AdamW moves per fp32 parameter: gradient read; parameter and two moments read and written."""


class AdamWBy:
    """AdamW by a function with the signature of `operations.adamw.eager`; states as torch's."""

    def __init__(self, parameters: Sequence[nn.Parameter], function: Callable[..., Any]):
        self.parameters = list(parameters)
        self.function = function
        self.exp_avgs = [torch.zeros_like(one) for one in self.parameters]
        self.exp_avg_sqs = [torch.zeros_like(one) for one in self.parameters]
        self.step_1 = torch.zeros(1, device=self.parameters[0].device)

    @torch.no_grad()
    def step(self) -> None:
        """One update of every parameter."""
        self.step_1 += 1
        gradients = [one.grad for one in self.parameters]
        parameters = [one.detach() for one in self.parameters]
        self.function(parameters, gradients, self.exp_avgs, self.exp_avg_sqs, self.step_1)

    def zero_grad(self) -> None:
        """Let the gradients go."""
        for parameter in self.parameters:
            parameter.grad = None


class Trainer:
    """A model with its optimizer and one batch; `step()` is the work that is timed."""

    def __init__(self, subject: Subject):
        torch.manual_seed(subject.seed)
        functions = {name: one for name, one in subject.replace.items() if name != "adamw"}
        with torch.device(subject.device):
            self.model = Transformer(llama(subject.workload), functions=functions)
        self.model = self.model.to(subject.workload.torch_dtype)
        self.forward: Callable[..., Tensor] = self.model
        if subject.compile_step is not None:
            self.forward = torch.compile(self.model, dynamic=False, mode=subject.compile_step)
        self.optimizer = make_optimizer(subject, list(self.model.parameters()))
        generator = torch.Generator(subject.device).manual_seed(subject.seed)
        self.tokens_BT, self.targets_BT = inputs(subject.workload, generator, subject.device)
        self.around = subject.around

    def loss_and_gradients(self) -> Tensor:
        """Forward and backward pass; the gradients lie in the parameters."""
        with self.around():
            loss = self.forward(self.tokens_BT, self.targets_BT)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> None:
        """The optimizer's part."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> Tensor:
        """One training step; its loss, a tensor of no dimension."""
        loss = self.loss_and_gradients()
        self.update()
        return loss


def make_optimizer(subject: Subject, parameters: Sequence[nn.Parameter]) -> Any:
    """torch.optim.AdamW as it comes, or the variant's own, or AdamW by the variant's function."""
    if subject.optimizer is not None:
        return subject.optimizer(parameters)
    if "adamw" in subject.replace:
        return AdamWBy(parameters, subject.replace["adamw"])
    return torch.optim.AdamW(
        parameters,
        lr=adamw.LEARNING_RATE,
        betas=adamw.BETAS,
        eps=adamw.EPSILON,
        weight_decay=adamw.WEIGHT_DECAY,
    )


def inputs(workload: Workload, generator: torch.Generator, device: torch.device) -> Inputs:
    """Tokens and those that follow them, int64, each (B, T), at random."""
    size = (workload.micro_batch_size, workload.seq_len + 1)
    drawn = torch.randint(workload.vocab_size, size, generator=generator, device=device)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def eager(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """A step has a state: see `Trainer`."""
    raise NotImplementedError("a training step is no function of its tokens; make a Trainer")


def bytes_moved(workload: Workload) -> float:
    """Of the weights alone: read forward and backward, gradients written, and what AdamW moves.

    Activations are left out, so that the bound of memory is low for a step; its bound is its arithmetic.
    """
    weights = llama(workload).parameters
    return float(weights * (3 * workload.element_B + OPTIMIZER_B * workload.element_B // 4))


def flops(workload: Workload) -> float:
    """6 P per token and 12 L h T^2 per sequence (arXiv 2307.08691, 4.2), causal attention half of that.

    P: of parameters that multiply, so without the table of token embeddings and without norms' weights.
    """
    shape = llama(workload)
    norms = (2 * shape.num_hidden_layers + 1) * shape.hidden_size
    multiplied = shape.parameters - shape.vocab_size * shape.hidden_size - norms
    scores = (
        6.0 * shape.num_hidden_layers * shape.hidden_size * workload.seq_len**2 * workload.micro_batch_size
    )
    return 6.0 * multiplied * workload.rows + scores


def eager_B(workload: Workload) -> float:
    """Weights, gradients and two moments; per layer the scores, and what its products and norms keep.

    Besides, at once, two and a half times the scores of one layer, or the logits three times in fp32. About.
    """
    scores = workload.rows * workload.num_attention_heads * workload.seq_len * workload.element_B
    kept = workload.rows * (14 * workload.hidden_size + 5 * workload.intermediate_size) * workload.element_B
    states = 4.0 * llama(workload).parameters * workload.element_B
    logits = 3 * workload.rows * workload.vocab_size * 4
    return states + workload.num_hidden_layers * (scores + kept) + max(2.5 * scores, logits)


OPERATION = Operation("training_step", inputs, eager, bytes_moved, flops, eager_B)
