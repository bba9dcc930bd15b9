"""accelerate: what it refuses, reports and undoes, and what others change meanwhile."""

from __future__ import annotations

import copy
import io
import pickle
from types import MethodType

import pytest
import torch
from transformers import DynamicCache

from decodestep.integrations.transformers import LatentLayer, accelerate, acceleration, attention, few_experts, few_rows
from support.latent_models import assert_close, decode, holes, model_of, prompt

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_the_users_own_choice_of_attention_goes_on_working(deepseek):
    ids = prompt()
    stock = {}
    for name in ("sdpa", "eager"):
        deepseek.set_attn_implementation(name)
        stock[name] = decode(deepseek, ids, holes(ids), 3)
    deepseek.set_attn_implementation("sdpa")
    handle = accelerate(deepseek)
    for name, expected in stock.items():
        deepseek.set_attn_implementation(name)
        assert torch.equal(decode(deepseek, ids, holes(ids), 3), expected)
        assert f'"{name}", selected since' in handle.report()
    handle.undo()
    assert deepseek.config._attn_implementation == "eager"
    deepseek.set_attn_implementation("sdpa")


def test_another_model_of_the_same_config_stays_right(deepseek):
    twin = type(deepseek)(deepseek.config).eval()
    sparse = model_of("deepseek_v32")
    sparse_twin = type(sparse)(sparse.config).eval()
    ids = prompt()
    for one, other in ((deepseek, twin), (sparse, sparse_twin)):
        expected = decode(other, ids, torch.ones_like(ids), 3)
        with accelerate(one):
            assert_close(decode(other, ids, torch.ones_like(ids), 3), expected)


def test_one_handle_and_nothing_left_behind(deepseek, tmp_path):
    before = {name: tensor.data_ptr() for name, tensor in deepseek.state_dict().items()}
    deepseek.save_pretrained(tmp_path / "stock")
    config = deepseek.config.to_json_string()
    with accelerate(deepseek) as handle:
        assert accelerate(deepseek) is handle
        assert {name: tensor.data_ptr() for name, tensor in deepseek.state_dict().items()} == before
        deepseek.save_pretrained(tmp_path)
        assert (tmp_path / "config.json").read_text() == (tmp_path / "stock" / "config.json").read_text()
        assert deepseek.config.to_json_string() == config
    handle.undo()
    assert handle.report() == "undone"
    attentions = [module for module in deepseek.modules() if hasattr(module, "expand_kv")]
    assert all(isinstance(module.expand_kv, MethodType) and "expand_kv" not in vars(module) for module in attentions)
    assert not deepseek.model._forward_pre_hooks
    assert type(deepseek).from_pretrained(tmp_path).config._attn_implementation == "sdpa"


def test_nested_blocks_end_with_the_outermost(absorbed):
    model, ids = model_of("deepseek_v3"), prompt()
    with accelerate(model) as handle:
        with accelerate(model) as inner:
            twin = copy.deepcopy(model)
        assert inner is handle
        decode(model, ids, holes(ids), 3)
        assert absorbed
    assert handle.report() == "undone"
    with accelerate(twin) as own:  # made within two blocks, of which it is in none
        pass
    assert own.report() == "undone"


def test_a_shallow_copy_has_no_handle(deepseek):
    with accelerate(deepseek):
        shallow = copy.copy(deepseek)
        with pytest.raises(ValueError, match="in one handle"):
            accelerate(shallow)
    with accelerate(shallow) as handle:
        assert handle.model is shallow and "on the latents" in handle.report()


def test_copies_are_accelerated_and_have_handles_of_their_own(absorbed):
    model, ids = model_of("deepseek_v3"), prompt()
    with accelerate(model) as handle:
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(saved, weights_only=False)]
    expected = decode(model, ids, holes(ids), 3)
    for each in copies:
        absorbed.clear()
        cache = DynamicCache(config=each.config)
        assert_close(decode(each, ids, holes(ids), 3, cache), expected)
        assert len(absorbed) == 6 and type(cache.layers[0]) is LatentLayer
        own = accelerate(each)
        assert own is not handle and own.model is each
        own.undo()
        absorbed.clear()
        assert torch.equal(decode(each, ids, holes(ids), 3), expected)
        assert not absorbed
        assert not each.model._forward_pre_hooks


