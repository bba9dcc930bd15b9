"""The chat templates that publishers ship with their models, fetched once: none is copied into this project.

The source distribution of llama-cpp-python has a folder of them. It is downloaded by its hash, and only that folder is read.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from decodestep.models.fetch import cache_directory

_SOURCE = "llama-cpp-python==0.3.36"
_HASH = "sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_FOLDER = "/vendor/llama.cpp/models/templates/"

# Those that the tests render; the folder has more.
NAMES = (
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "GLM-4.7-Flash",
    "GigaChat3-10B-A1.8B",
    "HuggingFaceTB-SmolLM3-3B",
    "Kimi-K2-Instruct",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Qwen-QwQ-32B",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Qwen3-Coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "deepseek-ai-DeepSeek-V3.2",
    "google-gemma-2-2b-it",
    "google-gemma-4-31B-it",
    "ibm-granite-granite-4.0",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
    "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "openai-gpt-oss-120b",
)


def folder() -> Path | None:
    """Where the templates are, NAME.jinja each; None where they cannot be had."""
    target = cache_directory() / "chat-templates" / _SOURCE
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as work:
            archive = _download(Path(work))
            if archive is None:
                return None
            unpacked = Path(work) / "templates"
            _unpack(archive, unpacked)
            try:
                unpacked.rename(target)
            except OSError:  # another process was first
                if not target.is_dir():
                    raise
    return target


def _download(work: Path) -> Path | None:
    required = work / "required.txt"
    required.write_text(f"{_SOURCE} --hash={_HASH}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--no-binary=:all:", "--dest", str(work), "--requirement", str(required)]
    found = subprocess.run(command, capture_output=True, check=False).returncode == 0
    return next(work.glob("*.tar.gz"), None) if found else None


def _unpack(archive: Path, unpacked: Path) -> None:
    unpacked.mkdir()
    with tarfile.open(archive) as files:
        for member in files:
            if member.isfile() and _FOLDER in member.name and member.name.endswith(".jinja"):
                with files.extractfile(member) as content:
                    (unpacked / Path(member.name).name).write_bytes(content.read())
