"""Installs a wheel into a fresh environment and uses it there, with no compiler or cmake on the path.

    python tests/support/installed_wheel.py [--python python3.12] FOLDER_OF_WHEELS

It prints how long each step took: install with all requirements, the main job on the default model, the README's example, a
server with one request.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "README.md"
MAIN_JOB = ["generate", "Why is the sky blue? Answer in two sentences.", "--temperature", "0.7", "--seed", "1"]


@contextmanager
def timed(what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - start:.1f} s", flush=True)


def printed(command: Sequence[str | Path], **options: Any) -> str:
    """What a command prints, which must not fail."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} has failed:\n{done.stdout}")
    return done.stdout


def ask_server(command: list[str], environment: dict[str, str]) -> str:
    """The answer of a server, started by the command, to one request."""
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        lines: list[str] = []
        try:
            for line in server.stderr:
                lines.append(line)
                if found := re.search(r"listening on (http://\S+:\d+)", line):
                    threading.Thread(target=server.stderr.read, daemon=True).start()  # or the log would fill the pipe, and wait
                    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
                    request = urllib.request.Request(
                        f"{found[1]}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
                    )
                    with urllib.request.urlopen(request, timeout=60) as answer:
                        return str(json.load(answer)["choices"][0]["message"]["content"])
        finally:
            server.terminate()
    raise SystemExit("the server did not start:\n" + "".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the environment")
    parser.add_argument("wheels", type=Path, help="a folder; pip takes the one for the interpreter")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        binaries = Path(folder) / "environment" / "bin"
        subprocess.run([options.python, "-m", "venv", binaries.parent], check=True)
        environment = {name: value for name, value in os.environ.items() if name not in ("PATH", "PYTHONPATH")}
        environment |= {"PATH": str(binaries)}
        found = [tool for tool in ("c++", "g++", "clang++", "cmake", "ninja", "make") if shutil.which(tool, path=str(binaries))]
        assert not found, f"on the path: {found}"

        def run(*command: str | Path) -> str:
            return printed([binaries / command[0], *command[1:]], env=environment, cwd=folder)

        with timed("installed"):
            install = ("pip", "--disable-pip-version-check", "install", "--quiet", "--only-binary", ":all:")
            run(*install, "--no-deps", "--no-index", "--find-links", options.wheels.resolve(), "decodestep")
            run(*install, "decodestep[serve]")
        with timed("first answer"):
            answer = run("decodestep", *MAIN_JOB)
        assert answer.strip(), "no text"
        with timed("second answer"):
            assert run("decodestep", *MAIN_JOB) == answer, "a seed has two texts"
        code, shown = re.findall(r"```(?:python|text)\n(.*?)```", README.read_text(), re.DOTALL)[:2]
        with timed("the README's example"):
            assert run("python", "-c", code) == shown, "the README's example has another output"
        with timed("server and one request"):
            assert ask_server([str(binaries / "decodestep"), "serve", "--port", "0"], environment)
        print(run("decodestep", "env"))


if __name__ == "__main__":
    main()
