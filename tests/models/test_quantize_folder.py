"""decodestep quantize on folders: the file has the folder's logits, tokens, template and names, and llama.cpp reads it."""

from __future__ import annotations

import itertools
import json
import shutil
from functools import cache

import gguf
import numpy as np
import pytest
import torch

import decodestep as ds
from decodestep import cli
from decodestep.families.common.registry import MODEL_TYPES
from decodestep.files.gguf_file import SAMPLING_KEYS, GgufFile
from decodestep.files.model_folder import ModelFolder
from decodestep.models import ModelError
from decodestep.tokenizers.folder_tokenizer import FolderTokenizer
from decodestep.tokenizers.gguf_fields import tokenizer_fields
from decodestep.tokenizers.pre_tokenizers import COMPOSED, PRE_TOKENIZERS, WHOLE_WORDS
from support import family_models, family_sizes
from support.families import CASES
from support.tolerances import LLAMA_CPP, LOGITS, REWRITTEN_LOGITS

pytestmark = pytest.mark.slow


def linear(factor):
    return {"rope_parameters": family_sizes.linear(factor)}


# llama.cpp does not read Mistral's window; see docs/models.md for the others.
IN_LLAMA_CPP = [family for family, cases in CASES.items() if cases.read_alike]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    @cache
    def made(family):
        size, changes = CASES[family].written
        model = family_models.build_model(family, size, **changes)
        # Not by the family's name: of a file whose name has phi3 llama.cpp wants a token </s>.
        return family_models.save(model, tmp_path_factory.mktemp("model"))

    return made


def quantised(folder, target, kind="f32"):
    assert cli.main(["quantize", str(folder), str(target), "--type", kind]) == 0
    return target


@pytest.mark.parametrize("family", CASES)
def test_the_file_is_the_model(folder, tmp_path, family):
    source, ids = folder(family), np.random.default_rng(0).integers(0, 297, 120)
    target = quantised(source, tmp_path / "model.gguf")
    before, after = ds.load(source, dtype="float32"), ds.load(target, dtype="float32")
    reordered = after.config.delta is not None and after.config.delta.tiled  # heads, over which a product sums
    assert family_models.relative(after.logits(ids), before.logits(ids)) < (LOGITS if reordered else REWRITTEN_LOGITS)
    assert (after.config.architecture, after.config.name) == (MODEL_TYPES[family].written_as.name, before.config.name)
    assert len(after.tokenizer) == before.config.vocab_size
    for text in ("abcab  <eos>\n123 <pad", "Grüße, 世界", ""):
        assert after.tokenizer.encode(text) == before.tokenizer.encode(text)
    assert after.tokenizer.end_token_ids == before.tokenizer.end_token_ids
    message = [{"role": "user", "content": "Hi <eos>"}]
    assert after.chat_prompt(message) == before.chat_prompt(message)
    assert after.chat_ids(message) == before.chat_ids(message)


@pytest.mark.parametrize("family", IN_LLAMA_CPP)
def test_llama_cpp_has_its_logits(folder, tmp_path, family):
    pytest.importorskip("llama_cpp")
    target, ids = quantised(folder(family), tmp_path / "model.gguf"), np.random.default_rng(0).integers(0, 297, 60)
    assert (
        family_models.relative(ds.load(target, dtype="float32").logits(ids), family_models.llama_cpp_logits(target, ids))
        < LLAMA_CPP
    )


@pytest.mark.parametrize("family", CASES)
def test_names_are_those_of_the_gguf_package(family):
    """Of each part the package's name for what transformers calls it, where its tables have it."""
    written_as = MODEL_TYPES[family].written_as.name
    architecture = next((key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == written_as), None)
    if architecture is None:
        pytest.skip("newer than the package")
    known, ours = gguf.get_tensor_name_map(architecture, 2), MODEL_TYPES[family].written_as.tensor_names
    found = 0
    for part, name in MODEL_TYPES[family].tensor_names.items():
        theirs = known.get_name(name.format(i=1, e=0).replace("experts.0.", "experts."), (".weight", ".bias"))
        if theirs is not None and part in ours:
            expected = (theirs, f"{theirs}.weight", f"{theirs}.bias")
            # Granite 4's dense blocks have the names of its shared experts.
            assert ours[part].format(i=1) in expected or (ours.get(f"shared_{part}") or "").format(i=1) in expected, part
            found += 1
    assert found > 8


