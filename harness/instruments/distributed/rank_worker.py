"""One rank of a pool, started by `rank_pool` as `python -m harness.instruments.distributed.rank_worker`.

Calls are lines of JSON on standard input, `{"call": "module:function", "arguments": {...}}`; answers are
lines on the descriptor that ANSWERS names. A function gets the rank's state, a dictionary that persists, and
the arguments. The rank ends with its input, even while it waits in a collective.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import queue
import signal
import socket
import threading
import time
import traceback
from datetime import timedelta
from typing import Any

from harness.instruments.process import call_unary_functions, die_with_starter
from harness.records import Unavailable, WrongResult

MEANT: tuple[type[Exception], ...] = (Unavailable, WrongResult, MemoryError)  # stay what they are
MEET_SHARE = 0.8  # of the limit, to reach rank 0, so that a failure is reported within the limit
STORE, POOL = "HARNESS_STORE", "HARNESS_POOL"  # host:port where ranks of several machines meet; a pool's name
LEASE_S = 10.0  # how long a rank on another machine may send no heartbeat
SILENT = 113  # exit code of the process that represents such a rank here, once it has sent none for so long
RankState = dict[str, Any]  # what the functions of one rank keep from call to call


def main() -> None:
    """Answer calls until the input ends."""
    die_with_starter()
    faulthandler.enable(all_threads=False)
    faulthandler.register(signal.SIGUSR1, all_threads=False, chain=True)  # prints where it hangs, and dies
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(calls,), daemon=True).start()
    state: RankState = {}
    descriptor = int(os.environ["ANSWERS"])
    os.set_inheritable(descriptor, False)  # its closing shows that this process is gone
    with open(descriptor, "w", buffering=1) as answers:
        while True:
            answers.write(answer(json.loads(calls.get()), state) + "\n")


def _listen(calls: queue.SimpleQueue[bytes]) -> None:
    """Read calls while the main thread works, so that the end of the input is noticed at once."""
    with open(0, "rb", closefd=False) as lines:  # not sys.stdin, on whose lock Python would wait at its exit
        for line in lines:
            calls.put(line)
    os._exit(0)


def answer(call: dict[str, Any], state: RankState) -> str:
    """Return what the function returns, or what it raised and whether that was expected; a line of JSON."""
    try:
        module, _, function = call["call"].partition(":")
        result = getattr(importlib.import_module(module), function)(state, **call["arguments"])
        return json.dumps({"answer": result})
    except (Exception, SystemExit) as error:
        if kind := next((one for one in MEANT if isinstance(error, one)), None):
            return json.dumps({"raised": kind.__name__, "said": str(error)})
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        return json.dumps({"raised": "", "said": f"{type(error).__name__}: {error} ({place})"})


def listen(state: RankState, timeout_s: float) -> int:
    """Open the common store on rank 0's address and return its free port; 0 where a store exists already."""
    if POOL in os.environ:
        return 0
    host = os.environ["MASTER_ADDR"]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = int(server.getsockname()[1])
        state["store"] = _store(host, port, timeout_s, is_master=True, master_listen_fd=server.detach())
    return port


def join(state: RankState, backend: str, port: int, timeout_s: float) -> list[int]:
    """Join the other ranks and return this rank and their number; collectives time out after `timeout_s`."""
    begin_s = time.monotonic()
    import torch.distributed as dist

    call_unary_functions()
    rank = int(os.environ["RANK"])
    if POOL in os.environ:
        host, _, common = os.environ[STORE].rpartition(":")
        state["store"] = dist.PrefixStore(os.environ[POOL], _store(host, int(common), timeout_s))  # type: ignore[attr-defined]
    if "store" not in state:
        host = os.environ["MASTER_ADDR"]
        _reach(host, port, max(begin_s + MEET_SHARE * timeout_s - time.monotonic(), 0.1))
        state["store"] = _store(host, port, timeout_s, is_master=False)
    dist.init_process_group(
        backend,
        store=state["store"],
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=timeout_s),
        device_id=gpu() if backend == "nccl" else None,
    )
    return [dist.get_rank(), dist.get_world_size()]


def gpu() -> Any:
    """Return this rank's GPU: the only visible one, or the one with its number on its node."""
    import torch

    alone = torch.cuda.device_count() == 1
    return torch.device("cuda", 0 if alone else int(os.environ["LOCAL_RANK"]))


def _reach(host: str, port: int, patience_s: float) -> None:
    """Check that rank 0 can be reached; torch would try for long, and report less."""
    try:
        socket.create_connection((host, port), timeout=patience_s).close()
    except OSError as error:
        why = error.strerror or error
        raise ConnectionError(f"rank 0 cannot be reached at {host}:{port}: {why}") from None


def _store(host: str, port: int, timeout_s: float, **more: Any) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(host, port, wait_for_workers=False, timeout=timedelta(seconds=timeout_s), **more)


if __name__ == "__main__":
    main()
