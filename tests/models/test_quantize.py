"""decodestep quantize and the dtypes that quantise at load: the blocks, the files, and how near they stay."""

from __future__ import annotations

import ctypes
import itertools
import os
import resource
import signal
import struct
import sys

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

import decodestep as ds
from decodestep import cli
from decodestep.files.gguf_file import GgufFile
from decodestep.models import DEFAULT_MODEL, ModelError, gguf_source
from decodestep.models.quantise import has_finite_scales, pack_panels, quantise
from decodestep.models.requantise import RECIPES, requantise
from decodestep.weights.packed import Format, PackedWeight
from support import family_models, latent_gguf_files, processes
from support.grouped_gguf_files import write_gguf

pytestmark = pytest.mark.slow

# Root mean squares of the error that values of a normal distribution have, relative to the values'.
ERRORS = {Type.Q2_K: 0.28, Type.Q3_K: 0.15, Type.Q4_K: 0.075, Type.Q5_K: 0.038, Type.Q6_K: 0.019}


@pytest.mark.parametrize("kind", ERRORS)
def test_k_quants_are_read_back_as_near_as_their_bits(kind, rng):
    x = (rng.normal(size=(40, 512)) * rng.gamma(1, 1, (40, 1))).astype(np.float32)
    blocks = quantise(x, kind)
    error = np.sqrt(np.mean((dequantize(blocks, kind) - x) ** 2) / np.mean(x**2))
    assert 0.5 * ERRORS[kind] < error < ERRORS[kind]
    np.testing.assert_array_equal(quantise(x[7:9], kind), blocks[7:9])  # a row is alone