def test_types_padding_and_facts(tmp_path):
    """A vocabulary that ends before the model's, two tokens that end a text, and a family whose rows fill blocks of 256."""
    model = family_models.build_model(
        "qwen3", 2, hidden_size=256, intermediate_size=512, vocab_size=310, torch_dtype=torch.bfloat16
    )
    folder = family_models.save(model.to(torch.bfloat16), tmp_path / "in")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [299, 298]}))
    target = quantised(folder, tmp_path / "out.gguf", "q4_k_m")
    file, ids = GgufFile(target), np.random.default_rng(0).integers(0, 300, 60)
    assert file.tensors["blk.1.ffn_up.weight"].type.name == "Q4_K" and file.tensors["blk.1.attn_norm.weight"].type.name == "F32"
    tokens, types = (file.metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    assert tokens[-2:] == ["[PAD308]", "[PAD309]"] and types[-2:].tolist() == [5, 5] and types[298] == 3
    assert (file.metadata["tokenizer.ggml.eos_token_id"], file.metadata["tokenizer.ggml.eot_token_id"]) == (298, 299)
    exact = ds.load(folder, dtype="float32").logits(ids)
    apart = np.abs(ds.load(target, dtype="float32").logits(ids) - exact).max(axis=1) / np.abs(exact).max(axis=1)
    assert 0.01 < np.median(apart) < 0.6


SAMPLED = {
    "all five": {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1, "do_sample": True},
    "one": {"top_p": 0.8, "max_length": 20},
    "a filter that is off": {"top_k": 0, "temperature": 1},
    "greedy": {"do_sample": False, "repetition_penalty": 1.05},
    "greedy by its temperature": {"temperature": 0.0, "top_k": 5},
    "nothing": {"eos_token_id": 299},
}


@pytest.mark.parametrize("given", SAMPLED.values(), ids=list(SAMPLED))
def test_the_file_samples_as_the_folder(tmp_path, given):
    folder = family_models.save(family_models.build_model("llama", 0), tmp_path / "in")
    (folder / "generation_config.json").write_text(json.dumps(given))
    target = quantised(folder, tmp_path / "out.gguf")
    assert ds.load(target).default_params == ds.load(folder).default_params
    keys = {name for name in GgufFile(target).metadata if name.startswith("general.sampling.")}
    said = {SAMPLING_KEYS[name] for name in given if name in SAMPLING_KEYS}
    assert keys == said | ({"general.sampling.temp"} if given.get("do_sample") is False else set())
    again = tmp_path / "again.gguf"
    assert ds.load(quantised(target, again, "q8_0")).default_params == ds.load(folder).default_params


def test_the_file_of_a_greedy_model_says_no_other_temperature(tmp_path):
    folder = family_models.save(family_models.build_model("llama", 0), tmp_path / "in")
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": False, "temperature": 0.6, "top_k": -1}))
    file = GgufFile(quantised(folder, tmp_path / "out.gguf"))
    assert file.sampling_defaults == {"temperature": 0.0, "top_k": 0}


def test_defaults_that_are_outside_their_rule_are_not_written(tmp_path, capsys):
    folder = family_models.save(family_models.build_model("llama", 0), tmp_path / "in")
    (folder / "generation_config.json").write_text(json.dumps({"top_p": 3}))
    assert cli.main(["quantize", str(folder), str(tmp_path / "out.gguf"), "--type", "f32"]) != 0
    assert "the model's own sampling defaults: SamplingParams: top_p must be" in capsys.readouterr().err
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(("family", "some"), [("qwen2", "attn_q.bias"), ("deepseek_v3", "exp_probs_b.bias")])
def test_vectors_and_routers_are_not_quantised(folder, tmp_path, family, some):
    tensors = GgufFile(quantised(folder(family), tmp_path / "out.gguf", "q8_0")).tensors
    kept = [name for name, tensor in tensors.items() if len(tensor.shape) == 1 or "ffn_gate_inp" in name]
    assert any(name.endswith(some) for name in kept) and {tensors[name].type.name for name in kept} == {"F32"}
    assert "Q8_0" in {tensor.type.name for tensor in tensors.values()}


EXPRESSED = {
    "a linear stretch by one": ("deepseek_v3", linear(1.0)),
    "no latent of queries": ("deepseek_v3", {"q_lora_rank": None}),
    "groups that are all kept": ("deepseek_v3", {"topk_group": 4}),
    "Granite 4 with rope": ("granitemoehybrid", {}),
    "biases of a llama": ("llama", {"mlp_bias": True, "attention_bias": True, "hidden_size": 64, "intermediate_size": 96}),
    "biases of a granite": ("granite", {"mlp_bias": True, "attention_bias": True}),
    "mscale of a llama": ("llama", {"rope_parameters": family_sizes.yarn(1.0, 1.0)}),
    "two of them": ("qwen3", {"rope_parameters": family_sizes.yarn(1.0, 0.7)}),
    "attention_factor": ("granite", {"rope_parameters": family_sizes.yarn(None, None, attention_factor=2.0)}),
    # llama.cpp goes by the size of its context: of more tokens than these, as the text is.
    "long-rope of a llama": ("llama", {"head_dim": 8, "rope_parameters": family_sizes.longrope(32)}),
    "long-rope of a granite": ("granite", {"head_dim": 8, "rope_parameters": family_sizes.longrope(32, attention_factor=1.3)}),
}


@pytest.mark.parametrize(("family", "changes"), EXPRESSED.values(), ids=EXPRESSED)
def test_what_llama_cpp_reads_from_one_form_alone(tmp_path, family, changes):
    pytest.importorskip("llama_cpp")
    folder, ids = family_models.save(family_models.build_model(family, 0, **changes), tmp_path / "in"), np.arange(60)
    exact = ds.load(folder, dtype="float32").logits(ids)
    target = quantised(folder, tmp_path / "out.gguf")
    assert family_models.relative(ds.load(target, dtype="float32").logits(ids), exact) < REWRITTEN_LOGITS
    assert family_models.relative(exact, family_models.llama_cpp_logits(target, ids)) < LLAMA_CPP


def test_long_rope_whose_factors_are_the_same_for_all_texts(tmp_path):
    """It has one rotation, so that texts of all lengths share their pages, and a file can say it."""
    rotation = family_sizes.longrope(32)
    rotation["long_factor"] = rotation["short_factor"]
    folder = family_models.save(family_models.build_model("llama", 0, head_dim=8, rope_parameters=rotation), tmp_path / "in")
    before, after = (ds.load(path, dtype="float32") for path in (folder, quantised(folder, tmp_path / "out.gguf")))
    assert before.decoder.long_after is None and after.decoder.long_after is None
    assert family_models.relative(after.logits(np.arange(60)), before.logits(np.arange(60))) < REWRITTEN_LOGITS


@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_a_gemma_whose_layers_are_all_alike(tmp_path, kind):
    """Of its two rotations the file has the one that is used."""
    size = {"num_hidden_layers": 2, "layer_types": [kind] * 2}
    folder, ids = family_models.save(family_models.build_model("gemma3_text", 0, **size), tmp_path / "in"), np.arange(60)
    target = quantised(folder, tmp_path / "out.gguf")
    before, after = ds.load(folder, dtype="float32"), ds.load(target, dtype="float32")
    assert family_models.relative(after.logits(ids), before.logits(ids)) < REWRITTEN_LOGITS


def test_a_gemma_2_without_caps(tmp_path):
    """llama.cpp caps in any case, and divides by what the file says."""
    folder = family_models.save(family_models.build_model("gemma2", 2), tmp_path / "in")
    target, ids = quantised(folder, tmp_path / "out.gguf"), np.arange(60)
    keys = ("attn_logit_softcapping", "final_logit_softcapping")
    assert [GgufFile(target).metadata[f"gemma2.{key}"] for key in keys] == [2.0**64] * 2
    before, after = ds.load(folder, dtype="float32"), ds.load(target, dtype="float32")
    assert after.config.grouped.score_cap == after.config.logits_cap == 0
    assert family_models.relative(after.logits(ids), before.logits(ids)) < REWRITTEN_LOGITS
    pytest.importorskip("llama_cpp")
    assert family_models.relative(after.logits(ids), family_models.llama_cpp_logits(target, ids)) < LLAMA_CPP


def test_experts_beside_a_dense_block(tmp_path):
    """Those of a folder have gate and up in one tensor, and routers whose inputs and experts have factors."""
    folder = family_models.save(family_models.build_model("gemma4_text", 2), tmp_path / "in")
    target, ids = quantised(folder, tmp_path / "out.gguf"), np.arange(60)
    assert {"blk.1.ffn_gate_inp.scale", "blk.1.ffn_down_exps.scale"} <= GgufFile(target).tensors.keys()
    before, after = ds.load(folder, dtype="float32"), ds.load(target, dtype="float32")
    assert family_models.relative(after.logits(ids), before.logits(ids)) < REWRITTEN_LOGITS
    assert ds.load(target).decoder.description == "one native call a step"


REFUSED = {
    "biases": ("smollm3", {"mlp_bias": True}, "does not load a file of smollm3 with biases of feed-forward blocks"),
    "biases of a deepseek": ("deepseek_v2", {"mlp_bias": True}, "does not load a file of deepseek2 with biases of"),
    "windows": ("ministral", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "grouped.windows"),
    "rotations": ("smollm3", {"no_rope_layers": [0, 1, 1], "num_hidden_layers": 3}, "grouped.ropes"),
    "norm_topk_prob": ("qwen3_moe", {"norm_topk_prob": False}, "experts.rule.normalise True, not False"),
    "heads that are all rope": ("deepseek_v3", {"qk_nope_head_dim": 0}, "without values, as blk.0.attn_k_b.weight would be"),
    "scales": ("minicpm3", {"scale_emb": 6}, "embedding_scale 12.0, not 6"),
    "yarn": ("youtu", {"rope_parameters": family_sizes.yarn(None, None, attention_factor=2.0)}, "cannot say its rope"),
    "a bias that llama.cpp lacks": ("qwen3", {"attention_bias": True}, "does not load a file of qwen3 with a bias of"),
    "wide heads": ("qwen2", {"head_dim": 32}, "does not load a file of qwen2 with 4 heads of 32"),
    "no latent": ("minicpm3", {"q_lora_rank": None}, "does not load a file of minicpm3 with queries that have no latent"),
    "no experts": ("qwen3_moe", {"mlp_only_layers": [0, 1, 2]}, "does not load a file of qwen3moe with dense layers alone"),
    "long-rope": (
        "youtu",
        {"rope_parameters": family_sizes.longrope(100)},
        "does not load a file of deepseek2 with long-rope",
    ),
    "scores that grow with a linear stretch": (
        "deepseek_v3",
        linear(4.0),
        "llama.cpp scales the scores of a file of deepseek2 with a linear factor of 4, unlike transformers",
    ),
    "scores that grow with the sine": (
        "youtu",
        {"rope_parameters": family_sizes.yarn(None, None)},
        "YaRN and no mscale_all_dim",
    ),
    "scores that shrink": ("youtu", {"rope_parameters": family_sizes.yarn(1.0, 1.0, factor=0.5)}, "YaRN's factor 0.5 below 1"),
    "biases of an olmo": ("olmo2", {"attention_bias": True}, "does not load a file of olmo2 with biases of attention"),
    "wide heads of an olmo": ("olmo2", {"head_dim": 32}, "does not load a file of olmo2 with 4 heads of 32"),
    "a tied olmo": ("olmo2", {"tie_word_embeddings": True}, "olmo2 with an embedding that is the logits matrix"),
    "wide heads of an exaone": ("exaone4", {"head_dim": 32}, "does not load a file of exaone4 with 4 heads of 32"),
    "wide heads of a glm": ("glm", {"head_dim": 32}, "does not load a file of chatglm with 4 heads of 32"),
    "an untied cohere": ("cohere", {"tie_word_embeddings": False}, "command-r with a logits matrix beside the embedding"),
    "an untied cohere2": ("cohere2", {"tie_word_embeddings": False}, "cohere2 with a logits matrix beside the embedding"),
    "an untied gemma2": ("gemma2", {"tie_word_embeddings": False}, "gemma2 with a logits matrix beside the embedding"),
    "few key heads of an olmoe": ("olmoe", {"num_key_value_heads": 2}, "olmoe with 2 key heads for 4 query heads"),
    "few key heads of a dots1": ("dots1", {"num_key_value_heads": 2}, "dots1 with 2 key heads for 4 query heads"),
    "a tied dots1": (
        "dots1",
        {"tie_word_embeddings": True},
        "dots1 with an embedding that is the logits matrix",
    ),
    "a dense dots1": (
        "dots1",
        {"first_k_dense_replace": 3},
        "does not load a file of dots1 with dense layers alone",
    ),
    "a tied minimax": ("minimax_m2", {"tie_word_embeddings": True}, "minimax-m2 with an embedding that is the logits matrix"),
    "a gpt-oss without biases": ("gpt_oss", {"attention_bias": False}, "a file of gpt-oss with no biases of attention"),
    "dense layers of an ernie": (
        "ernie4_5_moe",
        {"moe_layer_interval": 2, "num_hidden_layers": 4},
        "a file of ernie4_5-moe with dense layers after sparse ones",
    ),
    "keys of other layers": ("gemma4_text", {"num_kv_shared_layers": 3}, "a file of gemma4 with layers that read other keys"),
    "long-rope of a qwen3": (
        "qwen3",
        {"head_dim": 8, "rope_parameters": family_sizes.longrope(32)},
        "rope scaling 'longrope' is not supported",
    ),
    "divided frequencies of a qwen3": (
        "qwen3",
        {"rope_parameters": CASES["llama"].sizes[1]["rope_parameters"]},
        "cannot say its rope",
    ),
    "yarn of a gemma": (
        "gemma3_text",
        {"rope_parameters": {"full_attention": family_sizes.yarn(None, None, attention_factor=2.0)}},
        "cannot say its rope",
    ),
}


@pytest.mark.parametrize(("family", "changes", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_file_cannot_say_is_refused_by_name(tmp_path, capsys, family, changes, message):
    size, more = CASES[family].written
    model = family_models.build_model(family, size, **{**more, **changes})
    folder = family_models.save(model, tmp_path / "in")
    assert cli.main(["quantize", str(folder), str(tmp_path / "out.gguf"), "--type", "f16"]) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.gguf*"))


def test_a_tokenizer_without_a_name_is_refused(folder, tmp_path, capsys):
    source = family_models.save(family_models.build_model("llama", 0), tmp_path / "in")
    data = json.loads((source / "tokenizer.json").read_text())
    vowels = {"type": "Split", "pattern": {"Regex": "[aeiou]"}, "behavior": "Isolated", "invert": False}
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [vowels, data["pre_tokenizer"]]}
    (source / "tokenizer.json").write_text(json.dumps(data))
    assert cli.main(["quantize", str(source), str(tmp_path / "out.gguf"), "--type", "f16"]) == 1
    assert "no tokenizer of the GGUF format" in capsys.readouterr().err
    with pytest.raises(ModelError):
        ds.load(tmp_path / "out.gguf")


def cut_as(name, data):
    """A definition of byte-level BPE with the pre-tokenizer of a GGUF name."""
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    splits = [split | {"pattern": {"Regex": pattern}} for pattern in PRE_TOKENIZERS[name]]
    steps = {"type": "Sequence", "pretokenizers": [*splits, data["pre_tokenizer"] | {"use_regex": False}]}
    return data | {"pre_tokenizer": steps, "normalizer": {"type": "NFC"} if name in COMPOSED else None}


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_the_name_of_a_pre_tokenizer_is_found(folder, tmp_path, name):
    """Or another one of the same patterns."""
    shutil.copytree(folder("llama"), tmp_path, dirs_exist_ok=True)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    data["model"]["ignore_merges"] = name in WHOLE_WORDS
    (tmp_path / "tokenizer.json").write_text(json.dumps(cut_as(name, data)))
    found = tokenizer_fields(FolderTokenizer(ModelFolder(tmp_path), 300), 300, None, "here")["tokenizer.ggml.pre"]
    assert PRE_TOKENIZERS[found] == PRE_TOKENIZERS[name]


@pytest.mark.parametrize("whole_words", [True, False])
def test_a_rare_word_that_merges_do_not_make_is_looked_for(tmp_path, whole_words):
    """The pieces of Qwen, whose GGUF name says that words are merged: one of 18,000 tokens is a word that merges do not make,
    which is taken as it is or not."""
    source = family_models.save(family_models.build_model("llama", 0), tmp_path)
    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs, triples = ([tuple(word) for word in itertools.product(letters, repeat=count)] for count in (2, 3))
    data = json.loads((source / "tokenizer.json").read_text())
    model, before = data["model"], list(data["model"]["vocab"])[:256]
    model["vocab"] = {token: i for i, token in enumerate([*before, *map("".join, [*pairs, *triples]), "wordly"])}
    model["merges"] = [*map(list, pairs), *([a + b, c] for a, b, c in triples), *([a, b + c] for a, b, c in triples)]
    model["ignore_merges"] = whole_words
    data["added_tokens"] = []
    (source / "tokenizer.json").write_text(json.dumps(cut_as("qwen2", data)))
    size = len(model["vocab"])
    tokenizer = FolderTokenizer(ModelFolder(source), size)
    if whole_words:
        with pytest.raises(ModelError, match="no tokenizer of the GGUF format gives texts the same ids"):
            tokenizer_fields(tokenizer, size, None, "here")
    else:
        assert tokenizer_fields(tokenizer, size, None, "here")["tokenizer.ggml.pre"] == "qwen2"


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_an_added_token_that_takes_more_than_its_characters_is_refused(tmp_path, capsys, flag):
    """As those of Phi-4, which take the spaces around them."""
    source = family_models.save(family_models.build_model("llama", 0), tmp_path / "in")
    data = json.loads((source / "tokenizer.json").read_text())
    data["added_tokens"][-1][flag] = True
    (source / "tokenizer.json").write_text(json.dumps(data))
    assert cli.main(["quantize", str(source), str(tmp_path / "out.gguf"), "--type", "f16"]) == 1
    assert "a GGUF file cannot say where the added token '<pad>' ends" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.gguf*"))


def test_a_token_with_a_zero_is_refused(tmp_path, capsys):
    """llama.cpp reads the characters before it, and ends the process if these are another token."""
    source = family_models.save(family_models.build_model("llama", 0), tmp_path / "in")
    data = json.loads((source / "tokenizer.json").read_text())
    data["model"]["vocab"]["a\0b"] = data["model"]["vocab"].pop("<270>")
    (source / "tokenizer.json").write_text(json.dumps(data))
    assert cli.main(["quantize", str(source), str(tmp_path / "out.gguf"), "--type", "f16"]) == 1
    assert r"llama.cpp ends a token at a character 0, which 'a\x00b' has" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.gguf*"))


def test_a_tokenizer_without_merges_is_refused(tmp_path, capsys):
    """llama.cpp: cannot find tokenizer merges in model file."""
    source = family_models.save(family_models.build_model("deepseek_v3", 0), tmp_path / "in")
    data = json.loads((source / "tokenizer.json").read_text())
    data["model"]["merges"] = []
    (source / "tokenizer.json").write_text(json.dumps(data))
    assert cli.main(["quantize", str(source), str(tmp_path / "out.gguf"), "--type", "f16"]) == 1
    assert "no merges" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.gguf*"))
