"""The tokenizer of a model folder: tokenizer.json or tiktoken.model, run by the `tokenizers` package."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Engine

from decodestep._base.byte_alphabet import byte_of
from decodestep._base.checks import ids_below, is_int
from decodestep.errors import ModelError
from decodestep.files.json_file import parse_object
from decodestep.files.model_folder import ModelFolder
from decodestep.tokenizers import tiktoken_file
from decodestep.tokenizers.engine import engine_errors
from decodestep.tokenizers.tokenizer import Tokenizer
from decodestep.tokenizers.vocabulary import Vocabulary

_ROLE = "_token"  # ends the keys of tokens with a role
# The keys of more special tokens: a list of them, or tokens by their role; the second is the older name of the list.
_MORE_SPECIAL = ("extra_special_tokens", "additional_special_tokens")
_MAX_IDS = 1 << 24
_MAX_GROWTH = 1 << 12  # of a text by replacements; published ones replace a few characters by as many


class FolderTokenizer(Tokenizer):
    """Text to token ids and back, by the files of a folder.

    All of tokenizer.json counts; transformers 5 replaces parts of it for the classes of Llama, Gemma and Qwen 2.
    `encode` adds the tokens that tokenizer.json's template adds, whatever tokenizer_config.json says; a rendered conversation
    gets none. end_token_ids are the eos tokens that generation_config.json, else config.json, else the tokenizer names.
    An added token that the model has no row for is left out, as Gemma 3 1B's for images: its characters are ordinary text.

    Without tokenizer.json, tiktoken.model is read. tiktoken_rules: the names of its rules for cutting texts, by model_type.
    Raises ModelError for files that are missing, corrupt or do not fit together.
    """

    def __init__(
        self, folder: ModelFolder, vocab_size: int, *, tiktoken_rules: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        text, settings = folder.tokenizer(), folder.tokenizer_config
        where = f"{folder.path}/tokenizer.json" if text is not None else str(folder.tiktoken)
        data = {} if text is None else parse_object(where, text)
        if _without_added_beyond(data, vocab_size):
            text = json.dumps(data)
        if _growth(data.get("normalizer")) > _MAX_GROWTH:  # before the engine normalises its own tokens
            raise ModelError(f"{where}: its normalizer may make a text more than {_MAX_GROWTH} times as long")
        engine = tiktoken_file.load_engine(folder, vocab_size, tiktoken_rules) if text is None else _engine(where, text)
        roles = _roles(settings)
        _add_tokens(engine, settings, vocab_size)
        _make_special(engine, roles.values(), _more_special(settings))
        ids = engine.get_vocab(with_added_tokens=True)
        highest = max(ids.values(), default=-1)
        if highest >= min(vocab_size, _MAX_IDS):
            raise ModelError(f"{where}: {highest + 1} tokens, but the model has {vocab_size}")
        self.kinds = {"ByteLevel"} if text is None else _kinds(data)
        self._prefix, self._suffix = _template(engine, where)
        if any(i >= vocab_size for i in (*self._prefix, *self._suffix)):
            raise ModelError(f"{where}: its template has ids beyond the model's {vocab_size}")
        named_ids = {name: ids[content] for name, content in roles.items() if content in ids}
        super().__init__(
            engine,
            _vocabulary(engine, ids, highest + 1, self.kinds),
            named_ids=named_ids,
            end_token_ids=_ends(folder, named_ids.get("eos"), vocab_size),
            add_bos="bos" in named_ids and self._prefix == [named_ids["bos"]],
        )

    def definition(self) -> dict[str, Any]:
        """The engine's definition, in the format of tokenizer.json."""
        definition: dict[str, Any] = json.loads(self._engine.to_str())
        return definition

    def is_byte(self, token_id: int) -> bool:
        """Whether a token stands for a byte, as <0x0A> does."""
        return token_id in self._vocabulary.byte_tokens

    def pieces(self, text: str) -> list[str]:
        """The pieces into which the pre-tokenizer splits a text."""
        return [piece for piece, _ in self._engine.pre_tokenizer.pre_tokenize_str(text)]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with what the template adds. Special tokens spelt out in it become those tokens.
        Raises UnicodeEncodeError for a lone surrogate, and ModelError as `Tokenizer.encode` does."""
        return [*self._prefix, *self.encode_rendered(text), *self._suffix]

    def encode_whole(self, text: str) -> list[int]:
        return [*self._prefix, *self.encode_plain(text), *self._suffix]

    def encode_rendered(self, text: str) -> list[int]:
        return super().encode(text)

    def _with_bos(self, ids: list[int]) -> list[int]:
        return ids


def _engine(where: str, text: str) -> Engine:
    with engine_errors(f"{where}: corrupt or not supported"):
        engine = Engine.from_str(text)
        engine.no_truncation()
        engine.no_padding()
        return engine


def _template(engine: Engine, where: str) -> tuple[list[int], list[int]]:
    """The ids that tokenizer.json's template puts before and after those of a text."""
    with engine_errors(f"{where}: corrupt or not supported"):
        bare, full = (engine.encode("a", add_special_tokens=special).ids for special in (False, True))
    at = next((at for at in range(len(full)) if full[at : at + len(bare)] == bare), 0)
    return full[:at], full[at + len(bare) :]


