"""What a test starts ends with the test, and what that has started too."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from support import processes

# A process that starts another, prints its number, and waits for it.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False).stdout[:1] not in (b"", b"Z")


def ended(pid: int) -> bool:
    end = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not is_running(pid)


def test_a_failing_test_leaves_no_process():
    pids = []

    def failing_test():
        with processes.started([sys.executable, "-c", PARENT]) as process:
            pids.extend([process.pid, int(process.stdout.readline())])
            assert all(map(is_running, pids))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_test()
    assert len(pids) == 2
    assert all(map(ended, pids))


def test_a_command_that_takes_too_long_is_killed():
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired) as raised:
        processes.run([sys.executable, "-c", PARENT], timeout=5)
    assert time.monotonic() - start < 60
    assert ended(int(raised.value.stdout))


def test_a_command_gives_its_output_and_code():
    ran = processes.run([sys.executable, "-c", "import sys; print(1); print(2, file=sys.stderr); sys.exit(3)"])
    assert (ran.stdout, ran.stderr, ran.returncode) == ("1\n", "2\n", 3)
    with pytest.raises(AssertionError, match="2"):
        processes.run([sys.executable, "-c", "import sys; sys.exit('2')"], check=True)