def test_a_copy_of_a_part_is_stock(absorbed, monkeypatch):
    """In the model, as PEFT's modules_to_save, and outside of it, where no handle could undo it."""
    monkeypatch.setattr(few_rows, "LEAST_BYTES", 0)
    monkeypatch.setattr(few_experts, "LEAST_BYTES", 0)
    model, ids = model_of("deepseek_v3"), prompt()
    expected = decode(model, ids, holes(ids), 3)
    hidden = decode(model.model, ids, holes(ids), 3)
    with accelerate(model) as handle:
        copies = copy.deepcopy(model.model), pickle.loads(pickle.dumps(model.model))
        for name in ("self_attn", "mlp"):
            setattr(model.model.layers[1], name, copy.deepcopy(getattr(model.model.layers[1], name)))
        model.lm_head = copy.deepcopy(model.lm_head)
        assert handle.report().splitlines()[1].endswith("on expanded keys, a copy of another module")
        assert_close(decode(model, ids, holes(ids), 3), expected)
        assert len(absorbed) == 3
    assert torch.equal(decode(model, ids, holes(ids), 3), expected)
    assert not any({"expand_kv", "forward"} & vars(module).keys() for module in model.modules())
    absorbed.clear()
    for each in copies:
        assert torch.equal(decode(each, ids, holes(ids), 3), hidden)
        assert not absorbed
        with accelerate(each):
            assert_close(decode(each, ids, holes(ids), 3), hidden)
            assert absorbed
        absorbed.clear()
        assert torch.equal(decode(each, ids, holes(ids), 3), hidden)


class Halved(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) / 2


@pytest.mark.parametrize("part", ["lm_head", "model.layers.1.mlp.experts", "model.layers.0.self_attn"])
def test_another_class_is_seen(part, monkeypatch):
    monkeypatch.setattr(few_rows, "LEAST_BYTES", 0)
    monkeypatch.setattr(few_experts, "LEAST_BYTES", 0)
    model, ids = model_of("deepseek_v3"), prompt()
    module = model.get_submodule(part)
    kind = type(module)
    with accelerate(model) as handle:
        module.__class__ = {
            "lm_head": Halved,
            "experts": type("Halved", (kind,), {"forward": lambda self, *given: kind.forward(self, *given) / 2}),
            "self_attn": type("Doubled", (kind,), {"expand_kv": lambda self, kv, kr: kind.expand_kv(self, 2 * kv, kr)}),
        }[part.rpartition(".")[2]]
        actual, report = decode(model, ids, holes(ids), 3), handle.report()
    assert_close(actual, decode(model, ids, holes(ids), 3))
    module.__class__ = kind
    with accelerate(model) as handle:
        assert report != handle.report()
        with pytest.raises(AssertionError):
            assert_close(actual, decode(model, ids, holes(ids), 3))


@pytest.mark.parametrize("part", ["lm_head", "model.layers.1.mlp.experts", "model.layers.0.self_attn"])
def test_another_method_of_the_class_is_seen(part, monkeypatch):
    """As profilers and quantisers put one into `nn.Linear`; a copy made meanwhile, too."""
    monkeypatch.setattr(few_rows, "LEAST_BYTES", 0)
    monkeypatch.setattr(few_experts, "LEAST_BYTES", 0)
    model, ids = model_of("deepseek_v3"), prompt()
    kind = type(model.get_submodule(part))
    name = "expand_kv" if part.endswith("attn") else "forward"
    stock = getattr(kind, name)
    expected = decode(model, ids, holes(ids), 3)
    with accelerate(model) as handle:
        report = handle.report()
        with monkeypatch.context() as patched:
            patched.setattr(kind, name, lambda self, x, *given: stock(self, 1.5 * x, *given))
            assert handle.report() != report
            actual = decode(model, ids, holes(ids), 3)
            twin = pickle.loads(pickle.dumps(model))
            assert torch.equal(decode(twin, ids, holes(ids), 3), actual)
        assert handle.report() == report
        assert_close(decode(model, ids, holes(ids), 3), expected)
        assert_close(decode(twin, ids, holes(ids), 3), expected)
    with monkeypatch.context() as patched:
        patched.setattr(kind, name, lambda self, x, *given: stock(self, 1.5 * x, *given))
        assert_close(actual, decode(model, ids, holes(ids), 3))
    with pytest.raises(AssertionError):
        assert_close(actual, expected)


