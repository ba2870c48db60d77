"""The one function behind which questions are answered: `answers` chooses an engine and runs it.

Engines are loaded by name from suites/training: those of numpy in this process, the dry run in a child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import IO, Self

import msgspec
from msgspec.structs import replace

from harness.answer import Answer, EngineName, refused
from harness.ask.certainty import bytes_error, error_of, with_certainty
from harness.ask.recipe import BY_CHUNKS, folded, with_techniques
from harness.ask.reference import with_reference, without_reference
from harness.commands.entry import shortened
from harness.config.code_fingerprint import ROOT
from harness.config.validation import ConfigError
from harness.question import AskedChange, DryRunRequest, Extent, Question, lowering
from harness.records import Unavailable

ENGINES: dict[EngineName, str] = {
    "dry run": "suites.training.dry_run_engine",
    "account": "suites.training.account_engine",
    "step time": "suites.training.seconds_engine",
}

PROGRESS_AFTER_S = 2.0
"""Seconds without an answer after which a line of progress is printed."""

DIVIDED_BY = ("megatron", "nanotron")
"""What shares a model by layouts alone."""


def choose(question: Question, seconds: bool = False) -> tuple[EngineName, str]:
    """Return the engine that answers a question, and why. `seconds`: they are asked for, too."""
    if seconds:
        return "step time", "seconds are asked for"
    if question.origin("techniques").kind == "command":
        return "dry run", "techniques= lists what runs"
    if question.model_code:
        return "dry run", "the model is the user's own code"
    if question.search or question.origin("tp").kind == "command":
        return "account", "a layout is asked about"
    sizes = {"tp": question.tp, "pp": question.pp, "cp": question.cp, "ep": question.ep}
    divided = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    if divided:
        return "account", f"{' × '.join(divided)} divides the model"
    if question.sharing in DIVIDED_BY:
        return "account", f"{question.sharing} trains"
    adapters = question.adapters  # the account lacks prompts, and a base's wide rest
    beyond_account = adapters is not None and bool(adapters.prompts or adapters.rest == "fp32")
    if question.sharing == "zero" and not beyond_account and in_account(question):
        return "account", "DeepSpeed's flat buffers do not repeat by layer, so that a dry run takes minutes"
    if question.replicated_experts:
        return "account", "experts stay outside of what FSDP shards"
    by_file = question.compile and question.origin("compile").kind != "command"
    if by_file and (question.format or question.framework) == "torchtitan" and in_account(question):
        return "account", "torchtitan compiles blocks and loss, which a dry run would take minutes to trace"
    if not (question.config or {}).get("model_type"):
        return "account", "the model's sizes are stated, not its type"
    return "dry run", "one program on every device, which runs on fake tensors"


def in_account(question: Question) -> bool:
    """Return whether the account has all that a question asks."""
    try:
        import_module("suites.training.of_question").subject_of(question)
    except (Unavailable, ValueError):
        return False
    return True


def answers(
    question: Question,
    seconds: bool = False,
    changes: Sequence[AskedChange] = (),
    child: DryRunChild | None = None,
    extent: Extent = "largest",
) -> Iterator[Answer]:
    """Yield the answer, and again whenever more of it is known; the first has the verdict.

    A step that a file compiles is dry-run without, unless the command asks for it: that takes minutes.

    `changes`: of the question, which are tried after it, where the engine is the dry run; `child`: its
    process, where there is one; `extent`: "asked" ends with the verdict. Raises ConfigError where the engine
    cannot run here.
    """
    start = time.monotonic()
    engine, why = choose(question, seconds)
    asked = without_reference(question)
    question = asked.question
    if seconds and question.of_micro_batch:
        question = replace(question, gradient_accumulation_steps=1, global_batch_size=None)
    for name in NOT_USED[engine]:
        if question.origin(name).kind == "command":
            raise ConfigError(f"{name}: not used by the {engine}, which answers since {why}")
    left_out: tuple[str, ...] = ()
    times = 1  # a sequence is run as so many
    if engine == "dry run":
        if question.seq_len is None:
            raise ConfigError("seq_len: missing; give the tokens of a sequence")
        listed = question.origin("techniques").kind == "command"
        if not listed and question.techniques is None:
            question, left_out = with_techniques(question)
        if question.compile and question.origin("compile").kind != "command" and not listed:
            uncompiled = tuple(one for one in question.techniques or () if one[0] != COMPILE.key)
            question = replace(question, compile=False, techniques=uncompiled, keys=(*question.keys, COMPILE))
            left_out = (*left_out, "what torch.compile saves of memory")
        if (question.config or {}).get("model_type") in BY_CHUNKS:
            extent = "asked"
        of_run, times = folded(question)
        if times > 1:
            left_out = (*left_out, f"the length of a sequence, of which {times} parts are run as sequences")
        slack = float(error_of(engine, question, "allocated")["high"])
        request = DryRunRequest(question=of_run, changes=tuple(changes), extent=extent, slack=slack)
        found = child.answers(request) if child else from_child(request, question.model_name)
    else:
        try:
            more = (bytes_error(question), extent) if engine == "step time" else ()
            found = iter([import_module(ENGINES[engine]).answer(question, *more)])
        except Unavailable as error:
            found = iter([refused(str(error))])
    for answer in found:
        all_left_out, taken_s = (*answer.left_out, *left_out), time.monotonic() - start
        timed = answer.with_(engine=engine, why=why, left_out=all_left_out, answer_s=taken_s)
        yield with_certainty(with_reference(with_room(timed, times), asked), question)


NOT_USED: Mapping[EngineName, tuple[str, ...]] = {
    "dry run": ("imbalance", "dispatcher"),
    "account": ("torch",),
    "step time": ("torch",),
}
"""Words of a command that an engine has no use for, where they are given."""

COMPILE = lowering(
    "compile", "torch.compile fuses operations; with compiled=true it is dry-run, in minutes", value=True
)
"""What compiling does to the step that is not compiled; tracing a compiled one takes minutes."""


def with_room(answer: Answer, times: int) -> Answer:
    """Return the answer, or a refused one where nothing of a device is left for torch's allocator.

    `times`: a folded question's, whose peaks get the micro-batch that was asked about.
    """
    memory = answer.memory
    if memory is None:
        return answer
    if memory.room_B <= 0:
        taken_B = memory.usable_B - memory.room_B
        return refused(
            f"device: of its {memory.usable_B / 1e9:.3g} GB the CUDA context and NCCL's buffers take "
            f"{taken_B / 1e9:.3g} GB, which leaves none for torch's allocator"
        )
    peaks = tuple(replace(one, micro_batch_size=one.micro_batch_size // times) for one in memory.peaks)
    return answer.with_(memory=replace(memory, peaks=peaks))


def answer_of(
    question: Question, seconds: bool = False, child: DryRunChild | None = None, extent: Extent = "largest"
) -> Answer:
    """Return the last answer to a question, a refused one where the engine refuses it."""
    try:
        return [refused("no answer"), *answers(question, seconds, (), child, extent)][-1]
    except (ConfigError, ValueError) as error:
        return refused(str(error))


def answer_to(question: Question, seconds: bool = True) -> Answer:
    """Return the last answer to a question; raises ConfigError where it is refused."""
    answer = answer_of(question, seconds)
    if answer.verdict == "refused":
        raise ConfigError(answer.reason)
    return answer


def from_child(request: DryRunRequest, model: str) -> Iterator[Answer]:
    """Yield the answers of a dry run in a child of its own; raises ConfigError."""
    with DryRunChild(model) as child:
        yield from child.answers(request)


class DryRunChild:
    """The process that dry-runs: it answers one request after another, and its life ends with this one's.

    `model`: a line of progress names it where the first answer takes longer than some seconds.
    """

    def __init__(self, model: str = "") -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._said: list[bytes] = []
        text = f"dry run of {model} ...\n"
        self._progress = threading.Timer(PROGRESS_AFTER_S, sys.stderr.write, [text])
        self._progress.daemon = True
        if model:
            self._progress.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.cancel()
        if self._process is not None:
            self._process.kill()
            self._ended(self._process)

    def _ended(self, process: subprocess.Popen[bytes]) -> int:
        self._process, status = None, process.wait()
        os.close(self._lifeline)
        self._reader.join(1.0)  # a grandchild may hold the other end
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):  # what was not yet written, to a process that is gone
                pipe.close()  # type: ignore[union-attr]
        return status

    def start(self) -> subprocess.Popen[bytes]:
        """Return the process, which is started where it is not; raises ConfigError without its libraries."""
        if self._process is not None:
            return self._process
        for package, extra in (("torch", "train"), ("transformers", "hf")):
            if find_spec(package) is None:
                raise ConfigError(
                    f"a dry run needs {package}: pip install 'throughput-harness[{extra}]'; layout= is "
                    "answered without it"
                )
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        theirs, self._lifeline = os.pipe2(os.O_CLOEXEC)
        self._said = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.ask.child", ENGINES["dry run"], str(theirs)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs],
            start_new_session=True,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._listen, args=[self._process.stderr], daemon=True)
        self._reader.start()
        return self._process

    def _listen(self, errors: IO[bytes]) -> None:
        with errors:
            self._said.extend(errors)

    def answers(self, request: DryRunRequest) -> Iterator[Answer]:
        """Yield the answers to a request; raises ConfigError where the process ends before them."""
        process = self.start()
        assert process.stdin and process.stdout  # noqa: PT018
        with suppress(BrokenPipeError):  # of a process that has ended: it has no line, either
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        self._progress.cancel()
        while line.strip():
            yield msgspec.json.decode(line, type=Answer)
            line = process.stdout.readline()
        if not line:
            status = self._ended(process)
            lines = [one.decode(errors="replace").strip() for one in self._said]
            last = next((f": {one}" for one in reversed(lines) if one), "")
            how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
            raise ConfigError(shortened(f"the dry run failed ({how}){last}"))
