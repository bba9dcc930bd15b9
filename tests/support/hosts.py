"""The tests and the example of each program that decodestep runs inside, in an environment of its own.

    python tests/support/hosts.py [HOST ...]
    python tests/support/hosts.py --pin HOST ...

An environment, in build/hosts, lies over the one that runs this: what it lacks is looked for there. It has the packages of
tests/hosts/HOST.txt, which --pin writes anew: what the program that the extra names requires, but for the packages for GPUs of
tests/hosts/for_gpus.txt, gigabytes that its samplers do not import. Of the tests run those that name the program. For each host
this prints what passed and what was skipped, and why; a skip for a reason that is not in `EXPECTED` is a failure.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PINS = ROOT / "tests" / "hosts"
BELOW = Path(sysconfig.get_path("purelib"))


class Host(NamedTuple):
    """module: what tests import; None: all tests of `file`. example: the file of examples/, with its arguments; or why none is
    run. beside: packages that its tests need besides those of the extra of its name. waits: whether it waits for processes that
    import much, but not for long: its packages are then compiled when they are installed. built_with: variables of the
    environment in which its packages are built."""

    module: str | None
    example: list[str] | str = "needs a GPU"
    beside: tuple[str, ...] = ()
    waits: bool = False
    file: str = "test_*.py"  # of those that name the module
    built_with: Mapping[str, str] = MappingProxyType({})


# Without instructor, which wants another jiter than the openai package that pydantic-ai works with.
AGENTS = ("langchain-openai", "litellm", "llm", "openai-agents", "openai>=3.57", "pydantic-ai-slim>=2.68")
HOSTS = {
    "agents": Host(None, "none", AGENTS, file="test_agent_clients.py"),
    # Not for this machine: of llama.cpp's kernels for AMX, GCC 12 makes some that load a tile configuration never written.
    "llama-cpp": Host(
        "llama_cpp", ["llama_cpp_sampling.py", "MODEL"], built_with=MappingProxyType({"CMAKE_ARGS": "-DGGML_NATIVE=OFF"})
    ),
    "lm-eval": Host("lm_eval", ["lm_eval_model.py"]),
    "ray": Host("ray", ["ray_generate.py"], ("aiohttp",), waits=True),
    "sglang": Host("sglang", beside=("torchvision==0.28.0",)),  # of the torch below
    "vllm": Host("vllm"),
}
EXPECTED = {  # a part of what a skip says, and why it is expected
    "could not import 'instructor'": "it wants another jiter than the openai package that pydantic-ai works with",
}


def uv(*arguments: object, text: str | None = None, **variables: str) -> None:
    command = [Path(sys.executable).with_name("uv"), *map(str, arguments)]
    subprocess.run(command, check=True, input=text, text=True, env=os.environ | variables)


def pin(name: str) -> None:
    """Writes the list of a host's packages, in versions of today."""
    extra = "".join(re.findall(rf"^{name} = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.M))
    required = [each for each in re.findall(r'"([^"]+)"', extra) if not each.startswith(("decodestep", "torch"))]
    wanted = "\n".join((*required, *HOSTS[name].beside))
    options = ["--quiet", "--no-annotate", "--no-header", "--python", sys.executable, "--output-file", PINS / f"{name}.txt"]
    beside = {each.partition("=")[0] for each in HOSTS[name].beside}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as excluded:
        excluded.writelines(f"{line}\n" for line in (PINS / "for_gpus.txt").read_text().splitlines() if line not in beside)
        excluded.flush()
        uv("pip", "compile", *options, "--excludes", excluded.name, "-", text=wanted)


def make_environment(name: str) -> Path:
    """The interpreter of the host's environment."""
    folder = ROOT / "build" / "hosts" / name
    uv("venv", "--quiet", "--allow-existing", "--python", sys.executable, folder)
    options = ["--quiet", "--no-deps", "--python", folder, *(["--compile-bytecode"] if HOSTS[name].waits else [])]
    uv("pip", "install", *options, "--requirements", PINS / f"{name}.txt", **HOSTS[name].built_with)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "below.pth").write_text(f"import site; site.addsitedir({str(BELOW)!r})\n")
    return folder / "bin" / "python"


def run(name: str, host: Host) -> bool:
    """Whether the host's tests and its example pass, with no unexpected skip."""
    began = time.monotonic()
    python = make_environment(name)
    made = time.monotonic()
    files = sorted((ROOT / "tests").rglob(host.file))
    report = python.parents[1] / "report.xml"
    report.unlink(missing_ok=True)
    options = ["-p", "no:cacheprovider", f"--junit-xml={report}"]
    if host.module is not None:
        files = [path for path in files if re.search(rf"\b{host.module}\b", path.read_text())]
        options += ["--naming", host.module]
    tests = subprocess.run([python, "-m", "pytest", *options, *files], cwd=ROOT)
    if not report.exists():
        print(f"== {name}: the tests ended without a report, with {tests.returncode}")
        return False
    cases = list(ElementTree.parse(report).iter("testcase"))
    skips = Counter(reason_of(skip) for case in cases for skip in case.iter("skipped"))
    faults = sum(len(list(case.iter(kind))) for case in cases for kind in ("failure", "error"))
    example, said = 0, host.example
    if isinstance(host.example, list):
        arguments = [model_path(python) if each == "MODEL" else each for each in host.example]
        example = subprocess.run([python, *arguments], cwd=ROOT / "examples").returncode
        said = "failed" if example else "passed"
    print(
        f"== {name}: {len(cases) - sum(skips.values()) - faults} passed, {faults} failed, {sum(skips.values())} skipped; "
        f"example: {said}; {made - began:.0f} s for the environment, {time.monotonic() - made:.0f} s for the rest"
    )
    unexpected = 0
    for reason, count in skips.items():
        why = next((why for part, why in EXPECTED.items() if part in reason), None)
        unexpected += why is None
        print(f"   {count} skipped: {reason}: {'UNEXPECTED' if why is None else why}")
    return not (tests.returncode or example or unexpected)


def reason_of(skip: ElementTree.Element) -> str:
    """Of a file that was skipped as a whole, pytest has it in the text."""
    message = skip.get("message", "")
    return (skip.text or "") if message == "collection skipped" else message


def model_path(python: Path) -> str:
    code = "from decodestep.models.fetch import default_model; print(default_model())"
    return subprocess.run([python, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pin", action="store_true", help="write the lists of packages anew, in place of running tests")
    parser.add_argument("hosts", nargs="*", default=list(HOSTS), metavar="HOST", help=", ".join(HOSTS))
    options = parser.parse_args()
    if options.pin:
        for name in options.hosts:
            pin(name)
        return 0
    results = {name: run(name, HOSTS[name]) for name in options.hosts}
    print(", ".join(f"{name} {'passed' if passed else 'FAILED'}" for name, passed in results.items()))
    return not all(results.values())


if __name__ == "__main__":
    sys.exit(main())
