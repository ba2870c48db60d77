"""The operations in JAX, written plainly; the signatures are those of operations/."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from suites.kernels.operations import LAYER_NORM_EPSILON, RMS_NORM_EPSILON


def softmax(x_ND: Any) -> Any:
    """Map (N, D) to (N, D)."""
    return jax.nn.softmax(x_ND, axis=-1)


def rms_norm(x_ND: Any, weight_D: Any) -> Any:
    """Map (N, D) and (D) to (N, D)."""
    squares_N1 = jnp.mean(jnp.square(x_ND), axis=-1, keepdims=True)
    return x_ND * jax.lax.rsqrt(squares_N1 + RMS_NORM_EPSILON) * weight_D


def layer_norm(x_ND: Any, weight_D: Any, bias_D: Any) -> Any:
    """Map (N, D), (D) and (D) to (N, D)."""
    centred_ND = x_ND - jnp.mean(x_ND, axis=-1, keepdims=True)
    variance_N1 = jnp.mean(jnp.square(centred_ND), axis=-1, keepdims=True)
    return centred_ND * jax.lax.rsqrt(variance_N1 + LAYER_NORM_EPSILON) * weight_D + bias_D


def swiglu(gate_ND: Any, up_ND: Any) -> Any:
    """Map (N, D) and (N, D) to (N, D)."""
    return jax.nn.silu(gate_ND) * up_ND


def gelu_bias(x_ND: Any, bias_D: Any) -> Any:
    """Map (N, D) and (D) to (N, D)."""
    return jax.nn.gelu(x_ND + bias_D, approximate=True)


def linear_gelu(x_ND: Any, weight_FD: Any, bias_F: Any) -> Any:
    """Map (N, D), (F, D) and (F) to (N, F)."""
    return gelu_bias(x_ND @ weight_FD.T, bias_F)


def rotary(x_BHTK: Any, cos_TK: Any, sin_TK: Any) -> Any:
    """Map (B, H, T, K) to the same shape."""
    first, second = jnp.split(x_BHTK, 2, axis=-1)
    return x_BHTK * cos_TK + jnp.concatenate((-second, first), axis=-1) * sin_TK


def linear_cross_entropy(x_ND: Any, weight_VD: Any, targets_N: Any) -> Any:
    """Return the mean loss, with logits in fp32."""
    logits_NV = (x_ND @ weight_VD.T).astype(jnp.float32)
    picked_N1 = jnp.take_along_axis(logits_NV, targets_N[:, None], axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits_NV, axis=-1) - picked_N1[:, 0])


def pointwise(x_ND: Any, y_ND: Any) -> Any:
    """Map (N, D) and (N, D) to (N, D)."""
    h_ND = (jnp.tanh(x_ND) * jax.nn.sigmoid(y_ND) + x_ND) * y_ND
    return jax.lax.rsqrt(jnp.square(h_ND) + 1)


def attention(q_BHTK: Any, k_BHTK: Any, v_BHTK: Any, causal: bool) -> Any:
    """Map three tensors (B, H, T, K) to the same shape: scores, mask, softmax, product."""
    scores_BHTT = q_BHTK @ jnp.swapaxes(k_BHTK, -2, -1) / q_BHTK.shape[-1] ** 0.5
    if causal:
        length = q_BHTK.shape[-2]
        scores_BHTT = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores_BHTT, -jnp.inf)
    return jax.nn.softmax(scores_BHTT, axis=-1) @ v_BHTK


EVERY = (
    softmax,
    rms_norm,
    layer_norm,
    swiglu,
    gelu_bias,
    linear_gelu,
    rotary,
    linear_cross_entropy,
    pointwise,
)
FUNCTIONS: dict[str, Callable[..., Any]] = {one.__name__: one for one in (*EVERY, attention)}
