"""The files of deploy: the image of the server, built and run where there is a runtime, and its unit of systemd."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from decodestep import cli
from decodestep.cli import serve
from support import processes, tiny_gguf_files
from support.project import ROOT

CONTAINERFILE = ROOT / "deploy" / "Containerfile"
UNIT = ROOT / "deploy" / "decodestep.service"
EXTRAS = re.findall(r"^([a-z-]+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)


def instructions():
    """Of the Containerfile, with what each is given."""
    text = re.sub(r"^#.*\n|\\\n", "", CONTAINERFILE.read_text(), flags=re.M)
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line]


def unit():
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str
    found.read_string(UNIT.read_text())
    return found


def options(monkeypatch, command):
    """What `decodestep serve` reads from a command line."""
    read = []
    monkeypatch.setattr(serve, "run", lambda found: read.append(found) or 0)
    assert command[:1] == ["serve"] and cli.main(command) == 0
    return read[0]


def test_what_the_image_copies_and_installs_is_there(monkeypatch):
    stages, ended = set(), []
    for instruction, given in instructions():
        words = given.split()
        match instruction:
            case "FROM":
                assert re.fullmatch(r"python:3\.\d+-slim", words[0])  # one image for what is compiled and what runs
                ended.append(words[0])
                stages |= {words[2]} if words[1:2] == ["AS"] else set()
            case "COPY":
                source = words[-2]
                if words[0].startswith("--from="):
                    assert words[0].removeprefix("--from=") in stages and source == "/wheels"
                else:
                    assert (ROOT / source).exists()
            case "RUN" if extras := re.findall(r"\[(\w+)\]", given):
                assert set(extras) <= set(EXTRAS)
            case "EXPOSE":
                port = int(given)
            case "CMD":
                program, *command = json.loads(given)
    assert len(set(ended)) == 1 and program == "decodestep"
    found = options(monkeypatch, command)
    assert (found.host, found.port, found.grace) == ("0.0.0.0", port, 8)
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    assert {".git", ".venv", "build", "dist"} <= set(ignored)


def test_the_unit_starts_the_server(monkeypatch):
    service = unit()["Service"]
    program, *command = shlex.split(service["ExecStart"])
    name, _ = service["LoadCredential"].split(":")
    assert Path(program).name == "decodestep"
    found = options(monkeypatch, command)
    assert found.api_key_file == f"${{CREDENTIALS_DIRECTORY}}/{name}"
    assert found.grace < float(service["TimeoutStopSec"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_takes_the_unit(tmp_path):
    """With a program that is there in the place of the installed one."""
    there = tmp_path / UNIT.name
    there.write_text(UNIT.read_text().replace("/opt/decodestep/bin/decodestep", sys.executable))
    done = processes.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(there)])
    assert done.returncode == 0 and there.name not in done.stderr, done.stderr


def runtime():
    """A runtime of containers that answers, or None."""
    for name in ("podman", "docker"):
        if shutil.which(name) and processes.run([name, "info"]).returncode == 0:
            return name
    return None


@pytest.mark.slow
def test_the_image_serves(tmp_path):
    program = runtime()
    if program is None:
        pytest.skip("needs podman or docker")
    tag = "localhost/decodestep-test"
    build = [program, "build", "--file", str(CONTAINERFILE), "--tag", tag, str(ROOT)]
    processes.run(build, timeout=3600, check=True)
    tiny_gguf_files.write(tmp_path / "model.gguf")
    tmp_path.chmod(0o755)
    run = [program, "run", "--rm", "--publish", "127.0.0.1::8080", "--volume", f"{tmp_path}:/models:ro", "--detach", tag]
    container = processes.run(run, check=True).stdout.strip()
    try:
        address = processes.run([program, "port", container, "8080"], check=True).stdout.split()[-1]
        body = json.dumps({"prompt": "a", "max_tokens": 2, "seed": 1}).encode()
        request = urllib.request.Request(f"http://{address}/v1/completions", body, {"content-type": "application/json"})
        assert json.load(answer(request))["choices"][0]["finish_reason"] == "length"
    finally:
        processes.run([program, "stop", container], check=True)


def answer(request):
    """The answer of a server that is still starting."""
    for _ in range(60):
        try:
            return urllib.request.urlopen(request, timeout=60)
        except OSError:
            time.sleep(1)
    raise AssertionError("the server does not answer")
