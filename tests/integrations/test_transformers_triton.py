"""accelerate on a device, interpreted where there is no GPU: the logits of the stock model, with masks, holes and indexers."""

from __future__ import annotations

import pytest
import torch
from transformers import StaticCache

from decodestep.integrations.transformers import accelerate
from decodestep.ops.mla_attention import triton
from support import triton_interpreter as gpu
from support.latent_models import assert_close, decode, holes, model_of, prompt
from test_transformers import test_logits_of_every_family_in_bfloat16  # noqa: F401

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(autouse=True)
def _on_the_device(monkeypatch):
    """Every model is made there, and accelerated with the kernels of a device."""
    monkeypatch.setattr("test_transformers.accelerate", there)
    monkeypatch.setattr("test_transformers.prompt", ids_there)
    with torch.device(gpu.DEVICE):
        yield


def there(model):
    return accelerate(model, backend="triton", linears=False)


def ids_there(**sizes):
    with torch.device("cpu"):
        return prompt(**sizes).to(gpu.DEVICE)


@pytest.fixture
def launched(monkeypatch):
    calls = []
    whole = triton.attention
    monkeypatch.setattr(triton, "attention", lambda *given: calls.append(len(given[0].query_rope)) or whole(*given))
    return calls


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v32", "minicpm3"])
def test_logits_with_holes_in_the_mask(family, launched):
    model, ids = model_of(family), ids_there(length=20)
    expected = decode(model, ids, holes(ids), 3)
    with there(model) as handle:
        actual = decode(model, ids, holes(ids), 3)
        assert "on the latents, in Triton" in handle.report()
    assert launched == [2, 2, 4, 4, 2, 2]  # rows times queries, in each of two layers
    assert_close(actual, expected)


def test_a_static_cache_and_rows_that_see_nothing(launched):
    model, ids = model_of("deepseek_v3"), ids_there(length=20)
    mask = torch.ones_like(ids)
    mask[1] = 0

    def run():
        return decode(model, ids, mask, 2, StaticCache(config=model.config, max_cache_len=32), sizes=(1,))

    expected = run()
    with there(model):
        actual = run()
    assert launched
    assert_close(actual, expected)


def test_the_cpus_own_backend_refuses_what_lies_elsewhere(monkeypatch):
    model = model_of("deepseek_v3")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="accelerate: backend must be able to serve the call; got 'triton'"):
        accelerate(model.cpu(), backend="triton")
    with pytest.raises(ValueError, match="accelerate: backend must be"):
        accelerate(model, backend="cuda")
    assert model.config._attn_implementation == "sdpa"