def test_another_forward_of_every_linear_is_kept(monkeypatch):
    """Put into the class before the acceleration: no Linear is served, and `kv_b_proj` is refused."""
    monkeypatch.setattr(few_rows, "LEAST_BYTES", 0)
    model = model_of("deepseek_v3")
    forward = torch.nn.Linear.forward
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: 1.5 * forward(self, x))
    assert not any(few_rows.is_served(module) for module in model.modules())
    with pytest.raises(ValueError, match="kv_b_proj must be a Linear without bias and hooks; got a Linear with an overridden"):
        accelerate(model)


def test_an_expansion_that_is_wrapped_later_is_stock(deepseek):
    attention, ids = deepseek.model.layers[0].self_attn, prompt()
    with accelerate(deepseek) as handle:
        attention.expand_kv = lambda kv, kr, expand=attention.expand_kv: expand(2 * kv, kr)
        actual = decode(deepseek, ids, holes(ids), 3)
        assert handle.report().splitlines()[0].endswith("on expanded keys, expand_kv is another one")
    assert_close(actual, decode(deepseek, ids, holes(ids), 3))
    del attention.expand_kv


@pytest.mark.parametrize("sizes", [{}, {"kv_lora_rank": 20, "v_head_dim": 8}, {"num_attention_heads": 1, "kv_lora_rank": 20}])
def test_a_switch_in_the_middle_of_a_pass(sizes, monkeypatch):
    """As of another thread, between the two places where a layer reads its attention implementation. With the second sizes sdpa
    would take latents for keys."""
    model, ids = model_of("deepseek_v3", **sizes), prompt()
    expected = decode(model, ids, holes(ids), 3)

    def after_the_third_call(owner, name, switch):
        calls, method = [], getattr(owner, name)

        def counted(*given):
            calls.append(method(*given))
            if len(calls) == 3:  # the first layer of the first step
                monkeypatch.undo()
                switch()
            return calls[-1]

        monkeypatch.setattr(owner, name, counted)

    after_the_third_call(type(model.model.layers[0].self_attn), "expand_kv", lambda: accelerate(model))
    assert_close(decode(model, ids, holes(ids), 3), expected)
    after_the_third_call(attention.Latents, "__call__", lambda: accelerate(model).undo())
    with pytest.raises(RuntimeError):
        decode(model, ids, holes(ids), 3)
    assert torch.equal(decode(model, ids, holes(ids), 3), expected)


def test_attention_and_cache_can_be_left_out(deepseek, absorbed):
    ids = prompt()
    for options, kind in (({"attention": False}, "LatentLayer"), ({"cache": False}, "DynamicLayer")):
        expected = decode(deepseek, ids, holes(ids), 3)
        absorbed.clear()
        cache = DynamicCache(config=deepseek.config)
        with accelerate(deepseek, **options) as handle:
            assert_close(decode(deepseek, ids, holes(ids), 3, cache), expected)
            assert "=False" in handle.report()
        assert type(cache.layers[0]).__name__ == kind
        assert bool(absorbed) == ("cache" in options)


def test_a_part_of_a_model_is_accelerated_once(deepseek):
    ids = prompt()
    expected = decode(deepseek, ids, holes(ids), 2)
    with accelerate(deepseek.model):
        assert_close(decode(deepseek, ids, holes(ids), 2), expected)
        with pytest.raises(ValueError, match="expand_kv must be that of its class, in one handle"):
            accelerate(deepseek)
    assert torch.equal(decode(deepseek, ids, holes(ids), 2), expected)


def test_the_report_names_every_attention():
    with accelerate(model_of("kimi_linear")) as handle:
        lines = handle.report().splitlines()
    assert any("layers.0" in line and "kept, it caches no latents" in line for line in lines)
    assert any("layers.1.self_attn (KimiLinear" in line and "on the latents" in line for line in lines)
    assert lines[-1].startswith("cache: new dynamic caches grow in place")


