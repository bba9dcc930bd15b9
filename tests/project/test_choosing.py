"""docs/choosing.md: its numbers are those of files in published sizes, whose headers are written here, and no weight."""

import math
import re
from functools import cache, partial

import gguf
import numpy as np
import pytest

from decodestep.files.gguf_file import GgufFile
from decodestep.models.checkpoint import open_checkpoint
from decodestep.models.gguf_source import Source, SourceTensor
from decodestep.models.requantise import RECIPES, _choose_type
from decodestep.models.summary import summary
from support.project import ROOT

PAGE = (ROOT / "docs" / "choosing.md").read_text()
# Of the page's billions: layers, hidden size, heads and those of keys, their width, feed-forward, vocabulary, whether the
# logits have a matrix of their own. Biases and norms of heads, which some have besides, are a millionth of the whole.
SHAPES = {
    0.5: (24, 896, 14, 2, 64, 4864, 151936, False),  # Qwen2.5
    1.5: (28, 1536, 12, 2, 128, 8960, 151936, False),  # Qwen2.5
    4: (36, 2560, 32, 8, 128, 9728, 151936, False),  # Qwen3
    8: (32, 4096, 32, 8, 128, 14336, 128256, True),  # Llama 3.1
    14: (40, 5120, 40, 8, 128, 17408, 151936, True),  # Qwen3
    32: (64, 5120, 64, 8, 128, 25600, 151936, True),  # Qwen3
    70: (80, 8192, 64, 8, 128, 28672, 128256, True),  # Llama 3.3
}


def described(folder, billions, kind):
    """What `decodestep env --model` says of the model's file, and its number of values."""
    layers, hidden, heads, kv_heads, width, feed_forward, vocabulary, untied = SHAPES[billions]
    sizes = {"token_embd": (vocabulary, hidden), "output_norm": (hidden,)} | (
        {"output": (vocabulary, hidden)} if untied else {}
    )
    for i in range(layers):
        parts = {
            "attn_norm": (hidden,), "ffn_norm": (hidden,), "attn_q": (heads * width, hidden),
            "attn_k": (kv_heads * width, hidden), "attn_v": (kv_heads * width, hidden), "attn_output": (hidden, heads * width),
            "ffn_gate": (feed_forward, hidden), "ffn_up": (feed_forward, hidden), "ffn_down": (hidden, feed_forward),
        }  # fmt: skip
        sizes |= {f"blk.{i}.{part}": size for part, size in parts.items()}
    f32 = gguf.GGMLQuantizationType.F32
    tensors = {
        f"{name}.weight": SourceTensor(f"{name}.weight", size, f32, None, lambda: iter(())) for name, size in sizes.items()
    }
    path = folder / f"{billions}-{kind}.gguf"
    source = Source(path, "llama", layers, not untied, lambda writer: None, tensors)
    writer = gguf.GGUFWriter(path, "llama")
    keys = {
        "block_count": layers, "context_length": 8192, "embedding_length": hidden, "feed_forward_length": feed_forward,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": width,
        "attention.value_length": width, "rope.dimension_count": width,
    }  # fmt: skip
    for key, value in keys.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab", *(f"<{i}>" for i in range(3, vocabulary))])
    writer.add_token_merges(["a b"])
    length = 0
    for name, tensor in tensors.items():
        type_ = _choose_type(tensor, RECIPES[kind], source)
        block, size = gguf.GGML_QUANT_SIZES[type_]
        nbytes = math.prod(tensor.shape) // block * size
        shape = (*tensor.shape[:-1], tensor.shape[-1] // block * size)
        writer.add_tensor_info(name, shape, np.dtype(np.uint8), nbytes, raw_dtype=type_)
        length += -(-nbytes // 32) * 32
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_ti_data_to_file, writer.close):
        write()
    with path.open("r+b") as file:  # a hole in place of the weights
        file.truncate(-(-path.stat().st_size // 32) * 32 + length)
    assert len(GgufFile(path).tensors) == len(tensors)
    return summary(open_checkpoint(path)), sum(math.prod(size) for size in sizes.values())


@pytest.fixture(scope="module")
def facts_of(tmp_path_factory):
    return cache(partial(described, tmp_path_factory.mktemp("headers")))


def rows(first):
    """The cells of the table whose header begins with `first`, below it."""
    [table] = [part for part in PAGE.split("\n\n") if part.startswith(f"| {first} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def assert_rounded(cell, value):
    """That the numbers of a cell are the values, one or several, rounded to the digits that are there."""
    shown, values = re.findall(r"\d+(?:\.(?:\d+))?", cell), np.atleast_1d(value)
    assert len(shown) == len(values)
    for text, exact in zip(shown, values, strict=True):
        digits = len(text.partition(".")[2])
        assert abs(float(text) - exact) <= 0.5001 * 10.0**-digits, f"{cell}: {exact}"


def test_bits_and_bytes_of_each_type_are_those_of_a_file_of_8_billion(facts_of):
    for type_, bits, gigabytes, _ in rows("type"):
        kinds = [name.lower() for name in re.findall(r"\w+", type_)]
        if kinds == ["mxfp4"]:
            each = [gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.MXFP4][1] / 32]
        else:
            each = [facts["all_weight_bytes"] / count for facts, count in (facts_of(8, kind) for kind in kinds)]
        each = each[:1] if kinds == ["f16", "bf16"] else each
        assert_rounded(bits, np.multiply(each, 8))
        assert_rounded(gigabytes, each)


@pytest.mark.slow
@pytest.mark.parametrize("row", rows("parameters"), ids=lambda row: row[0])
def test_memory_is_what_env_says_of_such_a_file(row, facts_of):
    billions = float(row[0].split()[0])
    facts = {kind: facts_of(billions, kind)[0] for kind in ("q4_k_m", "q8_0")}
    weights = [facts[kind]["all_weight_bytes"] / 1e9 for kind in facts]
    cached = facts["q8_0"]["cache_bytes"] * 8000 / 1e9
    for cell, value in zip(row[1:4], (*weights, cached), strict=True):
        assert_rounded(cell, value)
    machines = [float(size) for size in re.findall(r"(\d+) GB", row[4])]
    for size, needed in zip((machines[0], machines[-1]), weights, strict=True):
        assert needed + cached < 0.85 * size


def test_speed_is_the_bandwidth_over_what_a_token_reads(facts_of):
    for _, bandwidth, *speeds in rows("memory"):
        for billions, speed in zip((4, 8, 32), speeds, strict=True):
            assert_rounded(speed, float(bandwidth) * 1e9 / facts_of(billions, "q4_k_m")[0]["weight_bytes"])
