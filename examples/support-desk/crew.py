"""The processes of a run: services, and a crew of which nobody stays dead."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from multiprocessing.synchronize import Event as StopSign
from typing import Any

PATIENCE_SECONDS = 60
POLL_SECONDS = 0.05

fork = multiprocessing.get_context("fork")

Job = Callable[[str, StopSign], None]


class Crew:
    """Processes with a job each; one that dies is replaced."""

    def __init__(self, jobs: dict[str, Job],
                 give_back: Callable[[str], int]) -> None:
        self.jobs = jobs
        self.give_back = give_back  # what a dead one held; says how much
        self.stop = fork.Event()
        self.killed = self.failed = self.redelivered = 0
        self.processes = {name: self.start(name) for name in jobs}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """Let everybody finish what they are at; after an error, don't."""
        self.stop.set()
        for process in self.processes.values():
            if error is not None:
                process.terminate()
            process.join()

    def start(self, name: str) -> ForkProcess:
        """Let a new process do the job of this name."""
        return start(self.jobs[name], name, self.stop, name=name)

    def work_while(self, open_work: Callable[[], object]) -> None:
        """Keep all jobs occupied while there is something to do."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while left := open_work():
            if time.monotonic() > deadline:
                raise RuntimeError(f"after {PATIENCE_SECONDS} s still: {left}")
            time.sleep(POLL_SECONDS)
            for name, process in self.processes.items():
                if not process.is_alive():
                    self.replace(name, process)

    def replace(self, name: str, process: ForkProcess) -> None:
        """Deliver again what the dead process held; start a new one."""
        if process.exitcode == -signal.SIGKILL:
            self.killed += 1
        else:
            self.failed += 1
        self.redelivered += self.give_back(name)
        self.processes[name] = self.start(name)


def start(target: Callable[..., None], *args: Any,
          name: str | None = None) -> ForkProcess:
    """Start a process that ends with this one."""
    process = fork.Process(target=leave_signals_to_parent, name=name,
                           args=(target, *args), daemon=True)
    process.start()
    return process


def leave_signals_to_parent(target: Callable[..., None], *args: Any) -> None:
    """Call the target; on Ctrl-C the parent terminates this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    target(*args)


@contextmanager
def service(run: Callable[..., None], *args: Any) -> Iterator[int]:
    """Run a service in a process of its own; yield its port."""
    ours, theirs = fork.Pipe()
    process = start(run, *args, theirs)
    theirs.close()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()
