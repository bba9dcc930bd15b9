"""Vocabularies as their publishers have them: the ids of texts against transformers' and those of the publishers' files."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import HealthCheck, given, settings
from tokenizers import Tokenizer as Engine

from decodestep.files.gguf_file import GgufFile
from decodestep.tokenizers.gguf_tokenizer import GgufTokenizer
from support import published_files
from test_pre_tokenizers import CORPUS, TEXT

pytestmark = pytest.mark.slow

# DeepSeek-V2's kinds, a SentencePiece one as PLM's and MiniCPM3's relatives have, and GigaChat's pre-tokenizer.
NAMES = ("deepseek-llm", "deepseek-coder", "llama-spm", "gpt-2", "qwen2", "qwen35")


def fetched(package):
    return published_files.folder(package) or pytest.skip(f"{package.requirement} cannot be fetched")


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_that_transformers_gave(name):
    path = fetched(published_files.VOCABULARIES) / f"ggml-vocab-{name}.gguf"
    tokenizer = GgufTokenizer(GgufFile(path).metadata | {"tokenizer.ggml.add_bos_token": False})
    texts = path.with_name(f"{path.name}.inp").read_text().split("\n__ggml_vocab_test__\n")
    ids = [list(map(int, line.split())) for line in path.with_name(f"{path.name}.out").read_text().split("\n")]
    assert len(texts) > 40
    for text, expected in zip(texts, ids, strict=True):
        # Qwen3.5's texts have forms other than C, whose ids there are those of text that was not composed.
        if name != "qwen35" or unicodedata.is_normalized("NFC", text):
            assert tokenizer.encode(text) == expected, text


@pytest.fixture(scope="module")
def deepseek_v3():
    """The publisher's tokenizer.json, and the same vocabulary by the keys of a GGUF file."""
    path = fetched(published_files.DEEPSEEK_V3) / "tokenizer.json"
    data = json.loads(path.read_text())
    vocabulary = data["model"]["vocab"] | {token["content"]: token["id"] for token in data["added_tokens"]}
    control = {token["id"]: 3 if token["special"] else 4 for token in data["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"]["merges"]]
    ours = GgufTokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "deepseek-v3",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [control.get(i, 1) for i in range(len(tokens))],
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.add_bos_token": False,
        }
    )
    return ours, Engine.from_str(path.read_text())


def test_deepseek_v3_from_a_gguf_file_is_that_of_its_tokenizer_json(deepseek_v3):
    ours, theirs = deepseek_v3
    assert [ours.token(i) for i in range(len(ours))] == [theirs.id_to_token(i) for i in range(len(ours))]
    for text in (*CORPUS, "<｜User｜>1+1=?<｜Assistant｜><think>\n2</think><｜end▁of▁sentence｜>", "<think"):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
        assert ours.decode(ours.encode(text)) == theirs.decode(ours.encode(text))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXT)
def test_deepseek_v3_cuts_any_text_alike(deepseek_v3, text):
    ours, theirs = deepseek_v3
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
