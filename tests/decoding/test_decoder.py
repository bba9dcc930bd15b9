"""The decoder: the exact conversion of grouped-query attention, against transformers and against a dense forward pass."""

from __future__ import annotations

import math

import gguf
import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep.decoding.decoder import TokenBatch
from decodestep.decoding.layer_decoder import LayerDecoder
from decodestep.decoding.rope import rope_table
from decodestep.files.gguf_file import GgufFile
from decodestep.models import ModelError
from decodestep.models.checkpoint import Checkpoint
from decodestep.models.convert import convert
from support.dense_decoder_oracle import dense_logits
from support.tolerances import assert_close

pytestmark = pytest.mark.slow

PROMPTS = [
    "The three laws of thermodynamics say that",
    "def quicksort(items):\n",
    "2 + 2 = 4, 3 + 3 =",
    "Le petit prince demanda: 你好吗? 🎉",
]


@pytest.fixture(scope="module")
def exact_model(model_path):
    """The default model in float32."""
    return ds.load(model_path, dtype="float32")


@pytest.fixture(scope="module")
def transformers_model(model_path):
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.initialization import no_init_weights

    # The same float32 weights in transformers' own class, built without its loader: dequantised by the gguf package, the rows
    # of q and k put back from interleaved rope pairs to halves.
    file = GgufFile(model_path)
    config = Checkpoint(file).config
    with no_init_weights():  # all of them are loaded below
        theirs = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                intermediate_size=file.metadata["llama.feed_forward_length"],
                rms_norm_eps=config.norm_eps,
                max_position_embeddings=config.context,
                tie_word_embeddings=True,
                rope_parameters={"rope_type": "default", "rope_theta": file.metadata["llama.rope.freq_base"]},
            )
        )

    def tensor(name, heads=0):
        t = file.tensors[f"{name}.weight"]
        if t.type == gguf.GGMLQuantizationType.F32:
            return torch.tensor(t.read().view(np.float32))
        values = gguf.quants.dequantize(t.read().reshape(t.shape[0], -1), t.type)
        if heads:
            values = values.reshape(heads, config.head_dim // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
        return torch.tensor(values)

    state = {"model.embed_tokens": tensor("token_embd"), "lm_head": tensor("token_embd"), "model.norm": tensor("output_norm")}
    for i in range(config.layers):
        ours, layer = f"blk.{i}", f"model.layers.{i}"
        state |= {
            f"{layer}.input_layernorm": tensor(f"{ours}.attn_norm"),
            f"{layer}.post_attention_layernorm": tensor(f"{ours}.ffn_norm"),
            f"{layer}.self_attn.q_proj": tensor(f"{ours}.attn_q", config.heads),
            f"{layer}.self_attn.k_proj": tensor(f"{ours}.attn_k", config.kv_heads),
            f"{layer}.self_attn.v_proj": tensor(f"{ours}.attn_v"),
            f"{layer}.self_attn.o_proj": tensor(f"{ours}.attn_output"),
            f"{layer}.mlp.gate_proj": tensor(f"{ours}.ffn_gate"),
            f"{layer}.mlp.up_proj": tensor(f"{ours}.ffn_up"),
            f"{layer}.mlp.down_proj": tensor(f"{ours}.ffn_down"),
        }
    theirs.load_state_dict({f"{name}.weight": value for name, value in state.items()})
    return theirs.eval()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_and_logits_equal_transformers(exact_model, transformers_model, prompt):
    model = exact_model
    ids = model.tokenizer.encode(prompt)
    params = ds.SamplingParams(do_sample=False, max_new_tokens=64, ignore_eos=True)
    ours = ds.generate(model, [ids], params)[0].token_ids
    with torch.no_grad():
        theirs = transformers_model(torch.tensor([ids + ours])).logits[0].numpy()
    logits = model.logits(ids + ours)
    far = np.flatnonzero(np.abs(logits - theirs).max(axis=1) > 2e-3)
    if len(far):
        # Tokens whose activations are huge: transformers' own rounding is the larger part, or the fault is ours.
        true = dense_logits(GgufFile(model.path), np.array((ids + ours)[: far[-1] + 1]))
        assert np.abs(theirs[far] - true[far]).max(axis=1).min() > 1e-3
        assert np.abs(logits[far] - true[far]).max() < 1e-3
    for step, token in enumerate(ours):
        row = theirs[len(ids) + step - 1]
        best, second = np.sort(row)[-1:-3:-1]
        assert row.argmax() == token or best - second < 1e-3


def test_angles_are_those_of_transformers(exact_model, transformers_model):
    """To a unit in the last place of a frequency, as much as a power in float32 differs from library to library."""
    rotary, frequencies = transformers_model.model.rotary_emb, exact_model.decoder.weights.ropes[0].inverse_frequencies
    np.testing.assert_array_max_ulp(frequencies, rotary.inv_freq.numpy(), maxulp=1)
    positions, half = np.arange(2048), len(frequencies)
    unit = 2.0**-23 * (1 + positions[:, None] * frequencies)
    for ours, theirs in zip(
        rope_table(positions, frequencies), rotary(torch.zeros(1), torch.tensor(positions)[None])[::-1], strict=True
    ):
        assert (np.abs(ours - theirs[0, :, :half].numpy()) <= unit).all()


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q5_1"])
def test_any_file_of_the_family_equals_a_dense_pass(tiny_file, kind):
    path = tiny_file(kind=kind, tied=kind != "F16")
    ids = np.random.default_rng(2).integers(0, 297, 21)
    assert_close(ds.load(path, dtype="float32").logits(ids), dense_logits(GgufFile(path), ids))


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_files_with_blocks_of_256(tiny_file, kind):
    path = tiny_file(kind=kind, heads=8, head_dim=32, hidden=256)
    ids = np.random.default_rng(2).integers(0, 297, 21)
    np.testing.assert_allclose(
        ds.load(path, dtype="float32").logits(ids), dense_logits(GgufFile(path), ids), atol=1e-3, rtol=1e-4
    )
    rounded, exact = ds.load(path).logits(ids), dense_logits(GgufFile(path), ids)  # the same weights as bytes
    assert np.corrcoef(rounded.ravel(), exact.ravel())[0, 1] > 0.99


@pytest.mark.parametrize(("heads", "groups", "head_dim", "hidden"), [(4, 4, 8, 64), (8, 1, 32, 96), (6, 3, 6, 32)])
def test_any_grouping_equals_a_dense_pass(tiny_file, heads, groups, head_dim, hidden):
    path = tiny_file(heads=heads, groups=groups, head_dim=head_dim, hidden=hidden)
    ids = np.random.default_rng(2).integers(0, 297, 9)
    assert_close(ds.load(path, dtype="float32").logits(ids), dense_logits(GgufFile(path), ids))


def test_blocks_and_batches_change_no_bit(tiny_file, rng):
    file = GgufFile(tiny_file(kind="Q4_1"))
    decoder = LayerDecoder(convert(Checkpoint(file)))
    ids = rng.integers(0, 297, 30)

    def run(cuts, rows=1, row=0):
        table = np.arange(rows * 2).reshape(rows, 2)
        pages = decoder.new_pages(table.size)
        parts = [part for part in np.split(np.arange(len(ids)), cuts) if len(part)]
        batches = [TokenBatch(ids[p], np.full(len(p), row), p, table, p[:0]) for p in parts]
        return np.concatenate([decoder.forward(batch, pages) for batch in batches])

    whole = run([])
    np.testing.assert_array_equal(run([7, 8, 20]), whole)
    np.testing.assert_array_equal(run(list(range(30)), rows=3, row=2), whole)


@pytest.mark.parametrize(
    "changes",
    [
        {"architecture": "falcon"},
        {"without": ("blk.1.ffn_up",)},
        {"llama.rope.scaling.type": "longrope"},
        {"llama.expert_count": 8},
        {"llama.attention.value_length": 8},
        {"groups": 4},
        {"heads": 0},
        {"groups": 0},
        {"llama.attention.head_count": 200},
        {"llama.embedding_length": 2**31},
        {"llama.attention.key_length": 2**31},
        {"context": 0},
        {"context": 2**31},
        {"llama.context_length": -1.5},
        {"llama.block_count": "two"},
        {"llama.block_count": 2**31},
        {"llama.rope.freq_base": 0.0},
        {"llama.rope.freq_base": math.nan},
        {"llama.rope.freq_base": math.inf},
        {"llama.rope.freq_base": -1.0},
        {"llama.rope.freq_base": "large"},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.0},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": math.nan},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1e-300},
        {"llama.rope.scaling.type": 5},
        {"llama.attention.layer_norm_rms_epsilon": math.nan},
        {"llama.attention.layer_norm_rms_epsilon": 1e300},
        {"llama.attention.layer_norm_rms_epsilon": True},
        {"tokenizer.ggml.tokens": "abc"},
        {"tokenizer.ggml.tokens": [1, 2, 3]},
        {"general.name": 5},
    ],
    ids=repr,
)
def test_refuses_what_it_does_not_know(tiny_file, changes):
    with pytest.raises(ModelError):
        ds.load(tiny_file(**changes))


@pytest.mark.parametrize("ids", [[], [300], [-1], [0] * 65, [[1, 2]], [0.5], [1, [2]], [1, True]])
def test_logits_refuses(tiny_file, ids):
    with pytest.raises(ValueError, match="^logits: token_ids must be"):
        ds.load(tiny_file()).logits(ids)


@pytest.mark.parametrize(
    "options",
    [{"dtype": "int3"}, {"dtype": np.float16}, {"threads": 0}, {"threads": 2.5}, {"threads": True}, {"progress": 1}],
)
def test_load_refuses(tiny_file, options):
    with pytest.raises(ValueError, match="^load: "):
        ds.load(tiny_file(), **options)


@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}, {"form": "mla"}])
def test_load_says_how_far_it_is(tiny_file, options):
    told = []
    ds.load(tiny_file(), **options, progress=lambda *numbers: told.append(numbers))
    assert told == [(0, 2), (1, 2), (2, 2)]
    with pytest.raises(ZeroDivisionError):
        ds.load(tiny_file(), **options, progress=lambda done, layers: 1 / done)
