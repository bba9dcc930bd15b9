"""tiktoken.model, the vocabulary format of Kimi's models: a line for each token, in base64, with its rank.

There are no merges: two neighbours become one token if their union is a token, lowest rank first; a word that is a token is not
split. After the ranks come 256 control tokens, of which tokenizer_config.json names some.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from tokenizers import AddedToken
from tokenizers import Tokenizer as Engine

from decodestep._base.byte_alphabet import BYTE_OF
from decodestep.errors import ModelError
from decodestep.files.json_file import read_text
from decodestep.files.model_folder import ModelFolder
from decodestep.tokenizers.engine import byte_level_engine, list_merges
from decodestep.tokenizers.vocabulary import index_tokens

_RESERVED = 256
_CHARACTERS = {byte: character for character, byte in BYTE_OF.items()}


def load_engine(folder: ModelFolder, vocab_size: int, rules: Mapping[str, str]) -> Engine:
    """The tokenizer of a folder with tiktoken.model. rules: the names of those by which texts are cut, by model_type.

    Raises ModelError for a file that is corrupt or of another model_type.
    """
    path, kind = folder.tiktoken, folder.config.get("model_type")
    if not isinstance(kind, str) or kind not in rules:
        known = f"tiktoken.model is of {tuple(rules)}"
        raise ModelError(f"{path}: of model_type {kind!r} only tokenizer.json is supported; {known}")
    tokens = _tokens(str(path), read_text(path))
    if len(tokens) > vocab_size:
        raise ModelError(f"{path}: {len(tokens)} tokens, but the model has {vocab_size}")
    ids = index_tokens(tokens)
    missing = sorted(set(BYTE_OF) - set(ids), key=BYTE_OF.__getitem__)
    if missing:
        raise ModelError(f"{path}: corrupt: there is no token of the byte {BYTE_OF[missing[0]]}")
    engine = byte_level_engine(ids, list_merges(tokens, ids), rules[kind], whole_words=True)
    named = folder.tokenizer_config.get("added_tokens_decoder")
    for i in range(len(tokens), min(len(tokens) + _RESERVED, vocab_size)):
        engine.add_tokens([_control_token(named.get(str(i)) if isinstance(named, dict) else None, i)])
        if engine.get_vocab_size() != i + 1:
            raise ModelError(f"{path}: the control token {i} of tokenizer_config.json is already a token")
    return engine


def _control_token(found: object, i: int) -> AddedToken:
    if not isinstance(found, Mapping) or not isinstance(content := found.get("content"), str) or not content:
        return AddedToken(f"<|reserved_token_{i}|>", normalized=False, special=True)
    return AddedToken(content, normalized=False, special=found.get("special") is not False)


def _tokens(where: str, text: str) -> list[str]:
    """The tokens by rank, spelled in the alphabet of bytes."""
    tokens: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line:
            continue
        encoded, _, rank = line.partition(" ")
        try:
            token = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ModelError(f"{where}: corrupt: line {number} is no base64: {error}") from error
        if not token or rank != str(len(tokens)):
            raise ModelError(f"{where}: corrupt: line {number} must be a token and its rank {len(tokens)}; got {line!r:.80}")
        tokens.append("".join(_CHARACTERS[byte] for byte in token))
    return tokens