LARGE = {"hidden_size": 512, "intermediate_size": 512, "moe_intermediate_size": 512}


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (lambda model: with_lora(model), ["on the latents", "on expanded keys, kv_b_proj is elsewhere.Linear"]),
        (lambda model: with_a_hook(model), ["on expanded keys, kv_b_proj is a Linear with hooks", "on the latents"]),
        (lambda model: model.half(), ["on expanded keys, kv_b_proj's weight is a Parameter of torch.float16"] * 2),
    ],
    ids=["lora", "hook", "half"],
)
def test_the_report_tells_what_has_changed_since(change, lines):
    with accelerate(model_of("deepseek_v3", **LARGE)) as handle:
        before = handle.report().splitlines()
        change(handle.model)
        after = handle.report().splitlines()
    assert [line.partition(": ")[2] for line in after[:2]] == lines
    assert before[2].endswith("experts (DeepseekV3Experts): up to 8 rows in one pass over the weights, else grouped_mm")
    if handle.model.dtype == torch.float16:
        assert after[2].endswith("experts (DeepseekV3Experts): kept, grouped_mm") and after[3] == "Linear layers: kept"
    else:
        assert after[2:] == before[2:] and after[3].startswith("6 Linear layers: up to 8 rows")


def test_the_report_counts_parametrised_linears_as_kept():
    with accelerate(model_of("deepseek_v2", **LARGE)) as handle:
        torch.nn.utils.parametrizations.weight_norm(handle.model.model.layers[0].mlp.up_proj)
        assert "\n5 Linear layers: up to 8 rows" in handle.report()


def test_the_report_where_nothing_is_absorbed(deepseek):
    with accelerate(deepseek, absorb_up_to=0) as handle:
        assert "): on expanded keys, absorb_up_to=0\n" in handle.report()


def test_a_handle_that_is_undone_opens_no_block(deepseek):
    handle = accelerate(deepseek)
    handle.undo()
    with pytest.raises(ValueError, match="accelerate: handle must be one that has not been undone"), handle:
        pass


def test_the_options_of_a_second_call_are_checked(deepseek):
    with accelerate(deepseek), pytest.raises(ValueError, match="backend must be one of 'auto', 'cpu', 'triton'; got 'cuda'"):
        accelerate(deepseek, backend="cuda")


def test_the_report_counts_the_linears_that_are_served(deepseek):
    linears = [module for module in deepseek.modules() if type(module) is torch.nn.Linear]
    with accelerate(deepseek) as handle:
        assert "Linear layers: kept" in handle.report().splitlines()
        assert not any("forward" in vars(linear) for linear in linears)
    large = model_of("deepseek_v2", hidden_size=512, intermediate_size=512)  # three matrices of one megabyte, in one layer
    with accelerate(large) as handle:
        assert "3 Linear layers: up to 8 rows" in handle.report()


class Lora(torch.nn.Linear):
    """Its name is that of PEFT's class too."""

    __module__ = "elsewhere"

    def forward(self, x):
        return super().forward(x) + 1


Lora.__name__ = "Linear"


def with_lora(model):
    old = model.model.layers[1].self_attn.kv_b_proj
    model.model.layers[1].self_attn.kv_b_proj = Lora(old.in_features, old.out_features, bias=False)


def with_bias(model):
    projection = model.model.layers[0].self_attn.kv_b_proj
    projection.bias = torch.nn.Parameter(torch.zeros(projection.out_features))


def with_a_hook(model):
    model.model.layers[0].self_attn.kv_b_proj.register_forward_hook(lambda *_: None)


def with_a_forward_of_its_own(model):
    projection = model.model.layers[0].self_attn.kv_b_proj
    projection.forward = lambda x, forward=projection.forward: 2 * forward(x)


def with_a_weight_of_another_class(model):
    class Marked(torch.nn.Parameter):
        """As torchao's, whose dtype is that of what they stand for."""

    projection = model.model.layers[0].self_attn.kv_b_proj
    projection.weight = Marked(projection.weight.data)


def with_another_expansion(model):
    attention = model.model.layers[1].self_attn
    attention.expand_kv = lambda *given: type(attention).expand_kv(attention, *given)