def _vocabulary(engine: Engine, ids: Mapping[str, int], count: int, kinds: set[str]) -> Vocabulary:
    tokens = [""] * count
    for token, i in ids.items():
        tokens[i] = token
    added = engine.get_added_tokens_decoder()
    special = frozenset(i for i, token in added.items() if token.special)
    candidates = ((i, byte_of(token)) for i, token in enumerate(tokens if "ByteFallback" in kinds else ()))
    byte_tokens = {i: byte for i, byte in candidates if byte}
    return Vocabulary(tokens, special, frozenset(added), "ByteLevel" not in kinds, byte_tokens)


def _growth(normalizer: object) -> float:
    """How many times as long a text may become by replacements, each of which may apply to what those before it wrote."""
    growth, steps = 1.0, [normalizer]
    while steps:
        step = steps.pop()
        if isinstance(step, dict):
            growth = min(growth * _growth_by(step.get("pattern"), step.get("content")), _MAX_GROWTH + 1.0)
            parts = step.get("normalizers")
            steps += parts if isinstance(parts, list) else []
    return growth


def _growth_by(pattern: object, content: object) -> float:
    if not isinstance(content, str):
        return 1
    found = pattern.get("String") if isinstance(pattern, dict) else None
    # An expression may match nothing, before each character.
    return max(1, len(content) / len(found)) if found and isinstance(found, str) else 1 + len(content)


def _without_added_beyond(data: dict[str, Any], vocab_size: int) -> bool:
    """Takes out of tokenizer.json the added tokens that the model has no row for; returns whether there were any."""
    added = data.get("added_tokens")
    if not isinstance(added, list):
        return False
    kept = [token for token in added if not (isinstance(token, dict) and is_int(token.get("id")) and token["id"] >= vocab_size)]
    data["added_tokens"] = kept
    return len(kept) < len(added)


def _add_tokens(engine: Engine, settings: Mapping[str, Any], vocab_size: int) -> None:
    """Adds the tokens of tokenizer_config.json that the model has rows for, as transformers does: those that tokenizer.json has
    too get the flags that they have here, but stay special."""
    given = settings.get("added_tokens_decoder")
    found: dict[str, Any] = given if isinstance(given, dict) else {}
    special = {token.content for token in engine.get_added_tokens_decoder().values() if token.special}
    added: dict[str, AddedToken] = {}  # at once: each call costs the time of all that are there
    for number in sorted((key for key in found if key.isdecimal() and len(key) < 20 and int(key) < vocab_size), key=int):
        token = found[number]
        content = _content(token)
        if isinstance(token, dict) and content and content not in added:
            flags = {name: token.get(name) is True for name in ("lstrip", "rstrip", "normalized", "single_word")}
            added[content] = AddedToken(content, special=token.get("special") is True or content in special, **flags)
    engine.add_tokens(list(added.values()))


def _make_special(engine: Engine, named: Iterable[str], more: Iterable[str]) -> None:
    """Makes tokens special, as transformers does: those that have a role, and of `more` those that are not added tokens yet.
    They keep their other flags."""
    known = {token.content: token for token in engine.get_added_tokens_decoder().values()}
    contents = dict.fromkeys([*named, *(content for content in more if content not in known)])
    special = [content for content in contents if content and engine.token_to_id(content) is not None]
    engine.add_special_tokens([known.get(content) or AddedToken(content, normalized=False) for content in special])


def _roles(settings: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that tokenizer_config.json names, by their role: "bos", "eos", and a model's own, as "image"."""
    more = settings.get(_MORE_SPECIAL[0])
    named = {**settings, **(more if isinstance(more, dict) else {})}
    found = ((key.removesuffix(_ROLE), _content(token)) for key, token in named.items() if key.endswith(_ROLE))
    return {role: content for role, content in found if content is not None}


def _more_special(settings: Mapping[str, Any]) -> list[str]:
    """The special tokens without a role."""
    found = next((more for key in _MORE_SPECIAL if (more := settings.get(key))), None)
    return [content for token in (found if isinstance(found, list) else []) if (content := _content(token)) is not None]


def _content(token: object) -> str | None:
    """A special token of tokenizer_config.json: a string, or an object that has it."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None


def _kinds(data: dict[str, Any]) -> set[str]:
    """The types of the pre-tokenizers, decoders and the model's options that decide how tokens spell bytes."""
    parts = json.dumps([data.get("decoder"), data.get("pre_tokenizer")])
    kinds = set(re.findall(r'"type": "(\w+)"', parts))
    model = data.get("model")
    return kinds | ({"ByteFallback"} if isinstance(model, dict) and model.get("byte_fallback") else set())


def _ends(folder: ModelFolder, eos: int | None, vocab_size: int) -> frozenset[int]:
    for name, data in (("generation_config.json", folder.generation_config), ("config.json", folder.config)):
        found = data.get("eos_token_id")
        ids = ids_below(vocab_size, found if isinstance(found, list) else [] if found is None else [found])
        if ids is None:
            raise ModelError(f"{folder.path}: {name}: eos_token_id must be ids in [0, {vocab_size})")
        if ids:
            return frozenset(ids)
    return frozenset([] if eos is None else [eos])
