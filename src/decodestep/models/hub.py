"""Models of the Hugging Face Hub by name: "org/name", "org/name:file.gguf" or "org/name:Q4_K_M"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from decodestep.errors import MissingExtraError, ModelError

_NAME = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<choice>[^:]+))?")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_USUAL = "Q4_K_M"  # of a repository with several, as for llama.cpp and Ollama
# What a folder is read from: data alone, and no weights of other kinds.
_OF_FOLDER = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "tiktoken.model",
    "chat_template.jinja",
    "additional_chat_templates/*",
    "model*.safetensors",
    "model.safetensors.index.json",
)


def is_name(text: str) -> bool:
    """Whether it names a model of the hub; a name with the ending of a file, and without a colon, is a path."""
    found = _NAME.fullmatch(text)
    return found is not None and (found["choice"] is not None or not text.endswith(".gguf"))


def fetch(name: str) -> Path:
    """The path of a model of the hub, a GGUF file or a folder of safetensors, downloaded into the hub's own cache if necessary.

    Where the hub cannot be reached, what its cache has of the model is used. HF_TOKEN, HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE
    mean what they mean to huggingface_hub. Raises MissingExtraError without that package, ModelError if the model is not there.
    """
    found = _NAME.fullmatch(name)
    assert found is not None
    repository, choice = found["repository"], found["choice"]
    try:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError
    except ModuleNotFoundError as error:
        text = f"{name}: no such file or folder; to fetch it from the Hugging Face Hub: pip install 'decodestep[hub]'"
        raise MissingExtraError(text, name=error.name) from None
    try:
        try:
            info = huggingface_hub.HfApi().model_info(repository)
            files, revision = [file.rfilename for file in info.siblings or ()], info.sha
        except HfHubHTTPError:  # an answer: there is no such model, or it may not be read
            raise
        except Exception as unreachable:  # of whatever library it asks with
            files, revision = _in_cache(repository, unreachable)
        wanted = choose(name, files, choice)
        patterns = wanted or list(_OF_FOLDER)
        folder = Path(huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{name}: no such file or folder here, and not to be had from the Hub: {_first_line(error)}") from None
    return folder / wanted[0] if wanted else folder


def _in_cache(repository: str, unreachable: Exception) -> tuple[list[str], str]:
    """The files and the revision of a model in the hub's cache. Raises `unreachable` if it is not there."""
    import huggingface_hub

    try:
        folder = Path(huggingface_hub.snapshot_download(repository, local_files_only=True))
    except OSError:
        raise unreachable from None
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()], folder.name


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def choose(name: str, files: Sequence[str], choice: str | None) -> list[str]:
    """The GGUF file that is meant, all its parts in order; [] for a folder of safetensors.

    choice: what the name has after the colon, a file or a part of its name such as a type; None for the folder, else the only
    file, else that of the usual type. Raises ModelError if it is none of the files, or several.
    """
    models = [file for file in sorted(files) if file.endswith(".gguf") and "mmproj" not in file.lower()]
    firsts = [file for file in models if (shard := _SHARD.search(file)) is None or int(shard[1]) == 1]
    if choice is not None:
        found = [choice] if choice in models else [file for file in firsts if _has_word(file, choice)]
    elif "config.json" in files and any(file.endswith(".safetensors") for file in files):
        return []
    else:
        found = firsts if len(firsts) == 1 else [file for file in firsts if _has_word(file, _USUAL)]
    if len(found) != 1:
        problem = "several files fit" if found else "no file fits" if firsts else "neither safetensors nor a GGUF file is there"
        shown = ", ".join((found or firsts)[:12])
        repository = name.partition(":")[0]
        raise ModelError(f"{name}: {problem}" + (f"; name one, {repository}:FILE, of {shown}" if shown else ""))
    [file] = found
    shard = _SHARD.search(file)
    return [file] if shard is None else [other for other in models if _SHARD.sub("", other) == file[: shard.start()]]


def _has_word(file: str, word: str) -> bool:
    """Whether a file's name has the word between its separators: Q4_K is no part of Q4_K_M."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9_])", file, re.IGNORECASE) is not None
