"""Folders with tiktoken.model: ids against merges by rank in plain Python, control tokens, and broken files."""

from __future__ import annotations

import base64
import json
from functools import cache

import pytest
from hypothesis import given, settings

import decodestep as ds
from decodestep._base.byte_alphabet import BYTE_OF
from decodestep.families.common.registry import TIKTOKEN_RULES
from decodestep.files.model_folder import ModelFolder
from decodestep.models import ModelError
from decodestep.tokenizers.folder_tokenizer import FolderTokenizer
from support import family_models
from test_pre_tokenizers import CORPUS, TEXT, WORDS, trained

TOKENS = [bytes(BYTE_OF[character] for character in token) for token in trained()[0]]
RANKS = {token: rank for rank, token in enumerate(TOKENS)}
LINES = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in RANKS.items()]
END, TOOL = len(TOKENS) + 2, len(TOKENS) + 5
NAMED = {END: {"content": "<|im_end|>", "special": True}, TOOL: {"content": "<|tool|>", "special": False}}
VOCABULARY = len(TOKENS) + 100


def write(path, lines=LINES, kind="kimi_k2", named=NAMED):
    (path / "tiktoken.model").write_text("\n".join(lines))
    (path / "config.json").write_text(json.dumps({"model_type": kind, "vocab_size": VOCABULARY}))
    settings_ = {"eos_token": "<|im_end|>", "added_tokens_decoder": {str(i): token for i, token in named.items()}}
    (path / "tokenizer_config.json").write_text(json.dumps(settings_))


def tokenizer(path):
    folder = ModelFolder.__new__(ModelFolder)  # without weights
    folder.path, folder.config = path, json.loads((path / "config.json").read_text())
    return FolderTokenizer(folder, VOCABULARY, tiktoken_rules=TIKTOKEN_RULES)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    path = tmp_path_factory.mktemp("kimi")
    write(path)
    return tokenizer(path)


@cache
def merged(word):
    if word in RANKS:
        return [RANKS[word]]
    parts = [bytes([byte]) for byte in word]
    while len(parts) > 1:
        rank, at = min((RANKS.get(parts[i] + parts[i + 1], len(RANKS)), i) for i in range(len(parts) - 1))
        if rank == len(RANKS):
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [RANKS[part] for part in parts]


def expected(text):
    return [i for word in WORDS["kimi-k2"](text) for i in merged(word.encode())]


@pytest.mark.slow
@settings(max_examples=300)
@given(text=TEXT)
def test_ids_are_those_of_ranks_in_plain_python(ours, text):
    assert ours.encode(text) == expected(text)
    assert ours.decode(ours.encode(text)) == text


def test_whole_texts_and_control_tokens(ours):
    text = "\n".join(CORPUS)
    assert ours.encode(text) == expected(text)
    assert ours.encode("a<|im_end|>b<|tool|>") == [*expected("a"), END, *expected("b"), TOOL]
    assert ours.encode(f"<|reserved_token_{len(TOKENS)}|>") == [len(TOKENS)]
    assert ours.decode([*expected("a"), END, TOOL]) == "a<|tool|>"
    assert len(ours) == VOCABULARY and ours.eos_token_id == END and ours.end_token_ids == {END}
    assert [ours.token_bytes(i) for i in range(len(TOKENS))] == TOKENS and not ours.add_bos


def test_a_model_with_such_a_file_runs(tmp_path):
    changes = {"vocab_size": VOCABULARY, "num_hidden_layers": 1, "bos_token_id": None, "eos_token_id": END}
    family_models.build_model("deepseek_v3", 0, **changes).save_pretrained(tmp_path)
    kind = json.loads((tmp_path / "config.json").read_text())
    write(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(kind | {"model_type": "kimi_k2"}))
    (done,) = ds.generate(ds.load(tmp_path), ["The fox"], ds.SamplingParams(max_new_tokens=2, ignore_eos=True))
    assert done.prompt_token_ids == expected("The fox") and len(done.token_ids) == 2


MORE = [f"{base64.b64encode(b'%d' % i).decode()} {len(LINES) + i}" for i in range(101)]
BROKEN = {
    "a rank too far": ({"lines": [*LINES[:5], *LINES[6:]]}, "line 6 must be a token and its rank 5"),
    "no rank": ({"lines": [LINES[0].split()[0]]}, "line 1 must be a token and its rank 0"),
    "no base64": ({"lines": ["!! 0"]}, "line 1 is no base64"),
    "no token": ({"lines": [" 0"]}, "line 1 must be a token and its rank 0"),
    "a byte less": ({"lines": LINES[:255]}, "there is no token of the byte"),
    "nothing": ({"lines": []}, "empty"),
    "a token twice": ({"lines": [*LINES, f"{LINES[0].split()[0]} {len(LINES)}"]}, "twice"),
    "more than the model has": ({"lines": [*LINES, *MORE]}, "tokens, but the model has"),
    "a control token that is one already": ({"named": {END: {"content": "e"}}}, f"the control token {END}"),
    "of another family": ({"kind": "youtu"}, "of model_type 'youtu' only tokenizer.json is supported"),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused(tmp_path, changes, message):
    write(tmp_path, **changes)
    with pytest.raises(ModelError, match=message):
        tokenizer(tmp_path)
