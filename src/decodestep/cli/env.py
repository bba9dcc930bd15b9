"""``decodestep env``: versions, instruction set, threads, nodes of memory, backends and the model's location."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np

import decodestep
from decodestep._base.checks import require
from decodestep._base.dispatch import BACKENDS
from decodestep._base.extras import extra
from decodestep._base.machine_limits import available_memory
from decodestep._base.numa import memory_nodes
from decodestep._base.progress import progress_line
from decodestep._base.threads import isa, native_build, threads
from decodestep.cli.options import MODEL_HELP
from decodestep.models.fetch import DEFAULT_MODEL, cache_directory, find_default_model, resolve_path

_PACKAGES = (
    "numpy",
    "ml_dtypes",
    "array-api-compat",
    "gguf",
    "tokenizers",
    "jinja2",
    "rich",
    "torch",
    "triton",
    "transformers",
    "onnx",
    "onnxruntime",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "-m", "--model", metavar="NAME_OR_PATH", help=f"describe this model, and how it would run: {MODEL_HELP}"
    )


def run(options: argparse.Namespace) -> int:
    require(options.model != "", "env", "model", "a name or a path", options.model)
    facts = environment()
    if options.model is not None:
        facts["model"] = describe_model(resolve_path(options.model))
    if options.json:
        print(json.dumps(facts))
        return 0
    if options.model is not None:
        facts["model"] = _in_words(facts["model"])
    for name, value in facts.items():
        if isinstance(value, dict):
            lines = [f"{key:<24}{item}" for key, item in value.items()]
        else:
            lines = value if isinstance(value, list) else [str(value)]
        for i, line in enumerate(lines):
            print(f"{name if i == 0 else '':<12}{line}")
    return 0


def environment() -> dict[str, Any]:
    default = find_default_model()
    return {
        "decodestep": decodestep.__version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "build": _build(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "isa": isa(),
        "threads": threads(),
        "nodes": _nodes_of_memory(),
        "backends": _backends(),
        "devices": _devices(),
        "model": f"{DEFAULT_MODEL}: "
        + (str(default) if default else f"not on this machine yet; will be stored in {cache_directory()}"),
    }


def describe_model(path: Path) -> dict[str, Any]:
    """Describes a model, with the lower bound of a token's time: reading its weights once from memory."""
    with extra("generate"):
        from decodestep.files.file_bytes import naming
        from decodestep.models.checkpoint import open_checkpoint
        from decodestep.models.summary import summary
    with naming(path):
        facts = summary(open_checkpoint(path))
    rate = read_rate(threads())
    facts |= {"memory_bytes_a_second": round(rate), "tokens_a_second_at_most": round(rate / facts["weight_bytes"], 2)}
    if (available := available_memory()) < math.inf:
        facts["available_bytes"] = int(available)
    return facts


def _in_words(facts: dict[str, Any]) -> dict[str, str]:
    """A model's facts for a reader: its numbers with their units, and what each of them is per."""
    words = {name: fact for name, fact in facts.items() if isinstance(fact, str)}
    words["cache"] += f", {facts['cache_bytes'] / 2**10:.1f} KiB per token"
    if size := facts["state_bytes"]:
        tokens = size / facts["cache_bytes"]
        words["cache"] += f", and {size / 2**20:.2f} MiB per sequence and snapshot, as much as {tokens:.0f} tokens"
    if size := facts["draft_bytes"]:
        words["cache"] += f"; {size / 2**10:.1f} KiB of a drafted token until it is accepted or the next pass begins"
    words["memory"] = (
        f"{facts['all_weight_bytes'] / 2**30:.2f} GiB for the weights, {facts['cache_bytes'] * 1000 / 2**30:.2f} GiB for each "
        "1000 tokens in the cache"
    )
    if "available_bytes" in facts:
        words["memory"] += f"; {facts['available_bytes'] / 2**30:.1f} GiB is available here"
    words["decoding"] = (
        f"at most {facts['tokens_a_second_at_most']:.4g} tokens/s of one sequence: a token reads "
        f"{facts['weight_bytes'] / 2**20:.1f} MiB of weights, memory {facts['memory_bytes_a_second'] / 1e9:.1f} GB/s"
    )
    if (load := os.getloadavg()[0]) >= threads() / 2:
        words["decoding"] += f", measured beside other programs (a load of {load:.1f}), without which it is more"
    return words


def read_rate(threads: int) -> float:
    """The memory bandwidth in bytes per second of `threads` threads, each reading its part of 256 MiB; the best of three."""
    block = np.ones(2**25, np.float64)
    parts = np.array_split(block, threads)
    best = math.inf
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(3):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - start)
    return block.nbytes / best


def _nodes_of_memory() -> str:
    try:
        nodes = memory_nodes()
    except OSError:
        return "unknown"
    if len(nodes) == 1:
        return "1 of memory"
    return f"{len(nodes)} of memory, with {', '.join(str(len(cpus)) for cpus in nodes)} CPUs: see --numa"


def _build() -> dict[str, str]:
    """Where the package was installed from, as pip has written it down, and how its core was compiled."""
    recorded = metadata.distribution("decodestep").read_text("direct_url.json")
    direct: dict[str, Any] = json.loads(recorded) if recorded else {"url": "a package index"}
    editable = ", editable" if direct.get("dir_info", {}).get("editable") else ""
    compiler, tiers = native_build()
    return {"from": direct["url"] + editable, "compiler": compiler, "instruction sets": tiers}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "-"


def _backends() -> dict[str, str]:
    """The backends of each operator, from the files in its folder."""
    spec = util.find_spec("decodestep.ops")
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    stems = sorted(p for folder in folders for p in folder.iterdir() if (p / "reference.py").is_file())
    return {p.name: "+".join(b for b in BACKENDS if (p / f"{b}.py").is_file() or (p / b).is_dir()) for p in stems}


def _devices() -> list[str]:
    """Each GPU that torch finds, and whether Triton is installed."""
    if util.find_spec("torch") is None:
        return ["no GPU: torch is not installed"]
    with progress_line(after=0.0) as show:
        show("importing torch, to ask it for GPUs")
        import torch

    if not torch.cuda.is_available():
        return ["no GPU: the operators with a 'triton' backend refuse it here"]
    runs = "runs what has a 'triton' backend" if util.find_spec("triton") else "idle: pip install 'decodestep[gpu]'"
    names = (torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count()))
    return [f"{device.name}, {device.total_memory / 2**30:.0f} GiB: {runs}" for device in names]
