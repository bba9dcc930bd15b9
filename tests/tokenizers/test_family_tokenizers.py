"""The tokenizers of the families: ids from a folder, and from the keys of a GGUF file, are those of transformers.

Each family's folder has the steps of its publishers' tokenizer.json and a vocabulary trained on texts that were not cut, whose
merges therefore cross every cut. DECODESTEP_TEXTS=20000 compares as many texts in place of 300.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any, NamedTuple

import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer as Engine
from tokenizers import models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from decodestep.files.model_folder import ModelFolder
from decodestep.tokenizers.folder_tokenizer import FolderTokenizer
from decodestep.tokenizers.gguf_fields import tokenizer_fields
from decodestep.tokenizers.gguf_tokenizer import GgufTokenizer
from decodestep.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from support.random_texts import random_texts
from test_pre_tokenizers import LLAMA3, LOWER, QWEN2, QWEN35, SUFFIX, UPPER, by_case

pytestmark = pytest.mark.slow

TEXTS = int(os.environ.get("DECODESTEP_TEXTS", "300"))
SPACE = "\u2581"
NFC = {"type": "NFC"}
GPT2_WORDS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
GPT4O, TEKKEN = by_case(UPPER, LOWER, "/"), by_case(UPPER, LOWER, "/", 1).replace(SUFFIX, "")
SPACES_AS_LETTERS = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
WITH_A_SPACE_BEFORE = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, SPACES_AS_LETTERS]}
BEFORE_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def cuts(*patterns: str | dict[str, Any], **how: Any) -> dict[str, Any]:
    """Splits one after the other, and bytes. how: "Removed" and inverted where a publisher keeps what matches in this way."""
    split = {"type": "Split", "behavior": "Isolated", "invert": False} | how
    steps = [split | {"pattern": {"Regex": step}} if isinstance(step, str) else step for step in patterns]
    last = [] if steps[-1]["type"] == "ByteLevel" else [GPT2_WORDS | {"use_regex": False}]
    return {"type": "Sequence", "pretokenizers": [*steps, *last]}


MATCHES = {"behavior": "Removed", "invert": True}


class Published(NamedTuple):
    """What a family's tokenizer.json says besides its vocabulary, and the names that its GGUF files have.

    cut: pre_tokenizer. name: tokenizer.ggml.pre; of tokenizers whose spaces are letters, tokenizer.ggml.model. tokenizer_class:
    of tokenizer_config.json.
    """

    model_type: str
    name: str
    cut: dict[str, Any] | None
    normalizer: dict[str, Any] | None = None
    whole_words: bool = False
    tokenizer_class: str = "PreTrainedTokenizerFast"


HUNYUAN = cuts(
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)
SEED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
PUBLISHED = {
    "Llama 3, Arcee": Published("arcee", "llama-bpe", cuts(LLAMA3), whole_words=True),
    "SmolLM": Published("llama", "smollm", cuts(DIGITS, GPT2_WORDS), tokenizer_class="TokenizersBackend"),
    "Granite 3": Published("granite", "refact", cuts(DIGITS, GPT2_WORDS), tokenizer_class="TokenizersBackend"),
    "Qwen": Published("qwen3", "qwen2", cuts(QWEN2), NFC, tokenizer_class="Qwen2Tokenizer"),
    "Qwen3.5": Published("qwen3_5_text", "qwen35", cuts(QWEN35), NFC, tokenizer_class="Qwen3_5Tokenizer"),
    "Phi-4": Published("phi3", "dbrx", cuts(LLAMA3, **MATCHES), tokenizer_class="GPT2Tokenizer"),
    "Phi-4-mini": Published("phi3", "gpt-4o", cuts(GPT4O, **MATCHES), tokenizer_class="GPT2Tokenizer"),
    "Phi-3": Published("phi3", "llama", None, WITH_A_SPACE_BEFORE, tokenizer_class="LlamaTokenizer"),
    "Ministral 3": Published("ministral3", "tekken", cuts(TEKKEN), whole_words=True, tokenizer_class="TokenizersBackend"),
    "OLMo 2": Published("olmo2", "dbrx", cuts(LLAMA3, **MATCHES), tokenizer_class="TokenizersBackend"),
    "OLMo 3": Published("olmo3", "dbrx", cuts(LLAMA3, **MATCHES), tokenizer_class="TokenizersBackend"),
    "OLMoE": Published("olmoe", "olmo", GPT2_WORDS, NFC, tokenizer_class="GPTNeoXTokenizer"),
    "ERNIE 4.5": Published("ernie4_5", "llama", None, SPACES_AS_LETTERS, tokenizer_class="LlamaTokenizer"),
    "ERNIE 4.5, experts": Published("ernie4_5_moe", "llama", None, SPACES_AS_LETTERS, tokenizer_class="LlamaTokenizer"),
    "Seed-OSS": Published("seed_oss", "seed-coder", cuts(SEED)),
    "Hunyuan": Published("hunyuan_v1_dense", "hunyuan-dense", HUNYUAN),
    "Hunyuan 7B": Published("hunyuan_v1_dense", "hunyuan", cuts(QWEN2)),
    "EXAONE 4": Published("exaone4", "exaone4", GPT2_WORDS, tokenizer_class="TokenizersBackend"),
    "EXAONE 4.5": Published(
        "exaone4",
        "exaone-moe",
        cuts(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
    ),
    "GLM-4": Published("glm4", "glm4", cuts(LLAMA3), whole_words=True),
    "GLM-4.5": Published("glm4_moe", "glm4", cuts(LLAMA3), whole_words=True),
    "GLM-4 of 2024": Published("glm", "chatglm-bpe", cuts(LLAMA3)),
    "Command R": Published("cohere", "command-r", cuts(DIGITS, GPT2_WORDS), NFC, tokenizer_class="CohereTokenizer"),
    "Command R7B": Published("cohere2", "command-r", cuts(DIGITS, GPT2_WORDS), NFC, tokenizer_class="CohereTokenizer"),
    "Mixtral": Published("mixtral", "llama", None, WITH_A_SPACE_BEFORE, tokenizer_class="TokenizersBackend"),
    "dots.llm1": Published("dots1", "qwen2", cuts(QWEN2), NFC, tokenizer_class="TokenizersBackend"),
    "MiniMax M2": Published("minimax_m2", "minimax-m2", cuts(GPT4O), tokenizer_class="GPT2Tokenizer"),
    "gpt-oss": Published("gpt_oss", "gpt-4o", cuts(GPT4O)),
    "Gemma 2": Published("gemma2", "llama", BEFORE_SPACES, SPACES_AS_LETTERS, tokenizer_class="GemmaTokenizer"),
    "Gemma 4": Published("gemma4_text", "gemma4", BEFORE_SPACES, SPACES_AS_LETTERS, tokenizer_class="GemmaTokenizer"),
    "DeepSeek V3": Published("deepseek_v3", "deepseek-v3", HUNYUAN, tokenizer_class="TokenizersBackend"),
}
# Of families with one tokenizer of their own that no other package describes.
PUBLISHED |= {
    name: Published("llama", name, cuts(*PRE_TOKENIZERS[name]), whole_words=name in ("youtu", "minicpm5"))
    for name in ("default", "deepseek-llm", "deepseek-coder", "kimi-k2", "youtu", "minicpm5")
}
ADDED = ("<s>", "<|end|>")
RARE_WORDS = ("HTTPServer", "\u0120XMLHttpRequest", "return", "\u0120\u0120\u0120")  # tokens that no merges make


@cache
def byte_level() -> dict[str, Any]:
    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, show_progress=False)
    return trained(engine, trainer, RARE_WORDS)


@cache
def with_spaces_as_letters(*, all_merges: bool) -> dict[str, Any]:
    """all_merges: of every two tokens whose union is one, as where the merges were made from SentencePiece's scores."""
    engine = Engine(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    engine.normalizer = normalizers.Replace(" ", SPACE)
    engine.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    first = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=2500, limit_alphabet=400, special_tokens=first, show_progress=False)
    data = trained(engine, trainer, ("\n\n", "\n\n\n"))
    ids = data["vocab"]
    if all_merges:
        made = sorted({left + right for left, right in data["merges"]}, key=ids.__getitem__)
        pairs = [(token[:cut], token[cut:]) for token in made for cut in range(1, len(token))]
        data["merges"] = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
    data["merges"] += [("\n", "\n"), ("\n\n", "\n")]
    return data


