"""What the ranks of tests/suites/offload/test_offload_managed.py are asked to do."""

import ctypes
import os

from suites.offload import on_rank
from suites.offload.cgroup import PAGE_B


def course(state, step, folder, steps, managed=None, close=True):
    """Return losses, what has moved before the first step and after each, and the resident share."""
    trainer = on_rank.build_trainer(step, folder, managed)
    optimizer = trainer.optimizer
    told = {"pid": os.getpid(), "losses": [], "moved": [], "read_kB": []}

    def look():
        told["moved"].append(optimizer.moved() if hasattr(optimizer, "moved") else {})
        told["read_kB"].append(read_kB())

    look()
    for _ in range(steps):
        told["losses"].append(on_rank.train_step(trainer))
        look()
    if managed is not None:
        tensors = [one for parameter in trainer.plain.parameters() for one in parts(optimizer, parameter)]
        told["allocated_B"] = trainer.host.allocated_B
        told["on_host"] = all(trainer.host.holds(one) for one in tensors)
        told["resident_B"] = sum(resident_B(one) for one in tensors)
        group = optimizer.memory.group.path
        told["limited"] = str(os.getpid()) in (group / "cgroup.procs").read_text().split()
        if close:
            trainer.close()
            told["gone"] = not group.exists()
    return told


def parts(optimizer, parameter):
    state = optimizer.inner.state[parameter]
    return parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"]


def resident_B(tensor):
    """Return bytes of the tensor's pages that are in RAM (mincore(2))."""
    pages = -(-tensor.nbytes // PAGE_B)
    found = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    code = libc.mincore(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes), found)
    assert code == 0, os.strerror(ctypes.get_errno())
    return PAGE_B * sum(one & 1 for one in found)


def read_kB():
    """Return the kB read from all disks of the machine, by all processes."""
    with open("/proc/vmstat") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("pgpgin "))
