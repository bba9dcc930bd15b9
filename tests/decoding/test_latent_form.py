"""Grouped-query models as models of multi-head latent attention: exactly, and through the native step."""

from __future__ import annotations

import numpy as np
import pytest

import decodestep as ds
from decodestep import cli
from decodestep.decoding.decoder import TokenBatch
from decodestep.decoding.layer_decoder import LayerDecoder
from decodestep.files.gguf_file import GgufFile
from decodestep.models.checkpoint import Checkpoint, open_checkpoint
from decodestep.models.convert import convert
from support import family_models
from support.dense_decoder_oracle import dense_logits
from support.tolerances import LOGITS, assert_close

pytestmark = pytest.mark.slow

PROMPTS = ["The three laws of thermodynamics say that", "def quicksort(items):\n"]


def logits_in_float32(checkpoint: Checkpoint, ids: np.ndarray) -> np.ndarray:
    decoder = LayerDecoder(convert(checkpoint, as_latent=True))
    every = np.arange(len(ids))
    return decoder.logits(TokenBatch(ids, 0 * every, every, np.arange(2)[None], every), decoder.new_pages(2))


@pytest.mark.parametrize(
    ("kind", "heads", "groups", "head_dim"), [("F32", 4, 4, 8), ("Q4_1", 6, 2, 16), ("MXFP4", 8, 2, 8), ("Q8_0", 4, 1, 32)]
)
def test_the_form_is_exact(tiny_file, kind, heads, groups, head_dim):
    """With zeros in the file's own blocks, and a norm that changes nothing."""
    path = tiny_file(kind=kind, heads=heads, groups=groups, head_dim=head_dim, hidden=96 if kind == "F32" else 64)
    ids = np.random.default_rng(2).integers(0, 297, 21)
    logits = logits_in_float32(Checkpoint(GgufFile(path)), ids)
    assert_close(logits, dense_logits(GgufFile(path), ids))


@pytest.mark.parametrize(("family", "size"), [("llama", 1), ("granite", 0)])
def test_a_folder_whose_pairs_lie_half_a_head_apart(family, size, tmp_path):
    """Granite's scores have a scale of their own."""
    model = family_models.model_of(family, size)
    ids = np.random.default_rng(1).integers(0, 297, 30)
    ours = logits_in_float32(open_checkpoint(family_models.save(model, tmp_path)), ids)
    assert family_models.relative(ours, family_models.logits_of(model, ids)) < LOGITS


def log_shares(logits):
    x = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def test_the_default_model_has_the_same_text_and_logits_within_rounding(model, model_path):
    """With float32 activations the same text; where they become bytes, as near to float32 as the grouped-query step is."""
    params = ds.SamplingParams(do_sample=False, max_new_tokens=20, ignore_eos=True)
    narrow, latent = (ds.load(model_path, dtype="bfloat16", form=form) for form in ("auto", "mla"))
    assert latent.decoder.description == "one native call a step" and latent.config.latent_attention.latent_dim == 3 * 64
    texts = ds.generate(narrow, PROMPTS, params)
    assert [one.token_ids for one in ds.generate(latent, PROMPTS, params)] == [one.token_ids for one in texts]
    ids = texts[0].prompt_token_ids + texts[0].token_ids
    assert np.abs(latent.logits(ids) - narrow.logits(ids)).max() < 0.3
    exact = log_shares(ds.load(model_path, dtype="float32").logits(ids))
    blocks = [log_shares(m.logits(ids)) for m in (model, ds.load(model_path, form="mla"))]
    grouped, ours = ((np.exp(exact) * (exact - other)).sum(axis=1).mean() for other in blocks)
    assert ours < 2 * grouped < 0.01


def test_sizes_that_the_stages_do_not_take(tiny_file):
    """The grouped-query step takes heads of 16; values of latent attention are 32 wide or more."""
    path = tiny_file(kind="Q8_0", hidden=64)
    ids = np.arange(20)
    narrow = ds.load(path, form="mla")
    assert narrow.decoder.description.endswith("(value size 16 is not a multiple of 32)")
    np.testing.assert_array_equal(narrow.logits(ids), ds.load(path, dtype="float32").logits(ids))
    with pytest.raises(ds.models.ModelError, match="dtype 'int8' is not supported: value size 16"):
        ds.load(path, form="mla", dtype="int8")
    with pytest.raises(ValueError, match="^load: form must be one of 'auto', 'mla'; got 'gqa'"):
        ds.load(path, form="gqa")


def test_the_form_alone_runs_through_the_prolog(tiny_file):
    path, operators = tiny_file(kind="Q8_0", hidden=64), []
    for form in ("auto", "mla"):
        with ds.profile() as profile:
            ds.load(path, form=form, dtype="float32").logits([1, 2, 3])
        operators.append({name for name, _ in profile.costs})
    assert operators[1] - operators[0] == {"mla_prolog"} and not operators[0] - operators[1]


def test_stats_show_the_operators_of_the_form(capfd):
    arguments = ["generate", "What is the capital of Japan?", "--greedy", "--form", "mla", "--stats"]
    assert cli.main(arguments) == 0
    out, err = capfd.readouterr()
    assert out == "The capital of Japan is Tokyo.\n"
    names = [line.split()[0].rstrip(",") for line in err.splitlines() if " cpu " in line]
    assert {"decoder_forward", "mla_prolog", "mla_attention", "feed_forward", "linear", "decode_step"} == set(names)
