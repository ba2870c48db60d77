"""The same operation in JAX, compiled by XLA (jax.jit of forward pass and jax.vjp), a peer.

Inputs are converted once, before anything is timed; each call is synchronous. XLA gets as many threads as
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.instruments.process import only_threads
from harness.records import HostInfo, Unavailable
from suites.kernels.subject import Inputs, Result, Subject
from suites.kernels.training_step import STEP, missing


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run here; None where it can."""
    if host.device == "cuda":
        return "JAX uses its own stream, which torch's events cannot time"
    return missing("jax", "jax")


def apply(subject: Subject) -> Subject:
    """Return the subject computed by XLA; raises `Unavailable` for a step."""
    name = subject.workload.operation
    if name == STEP:
        raise Unavailable("jax_xla supports single operations only, not the training step")
    with only_threads(torch.get_num_threads()):
        import jax

        jax.devices()
    from suites.kernels.jax_functions import FUNCTIONS

    if name not in FUNCTIONS:
        raise Unavailable(f"jax_xla has no {name}; it has {', '.join(FUNCTIONS)}")
    return replace(
        subject,
        bind=bind,
        as_torch=as_torch,
        compiles=True,
        notes=(*subject.notes, "peak memory is not read: torch's allocator does not see XLA's"),
    )


def bind(subject: Subject, inputs: Inputs, upstream: Sequence[Tensor]) -> Callable[[], Any]:
    """Return a call that computes outputs and gradients, and waits for them."""
    import jax

    from suites.kernels.jax_functions import FUNCTIONS

    function = FUNCTIONS[subject.workload.operation]
    arrays = [to_jax(one) for one in inputs]
    places = [i for i, one in enumerate(inputs) if isinstance(one, Tensor) and one.requires_grad]
    fixed = {i: one for i, one in enumerate(inputs) if not isinstance(one, Tensor)}

    def merged(arguments: Sequence[Any], leaves: Sequence[Any]) -> Any:
        every = [fixed.get(i, one) for i, one in enumerate(arguments)]
        for place, leaf in zip(places, leaves, strict=True):
            every[place] = leaf
        return function(*every)

    def both(arguments: Sequence[Any], gradients: Sequence[Any]) -> Any:
        leaves = [arguments[place] for place in places]
        if not leaves:
            return merged(arguments, ()), ()
        outputs, pull_back = jax.vjp(lambda *given: merged(arguments, given), *leaves)
        return outputs, pull_back(gradients[0].astype(outputs.dtype))

    compiled = jax.jit(both)
    arguments = [None if i in fixed else one for i, one in enumerate(arrays)]
    given = [to_jax(one) for one in upstream]
    return lambda: jax.block_until_ready(compiled(arguments, given))


def to_jax(value: Any) -> Any:
    """Return a torch tensor as a JAX array on JAX's own device; anything else unchanged."""
    import jax.numpy as jnp

    if not isinstance(value, Tensor):
        return value
    plain = value.detach().cpu()
    if plain.dtype == torch.bfloat16:
        return jnp.asarray(plain.float().numpy()).astype(jnp.bfloat16)
    return jnp.array(plain.numpy())


def as_torch(result: Any) -> Result:
    """Return outputs and gradients as fp32 tensors on the CPU, for the float64 check.

    fp32 represents bf16 exactly.
    """
    import numpy as np

    outputs, gradients = result
    narrow = [outputs], list(gradients)
    wide = [[torch.from_numpy(np.array(one, dtype=np.float32)) for one in group] for group in narrow]
    return wide[0], wide[1]
