"""All families against transformers in float32: logits, greedy tokens, the experts that are chosen."""

from __future__ import annotations

import contextlib
import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

import decodestep as ds
from decodestep import cli
from decodestep.constraints.processor import ConstraintLogitsProcessor
from decodestep.decoding import float32_layer
from decodestep.families.common import folder as folder_sizes
from decodestep.families.common import gguf
from decodestep.files.gguf_file import GgufFile
from decodestep.files.model_folder import ModelFolder
from decodestep.generation import model_search
from decodestep.generation.batch import Batch
from decodestep.generation.scheduler import ChunkedPrefill
from decodestep.models import ModelError
from decodestep.ops.decoder_forward import Mixture
from decodestep.sampling.row_factory import RowFactory
from decodestep.weights.linear_panels import LinearPanels
from support import family_models, family_sizes, latent_gguf_files
from support.families import CASES
from support.tolerances import LOGITS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_torch_thread")]

ALL = [(family, size) for family, cases in CASES.items() for size in range(len(cases.sizes))]
# GGUF has no keys for biases, pairs half a head apart, dense layers among sparse ones, a second mscale, MiniCPM3's scales.
IN_GGUF = family_models.in_gguf("latent")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """(family, size) -> a model of transformers, and the folder that it saved."""

    @cache
    def make(family, size, shards=False):
        model = family_models.build_model(family, size)
        path = tmp_path_factory.mktemp(f"{family}-{size}")
        return model, family_models.save(model, path, **({"max_shard_size": "30KB"} if shards else {}))

    return make


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(1).integers(0, 297, 120)


def routes(model, monkeypatch):
    """Two lists that fill with the sorted experts of every token, layer by layer: theirs and ours."""
    theirs, ours = [], []
    for name, module in model.named_modules():
        if name.endswith(("mlp.gate", ".router", "feed_forward.gate", "mixer.gate")):
            module.register_forward_hook(lambda _, __, out: theirs.append(np.sort(out[2].numpy(), axis=1)))
    router = float32_layer.expert_router

    def recorded(*arguments, **options):
        found = router(*arguments, **options)
        ours.append(np.sort(found.experts, axis=1))
        return found

    monkeypatch.setattr(float32_layer, "expert_router", recorded)
    return theirs, ours


@pytest.mark.parametrize(("family", "size"), ALL)
def test_logits_tokens_and_experts_equal_transformers(folder, ids, monkeypatch, family, size):
    model, path = folder(family, size)
    mine = ds.load(path, dtype="float32")
    theirs, ours = routes(model, monkeypatch)
    expected = family_models.model_logits(model, ids)
    assert family_models.relative(mine.logits(ids), expected) < LOGITS
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
    prompt = ids[:30].tolist()
    params = ds.SamplingParams(do_sample=False, max_new_tokens=64, ignore_eos=True)
    (done,) = ds.generate(mine, [prompt], params)
    rows = family_models.model_logits(model, np.array(prompt + done.token_ids))[len(prompt) - 1 : -1]
    assert rows.argmax(axis=1).tolist() == done.token_ids


@pytest.mark.parametrize(("family", "size"), IN_GGUF)
def test_a_gguf_file_of_the_same_weights_has_the_same_logits(folder, ids, tmp_path, family, size):
    model, _ = folder(family, size)
    expected = family_models.model_logits(model, ids)
    for options in ({}, {"whole": True, "fused": True}):
        path = latent_gguf_files.write_gguf(model, tmp_path / "model.gguf", **options)
        assert family_models.relative(ds.load(path, dtype="float32").logits(ids), expected) < LOGITS


_STRETCHED = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0, "mscale_all_dim": 1.0}


@pytest.mark.parametrize(
    ("kind", "rotation"),
    [
        ({"rope.scaling.type": "linear"}, _STRETCHED),
        ({}, _STRETCHED),  # linear is the one without a type
        ({"rope.scaling.type": "none"}, {"rope_type": "default", "rope_theta": 10000.0}),
    ],
)
def test_a_linear_stretch_in_a_gguf_file_grows_the_scores_by_its_multiplier(tmp_path, ids, kind, rotation):
    model = family_models.build_model("deepseek_v3", 0, rope_parameters=rotation)
    keys = {"rope.scaling.factor": 4.0, "rope.scaling.yarn_log_multiplier": 0.1} | kind
    path = latent_gguf_files.write_gguf(model, tmp_path / "model.gguf", **keys)
    assert family_models.relative(ds.load(path, dtype="float32").logits(ids), family_models.model_logits(model, ids)) < LOGITS


@pytest.mark.parametrize(("kind", "stretch"), [({}, 4.0), ({"rope.scaling.type": "none"}, 1.0)])
def test_a_factor_stretches_the_rotation_of_long_rope_in_a_gguf_file(tmp_path, ids, kind, stretch):
    """As in llama.cpp; transformers has it only within the factors."""
    rotation = family_sizes.longrope(512)
    stretched = rotation | {"short_factor": [stretch * factor for factor in rotation["short_factor"]]}
    sizes = {"dim_model_base": 256, "v_head_dim": 16}
    model, expected = (family_models.build_model("minicpm3", 0, **sizes, rope_parameters=p) for p in (rotation, stretched))
    path = latent_gguf_files.write_gguf(model, tmp_path / "model.gguf", **{"rope.scaling.factor": 4.0} | kind)
    mine = ds.load(path, dtype="float32").logits(ids)
    assert family_models.relative(mine, family_models.model_logits(expected, ids)) < LOGITS
    pytest.importorskip("llama_cpp")
    assert family_models.relative(mine, family_models.llama_cpp_logits(path, ids)) < 0.02


@pytest.mark.parametrize(("name", "wrong"), [("short", 0.0), ("long", 1e9)])
def test_factors_of_long_rope_in_a_gguf_file_have_bounds(tmp_path, name, wrong):
    rotation = family_sizes.longrope(512, **{f"{name}_factor": [1.0, 1.0, wrong, 1.0]})
    model = family_models.build_model("minicpm3", 0, rope_parameters=rotation)
    with pytest.raises(ModelError, match=f"tensor rope_factors_{name}.weight must hold 4 numbers in"):
        ds.load(latent_gguf_files.write_gguf(model, tmp_path / "model.gguf"))


def test_long_rope_of_which_one_position_is_short(tmp_path):
    """Its factor divides by the logarithm of that number, which is 0; transformers fails."""
    model = family_models.build_model("minicpm3", 0, rope_parameters=family_sizes.longrope(512))
    saved, path = family_models.save(model, tmp_path / "saved"), tmp_path / "changed"
    path.mkdir()
    for place in (
        changed(saved, path, rope_parameters=family_sizes.longrope(1)),
        latent_gguf_files.write_gguf(model, tmp_path / "model.gguf", **{"rope.scaling.original_context_length": 1}),
    ):
        assert np.isfinite(ds.load(place).logits([1, 2, 3])).all()


