"""The memory of each pipeline rank by kind: against the account, and states by hand."""

from __future__ import annotations

import numpy as np
import pytest

from harness.instruments.transformer import TransformerShape
from harness.question import Question
from suites.training.layouts.account import worst_peak
from suites.training.layouts.layout import Layouts, Training
from suites.training.layouts.room import outside_allocator_B
from suites.training.layouts.search import LayoutGpus, LayoutSubject, fits, memory_kinds

SHAPE = TransformerShape(
    num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    intermediate_size=14336, vocab_size=128256,
)  # fmt: skip


@pytest.mark.parametrize("program", ["megatron", "torchtitan", "nanotron", "deepspeed", "composer"])
@pytest.mark.parametrize(
    "row",
    [
        {"pp": 4, "tp": 2, "dp": 2, "zero": 1, "micro_batches": 8, "virtual_stages": 2},
        {"dp": 16, "zero": 3, "recompute": 1},
        {"pp": 2, "dp": 8, "recompute": 2, "micro_batches": 2},
    ],
    ids=str,
)
def test_the_kinds_of_the_worst_rank_add_up_to_what_the_search_needs(program, row):
    layout, training = Layouts.of([row]), Training(seq_len=4096, program=program)
    gpus = LayoutGpus(int(layout.gpus[0]))
    subject = LayoutSubject(Question(), SHAPE, training, gpus, layout)
    kinds = memory_kinds(subject)
    assert len(kinds["parameters"]) == row.get("pp", 1)
    total_B = sum(kinds.values())
    tensors = total_B - kinds["fragmentation"] - kinds["outside"]
    worst = worst_peak(SHAPE, layout, training)
    assert tensors.max() == pytest.approx(worst.total_B[0])
    assert int(tensors.argmax()) == worst.stage[0]
    found = fits(subject, layout)
    assert (total_B - kinds["outside"]).max() == pytest.approx(found.needed[0])
    assert kinds["outside"] == pytest.approx(outside_allocator_B(layout)[0])
    assert bool(total_B.max() <= gpus.usable_B) == bool(found.fits[0])
    assert all((np.asarray(each) >= 0).all() for each in kinds.values())


def test_states_are_those_by_hand():
    layout = Layouts.of([{"pp": 4, "dp": 8, "zero": 1, "micro_batches": 8}])
    subject = LayoutSubject(Question(), SHAPE, Training(seq_len=4096), LayoutGpus(32), layout)
    kinds = memory_kinds(subject)
    # of a rank in the middle: eight layers of four matrices of attention, three of the MLP, and two norms
    layer = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336 + 2)
    parameters = 8 * layer
    assert kinds["parameters"][1] == 2 * parameters  # bf16
    assert kinds["gradients"][1] == 4 * parameters  # fp32
    assert kinds["optimizer"][1] == 12 * parameters / 8  # fp32 weights and two moments over eight ranks
    assert kinds["parameters"][0] == 2 * (parameters + 128256 // 128 * 128 * 4096)
    assert kinds["logits"][:3] == pytest.approx(0)
    assert kinds["logits"][3] > 0
