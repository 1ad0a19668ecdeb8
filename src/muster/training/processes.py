"""Several processes on one machine, as a cluster has them on several: started, watched, ended.

This module knows nothing of training: it runs the same command line once a process, and if one of
them dies it says so and ends the others, instead of leaving them to wait for it.
"""

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from muster.errors import AnswerIsNo, BadInput

MOST_PROCESSES = 64
POLL_SECONDS = 0.1
GRACE_SECONDS = 15.0
DIES_WITH_PARENT = "MUSTER_DIES_WITH_PARENT"
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
BAD_INPUT = 2
CHATTER = re.compile(r"\[Gloo\]|\d+ is connected to \d+ peer ranks")


def run_processes(number: int, arguments: Sequence[str]) -> int:
    """Run `muster ARGUMENTS` in so many processes that meet on this machine.

    Only the first one's standard output is shown. SIGTERM and Ctrl-C are handed to all.

    Returns:
        The exit status that all agree on.

    Raises:
        BadInput: more processes than any machine should run, or one that found its input bad.
        AnswerIsNo: one of them died.
    """
    if number > MOST_PROCESSES:
        raise BadInput(f"--processes {number} on one machine; at most {MOST_PROCESSES}")
    meeting = f"127.0.0.1:{_free_port()}"
    children = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "muster", *arguments),
                *("--coordinator", meeting),
                *("--process-count", str(number), "--process-id", str(process)),
            ],
            stdout=sys.stdout.fileno() if process == 0 else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches this process, which hands it on
            env={**os.environ, DIES_WITH_PARENT: "1"},
        )
        for process in range(number)
    ]

    def hand_on(number: int, frame: FrameType | None) -> None:
        del number, frame
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)

    said: list[list[str]] = [[] for _ in children]
    listeners = [
        threading.Thread(target=_listen, args=(child, said[process], process == 0), daemon=True)
        for process, child in enumerate(children)
    ]
    for listener in listeners:
        listener.start()
    before = {each: signal.signal(each, hand_on) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        return _watch(children, listeners, said)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        _end(children)


def die_with_parent() -> None:
    """Have Linux end this process when the one that started it so is killed."""
    if DIES_WITH_PARENT in os.environ:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _listen(child: subprocess.Popen[str], said: list[str], shows: bool) -> None:
    """Keep what a process says of itself, and show the first one's; not its libraries' chatter."""
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("muster: "):
            said.append(line.removeprefix("muster: ").strip())
        if shows and not CHATTER.match(line):
            sys.stderr.write(line)
            sys.stderr.flush()


def _watch(
    children: list[subprocess.Popen[str]], listeners: list[threading.Thread], said: list[list[str]]
) -> int:
    """Wait for all; the first that fails ends the job."""
    while True:
        statuses = [child.poll() for child in children]
        failed = [index for index, status in enumerate(statuses) if status not in {None, 0}]
        if failed:
            first = failed[0]
            _end(children)
            for listener in listeners:
                listener.join(GRACE_SECONDS)
            return _explained(first, statuses[first] or 0, said)
        if all(status == 0 for status in statuses):
            return 0
        time.sleep(POLL_SECONDS)


def _explained(process: int, status: int, said: list[list[str]]) -> int:
    """Say why the job ended, unless its first process has said so: then its status."""
    reason = said[process][-1] if said[process] else ""
    if status == BAD_INPUT:  # every process finds the same fault
        if said[0]:
            return BAD_INPUT
        raise BadInput(reason or "bad input")
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    raise AnswerIsNo(
        f"process {process} of {len(said)} ended with {how}{': ' * bool(reason)}{reason}; the "
        "others were ended too; the same command again goes on from the newest checkpoint"
    )


def _end(children: list[subprocess.Popen[str]]) -> None:
    """End what still runs: asked first, then made to."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        child.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for child in running:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def without_processes(arguments: Sequence[str]) -> list[str]:
    """A command line without its `--processes N`.

    >>> without_processes(["train", "m", "--processes", "2", "--steps", "3"])
    ['train', 'm', '--steps', '3']
    >>> without_processes(["train", "--processes=2"])
    ['train']
    """
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--processes":
            next(words, None)
        elif not word.startswith("--processes="):
            kept.append(word)
    return kept
