"""Processes that do a run together: who they are, what they tell one another, and who is gone.

Each of them, a rank, runs the same program on the same state. `compute.processes` forks them, on
one machine; `torchrun` starts them, on one or on several.
"""

import atexit
import gc
import json
import os
import signal
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from socket import if_nameindex
from tempfile import TemporaryDirectory
from threading import Event, Thread

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore, Store
from torch.distributed.distributed_c10d import _get_default_store, _set_pg_timeout

from masquerade.engine.started import started
from masquerade.errors import MasqueradeError, MasqueradeWarning

BEAT = 5.0
"""Seconds between two signs of life."""
LOOK = 0.5
"""Seconds after which a process that waits sees to signals, and to who is alive."""
SILENCE = 120.0
"""Seconds without a sign of life after which a rank counts as gone."""
MOST = 2048
"""Bytes of what ranks tell one another."""
LEAVING = 10.0
"""Seconds that forked processes have for their end, once the first has come to its own."""
MEETING = 300.0
"""Seconds within which all processes have to be there; they were started together."""
_CONNECTING = timedelta(seconds=60)
"""How long those that are there may take to connect; nothing else is seen to meanwhile."""
_FOREVER = timedelta(days=365)

Word = Mapping[str, str | int | bool]
"""What a rank tells all others."""