def with_another_map(model):
    kind = type(model.model.layers[0].self_attn)
    scaled = type("Scaled", (kind,), {"expand_kv": lambda self, kv, kr: kind.expand_kv(self, 2 * kv, kr)})
    model.model.layers[0].self_attn.__class__ = scaled


def with_no_key_but_the_rope(model):
    model.model.layers[0].self_attn = model_of("deepseek_v3", qk_nope_head_dim=0).model.layers[0].self_attn


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_lora, r"layers.1.self_attn.kv_b_proj must be a Linear without bias and hooks; got elsewhere.Linear"),
        (with_bias, r"layers.0.self_attn.kv_b_proj must be a Linear without bias and hooks; got a Linear with a bias"),
        (with_a_hook, r"kv_b_proj must be a Linear without bias and hooks; got a Linear with hooks"),
        (with_a_forward_of_its_own, r"must be a Linear without bias and hooks; got a Linear with an overridden forward"),
        (with_another_expansion, r"layers.1.self_attn.expand_kv must be that of its class, in one handle; got another one"),
        (with_another_map, r"layers.0.self_attn.expand_kv must be the map of kv_b_proj's weight; got another one, of Scaled"),
        (with_a_weight_of_another_class, r"must be a Parameter of float32 or bfloat16; got Marked of torch.float32"),
        (with_no_key_but_the_rope, r"layers.0.self_attn.qk_nope_head_dim must be > 0; got 0"),
        (lambda model: model.double(), r"kv_b_proj must be a Parameter of float32 or bfloat16; got Parameter of torch.float64"),
        (lambda model: model.to("meta"), r"kv_b_proj must be on the CPU or a CUDA device; got a weight on meta"),
    ],
)
def test_what_is_refused_when_it_is_switched_on(change, message):
    model = model_of("deepseek_v3")
    change(model)
    with pytest.raises(ValueError, match=message):
        accelerate(model)
    assert model.config._attn_implementation == "sdpa"
    assert not any(isinstance(vars(module).get("expand_kv"), attention.Latents) for module in model.modules())


def test_what_has_no_latent_attention_or_has_sinks_is_refused(deepseek):
    with pytest.raises(ValueError, match=r"accelerate: model must be a PreTrainedModel of transformers; got Linear"):
        accelerate(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"an attention without sinks; got HYV4Attention"):
        accelerate(model_of("hy_v4"))
    with pytest.raises(ValueError, match=r"absorb_up_to must be an integer >= 0; got True"):
        accelerate(deepseek, absorb_up_to=True)
    with pytest.raises(ValueError, match=r"linears must be a bool; got 'no'"):
        accelerate(deepseek, linears="no")
    assert acceleration._HANDLE not in vars(deepseek)


def test_a_switch_that_fails_half_way_leaves_nothing(deepseek, monkeypatch):
    ids = prompt()
    expected = decode(deepseek, ids, holes(ids), 2)
    with pytest.raises(ValueError, match="no such"):
        accelerate(deepseek, experts="no such")
    monkeypatch.setattr(type(deepseek.model), "_can_set_attn_implementation", classmethod(lambda cls: False))
    with pytest.raises(ValueError, match="model must be one whose attention can be chosen; got DeepseekV3Model"):
        accelerate(deepseek)
    assert acceleration._HANDLE not in vars(deepseek)
    assert not any(isinstance(vars(module).get("expand_kv"), attention.Latents) for module in deepseek.modules())
    assert torch.equal(decode(deepseek, ids, holes(ids), 2), expected)


def test_a_projection_that_changes_later_is_expanded(absorbed):
    model, ids = model_of("deepseek_v3"), prompt()
    with accelerate(model):
        with_lora(model)
        actual = decode(model, ids, holes(ids), 3)
    assert len(absorbed) == 3
    assert_close(actual, decode(model, ids, holes(ids), 3))


def test_weights_that_change_are_seen(deepseek):
    model, ids = copy.deepcopy(deepseek), prompt()
    with accelerate(model):
        with torch.no_grad():
            model.model.layers[0].self_attn.kv_b_proj.weight.mul_(1.5)
        actual = decode(model, ids, holes(ids), 3)
    assert_close(actual, decode(model, ids, holes(ids), 3))