def trained(engine: Engine, trainer: Any, more: tuple[str, ...]) -> dict[str, Any]:
    """The model of tokenizer.json. more: tokens after those that were trained."""
    engine.train_from_iterator((text for text in random_texts(2000, seed=1) if "<0x" not in text), trainer)
    data = json.loads(engine.to_str())["model"]
    for token in more:
        data["vocab"].setdefault(token, len(data["vocab"]))
    return data


@pytest.fixture(params=PUBLISHED.values(), ids=PUBLISHED)
def family(request, tmp_path):
    """A family, and a folder of it without weights."""
    found: Published = request.param
    of_bytes = found.name not in ("llama", "gemma4")
    model = byte_level() if of_bytes else with_spaces_as_letters(all_merges=found.name == "llama")
    added = [
        {"id": len(model["vocab"]) + i, "content": token, "special": True, "normalized": False}
        | dict.fromkeys(("lstrip", "rstrip", "single_word"), False)
        for i, token in enumerate(ADDED)
    ]
    definition = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": found.normalizer,
        "pre_tokenizer": found.cut,
        "post_processor": None,
        "decoder": {"type": "ByteLevel"} | GPT2_WORDS if of_bytes else {"type": "ByteFallback"},
        "model": model | {"ignore_merges": found.whole_words},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": found.tokenizer_class}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": found.model_type}))
    save_file({}, tmp_path / "model.safetensors")
    return found, tmp_path, len(model["vocab"]) + len(ADDED)


def test_ids_are_those_of_transformers(family):
    published, path, size = family
    folder = FolderTokenizer(ModelFolder(path), size)
    fields = tokenizer_fields(folder, size, published.name, "here")
    assert published.name in (fields["tokenizer.ggml.pre"], fields["tokenizer.ggml.model"])
    file = GgufTokenizer(fields)
    texts = random_texts(TEXTS)
    expected = AutoTokenizer.from_pretrained(path)(texts, add_special_tokens=False)["input_ids"]
    for text, ids in zip(texts, expected, strict=True):
        assert folder.encode(text) == ids, text
        assert file.encode(text) == ids, text


def test_every_pre_tokenizer_is_compared():
    assert {PRE_TOKENIZERS[family.name] for family in PUBLISHED.values() if family.name in PRE_TOKENIZERS} == set(
        PRE_TOKENIZERS.values()
    )