@dataclass
class Ranks:
    """The processes of a run, as one of them sees them; by default it is alone."""

    number: int = 0
    count: int = 1
    group: dist.ProcessGroup | None = None
    """By which they exchange what lies in host memory: gloo."""
    cards: dist.ProcessGroup | None = None
    """By which they exchange what lies on GPUs, where each has its own: NCCL."""
    store: Store | None = None
    """Where they leave signs of life."""
    children: dict[int, int] = field(default_factory=dict)
    """By rank, the processes that this one forked."""
    folder: Path | None = None
    """Where those leave what they failed by."""
    _heard: dict[int, tuple[bytes, float]] = field(default_factory=dict)

    @property
    def first(self) -> bool:
        """Tell whether this process writes files, shows progress and tells callbacks."""
        return self.number == 0

    @property
    def several(self) -> bool:
        """Tell whether they divide work; one that torchrun started does it in the same way."""
        return self.store is not None

    @property
    def forked(self) -> bool:
        """Tell whether they are forks of one process, and so have one thread each."""
        return self.folder is not None

    def tell(self, word: Word) -> list[Word]:
        """Tell all something short; return what each has told, in the order of ranks."""
        if self.count == 1:
            return [word]
        text = json.dumps(word).encode().ljust(MOST)
        mine = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return [json.loads(each.numpy().tobytes()) for each in self.gather(mine)]

    def decide(self, value: bool) -> bool:
        """Return what the first rank says."""
        return bool(self.tell({"value": value})[0]["value"])

    def hand_out(self, data: bytes = b"") -> bytes:
        """Return the bytes that the first rank has."""
        size = int(self.tell({"size": len(data)})[0]["size"])
        if self.count == 1 or not size:
            return data
        room = torch.frombuffer(bytearray(data if self.first else size), dtype=torch.uint8)
        self._wait(dist.broadcast(room, 0, group=self.group, async_op=True))
        return room.numpy().tobytes()

    def gather(self, mine: Tensor) -> list[Tensor]:
        """Return the bytes of every rank, as many of each, on the device of `mine`."""
        if mine.is_cuda and self.cards is None:
            return [each.to(mine.device) for each in self.gather(mine.cpu())]
        found = [torch.empty_like(mine) for _ in range(self.count)]
        if mine.is_cuda:
            # All have told that they are here, and NCCL takes a wait that is limited for a failure.
            dist.all_gather(found, mine, group=self.cards)
        else:
            self._wait(dist.all_gather(found, mine, group=self.group, async_op=True))
        return found

    def _wait(self, work: dist.Work | None) -> None:
        """Wait for an exchange: others may be at work for hours, but must give signs of life."""
        assert work is not None
        while True:
            try:
                work.wait(timedelta(seconds=LOOK))
                return
            except RuntimeError as fault:
                if work.is_completed():
                    raise self.gone(self._ended()) from fault
            if silent := self._silent():
                named = ", ".join(map(str, silent))
                raise self.gone(f"no sign of life from process {named} for {SILENCE:.0f} s")

    def meet(self) -> None:
        """Wait until all are there, before an exchange is made of them.

        To make one is to wait where no signal is seen to and nobody looks for those that ended.
        """
        assert self.store is not None
        self.store.set(f"here/{self.number}", "")
        others, until = [f"here/{rank}" for rank in range(self.count)], time.monotonic() + MEETING
        while not self.store.check(others):
            if self.children and (how := self._first_ended()):
                raise self.gone(how)
            if time.monotonic() > until:
                missing = [rank for rank, key in enumerate(others) if not self.store.check([key])]
                named = ", ".join(map(str, missing))
                raise self.gone(f"process {named} has not come within {MEETING:.0f} s")
            time.sleep(0.005)

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Take an exchange that cannot be made for a process that is gone."""
        try:
            yield
        except RuntimeError as fault:
            raise self.gone(self._ended()) from fault

    def gone(self, what: str) -> MasqueradeError:
        """Return the error that ends a run when a process is gone."""
        text = (
            f"{what}; a run of {self.count} processes needs them all, and ends at its last commit"
        )
        return MasqueradeError("E505", f"{text}. Resume it, with any number of processes")

    def _ended(self) -> str:
        """Say which process ended, and how, as far as this one knows."""
        until = time.monotonic() + 1
        while self.children and time.monotonic() < until:
            if how := self._first_ended():
                return how
            time.sleep(0.02)
        return "another process ended"

    def _first_ended(self) -> str:
        """Say which of the forked processes has ended, and how; empty where none has."""
        for rank, process in list(self.children.items()):
            if how := _status(process):
                del self.children[rank]
                return f"process {rank} {self._fault(rank) or how}"
        return ""

    def _fault(self, rank: int) -> str:
        """Return what a forked process failed by, if it left that."""
        assert self.folder is not None
        with suppress(OSError):
            lines = (self.folder / str(rank)).read_text(encoding="utf-8").strip().splitlines()
            return f"failed: {lines[-1]}"
        return ""

    def _silent(self) -> list[int]:
        """List the ranks that have given no sign of life for too long."""
        assert self.store is not None
        now, silent = time.monotonic(), []
        for rank in set(range(self.count)) - {self.number}:
            try:
                sign = self.store.get(f"alive/{rank}")
            except RuntimeError as fault:
                raise self.gone("the process that keeps signs of life is gone") from fault
            last, since = self._heard.get(rank, (b"", now))
            self._heard[rank] = (sign, now if sign != last else since)
            if now - self._heard[rank][1] > SILENCE:
                silent.append(rank)
        return silent

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Give signs of life."""
        assert self.store is not None
        store, done = self.store, Event()
        store.set(f"alive/{self.number}", "0")
        # Whoever asks for a sign that was never given would wait for it.
        self.tell({})

        def beat() -> None:
            beats = 0
            while not done.wait(BEAT):
                beats += 1
                with suppress(RuntimeError):
                    store.set(f"alive/{self.number}", str(beats))

        thread = Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _status(process: int) -> str:
    """Say how a child ended; empty while it has not."""
    try:
        ended, status = os.waitpid(process, os.WNOHANG)
    except ChildProcessError:
        return "ended"
    if not ended:
        return ""
    code = os.waitstatus_to_exitcode(status)
    return f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"


@contextmanager
def launched(device: str) -> Iterator[Ranks]:
    """Be one of those that torchrun started, on a GPU of its own if there are enough; or alone."""
    if _forks:
        raise MasqueradeError("E202", "a process of a run cannot begin another run")
    ranks = group()
    if ranks.several and device != "cpu" and torch.cuda.is_available():
        ranks.cards = ranks.cards or _cards(ranks)
    with warnings.catch_warnings():
        if not ranks.first:
            warnings.simplefilter("ignore", MasqueradeWarning)
        yield ranks


def group() -> Ranks:
    """Return the processes that torchrun started, or this one alone."""
    return joined() if started() or dist.is_initialized() else Ranks()


