"""The tests and the example of each program that decodestep runs inside, in an environment of its own.

    python tests/support/hosts.py [HOST ...]

An environment, in build/hosts, lies over the one that runs this: the program in the version of its extra, with what it requires
but for packages that are for GPUs. Of the tests run the files that name the program. For each host it prints what passed and what
was skipped, and why; a skip for a reason that is not in `EXPECTED` is a failure.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import xml.etree.ElementTree as ElementTree
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import tomllib
from packaging.requirements import Requirement

from decodestep.models.fetch import default_model

ROOT = Path(__file__).parents[2]


class Host(NamedTuple):
    """module: what tests import. example: the file of examples/, with its arguments; None: it needs a GPU. without: whether its
    packages for GPUs are left out."""

    module: str
    example: list[str] | None
    without: bool = False


HOSTS = {
    "llama-cpp": Host("llama_cpp", ["llama_cpp_sampling.py", "MODEL"]),
    "lm-eval": Host("lm_eval", ["lm_eval_model.py"]),
    "ray": Host("ray", ["ray_generate.py"]),
    "sglang": Host("sglang", None, without=True),
    "vllm": Host("vllm", None, without=True),
}
# Packages for GPUs, and those of the program that its samplers do not import.
FOR_GPUS = re.compile(
    r"torch|nvidia|cuda|nvtx|nvshmem|flash|apache-tvm|tilelang|quack|humming|pynv|fastsafetensors|instanttensor|tokenspeed|kernels"
    r"|sgl-|sglang-kernel|tml-|smg-|deepseek-recipe"
)
EXPECTED = ("needs a GPU",)


def requirements(packages: Path, name: str) -> list[str]:
    """What a program in a folder of packages requires, without what is for GPUs."""
    [program] = metadata.distributions(name=name, path=[str(packages)])
    wanted = map(Requirement, program.requires or ())
    chosen = (each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""}))
    return [f"{each.name}{each.specifier}" for each in chosen if not FOR_GPUS.match(each.name.lower())]


def make_environment(name: str, host: Host) -> Path:
    """The interpreter of the host's environment."""
    folder = ROOT / "build" / "hosts" / name
    python = folder / "bin" / "python"
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][name]
    [requirement] = [each for each in extra if not each.startswith(("decodestep", "torch"))]
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "below.pth").write_text(f'import site; site.addsitedir("{sysconfig.get_path("purelib")}")\n')
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*install, *(["--no-deps"] if host.without else []), requirement], check=True)
    if host.without:
        subprocess.run([*install, *requirements(packages, Requirement(requirement).name)], check=True)
    return python


def run(name: str, host: Host) -> bool:
    """Whether the host's tests and its example pass, with no unexpected skip."""
    python = make_environment(name, host)
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if re.search(rf"\b{host.module}\b", path.read_text())]
    report = python.parents[1] / "report.xml"
    tests = subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *files], cwd=ROOT)
    cases = list(ElementTree.parse(report).iter("testcase"))
    skips = Counter(skip.get("message") or "" for case in cases for skip in case.iter("skipped"))
    faults = sum(len(list(case.iter(kind))) for case in cases for kind in ("failure", "error"))
    unexpected = [reason for reason in skips if not any(each in reason for each in EXPECTED)]
    example = 0
    if host.example is not None:
        arguments = [str(default_model()) if each == "MODEL" else each for each in host.example]
        example = subprocess.run([python, *arguments], cwd=ROOT / "examples").returncode
    said = f"{len(cases) - sum(skips.values()) - faults} passed, {faults} failed, {sum(skips.values())} skipped"
    print(
        f"== {name}: {said}; example {'of its own needs a GPU' if host.example is None else 'failed' if example else 'passed'}"
    )
    for reason, count in skips.items():
        print(f"   {'UNEXPECTED' if reason in unexpected else 'expected'}: {count} times: {reason}")
    return not (tests.returncode or example or unexpected)


def main() -> int:
    chosen = sys.argv[1:] or list(HOSTS)
    results = {name: run(name, HOSTS[name]) for name in chosen}
    print(", ".join(f"{name} {'passed' if passed else 'FAILED'}" for name, passed in results.items()))
    return not all(results.values())


if __name__ == "__main__":
    sys.exit(main())
