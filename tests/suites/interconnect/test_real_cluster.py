"""The interconnect suite on machines where a launcher started the ranks."""

import pytest
import torch

from harness.instruments.distributed.remote_ranks import Launch
from harness.records import Unavailable
from suites.interconnect.training_cluster import backend_of, network_of

HERE = Launch(0, 4, 0, 2, "node1", 29500, False, "none/0")


@pytest.mark.parametrize(("seen", "backend"), [(0, "gloo"), (1, "nccl"), (2, "nccl"), (8, "nccl")])
def test_a_gpu_for_each_rank_is_nccls(monkeypatch, seen, backend):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    assert backend_of(HERE) == backend


def test_gpus_that_do_not_suffice_are_no_silent_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(Unavailable, match="2 GPUs are too few for the 4 ranks of a node"):
        backend_of(HERE._replace(per_node=4))


def test_nodes_on_machines_of_their_own_have_a_network():
    assert network_of(HERE, [("a", 0), ("a", 1), ("b", 0), ("b", 1)]) == "real"
    assert network_of(HERE, [("a", 0), ("a", 1), ("a", 0), ("a", 1)]) == "loopback"


@pytest.mark.parametrize(
    "ranks", [[("a", 0), ("b", 0), ("a", 1), ("b", 1)], [("a", 1), ("a", 0), ("b", 0), ("b", 1)]]
)
def test_ranks_dealt_round_are_refused(ranks):
    with pytest.raises(Unavailable, match="numbered node by node"):
        network_of(HERE, ranks)