# Of a block, the bytes of its integers' low bits and of the upper ones; such a byte of ones; the largest integer.
INTEGERS = {
    Type.Q2_K: (slice(16, 80), slice(0), 0x55, 3),
    Type.Q3_K: (slice(32, 96), slice(32), 0x55, 7),
    Type.Q4_K: (slice(16, 144), slice(0), 0x11, 15),
    Type.Q5_K: (slice(48, 176), slice(16, 48), 0x11, 31),
    Type.Q6_K: (slice(128), slice(128, 192), 0x11, 63),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("offset", [0, 0.5, -3])
def test_integers_are_the_nearest_for_the_scales_that_are_stored(kind, offset, rng):
    x = (rng.normal(size=(20, 256)) * rng.gamma(1, 1, (20, 8)).repeat(32, axis=1) + offset).astype(np.float32)
    blocks, (low_bits, high_bits, one, largest) = quantise(x, kind), INTEGERS[kind]
    zeros = blocks.copy()
    zeros[:, low_bits] = zeros[:, high_bits] = 0
    ones = zeros.copy()
    ones[:, low_bits] = one
    low = dequantize(zeros, kind)
    step = dequantize(ones, kind) - low
    q, grid = (np.where(step == 0, 0, (of - low) / np.where(step == 0, 1, step)) for of in (dequantize(blocks, kind), x))
    assert np.abs(q - grid.clip(0, largest)).max() < 0.501


@pytest.mark.parametrize("kind", ERRORS)
@settings(max_examples=15)
@given(data=st.data())
def test_no_values_do_worse_than_their_grid(kind, data):
    """Zeros, constants, one outlier: the error is a few steps of the coarsest grid at most."""
    seed, scale = data.draw(st.integers(0, 99)), 10.0 ** data.draw(st.integers(0, 3))
    x = np.random.default_rng(seed).normal(size=(1, 256)).astype(np.float32) * np.float32(scale)
    kept = data.draw(st.integers(0, 256))
    x[0, kept:] = data.draw(st.sampled_from([0.0, 1.0, -3.0])) * np.float32(scale)
    back = dequantize(quantise(x, kind), kind)
    assert np.isfinite(back).all()
    step = {Type.Q2_K: 3, Type.Q3_K: 4, Type.Q4_K: 15, Type.Q5_K: 31, Type.Q6_K: 32}[kind]
    assert np.abs(back - x).max() <= 4 * np.abs(x).max() / step


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize(("scale", "bound"), [(1e-2, 0.1), (1e-4, 0.13), (1e-5, 0.16), (1e-6, 0.22), (1e-8, 1.1)])
def test_values_near_the_least_of_float16_do_no_worse_than_zeros(kind, scale, bound, rng):
    """The scale of a block may be too small for float16 where the minimum, which is so many times as large, is not."""
    alike = rng.normal(size=(50, 256)) * scale
    mixed = alike * 10.0 ** rng.integers(-4, 1, (50, 8)).repeat(32, axis=1)
    own = {Type.Q2_K: 0.22, Type.Q3_K: 0.08}.get(kind, 0)  # the error of so few bits
    for x, most in ((alike, bound + own), (mixed, 1.1)):
        back = dequantize(quantise(x.astype(np.float32), kind), kind)
        assert np.all(np.linalg.norm(back - x, axis=1) <= most * np.linalg.norm(x, axis=1))


def llama_cpp_quantise(values, kind):
    ggml = pytest.importorskip("llama_cpp._ggml").libggml
    call = ggml.ggml_quantize_chunk
    call.restype, size, pointer = ctypes.c_size_t, ctypes.c_int64, ctypes.c_void_p
    call.argtypes = [ctypes.c_int, pointer, pointer, size, size, size, pointer]
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.zeros((len(values), values.shape[1] // block * nbytes), np.uint8)
    call(int(kind), values.ctypes.data, blocks.ctypes.data, 0, *values.shape, None)
    return blocks


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("offset", [0, 0.03, -0.03, 0.1, -0.1, 1, -1, 5, -5])
def test_values_on_one_side_of_zero_are_as_near_as_llama_cpp_has_them(kind, offset, rng):
    x = (rng.normal(size=(64, 512)) * 0.01 + offset).astype(np.float32)
    mine, theirs = (np.square(dequantize(made(x, kind), kind) - x).mean() for made in (quantise, llama_cpp_quantise))
    assert mine < 1.03 * theirs


@pytest.mark.parametrize(
    "kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4"]
)
@pytest.mark.parametrize("value", [6e4, -7e4, 1e6, -5e6, -1e7, 1e10, -1e30, 3.39e38])
@pytest.mark.parametrize("count", [1, 256])
def test_scales_are_finite_where_the_values_can_be_read_back(kind, value, count, rng):
    x = rng.normal(size=(1, 256)).astype(np.float32)
    x[0, :count] = value
    blocks = quantise(x, Type[kind])
    with np.errstate(over="ignore", invalid="ignore"):
        back = dequantize(blocks, Type[kind])
    finite = has_finite_scales(blocks, Type[kind])
    assert finite == np.isfinite(back).all()
    assert not finite or np.abs(back / value - x / np.float32(value)).max() < 0.3


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A file whose rows fill blocks of 256, and some that fill those of 32 alone."""
    model = family_models.build_model("qwen3", 2, hidden_size=256, intermediate_size=288, num_hidden_layers=8)
    return write_gguf(model, tmp_path_factory.mktemp("quantize") / "model.gguf")


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_k_m", "q5_k_m", "q6_k", "bf16", "f16"])
def test_a_file_in_other_types_is_read_and_near(source, tmp_path, kind, capsys):
    target = tmp_path / "small.gguf"
    assert cli.main(["quantize", str(source), str(target), "--type", kind]) == 0
    assert "MiB" in capsys.readouterr().out
    before, after = GgufFile(source), GgufFile(target)
    changed = {"general.file_type", "general.quantization_version"}
    assert {key: value for key, value in before.metadata.items() if key not in changed}.keys() <= after.metadata.keys()
    assert {name: tensor.shape for name, tensor in after.tensors.items()} == {
        name: tensor.shape for name, tensor in before.tensors.items()
    }
    ids = np.random.default_rng(0).integers(0, 297, 60)
    exact = ds.load(source, dtype="float32").logits(ids)
    apart = np.abs(ds.load(target, dtype="float32").logits(ids) - exact).max(axis=1) / np.abs(exact).max(axis=1)
    assert np.median(apart) < {"q4_0": 0.7, "q4_k_m": 0.6, "q5_k_m": 0.4, "q6_k": 0.2, "q8_0": 0.05}.get(kind, 0.02)


def test_the_alignment_of_the_source_is_its_own(tmp_path):
    source = write_gguf(family_models.build_model("qwen3", 0), tmp_path / "model.gguf", alignment=128)
    assert GgufFile(source).metadata["general.alignment"] == 128
    assert cli.main(["quantize", str(source), str(tmp_path / "same.gguf"), "--type", "f32"]) == 0
    ids = np.arange(20)
    np.testing.assert_array_equal(ds.load(tmp_path / "same.gguf").logits(ids), ds.load(source).logits(ids))


def test_which_tensors_get_which_types(source, tmp_path):
    """As llama.cpp's mixture: more bits for the logits, and for values and last products in some layers."""
    target = tmp_path / "small.gguf"
    assert cli.main(["quantize", str(source), str(target), "--type", "Q4_K_M"]) == 0
    file = GgufFile(target)
    assert (file.metadata["general.file_type"], file.metadata["general.quantization_version"]) == (15, 2)
    types = {name: tensor.type for name, tensor in file.tensors.items()}
    assert types["token_embd.weight"] == Type.Q6_K and types["output_norm.weight"] == Type.F32  # tied
    assert [types[f"blk.{i}.attn_v.weight"] for i in range(8)] == [
        Type.Q6_K if i in (0, 3, 6, 7) else Type.Q4_K for i in range(8)
    ]
    assert types["blk.1.attn_q.weight"] == Type.Q4_K and types["blk.1.ffn_down.weight"] == Type.Q5_0  # 288 inputs
    assert types["blk.0.ffn_down.weight"] == Type.Q8_0
    assert cli.main(["quantize", str(target), str(tmp_path / "again.gguf"), "--type", "q4_k_m"]) == 0  # what has its type stays
    again = GgufFile(tmp_path / "again.gguf").tensors
    assert all((tensor.read() == again[name].read()).all() for name, tensor in GgufFile(target).tensors.items())


def test_which_tensors_get_more_than_two_and_three_bits(source, tmp_path):
    """As llama.cpp's mixtures, of a model whose key heads have two query heads; rows of 288 do not fill blocks of 256."""
    kinds = {}
    for kind, narrower in (("q2_k", Type.Q4_0), ("q3_k_m", Type.Q5_0)):
        assert cli.main(["quantize", str(source), str(tmp_path / "small.gguf"), "--type", kind]) == 0
        file = GgufFile(tmp_path / "small.gguf")
        kinds[kind] = {name.removesuffix(".weight"): tensor.type for name, tensor in file.tensors.items()}
        assert kinds[kind]["token_embd"] == Type.Q6_K and kinds[kind]["blk.5.ffn_down"] == narrower
        assert file.metadata["general.file_type"] == RECIPES[kind].file_type
    for i in range(8):
        parts = [(kinds["q2_k"][f"blk.{i}.{part}"], kinds["q3_k_m"][f"blk.{i}.{part}"]) for part in ("attn_q", "attn_v")]
        assert parts == [(Type.Q2_K, Type.Q3_K), (Type.Q3_K, Type.Q5_K if i < 2 else Type.Q4_K)]


def test_shared_experts_and_projections_of_latents_are_down_projections_and_values(tmp_path):
    sizes = {"moe_intermediate_size": 256, "kv_lora_rank": 256, "num_hidden_layers": 8, "first_k_dense_replace": 0}
    model = family_models.build_model("deepseek_v3", 1, **sizes)
    source, target = latent_gguf_files.write_gguf(model, tmp_path / "model.gguf", whole=True), tmp_path / "small.gguf"
    assert cli.main(["quantize", str(source), str(target), "--type", "q4_k_m"]) == 0
    types = {name: tensor.type for name, tensor in GgufFile(target).tensors.items()}
    for name in ("attn_kv_b", "ffn_down_exps", "ffn_down_shexp"):
        assert [types[f"blk.{i}.{name}.weight"] for i in range(8)] == [
            Type.Q6_K if i in (0, 3, 6, 7) else Type.Q4_K for i in range(8)
        ]
    assert types["blk.0.ffn_up_shexp.weight"] == Type.Q5_0  # 32 inputs
    assert types["blk.0.exp_probs_b.bias"] == types["blk.0.ffn_gate_inp.weight"] == Type.F32


def llama_cpp_file(source, target, kind):
    llama_cpp = pytest.importorskip("llama_cpp")
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread = int(RECIPES[kind].file_type), 1
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(options)) == 0
    return GgufFile(target)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *(("qwen3", kind) for kind in RECIPES),
        *itertools.product(("deepseek_v3", "minicpm3"), ("f16", "q4_0", "q6_k", "q4_k_m", "q5_k_m")),
    ],
)
def test_types_are_those_of_llama_cpps_quantiser(tmp_path, family, kind):
    if family == "qwen3":
        sizes = {"intermediate_size": 256, "hidden_size": 288, "num_hidden_layers": 5, "tie_word_embeddings": False}
        source = write_gguf(family_models.build_model(family, 2, **sizes), tmp_path / "model.gguf")
    else:
        sizes = {"intermediate_size": 256, "moe_intermediate_size": 256, "kv_lora_rank": 256, "num_hidden_layers": 8}
        source = latent_gguf_files.write_gguf(family_models.build_model(family, 0, **sizes), tmp_path / "model.gguf")
    assert cli.main(["quantize", str(source), str(tmp_path / "ours.gguf"), "--type", kind]) == 0
    ours, theirs = GgufFile(tmp_path / "ours.gguf"), llama_cpp_file(source, tmp_path / "theirs.gguf", kind)
    assert {name: tensor.type for name, tensor in ours.tensors.items()} == {
        # Files of IQ4_NL are not written here; Q4_0 takes as many bytes.
        name: Type.Q4_0 if tensor.type == Type.IQ4_NL else tensor.type
        for name, tensor in theirs.tensors.items()
    }
    for key in ("general.file_type", "general.quantization_version"):
        assert ours.metadata[key] == theirs.metadata[key]


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0", "q2_k", "q3_k", "q4_k"])
def test_folders_are_quantised_when_they_are_loaded(tmp_path, dtype):
    model = family_models.build_model("qwen3", 2, hidden_size=256, intermediate_size=288)
    path, ids = family_models.save(model, tmp_path), np.random.default_rng(0).integers(0, 297, 40)
    mine, exact = ds.load(path, dtype=dtype), family_models.model_logits(model, ids)
    assert mine.decoder.description == "one native call a step"
    apart = np.abs(mine.logits(ids) - exact).max(axis=1) / np.abs(exact).max(axis=1)
    assert 0.001 < np.median(apart) < {"q8_0": 0.06, "q2_k": 0.8, "q3_k": 0.6, "q4_0": 0.4, "q4_k": 0.4}[dtype]


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q8_0])
def test_a_weight_of_the_type_keeps_its_blocks_when_it_is_loaded(kind, rng):
    rows = quantise(rng.normal(size=(40, 512)).astype(np.float32), kind)
    integers = {Type.Q2_K: slice(80), Type.Q3_K: slice(108), Type.Q4_K: slice(18, None)}.get(kind, slice(2, None))
    blocks = rows.reshape(40, -1, gguf.GGML_QUANT_SIZES[kind][1])[..., integers]
    blocks[...] = rng.integers(0, 100, blocks.shape)  # such as no quantiser chooses
    weight = PackedWeight(rows, Format[kind.name], 512)
    np.testing.assert_array_equal(pack_panels(weight, weight.format).rows().rows, rows)


