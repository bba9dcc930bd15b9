"""A model folder as saved by transformers: config.json, safetensors in one file or several, tokenizer.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decodestep.errors import ModelError
from decodestep.files.json_file import read_object, read_object_if_there, read_text
from decodestep.files.safetensors_file import SafeTensor, read_header

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_MAX_SHARDS = 1 << 12


class ModelFolder:
    """config: config.json. tensors: by name, of all shards.

    Raises ModelError for a folder without config.json or weights, an index that does not agree with its shards, and what
    `read_header` refuses. No weight has been read then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "config.json").exists():
            raise ModelError(f"{path}: config.json is missing in this folder{_instead(path)}")
        self.config = read_object(path / "config.json")
        self.tensors = self._tensors()

    @property
    def generation_config(self) -> dict[str, Any]:
        """generation_config.json; {} if there is none."""
        return read_object_if_there(self.path / "generation_config.json")

    @property
    def tokenizer_config(self) -> dict[str, Any]:
        """tokenizer_config.json; {} if there is none. As in transformers, the special tokens of an older one, without
        added_tokens_decoder, are those of special_tokens_map.json."""
        found = read_object_if_there(self.path / "tokenizer_config.json")
        if "added_tokens_decoder" in found:
            return found
        return found | read_object_if_there(self.path / "special_tokens_map.json")

    @property
    def tiktoken(self) -> Path:
        """The path of tiktoken.model, which a folder may have instead of tokenizer.json."""
        return self.path / "tiktoken.model"

    def tokenizer(self) -> str | None:
        """The text of tokenizer.json; None for a folder that has tiktoken.model alone."""
        if not (self.path / "tokenizer.json").exists():
            if self.tiktoken.exists():
                return None
            raise ModelError(f"{self.path}: there is neither tokenizer.json nor tiktoken.model in this folder")
        return read_text(self.path / "tokenizer.json")

    def chat_templates(self) -> dict[str, Any]:
        """Chat templates by name; "default" is the one for all conversations. As in transformers, files come before keys."""
        main, more = self.path / "chat_template.jinja", self.path / "additional_chat_templates"
        if main.exists() or more.is_dir():
            found: dict[str, Any] = {"default": read_text(main)} if main.exists() else {}
            return found | ({file.stem: read_text(file) for file in sorted(more.glob("*.jinja"))} if more.is_dir() else {})
        old = read_object_if_there(self.path / "chat_template.json")
        template = old.get("chat_template", self.tokenizer_config.get("chat_template"))
        if isinstance(template, list):
            pairs = [item for item in template if isinstance(item, dict)]
            return {str(item.get("name")): item.get("template") for item in pairs}
        if isinstance(template, dict):
            return template
        return {} if template is None else {"default": template}

    def _tensors(self) -> dict[str, SafeTensor]:
        single, index = self.path / _WEIGHTS, self.path / _INDEX
        if single.exists():
            return read_header(single)
        if not index.exists():
            raise ModelError(f"{self.path}: there is neither {_WEIGHTS} nor {_INDEX} in this folder{_instead(self.path)}")
        places = read_object(index).get("weight_map")
        if not isinstance(places, dict) or not places or not all(isinstance(place, str) and place for place in places.values()):
            raise ModelError(f"{index}: corrupt: weight_map must be an object of file names")
        shards: dict[str, dict[str, SafeTensor]] = {}
        for place in sorted(set(places.values())):
            if len(shards) == _MAX_SHARDS or Path(place).name != place:
                raise ModelError(f"{index}: corrupt: weight_map has the file name {place!r:.80}, or too many")
            if not (self.path / place).exists():
                raise ModelError(f"{index}: weight_map names {place}, which is not in this folder")
            shards[place] = read_header(self.path / place)
        tensors: dict[str, SafeTensor] = {}
        for name, place in places.items():
            if name not in shards[place]:
                raise ModelError(f"{index}: weight_map has tensor {name!r:.80} in {place}, which does not contain it")
            tensors[name] = shards[place][name]
        return tensors


def _instead(folder: Path) -> str:
    """What may be meant by a folder that is no model: the newest snapshot of a hub's cache, or else the first GGUF file."""
    snapshots = sorted(folder.glob("snapshots/*"), key=lambda path: path.lstat().st_mtime)
    found = snapshots[-1] if snapshots else min(folder.glob("*.gguf"), default=None)
    return "" if found is None else f"; there is {found}"
