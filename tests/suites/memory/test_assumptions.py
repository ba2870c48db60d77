"""What could turn the answer of a step that fits: other implementations of the optimizer, kept logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import suites.memory.suite as memory
from suites.memory import subject as assumptions
from suites.memory.subject import Subject
from suites.training.dry_run.largest_batch import other_choices, outside_allocator_B

SMALL: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "max_position_embeddings": 64,
    "seq_len": 16,
    "device_memory_B": 80e9,
    "simulated_device": "cuda",
    "search": "largest_micro_batch",
    "dp_size": 4,
}


def a_subject(techniques: tuple[tuple[str, dict[str, Any]], ...] = (), **changes: Any) -> Subject:
    subject = memory.build({**SMALL, "optimizer_impl": "fused", **changes}, seed=0)
    return memory.apply_techniques(subject, techniques)


def with_room(subject: Subject, room_B: float) -> Subject:
    """Return the subject on a device whose allocator has that room."""
    outside_B = sum(outside_allocator_B(subject.step).values())
    return replace(subject, usable_memory_B=room_B + outside_B)


def answers(subject: Subject, largest: int) -> dict[str, float]:
    return {one.metric: one.value for one in assumptions.readings(subject, largest, memory.peak_of_rank)}


def test_foreach_turns_the_answer_where_its_temporaries_have_no_room() -> None:
    subject = a_subject()
    fused_B = memory.peak_of_rank(subject).reserved_B
    (_, default), *_ = other_choices(subject.step)
    foreach_B = memory.peak_of_rank(replace(subject, step=default)).reserved_B
    assert fused_B is not None
    assert foreach_B is not None
    assert foreach_B > fused_B
    found = answers(with_room(subject, fused_B + 2**20), 1)
    assert found["assumption/optimizer_impl=default/fits"] == 0
    assert found["assumption/optimizer_impl=default/largest_micro_batch"] == 0


def test_with_room_for_everything_nothing_is_turned() -> None:
    found = answers(with_room(a_subject(), 60e9), 1)
    assert {name: value for name, value in found.items() if value != 1} == {}
    assert "assumption/optimizer_impl=for_loop/fits" not in found  # whose temporaries are smaller still


def test_what_the_recipe_states_is_not_assumed() -> None:
    stated = a_subject((("optimizer", {"impl": "fused"}), ("loss", {"chunks": 2})))
    assert list(other_choices(stated.step)) == []
    assert [name for name, _ in other_choices(a_subject().step)] == [
        "optimizer_impl=default",
        "optimizer_impl=for_loop",
        "keep_logits=model",
    ]


def test_states_on_the_host_are_sixteen_bytes_per_parameter_over_all_ranks() -> None:
    subject = a_subject((("fsdp2", {"cpu_offload": True}),))
    counts = memory.count_model(subject)
    assert assumptions.host_B(subject, counts) == 16 * counts.parameters / 4
    assert assumptions.host_B(a_subject((("fsdp2", {}),)), counts) == 0