def test_yarn_beside_divided_frequencies_is_refused(folder, tmp_path):
    model, _ = folder("minicpm3", 0)
    path = latent_gguf_files.write_gguf(model, tmp_path / "model.gguf", **{"rope.scaling.type": "yarn"})
    with pytest.raises(ModelError, match="'yarn' beside the tensor rope_factors_short.weight is not supported"):
        ds.load(path)


@pytest.mark.parametrize("wide", [False, True])
def test_plm_is_a_dense_model_whose_activation_is_squared(tmp_path, ids, wide):
    """No class of transformers': DeepSeek-V2's with relu2, and an up projection that is 1 for every token."""
    dense = {"first_k_dense_replace": 3, "q_lora_rank": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    sizes = family_models.ALIGNED["deepseek_v2"] if wide else {}
    model = family_models.build_model("deepseek_v2", 2, **{**sizes, **dense}, hidden_act="relu2", attention_bias=False)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.up_proj.weight.zero_()
            layer.mlp.up_proj.bias.fill_(1.0)
            layer.mlp.gate_proj.bias.zero_()
            layer.mlp.down_proj.bias.zero_()
    path = latent_gguf_files.write_gguf(model, tmp_path / "plm.gguf", plm=True)
    expected, mine = family_models.model_logits(model, ids), ds.load(path)
    assert family_models.relative(ds.load(path, dtype="float32").logits(ids), expected) < LOGITS
    assert mine.decoder.description.startswith("one native call a step" if wide else "layer by layer")
    assert np.median(np.abs(mine.logits(ids) - expected).max(axis=1) / np.abs(expected).max(axis=1)) < 0.02


@pytest.mark.parametrize(
    ("family", "kind"), [(family, kind) for family in family_models.ALIGNED for kind in ("folder", "Q8_0")]
)
def test_the_native_step_is_as_near_as_its_rounding(tmp_path, ids, family, kind):
    """Sizes that fill its vectors. A token near a tie of two experts takes the other one: few may be far off."""
    model = family_models.build_model(family, 0, **family_models.ALIGNED[family])
    path = (
        family_models.save(model, tmp_path)
        if kind == "folder"
        else latent_gguf_files.write_gguf(model, tmp_path / "a.gguf", kind=kind)
    )
    mine = ds.load(path)
    assert mine.decoder.description == "one native call a step"
    exact = ds.load(path, dtype="float32").logits(ids[:100])
    apart = np.abs(mine.logits(ids[:100]) - exact).max(axis=1) / np.abs(exact).max(axis=1)
    assert np.median(apart) < {"folder": 0.02, "Q8_0": 0.06}[kind]
    prompts = [ids[:20].tolist(), ids[:3].tolist()]
    params = ds.SamplingParams(max_new_tokens=3, seed=1, ignore_eos=True)
    together = ds.generate(mine, prompts, params)
    assert [one.token_ids for one in together] == [ds.generate(mine, [one], params)[0].token_ids for one in prompts]


BIASED = {"deepseek_v2": {"q_lora_rank": 32}, "deepseek_v3": {"rope_interleave": False}, "minicpm3": {"mlp_bias": True}}


@pytest.mark.parametrize("family", BIASED)
def test_the_native_step_has_biases(tmp_path, ids, family):
    """Of attention, of dense blocks and of those beside the experts; all of them large."""
    size = {"deepseek_v2": 2}.get(family, 0)
    changes = {"attention_bias": True, **family_models.ALIGNED[family], **BIASED[family]}
    path = family_models.save(family_models.build_model(family, size, **changes), tmp_path)
    mine, exact = ds.load(path), ds.load(path, dtype="float32")
    assert mine.decoder.description == "one native call a step"
    apart = np.abs(mine.logits(ids) - exact.logits(ids)).max(axis=1) / np.abs(exact.logits(ids)).max(axis=1)
    assert np.median(apart) < 0.01
    assert (
        family_models.relative(
            exact.logits(ids), family_models.model_logits(family_models.build_model(family, size, **changes), ids)
        )
        < LOGITS
    )


def test_latent_attention_is_its_own_latent_form(tmp_path, ids):
    path = family_models.save(family_models.build_model("deepseek_v3", 0, **family_models.ALIGNED["deepseek_v3"]), tmp_path)
    plain, mine = (ds.load(path, form=form) for form in ("auto", "mla"))
    assert mine.decoder.description == "one native call a step"
    np.testing.assert_array_equal(mine.logits(ids[:10]), plain.logits(ids[:10]))


def test_latents_as_int8(tmp_path, ids):
    path = family_models.save(family_models.build_model("deepseek_v3", 0, **family_models.ALIGNED["deepseek_v3"]), tmp_path)
    wide, narrow = ds.load(path), ds.load(path, cache_dtype="int8")
    assert narrow.decoder.description == "one native call a step, latents as int8"
    latent = wide.config.latent_attention
    assert wide.cache.page_bytes - narrow.cache.page_bytes == 16 * wide.config.layers * (latent.latent_dim - 4)
    exact, rounded = wide.logits(ids), narrow.logits(ids)
    apart = np.abs(rounded - exact).max(axis=1) / np.abs(exact).max(axis=1)
    assert 0 < np.median(apart) < 0.05
    params = ds.SamplingParams(do_sample=False, max_new_tokens=3, ignore_eos=True)
    prompts = [ids[:40].tolist(), ids[:40].tolist(), ids[:35].tolist()]  # the later ones reuse pages, and copy one
    together = ds.generate(narrow, prompts, params)
    for one in together:
        whole = one.prompt_token_ids + one.token_ids
        assert narrow.logits(whole).argmax(axis=1)[len(one.prompt_token_ids) - 1 : -1].tolist() == one.token_ids
    with pytest.raises(ModelError, match="cache_dtype 'int8' is not supported: dtype float32"):
        ds.load(path, dtype="float32", cache_dtype="int8")
    with pytest.raises(ValueError, match="^load: cache_dtype must be one of 'auto', 'bfloat16', 'float16', 'int8'; got 'fp8'"):
        ds.load(path, cache_dtype="fp8")


@pytest.mark.parametrize("size", [0, 1])
def test_heads_that_are_all_rotated(tmp_path, ids, size):
    """Of a query nothing reads the latent."""
    model = family_models.build_model("deepseek_v3", size, qk_nope_head_dim=0)
    mine = ds.load(family_models.save(model, tmp_path))
    assert family_models.relative(mine.logits(ids), family_models.model_logits(model, ids)) < LOGITS
    if size == 1:
        whole = latent_gguf_files.write_gguf(model, tmp_path / "model.gguf", whole=True)
        assert family_models.relative(ds.load(whole).logits(ids), family_models.model_logits(model, ids)) < LOGITS


def test_what_a_text_is_when_it_grows_beyond_the_short_factors(folder):
    """Long-rope: cached keys stay as they were rotated, as in transformers."""
    model, path = folder("minicpm3", 1)
    prompt = list(range(95))
    params = ds.SamplingParams(do_sample=False, max_new_tokens=8, ignore_eos=True)
    (done,) = ds.generate(ds.load(path), [prompt], params)
    assert done.token_ids == family_models.greedy_tokens(model, prompt, 8)


@pytest.fixture(params=["layers", "native"])
def long_rope(request, tmp_path):
    """A model of transformers' whose factors change after 100 tokens, and two of ours that know nothing of each other."""
    sizes = {"max_position_embeddings": 1024, "rope_parameters": family_sizes.longrope(100)}
    if request.param == "native":
        factors = {"short_factor": np.linspace(1, 1.3, 8).tolist(), "long_factor": np.linspace(1, 4, 8).tolist()}
        sizes = family_models.ALIGNED["minicpm3"] | sizes | {"rope_parameters": {**family_sizes.longrope(100), **factors}}
    model = family_models.build_model("minicpm3", 0, **sizes)
    path = family_models.save(model, tmp_path)
    used, fresh = ds.load(path), ds.load(path)
    assert used.decoder.description.startswith({"layers": "layer by layer", "native": "one native"}[request.param])
    return model, used, fresh


def test_what_long_rope_has_read_changes_no_other_text(long_rope, ids):
    """Pages are shared with texts that are rotated alike alone."""
    _, used, fresh = long_rope
    text = ids.tolist()
    for length in (120, 60, 110, 99, 101, 100, 20):
        with used.sequence(text[:length]) as sequence:
            logits = used.forward([(sequence, text[len(sequence) : length])])[0]
        fresh.cache.clear()
        np.testing.assert_array_equal(logits, fresh.logits(text[:length])[-1])
    with used.sequence(text[:110]) as sequence, used.sequence(text[:70]) as other:
        assert (len(sequence), len(other)) == (109, 69)


def test_a_text_that_has_grown_beyond_the_short_factors_shares_what_is_alike(long_rope, ids):
    _, used, fresh = long_rope
    text = ids.tolist()
    grown, alone = used.sequence(), fresh.sequence()
    for piece in (text[:90], text[90:105], text[105:]):
        np.testing.assert_array_equal(used.forward([(grown, piece)]), fresh.forward([(alone, piece)]))
        used.logits(text), used.logits(text[:80])
    with grown.fork() as branch:
        branch.truncate(50)
        np.testing.assert_array_equal(used.forward([(branch, [5])])[0], fresh.logits([*text[:50], 5])[-1])
    with grown.fork() as branch:
        branch.truncate(107)
        used.forward([(branch, [1, 2, 3])])
    np.testing.assert_array_equal(used.forward([(grown, [7])]), fresh.forward([(alone, [7])]))


def test_long_rope_in_batches_and_pieces(long_rope):
    """Prompts of more tokens than a pass takes, beside each other, and announced ones in pieces."""
    model, used, fresh = long_rope
    text = np.random.default_rng(4).integers(0, 297, 700)
    expected = family_models.model_logits(model, text)
    exact = fresh.decoder.cache_dtype == "float32"
    whole = fresh.logits(text)
    assert family_models.relative(whole, expected) < (LOGITS if exact else 0.05)
    prompts = [text[20:320].tolist(), text[:101].tolist(), text.tolist(), text[300:390].tolist()]
    for prompt_logprobs in (None, 0):
        params = ds.SamplingParams(do_sample=False, max_new_tokens=14, ignore_eos=True, prompt_logprobs=prompt_logprobs)
        done = ds.generate(used, prompts, params)
        if prompt_logprobs is not None:
            steps = [(ds.steps.Force(np.array([token])),) for token in text[1:]]
            scores = ds.decode_step(whole[:-1], steps, top_logprobs=0).logprobs
            assert [one.raw for one in done[2].prompt_logprobs[1:]] == [one.raw for one in scores]
        together = [one.token_ids for one in done]
        for prompt, tokens in zip(prompts, together, strict=True):
            fresh.cache.clear()
            assert tokens == ds.generate(fresh, [prompt], params)[0].token_ids
            assert not exact or tokens == family_models.greedy_tokens(model, prompt, 14)
    with used.sequence() as sequence:
        sequence.expect(700)
        pieces = [used.forward([(sequence, text[at : at + 70])], every=True) for at in range(0, 700, 70)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_beams_of_a_long_prompt_are_rotated_as_the_whole_prompt(long_rope, ids, monkeypatch):
    """A search runs its prompt in blocks, of which the first alone would be short."""
    _, used, fresh = long_rope
    params = ds.SamplingParams(do_sample=False, num_beams=2, max_new_tokens=3, logprobs=2)
    [whole] = ds.generate(fresh, [ids.tolist()], params)
    monkeypatch.setattr(model_search, "BLOCK", 64)
    assert ds.generate(used, [ids.tolist()], params) == [whole]


def test_tokens_that_a_constraint_decides_are_rotated_as_if_drawn_one_by_one(long_rope, ids, monkeypatch):
    _, used, fresh = long_rope

    def last_logits(model, length, *, forced):
        found, run = [], model.decoder.logits
        with monkeypatch.context() as patch:
            patch.setattr(model.decoder, "logits", lambda *given: found.append(run(*given)) or found[-1])
            if not forced:
                patch.setattr(ConstraintLogitsProcessor, "forced_tokens", lambda *row: [])
            ds.generate(model, [ids[:length].tolist()], params, draft=None)
        return found[-1][-1], len(found)

    params = ds.SamplingParams(regex="-{40}[a-z]{2}", seed=1, max_new_tokens=41)
    for length in (*range(80, 104, 3), 99):  # at the end of the short frequencies, too
        (jumped, few), (stepped, many) = (last_logits(*how, forced=how[0] is used) for how in ((used, length), (fresh, length)))
        np.testing.assert_array_equal(jumped, stepped)
        assert few < many


def test_a_preempted_row_is_rotated_as_before(long_rope, ids):
    """It had grown beyond the short factors, and is read again."""
    _, used, fresh = long_rope
    prompts = [ids[:60].tolist(), ids[60:].tolist()]
    params = ds.SamplingParams(seed=1, temperature=40.0, max_new_tokens=100, ignore_eos=True)
    alone = [ds.generate(fresh, [prompt], params)[0].token_ids for prompt in prompts]
    model = ds.load(used.path, cache_bytes=17 * used.cache.page_bytes)
    factory = RowFactory.from_model(model)
    rows = [factory.row(params, prompt) for prompt in prompts]
    batch = Batch(model, ChunkedPrefill(2))
    for row in rows:
        batch.add(row)
    preempted = []
    while batch.running:
        list(batch.advance())
        model.cache.clear()
        preempted += [len(rows[1].history)] * batch.waiting
    assert max(preempted, default=0) > 100 and [row.history.tokens[60:] for row in rows] == alone


def test_the_latent_form_of_grouped_attention_has_both_tables_of_long_rope(tmp_path, ids):
    factors = {"short_factor": np.linspace(1, 1.3, 16).tolist(), "long_factor": np.linspace(1, 4, 16).tolist()}
    wide = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 32}
    model = family_models.build_model("llama", 0, **wide, rope_parameters={**family_sizes.longrope(100), **factors})
    mine, expected = ds.load(family_models.save(model, tmp_path), form="mla"), family_models.model_logits(model, ids)
    assert mine.decoder.description == "one native call a step"
    assert np.median(np.abs(mine.logits(ids) - expected).max(axis=1) / np.abs(expected).max(axis=1)) < 0.02


def test_the_native_step_has_both_tables_of_long_rope(tmp_path):
    """Long and short sequences side by side in one pass; one that grows beyond the short factors."""
    factors = {"short_factor": np.linspace(1, 1.3, 8).tolist(), "long_factor": np.linspace(1, 4, 8).tolist()}
    changes = family_models.ALIGNED["minicpm3"] | {"rope_parameters": {**family_sizes.longrope(32), **factors}}
    path = family_models.save(family_models.build_model("minicpm3", 0, **changes), tmp_path)
    native, exact = ds.load(path), ds.load(path, dtype="float32")
    assert native.decoder.description == "one native call a step"
    ids = np.random.default_rng(3).integers(0, 297, (4, 40))

    def forwards(model, batches):
        sequences = [model.sequence() for _ in ids]
        return [model.forward([(sequences[i], part) for i, part in batch], every=True) for batch in batches]

    passes = [[(0, ids[0]), (1, ids[1][:20]), (2, ids[2][:33]), (3, ids[3][:32])],
              [(3, ids[3][32:34]), (1, ids[1][20:30]), (0, [5])], [(1, ids[1][30:]), (3, [7])]]  # fmt: skip
    together = forwards(native, passes)
    for mine, true in zip(together, forwards(exact, passes), strict=True):
        assert np.median(np.abs(mine - true).max(axis=1) / np.abs(true).max(axis=1)) < 0.005
    singly = forwards(native, [[part] for batch in passes for part in batch])
    np.testing.assert_array_equal(np.concatenate(together), np.concatenate(singly))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_weights_are_multiplied_as_they_are(tmp_path, ids, dtype):
    narrow, model = (family_models.build_model("deepseek_v3", 0, dtype=kind) for kind in (dtype, torch.float32))
    path = family_models.save(narrow, tmp_path)
    model.load_state_dict(narrow.state_dict())  # the same numbers, but frequencies that are not rounded
    assert family_models.relative(ds.load(path).logits(ids), family_models.model_logits(model, ids)) < LOGITS


def test_a_folder_in_shards_is_one_model(folder, ids):
    model, path = folder("deepseek_v2", 0, True)
    assert len(list(path.glob("*.safetensors"))) > 2
    assert family_models.relative(ds.load(path).logits(ids), family_models.model_logits(model, ids)) < LOGITS


def float8(model, path):
    """Saves a folder whose projections are float8 with a scale for each 128 x 128, and rounds the model's weights to them."""
    family_models.save(model, path)
    file = path / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    for name, value in list(tensors.items()):
        if value.dim() == 2 and ("_proj" in name or "_linear" in name):
            rows, columns = (-(-size // 128) for size in value.shape)
            scale = torch.rand(rows, columns) * 0.01 + 0.001
            spread = scale.repeat_interleave(128, 0)[: value.shape[0]].repeat_interleave(128, 1)[:, : value.shape[1]]
            tensors[name] = (value / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
            tensors[f"{name}_scale_inv"] = scale
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    (path / "config.json").write_text(json.dumps(config))
    return tensors


def test_float8_with_scales_of_blocks(tmp_path, ids):
    wide = {"hidden_size": 160, "intermediate_size": 144, "num_hidden_layers": 1, "first_k_dense_replace": 1}
    model = family_models.build_model("deepseek_v3", 0, **wide)
    tensors = float8(model, tmp_path)
    state = model.state_dict()
    for name, value in tensors.items():
        if value.dtype == torch.float8_e4m3fn:
            scale = tensors[f"{name}_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
            state[name].copy_(value.float() * scale[: value.shape[0], : value.shape[1]])
    assert family_models.relative(ds.load(tmp_path).logits(ids), family_models.model_logits(model, ids)) < LOGITS


def formats_of(part):
    """The formats of the matrices of a layer's attention or feed-forward block, without a router."""
    if isinstance(part, Mixture):
        return formats_of(part.routed) | formats_of(part.shared)
    return {field.format.name for field in vars(part).values() if isinstance(field, LinearPanels)}


@pytest.mark.parametrize(
    ("family", "changes", "form"),
    [
        ("deepseek_v3", {**family_models.ALIGNED["deepseek_v3"], "rope_interleave": False}, "auto"),
        ("qwen3", {"head_dim": 24, "hidden_size": 64, "intermediate_size": 96}, "auto"),
        ("granitemoehybrid", {}, "auto"),
        ("llama", {"head_dim": 32, "hidden_size": 64, "intermediate_size": 64}, "mla"),
    ],
)
def test_what_has_no_kernel_becomes_blocks_however_its_rows_are_arranged(tmp_path, family, changes, form):
    """Pairs side by side, heads padded, keys and values apart, gate and up apart, another form, which has two of its own."""
    float8(family_models.build_model(family, 0, **changes), tmp_path)
    for layer in ds.load(tmp_path, form=form).decoder.native_weights.layers:
        assert formats_of(layer.mixer) == ({"Q8_0"} if form == "auto" else {"Q8_0", "BF16"})
        assert formats_of(layer.feed_forward) == {"Q8_0"}


@pytest.mark.parametrize(("key", "count"), [("num_nextn_predict_layers", 1), ("num_mtp_layers", 2)])
def test_prediction_layers_are_left_out_and_said_so(folder, ids, tmp_path, key, count):
    _, path = folder("deepseek_v3", 0)
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    for i in range(3, 3 + count):
        for name in ("eh_proj.weight", "self_attn.o_proj.weight", "shared_head.head.weight"):
            tensors[f"model.layers.{i}.{name}"] = torch.zeros(2, 2)
    family_models.write_tokenizer(tmp_path)
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    config.pop("num_nextn_predict_layers", None)
    (tmp_path / "config.json").write_text(json.dumps(config | {key: count}))
    mine = ds.load(tmp_path)
    assert mine.config.skipped_layers == count and "next-token prediction" in mine.decoder.description
    np.testing.assert_array_equal(mine.logits(ids[:20]), ds.load(path).logits(ids[:20]))


def test_the_last_layers_of_a_gguf_file_may_be_for_prediction(ids, tmp_path):
    model = family_models.build_model("deepseek_v3", 0)
    mine = ds.load(latent_gguf_files.write_gguf(model, tmp_path / "model.gguf", nextn_predict_layers=1), dtype="float32")
    model.model.layers = model.model.layers[:2]
    assert (mine.config.layers, mine.config.skipped_layers) == (2, 1)
    assert family_models.relative(mine.logits(ids), family_models.model_logits(model, ids)) < LOGITS


def test_batches_beams_and_reuse(folder):
    """What works for other models: rows beside each other, a prompt read before, beams."""
    model, path = folder("deepseek_v2", 1)
    mine = ds.load(path)
    prompts = [list(range(40)), list(range(20, 25)), list(range(40))]
    params = ds.SamplingParams(do_sample=False, max_new_tokens=4, ignore_eos=True)
    together = [one.token_ids for one in ds.generate(mine, prompts, params)]
    assert together == [ds.generate(mine, [prompt], params)[0].token_ids for prompt in prompts]
    assert mine.cache.kept
    beams = ds.SamplingParams(num_beams=2, do_sample=False, max_new_tokens=4, ignore_eos=True)
    (best,) = ds.generate(mine, [prompts[1]], beams)
    theirs = model.generate(torch.tensor([prompts[1]]), num_beams=2, do_sample=False, max_new_tokens=4, eos_token_id=None)
    assert best.token_ids == theirs[0, 5:].tolist()


@pytest.fixture
def no_weight_is_read(monkeypatch):
    for name in ("weight", "stack"):
        monkeypatch.setattr(f"decodestep.models.checkpoint.Checkpoint.{name}", lambda *_: pytest.fail("a weight was read"))


CONTRADICTIONS = {
    "no such architecture": ({"model_type": "falcon"}, "model_type 'falcon' is not supported"),
    "an architecture that is no name": ({"model_type": ["llama"]}, r"model_type \['llama'\] is not supported"),
    "more experts than there are": ({"num_experts_per_tok": 13}, "config.json: num_experts_per_tok must be an integer in"),
    "more experts than groups leave": ({"num_experts_per_tok": 7}, "config.json: num_experts_per_tok must be an integer in"),
    "groups that do not divide": ({"n_group": 5}, "config.json: n_group must be an integer that divides the 12 experts"),
    "more groups than there are": ({"topk_group": 9}, "config.json: topk_group must be an integer in"),
    "groups of one": ({"n_group": 12, "topk_group": 12}, "two experts or more"),
    "another number of experts": ({"n_routed_experts": 16}, "mlp.gate.weight has shape .12, 32., not .16, 32."),
    "fewer layers than tensors": ({"num_hidden_layers": 2}, "does not know: model.layers.2"),
    "more layers than tensors": ({"num_hidden_layers": 4}, "model.layers.3.input_layernorm.weight is missing"),
    "another width": ({"kv_lora_rank": 25}, "kv_a_proj_with_mqa.weight has shape"),
    "no latent of queries": ({"q_lora_rank": None}, "q_proj.weight is missing"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    "a scale that is not a number": ({"routed_scaling_factor": float("nan")}, "routed_scaling_factor must be a number"),
    "a stretch that is not a number": ({"rope_parameters": family_sizes.yarn(float("nan"), 1.0)}, "mscale must be a number"),
    "a factor that is not a number": (
        {"rope_parameters": family_sizes.yarn(1.0, 1.0, attention_factor=float("nan"))},
        "attention_factor must be a number",
    ),
    "an odd rotation": ({"qk_rope_head_dim": 7}, "qk_rope_head_dim 7"),
    "another rotation": ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not supported"),
    "a rotation of a part of a head": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
    "rope_parameters of a part of a head": (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "partial_rotary_factor is not supported",
    ),
    "rotations of layer types": (
        {"rope_parameters": {"full_attention": family_sizes.yarn(1.0, 1.0)}},
        "rope_parameters by layer type are not supported",
    ),
    "a stretch of nothing": ({"rope_parameters": {"rope_type": "yarn", "factor": 0.0}}, "factor must be a number in"),
    "a stretch without a blend": (
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
        "low_freq_factor 4 must be below high_freq_factor 4",
    ),
    "a stretch of frequencies that are all one": (
        {"rope_parameters": family_sizes.yarn(1.0, 1.0, rope_theta=1.0)},
        "rope_theta 1 and YaRN contradict each other",
    ),
    "long-rope by nothing": (
        {"rope_parameters": family_sizes.longrope(64, short_factor=[1.0, 1.0, 0.0, 1.0])},
        "short_factor must be 4 numbers in",
    ),
    "long-rope without end": (
        {"rope_parameters": family_sizes.longrope(64, long_factor=[1.0, 1.0, 1e9, 1.0])},
        "long_factor must be 4 numbers in",
    ),
    "long-rope without factors": (
        {"rope_parameters": family_sizes.longrope(64, long_factor=None)},
        "long_factor must be 4 numbers in",
    ),
    "a rotation without a name": ({"rope_parameters": {"type": None, "factor": 2.0}}, "rope_parameters.rope_type is missing"),
    "a rotation that is a name": ({"rope_scaling": "yarn"}, "rope_scaling must be an object"),
    "heads without values": ({"num_attention_heads": 33, "v_head_dim": None}, "v_head_dim 0: not supported"),
    "another choice of experts": (
        {"model_type": "deepseek_v2", "topk_method": "noaux_tc"},
        "topk_method 'noaux_tc' is not supported",
    ),
    "dense layers of another number": (
        {"model_type": "glm4_moe_lite", "mlp_layer_types": ["dense", "sparse"]},
        "mlp_layer_types must have 'dense' or 'sparse' for each of 3 layers",
    ),
    "layers that are neither dense nor sparse": (
        {"model_type": "glm4_moe_lite", "mlp_layer_types": ["dense", "sparse", "full"]},
        "mlp_layer_types must have 'dense' or 'sparse' for each of 3 layers",
    ),
    "quantisation that is not an object": ({"quantization_config": "fp8"}, "quantization_config must be an object"),
    "other quantisation": ({"quantization_config": {"quant_method": "gptq"}}, "quant_method 'gptq' is not supported"),
    "scales of other blocks": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
        r"weight_block_size \[64, 64\] is not supported",
    ),
    "another float8": (
        {"quantization_config": {"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [128, 128]}},
        "quantization_config of fmt 'e5m2' is not supported",
    ),
    "sizes that are not numbers": ({"hidden_size": "wide"}, "hidden_size must be an integer"),
    "huge sizes": ({"num_attention_heads": 2**40}, "num_attention_heads must be an integer"),
    "tokens that see later ones": ({"is_causal": False}, "is_causal false, bidirectional attention, is not supported"),
    "layers of other sizes": ({"per_layer_config": {"1": {"intermediate_size": 8}}}, "per_layer_config, .* is not supported"),
}


def changed(path: Path, target: Path, **changes: object) -> Path:
    """The folder with another config.json."""
    for file in path.iterdir():
        if file.name != "config.json":
            (target / file.name).symlink_to(file)
    (target / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()) | changes))
    return target


@pytest.mark.parametrize(("changes", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
@pytest.mark.usefixtures("no_weight_is_read")
def test_a_config_that_contradicts_itself_or_its_tensors_is_refused(folder, tmp_path, changes, message):
    _, path = folder("deepseek_v3", 0)
    with pytest.raises(ModelError, match=message):
        ds.load(changed(path, tmp_path, **changes))


_TYPES = ["full_attention", "sliding_attention", "full_attention"]
_BY_ITSELF = "factor", "attention_factor", "beta_fast", "beta_slow"
_UNTRUNCATED = family_sizes.yarn(None, None, truncate=False)
# What is easily overlooked: family and size, changes to it, and what config.json says beside.
OVERLOOKED = {
    "layer_types of a mistral": ("mistral", 2, {}, {"layer_types": _TYPES}),
    "layer_types of a smollm3": ("smollm3", 2, {"sliding_window": 9}, {"layer_types": _TYPES, "use_sliding_window": False}),
    "no layer_types of a smollm3": ("smollm3", 1, {}, {"layer_types": None}),
    "no layer_types of a qwen2": ("qwen2", 1, {}, {"layer_types": None}),
    "no layer_types of a ministral": ("ministral", 0, {}, {"layer_types": None}),
    "no layer_types of a gemma": ("gemma3_text", 0, {}, {"layer_types": None, "sliding_window_pattern": 2}),
    "a head of its own, tied": ("llama", 0, {"tie_word_embeddings": False}, {"tie_word_embeddings": True}),
    "a head of its own, tied, gemma": ("gemma3_text", 1, {"tie_word_embeddings": False}, {"tie_word_embeddings": True}),
    "rope_scaling beside rope_parameters": ("llama", 2, {}, {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "rope_scaling beside a gemma's rope_parameters": ("gemma3_text", 0, {}, {"rope_scaling": {"factor": 3.0}}),
    "rope_parameters of no layers of a gemma": ("gemma3_text", 0, {}, {"rope_parameters": {"rope_theta": 300.0}}),
    "a gemma as it is published": (
        "gemma3_text",
        0,
        {},
        {
            "rope_parameters": None,
            "rope_theta": 500000.0,
            "rope_local_base_freq": 300.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    "the type of a gemma's rope_scaling": (
        "gemma3_text",
        0,
        {},
        {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 8.0}},
    ),
    "the context before YaRN beside a gemma's rope_parameters": (
        "gemma3_text",
        0,
        {},
        {"original_max_position_embeddings": 64, "rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 8.0}}},
    ),
    "truncate of a gemma's layers": ("gemma3_text", 0, {}, {"rope_parameters": {"full_attention": _UNTRUNCATED}}),
    "truncate beside a gemma's layers": (
        "gemma3_text",
        0,
        {},
        {"rope_parameters": {"truncate": False, "full_attention": family_sizes.yarn(None, None)}},
    ),
    "truncate": ("qwen3", 0, {}, {"rope_parameters": _UNTRUNCATED}),
    "what YaRN has by itself, null": (
        "qwen3",
        0,
        {},
        {"rope_parameters": family_sizes.yarn(None, None, **dict.fromkeys(_BY_ITSELF))},
    ),
    "truncate null": ("qwen3", 0, {}, {"rope_parameters": _UNTRUNCATED | {"truncate": None}}),
    "partial_rotary_factor null": (
        "llama",
        0,
        {},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": None}},
    ),
    "rope_interleave null": ("deepseek_v3", 1, {}, {"rope_interleave": None}),
    "norm_topk_prob null": ("deepseek_v3", 1, {}, {"norm_topk_prob": None}),
    "num_nextn_predict_layers null": ("deepseek_v3", 1, {}, {"num_nextn_predict_layers": None}),
}


@pytest.mark.parametrize(("family", "size", "changes", "said"), OVERLOOKED.values(), ids=OVERLOOKED)
def test_what_config_json_says_is_what_transformers_reads(ids, tmp_path, family, size, changes, said):
    saved, path = tmp_path / "saved", tmp_path / "changed"
    path.mkdir()
    changed(family_models.save(family_models.build_model(family, size, **changes), saved), path, **said)
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    assert family_models.relative(ds.load(path, dtype="float32").logits(ids), family_models.model_logits(theirs, ids)) < LOGITS


@pytest.mark.parametrize("family", CASES)
def test_a_key_that_is_missing_has_the_value_of_transformers(tmp_path, family):
    least = {"model_type": family, **CASES[family].needed}
    found = []
    for place, said in (("least", least), ("whole", family_models.config_class(family)().to_dict() | least)):
        path = tmp_path / place / "model"
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(said))
        safetensors.torch.save_file({}, path / "model.safetensors")
        file = ModelFolder(path)
        sizes = folder_sizes.read_config(file)
        ropes = folder_sizes.read_ropes(file, sizes)
        found.append((sizes, [(rope.inverse_frequencies.tolist(), rope.factor) for rope in ropes]))
    assert found[0] == found[1]


def test_a_name_with_another_prefix_is_said(folder, tmp_path):
    _, path = folder("llama", 0)
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    (changed(path, tmp_path) / "model.safetensors").unlink()
    prefixed = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    safetensors.torch.save_file(prefixed, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="tensor (.*) is missing; there is language_model.\\1$"):
        ds.load(tmp_path)


def test_a_tensor_that_no_layer_has_is_said(folder, tmp_path):
    _, path = folder("llama", 0)
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    (changed(path, tmp_path) / "model.safetensors").unlink()
    safetensors.torch.save_file(tensors | {"model.layers.1.self_attn.sinks": torch.ones(4)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="does not know: model.layers.1.self_attn.sinks$"):
        ds.load(tmp_path)


SCALE, BIAS = "0.self_attn.o_proj.weight_scale_inv", "1.mlp.gate.e_score_correction_bias"
SCALES = {
    "scale": (SCALE, lambda scale: scale.fill_(float("nan")), "must hold finite numbers"),
    "infinite scale": (SCALE, lambda scale: scale.fill_(float("inf")), "must hold finite numbers"),
    "bias": (BIAS, lambda bias: bias.fill_(float("nan")), "must hold finite numbers"),
    "no scale": (SCALE, lambda scale: None, "is missing"),
    "scales of other blocks": (SCALE, lambda scale: torch.ones(2, 1), r"has shape \(2, 1\), not \(1, 1\)"),
}


@pytest.mark.parametrize(("part", "change", "message"), SCALES.values(), ids=SCALES)
@pytest.mark.usefixtures("no_weight_is_read")
def test_scales_and_corrections_that_are_no_numbers_or_not_there_are_refused(tmp_path, part, change, message):
    tensors, name = float8(family_models.build_model("deepseek_v3", 0), tmp_path), f"model.layers.{part}"
    changed = change(tensors.pop(name))
    safetensors.torch.save_file(tensors if changed is None else tensors | {name: changed}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"{name} {message}"):
        ds.load(tmp_path)


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("suffix", ["", "_scale_inv"])
def test_float8_values_that_are_not_finite_are_refused_by_name(tmp_path, dtype, suffix):
    tensors, name = float8(family_models.build_model("deepseek_v3", 0), tmp_path), "model.layers.1.mlp.experts.3.up_proj.weight"
    broken = torch.full_like(tensors[name].float(), torch.nan).to(torch.float8_e4m3fn)
    tensors[name + suffix] = torch.full_like(tensors[name + suffix], 3e38) if suffix else broken
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"tensor {name} has values that are not finite"):
        ds.load(tmp_path, dtype=dtype)


GGUF_CHANGES = {
    "an unknown gating function": ({"expert_gating_func": 3}, "expert_gating_func 3 is not supported"),
    "more experts than there are": ({"expert_used_count": 13}, "metadata deepseek2.expert_used_count must be an integer in"),
    "groups that do not divide": ({"expert_group_count": 5}, "deepseek2.expert_group_count must be an integer that"),
    "another number of experts": ({"expert_count": 16}, "ffn_gate_inp.weight has shape"),
    "no latent": ({"attention.kv_lora_rank": None}, "deepseek2.attention.kv_lora_rank is missing"),
    "more rotated than a head has": ({"rope.dimension_count": 22}, "rope.dimension_count 22"),
    "an odd rotation": ({"rope.dimension_count": 7}, "rope.dimension_count 7 is odd"),
    "a stretch of frequencies that are all one": (
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.freq_base": 1.0},
        "rope.freq_base 1 and YaRN contradict each other",
    ),
    "long-rope without factors": ({"rope.scaling.type": "longrope"}, "rope scaling 'longrope' without the tensors"),
    "no layers": ({"nextn_predict_layers": 3}, "leaves no layers"),
    "tokens that see later ones": ({"attention.causal": False}, "attention.causal false, bidirectional attention, is not"),
    "a factor of a rotation": ({"rope.scaling.attn_factor": 1.25}, "rope.scaling.attn_factor is not supported in latent"),
    "a factor of a rotation that is not stretched": (
        {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0, "rope.scaling.attn_factor": 1.25},
        "rope.scaling.attn_factor is not supported in latent",
    ),
    "scores that grow with the position": (
        {"attention.temperature_scale": 0.1},
        "attention.temperature_scale, by which scores grow with the position, is not supported",
    ),
    "another scaling": ({"rope.scaling.type": "longer"}, "rope scaling 'longer' is not supported"),
    "a scale that is not a number": ({"expert_weights_scale": float("nan")}, "expert_weights_scale must be a number"),
}


@pytest.mark.parametrize(("changes", "message"), GGUF_CHANGES.values(), ids=GGUF_CHANGES)
@pytest.mark.usefixtures("no_weight_is_read")
def test_metadata_that_contradict_themselves_or_the_tensors_are_refused(folder, tmp_path, changes, message):
    model, _ = folder("deepseek_v3", 0)
    with pytest.raises(ModelError, match=message):
        ds.load(latent_gguf_files.write_gguf(model, tmp_path / "model.gguf", **changes))


@pytest.mark.parametrize("scale", [0.0, None])
def test_a_scale_of_expert_weights_that_is_zero_or_missing_is_one(tmp_path, ids, scale):
    """As in llama.cpp."""
    model = family_models.build_model("deepseek_v3", 1, routed_scaling_factor=1.0, q_lora_rank=20)
    path = latent_gguf_files.write_gguf(model, tmp_path / "model.gguf", expert_weights_scale=scale)
    assert family_models.relative(ds.load(path, dtype="float32").logits(ids), family_models.model_logits(model, ids)) < LOGITS


@pytest.mark.parametrize("layer", [1, 2])
def test_a_correction_that_one_layer_lacks_is_missed_by_name(folder, tmp_path, layer):
    model, _ = folder("deepseek_v3", 0)
    path = latent_gguf_files.write_gguf(model, tmp_path / "model.gguf")
    name = f"blk.{layer}.exp_probs_b.bias"
    path.write_bytes(path.read_bytes().replace(name.encode(), b"?" * len(name)))
    with pytest.raises(ModelError, match=f"tensor {name} is missing"):
        ds.load(path)


@pytest.mark.parametrize("stored", [{}, {"deepseek2.expert_gating_func": 0}])
@pytest.mark.parametrize(("layers", "scores"), [(47, "sigmoid"), (46, "softmax")])
def test_a_file_without_a_gating_function_is_told_by_its_sizes(folder, tmp_path, stored, layers, scores):
    """0 is no function, as in llama.cpp. GLM-4.7-Flash has 47 layers and 154880 tokens."""
    model, _ = folder("glm4_moe_lite", 0)
    file = GgufFile(latent_gguf_files.write_gguf(model, tmp_path / "model.gguf", expert_gating_func=None))
    file.metadata |= {"deepseek2.block_count": layers, "tokenizer.ggml.tokens": [], "deepseek2.vocab_size": 154880, **stored}
    experts = gguf.read_config(file).experts
    assert experts is not None and experts.rule.scores == scores


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_corruption_of_metadata_does_worse_than_an_error(folder, tmp_path, data):
    model, _ = folder("deepseek_v3", 0)
    whole = tmp_path / "whole.gguf"
    if not whole.exists():
        latent_gguf_files.write_gguf(model, whole)
    broken = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, 1400) | st.integers(0, 12_000))] = data.draw(st.integers(0, 255))
    path = tmp_path / "broken.gguf"
    path.write_bytes(broken)
    with contextlib.suppress(ModelError):
        ds.load(path).logits([1, 2, 3])


def test_env_tells_what_a_model_is_and_how_it_would_run(folder, capsys):
    _, path = folder("deepseek_v3", 0)
    assert cli.main(["env", "--model", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["model"]
    assert facts["architecture"].startswith("deepseek_v3: 3 layers of 32")
    assert "12 experts of 24, 4 a token" in facts["feed-forward"]
    assert facts["runs"] == "layer by layer, float32: feed-forward size 40 is not a multiple of 32"
    tensors = ModelFolder(path).tensors
    experts = sum(tensor.nbytes for name, tensor in tensors.items() if ".experts." in name)
    embedding = tensors["model.embed_tokens.weight"].nbytes
    active = sum(tensor.nbytes for tensor in tensors.values()) - experts * 2 // 3 - embedding + embedding // 300
    assert facts["weight_bytes"] == active
    assert facts["all_weight_bytes"] == sum(tensor.nbytes for tensor in tensors.values())
    assert facts["tokens_a_second_at_most"] == pytest.approx(facts["memory_bytes_a_second"] / active, rel=1e-3)
    assert "converted" not in facts
    assert cli.main(["env", "--model", str(path / "config.json")]) == 1
    assert "not a GGUF file" in capsys.readouterr().err


UNLOADABLE = {
    "a rotation": ("config.json", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not"),
    "a tokenizer": ("tokenizer.json", {}, "tokenizer.json: corrupt or not supported"),
    "a template": ("tokenizer_config.json", {"chat_template": 3}, "the chat template 'default' must be a string"),
}


@pytest.mark.parametrize(("file", "changes", "message"), UNLOADABLE.values(), ids=UNLOADABLE)
def test_env_refuses_what_load_refuses(folder, tmp_path, capsys, file, changes, message):
    shutil.copytree(folder("deepseek_v3", 0)[1], tmp_path, dirs_exist_ok=True)
    data = json.loads((tmp_path / file).read_text()) if changes else {}
    (tmp_path / file).write_text(json.dumps(data | changes))
    with pytest.raises(ModelError, match=message):
        ds.load(tmp_path)
    assert cli.main(["env", "--model", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("family", "name", "usual"),
    [
        ("deepseek_v2", "num_experts", "n_routed_experts"),
        ("deepseek_v3", "num_local_experts", "n_routed_experts"),
        ("glm4_moe_lite", "num_local_experts", "n_routed_experts"),
        ("glm4_moe_lite", "head_dim", "qk_rope_head_dim"),
    ],
)
@pytest.mark.parametrize("replaced", [None, 2])
def test_sizes_have_the_names_that_transformers_reads(folder, tmp_path, ids, family, name, usual, replaced):
    _, path = folder(family, 0)
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    config = json.loads((path / "config.json").read_text())
    size = config.pop(usual)
    beside = {} if replaced is None else {usual: replaced}
    (tmp_path / "config.json").write_text(json.dumps(config | beside | {name: size}))
    renamed, plain = (ds.load(place, dtype="float32").logits(ids[:10]) for place in (tmp_path, path))
    assert np.array_equal(renamed, plain)


def test_env_tells_what_is_converted_when_it_is_loaded(tiny_file, tmp_path, capsys):
    size = {"heads": 16, "groups": 4, "hidden": 256}
    mixed = tmp_path / "mixed.gguf"  # values of the second layer are Q6_K
    assert cli.main(["quantize", str(tiny_file(**size)), str(mixed), "--type", "q4_k_m"]) == 0
    for path, converted in (
        (tiny_file(kind="TQ2_0", **size), "TQ2_0: to Q8_0 when loaded"),
        (tiny_file(kind="Q2_K", **size), None),
        (tiny_file(kind="Q6_K", **size), None),
        (mixed, None),
    ):
        capsys.readouterr()
        assert cli.main(["env", "--model", str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["model"].get("converted") == converted


def test_keys_and_values_of_two_types_stay_in_them(tiny_file, tmp_path):
    mixed = tmp_path / "mixed.gguf"
    args = ["quantize", str(tiny_file(heads=16, groups=4, hidden=256)), str(mixed), "--type", "q4_k_m"]
    assert cli.main(args) == 0
    model = ds.load(mixed)
    products = [(layer.mixer.values_keys, layer.mixer.keys) for layer in model.decoder.native_weights.layers]
    formats = [tuple(weight and weight.format.name for weight in both) for both in products]
    assert formats == [("Q4_K", None), ("Q6_K", "Q4_K")]
    ids = np.arange(3, 60)
    exact = ds.load(mixed, dtype="float32").logits(ids)
    assert np.median(np.abs(model.logits(ids) - exact)) < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("family", "part", "changes"),
    [("deepseek_v3", ".experts.2.", family_models.ALIGNED["deepseek_v3"]), ("llama", "v_proj", {"intermediate_size": 64})],
)
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_dense_types_that_make_one_weight_are_not_quantised(tmp_path, capsys, ids, family, part, changes, dtype):
    plain = family_models.save(family_models.build_model(family, 0, **changes), tmp_path / "plain")
    tensors = safetensors.torch.load_file(plain / "model.safetensors")
    tensors |= {name: value.bfloat16().float() for name, value in tensors.items() if part in name}
    safetensors.torch.save_file(tensors, plain / "model.safetensors")
    shutil.copytree(plain, tmp_path / "mixed")
    tensors |= {name: value.bfloat16() for name, value in tensors.items() if part in name}
    safetensors.torch.save_file(tensors, tmp_path / "mixed" / "model.safetensors")
    cache = {} if dtype == "float32" else {"cache_dtype": "float16"}
    mixed, expected = (ds.load(tmp_path / name, dtype=dtype, **cache).logits(ids) for name in ("mixed", "plain"))
    assert np.array_equal(mixed, expected)
    assert cli.main(["env", "--model", str(tmp_path / "mixed"), "--json"]) == 0
    assert "converted" not in json.loads(capsys.readouterr().out)["model"]