def test_what_cannot_be_quantised_is_refused_by_name(source, tmp_path, capsys):
    folder = family_models.save(family_models.build_model("llama", 0), tmp_path)
    target, device = tmp_path / "out.gguf", tmp_path / "device"
    os.mkfifo(device)
    for arguments, code, message in (
        ([str(source), str(tmp_path), "--type", "q8_0"], 2, "quantize: OUT must be a file"),
        ([str(source), str(device), "--type", "q8_0"], 2, "quantize: OUT must be a file"),
        (
            [str(source), str(tmp_path / "none" / "out.gguf"), "--type", "q8_0"],
            2,
            "quantize: OUT must be in a folder that exists",
        ),
        ([str(source), str(target), "--type", "q3_k"], 2, "quantize: --type must be one of"),
        ([str(source), str(source), "--type", "q8_0"], 2, "quantize: OUT must be another file than IN"),
    ):
        assert cli.main(["quantize", *arguments]) == code
        assert message in capsys.readouterr().err
    assert device.is_fifo() and not target.exists() and not list(tmp_path.glob("*.part"))
    with pytest.raises(ModelError, match="dtype 'q4_k' is not supported: feed-forward size 40"):
        ds.load(folder, dtype="q4_k")


def test_the_source_may_be_the_default_model_by_its_name_but_not_nothing(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("decodestep.models.fetch.find_default_model", lambda: source)
    assert cli.main(["quantize", DEFAULT_MODEL, str(tmp_path / "same.gguf"), "--type", "f32"]) == 0
    assert GgufFile(tmp_path / "same.gguf").tensors.keys() == GgufFile(source).tensors.keys()
    capsys.readouterr()
    assert cli.main(["quantize", "", str(tmp_path / "none.gguf"), "--type", "f32"]) == 2
    assert capsys.readouterr().err == "decodestep: quantize: IN must be a name or a path; got ''\n"


def test_the_source_and_other_files_stay(tmp_path, capsys):
    model = family_models.build_model("llama", 0)
    source = write_gguf(model, tmp_path / "a.gguf.part")
    before = source.read_bytes()
    assert cli.main(["quantize", str(source), str(tmp_path / "a.gguf"), "--type", "f16"]) == 0
    assert source.read_bytes() == before and (tmp_path / "a.gguf").exists()
    folder = family_models.save(model, tmp_path / "in")
    (folder / "parts").mkdir()
    (folder / "parts" / "notes").write_text("what else there is")
    for name in ("model.safetensors", "config.json", "tokenizer.json", "parts/notes"):
        before = (folder / name).read_bytes()
        assert cli.main(["quantize", str(folder), str(folder / name), "--type", "f16"]) == 2
        assert "OUT must be another file than those of IN" in capsys.readouterr().err and (folder / name).read_bytes() == before
    for _ in range(2):  # a file that it wrote there itself may be written again
        assert cli.main(["quantize", str(folder), str(folder / "out.gguf"), "--type", "f16"]) == 0


ENDED = """
import os, signal, sys
from decodestep import cli
from decodestep.models import requantise

ends = getattr(signal, sys.argv[3])
signal.signal(ends, signal.SIG_DFL)  # under nohup SIGHUP is ignored
requantise._convert = lambda *_: os.kill(os.getpid(), ends)
cli.main(["quantize", sys.argv[1], sys.argv[2], "--type", "f16"])
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_it_leaves_no_file(source, tmp_path, name):
    run = processes.run([sys.executable, "-c", ENDED, str(source), str(tmp_path / "b.gguf"), name])
    assert (run.returncode, run.stdout, run.stderr) == (128 + getattr(signal, name), "", "")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_full_is_said_with_the_name_of_the_file(source, tmp_path, capsys):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for bytes_ in (1000, 100000):  # within the metadata, and within a tensor
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, hard))
        try:
            code = cli.main(["quantize", str(source), str(tmp_path / "b.gguf"), "--type", "f16"])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert code == 1 and f"decodestep: {tmp_path}/b.gguf: cannot be written: " in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []


def with_weight(value, **changes):
    """A model one of whose weights is `value`."""
    model = family_models.build_model("llama", 0, **changes)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = value
    return model


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("f16", 1e5),
        ("bf16", 3.4e38),
        ("q4_0", 7e5),
        ("q8_0", 1e30),
        ("q4_k_m", 1e30),
        ("q6_k", 1e18),
        ("q6_k", 1e30),
        ("f32", np.nan),
        ("f16", np.nan),
        ("q8_0", np.nan),
        ("q4_k_m", np.nan),
    ],
)
def test_a_value_that_a_type_cannot_hold_is_refused(tmp_path, capsys, kind, value):
    source = write_gguf(with_weight(value, hidden_size=256), tmp_path / "a.gguf")
    assert cli.main(["quantize", str(source), str(tmp_path / "b.gguf"), "--type", kind]) == 1
    fault = "must hold finite numbers" if np.isnan(value) else "has values too large for"
    assert f"tensor blk.0.ffn_up.weight {fault}" in capsys.readouterr().err and list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0", "q4_k", "int8"])
def test_a_value_that_blocks_cannot_hold_is_refused_when_it_is_loaded(tmp_path, dtype):
    path = family_models.save(with_weight(1e30, hidden_size=256, intermediate_size=64), tmp_path)
    with pytest.raises(ModelError, match=r"layers.0.mlp.up_proj.weight has values too large for Q[48]_"):
        ds.load(path, dtype=dtype)
    assert ds.load(path).decoder.description == "one native call a step"


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0", "q4_k", "int8"])
@pytest.mark.parametrize(("value", "fault"), [(1e30, "too large for Q[48]_"), (np.nan, "that are not finite")])
def test_of_many_experts_the_one_at_fault_is_named(tmp_path, dtype, value, fault):
    model = family_models.build_model("deepseek_v3", 0, **family_models.ALIGNED["deepseek_v3"] | {"hidden_size": 256})
    with torch.no_grad():
        model.model.layers[1].mlp.experts.gate_up_proj[3, 5, 7] = value
    path = family_models.save(model, tmp_path)
    with pytest.raises(ModelError, match=rf"{path}: tensor model.layers.1.mlp.experts.3.gate_proj.weight has values {fault}"):
        ds.load(path, dtype=dtype)


def test_weights_without_a_file_of_their_own_are_refused_by_their_sizes(tmp_path):
    """Queries, whose rows are put in another order."""
    model = family_models.build_model("llama", 0, hidden_size=64, intermediate_size=64)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0, 0] = -1e30
    with pytest.raises(ModelError, match="a weight of 64 inputs and 64 outputs has values too large for Q8_0"):
        ds.load(family_models.save(model, tmp_path), dtype="q8_0")


def test_metadata_keep_their_types(tmp_path):
    """Numbers, and arrays of each kind."""
    path = tmp_path / "b.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    kinds = gguf.GGUFValueType
    given = {
        kinds.UINT8: 200, kinds.INT8: -5, kinds.UINT16: 60000, kinds.INT16: -300, kinds.UINT32: 2**32 - 1, kinds.INT32: -7,
        kinds.FLOAT32: 0.1, kinds.BOOL: True, kinds.STRING: "straße", kinds.UINT64: 2**63, kinds.INT64: -(2**62),
        kinds.FLOAT64: 0.1,
    }  # fmt: skip
    for kind, value in given.items():
        writer.add_key_value(f"own.{kind.name}", value, kind)
        writer.add_key_value(f"own.array.{kind.name}", [value, value], kinds.ARRAY, kind)
    model = gguf.GGUFReader(write_gguf(family_models.build_model("llama", 0), tmp_path / "a.gguf"))
    for field in model.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            of_items = field.types[-1] if field.types[0] == kinds.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], of_items)
    for tensor in model.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    assert cli.main(["quantize", str(path), str(tmp_path / "c.gguf"), "--type", "f16"]) == 0
    before, after = (gguf.GGUFReader(each).fields for each in (path, tmp_path / "c.gguf"))
    changed = {"GGUF.kv_count", "general.file_type", "general.quantization_version"}
    assert set(before) - changed == set(after) - changed
    for name in set(before) - changed:
        assert before[name].types == after[name].types and before[name].contents() == after[name].contents(), name


def test_a_tensor_is_converted_in_parts(tmp_path, monkeypatch):
    source = write_gguf(family_models.build_model("llama", 0), tmp_path / "b.gguf")
    seen = []
    for name, part in (("whole", 1 << 24), ("parts", 200)):
        monkeypatch.setattr(gguf_source, "_PART", part)
        requantise(source, tmp_path / name, "q8_0", lambda done, count, tensor: seen.append((done / count, tensor)))
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "parts").read_bytes()
    shares = [share for share, _ in seen[seen.index((1.0, seen[-1][1])) + 1 :]]
    assert shares == sorted(shares) and shares[0] == 0.0 and shares[-1] == 1.0
    assert len(shares) > 2 * len(GgufFile(source).tensors)


def test_an_empty_array_in_a_file_is_no_obstacle(tmp_path):
    source = write_gguf(family_models.build_model("llama", 0), tmp_path / "b.gguf")
    data, reader = source.read_bytes(), gguf.GGUFReader(source)
    end = max(t.field.offset + sum(int(part.nbytes) for part in t.field.parts) for t in reader.tensors)
    key = b"general.tags"
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 8, 0)
    head = data[:16] + struct.pack("<Q", struct.unpack_from("<Q", data, 16)[0] + 1) + entry + data[24:end]
    source.write_bytes(head + bytes(-len(head) % 32) + data[reader.data_offset :])
    assert GgufFile(source).metadata["general.tags"] == []
    assert cli.main(["quantize", str(source), str(tmp_path / "c.gguf"), "--type", "f32"]) == 0