@cache
def joined() -> Ranks:
    """Join those that torchrun started: once in a process, for all of its runs."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=timedelta(seconds=MEETING))
        atexit.register(dist.destroy_process_group)
    store = PrefixStore("masquerade", _get_default_store())
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), store=store)
    ranks.meet()
    with ranks.connecting():
        ranks.group = dist.new_group(backend="gloo", timeout=_CONNECTING)
    _set_pg_timeout(_FOREVER, ranks.group)
    stack = ExitStack()
    stack.enter_context(ranks.alive())
    atexit.register(stack.close)
    return ranks


def _cards(ranks: Ranks) -> dist.ProcessGroup | None:
    """Take a GPU; return the group that exchanges tensors between them where each has its own."""
    here, count = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    torch.cuda.set_device(here % count)
    own = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.count)) <= count
    shared = not all(each["own"] for each in ranks.tell({"own": own}))
    return None if shared else dist.new_group(backend="nccl")


_forks: list[int] = []
"""The rank of this process, where it is a fork."""


@contextmanager
def forked(count: int, device: torch.device) -> Iterator[Ranks]:
    """Go on as so many processes: forks of this one, which end with the body.

    They see all that was made before where it lies: nothing is copied, imported or built again.
    """
    _refuse_forks(device)
    with TemporaryDirectory(prefix="masquerade-") as name:
        folder, parent = Path(name), os.getpid()
        children: dict[int, int] = {}
        for rank in range(1, count):
            if process := _fork():
                children[rank] = process
                continue
            _serve(rank, parent)
            path = folder / str(rank)
            # It ends inside: nothing of what its parent has open is closed here.
            with _ending(path), _exchanging(rank, count, folder) as ranks, _ending(path):
                yield ranks
        try:
            with _exchanging(0, count, folder, children) as ranks:
                try:
                    yield ranks
                except BaseException:
                    # Before the exchange ends, which might wait for theirs.
                    _end(children, 0.0)
                    raise
                _end(children, LEAVING)
        finally:
            _end(children, 0.0)


def _refuse_forks(device: torch.device) -> None:
    command = "torchrun --nproc-per-node N -m masquerade run"
    if device.type != "cpu" or not hasattr(os, "fork"):
        text = (
            "this system cannot fork" if device.type == "cpu" else "a GPU cannot be shared by forks"
        )
        raise MasqueradeError("E202", f"{text}; start processes by `{command}`, or take one")
    if torch.accelerator.is_available():
        # The first gradient starts threads for every device there is, and this process took some.
        what = torch.accelerator.current_accelerator()
        text = f"torch refuses gradients in forks of a process that sees an accelerator ({what})"
        do = f"hide it (CUDA_VISIBLE_DEVICES=), start processes by `{command}`, or take one"
        raise MasqueradeError("E202", f"{text}; {do}")


def _fork() -> int:
    """Fork; what its parent left for the garbage collector is not the fork's to collect.

    An exchange of an earlier run may be among it. To destroy one is to wait for its threads, and
    they are the parent's alone: the fork would wait for ever, or be ended.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            # Other threads show progress or write commits; a fork needs nothing of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if not process:
            gc.freeze()
        return process
    finally:
        if collects:
            gc.enable()


def _serve(rank: int, parent: int) -> None:
    """Make a fork ready: one thread, no word, and an end with its parent's."""
    torch.set_num_threads(1)
    _forks.append(rank)
    # The parent decides when work ends; a terminal's Ctrl-C reaches everybody.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when the one that forked it is gone; a killed parent tells nobody."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


@contextmanager
def _ending(path: Path) -> Iterator[None]:
    """End the process after the body, whatever happens in it; leave what it failed by."""
    status = 1
    try:
        yield
        status = 0
    except BaseException:
        with suppress(OSError):
            path.write_text(traceback.format_exc(), encoding="utf-8")
    finally:
        os._exit(status)


@contextmanager
def _exchanging(
    number: int, count: int, folder: Path, children: dict[int, int] | None = None
) -> Iterator[Ranks]:
    """Let forks find one another, on the loopback interface alone."""
    store = FileStore(str(folder / "store"), count)
    ranks = Ranks(number, count, store=store, children=children or {}, folder=folder)
    ranks.meet()
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = next(n for _, n in if_nameindex() if n.startswith("lo"))
    try:
        with ranks.connecting():
            dist.init_process_group(
                "gloo", store=store, rank=number, world_size=count, timeout=_CONNECTING
            )
        _set_pg_timeout(_FOREVER)
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]
        if interface is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
    try:
        with ranks.alive():
            yield ranks
    finally:
        dist.destroy_process_group()


def _end(children: dict[int, int], seconds: float) -> None:
    """Wait for forks to end, so many seconds at most."""
    until = time.monotonic() + seconds
    while children and time.monotonic() < until:
        for rank, process in list(children.items()):
            if _status(process):
                del children[rank]
        time.sleep(0.002)
    for process in children.values():
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(process, 0)
    children.clear()
