"""The shape of a config from a child process, as the parent's commands ask for it."""

import pytest

from harness.commands.model_shape import shape_of
from suites.training.layouts.shape_of_config import shape_of_config

DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "n_routed_experts": 8,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "vocab_size": 320,
}


def test_the_child_returns_what_this_process_would():
    assert shape_of(DEEPSEEK) == shape_of_config(DEEPSEEK)


def test_a_model_without_a_shape_is_one_line_that_names_it():
    with pytest.raises(ValueError, match="model_type 'mamba': layouts are answered for") as raised:
        shape_of({"model_type": "mamba"})
    assert len(str(raised.value)) <= 300
    assert "\n" not in str(raised.value)
