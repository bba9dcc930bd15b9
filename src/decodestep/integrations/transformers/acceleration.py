"""accelerate: decodes transformers' models with latent attention on the latents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from decodestep._base import devices
from decodestep._base.checks import Phrase, is_int, refuse, require, require_choice
from decodestep.integrations.transformers import huge_pages
from decodestep.integrations.transformers.attention import DTYPES, NAME, Latents, latents_of, more_than_weight, why_expanded
from decodestep.integrations.transformers.few_experts import FewExperts, are_served
from decodestep.integrations.transformers.few_rows import MOST_ROWS, FewRows, is_served
from decodestep.integrations.transformers.latent_layer import grow_in_place
from decodestep.integrations.transformers.switch import Replacement, Switch, is_off

_OP = "accelerate"
_HANDLE = "_decodestep_acceleration"  # the attribute of a model that holds its handle


def accelerate(
    model: PreTrainedModel,
    *,
    attention: bool = True,
    cache: bool = True,
    linears: bool = True,
    experts: str = "keep",
    absorb_up_to: int = 64,
    backend: str = "auto",
) -> Acceleration:
    """Switches a transformers model with multi-head latent attention to decoding on the cached latents.

        with torch.inference_mode(), accelerate(model) as acceleration:
            print(acceleration.report())
            model.generate(...)

    transformers caches latents, and at every step expands all of them to keys and values of every head. With `attention`, a
    forward pass with few queries and many keys reads the latents directly: kv_b_proj's two halves multiply the query and the
    weighted sum instead, which gives the same result up to rounding. Everything else uses transformers' own code: prompts of
    more than `absorb_up_to` tokens, or of more than a quarter of the keys; passes with gradients, dropout, autocast, under
    torch.compile, torch.jit.trace, transforms of torch.func, a dispatch or function mode or a global module hook, on devices
    other than the CPU and CUDA's; weights of a tensor subclass; masks that add scores or differ between heads;
    output_attentions, for which sdpa returns none.

    Args:
        model: a PreTrainedModel on the CPU or on a GPU, float32 or bfloat16, with modules that have `expand_kv` and
            `kv_b_proj`: deepseek_v2, deepseek_v3 and their relatives.
        attention: whether to switch the attention to the implementation "decodestep". `model.set_attn_implementation` continues
            to work, and no weight is copied.
        cache: whether the layers of new dynamic caches are replaced by `LatentLayer`s when the model first sees them; not those
            of offloaded caches.
        linears: whether plain Linear modules, except kv_b_proj, with weights of at least a megabyte use `ops.linear` for calls
            with at most 8 rows. It reads the weight once, in place, on every thread, and sums in a different order. On Linux
            these weights and kv_b_proj's are moved into huge pages, which takes three to five seconds per gigabyte. Modules on
            a GPU are not changed.
        experts: "keep", or the name of an experts implementation for `model.set_experts_implementation`, which then serves all
            calls. With "keep" and `linears`, calls of experts with few rows are served like Linears, but without huge pages.
            Models that share a config share the implementation: undo their handles in reverse order.
        absorb_up_to: the largest number of queries of a pass that is served on the latents.
        backend: "auto", "cpu" or "triton", as for `mla_attention`. "auto" is "triton" for tensors on a GPU. A mask on a GPU is
            copied to the host once per step.

    Returns:
        The handle; for a model that is already accelerated, the existing one with its options. state_dict, save_pretrained and
        the saved config do not change. A copy (`copy.deepcopy`) or a pickled model is accelerated too and has its own handle; a
        copy of a part of it is not accelerated. Call `undo` between forward passes: one that another thread is in the middle of
        fails.

    Raises:
        ValueError: before anything is changed, for a model without such modules; for a kv_b_proj that is not a plain Linear
            without bias and hooks, as with LoRA or quantisation; an expand_kv that is not the map of that weight; keys whose
            rope is of the whole head; attention sinks; tensors of another dtype or device. While accelerated, an unknown
            argument of the attention raises.
    """
    require(isinstance(model, PreTrainedModel), _OP, "model", "a PreTrainedModel of transformers", Phrase(type(model).__name__))
    require(is_int(absorb_up_to) and absorb_up_to >= 0, _OP, "absorb_up_to", "an integer >= 0", absorb_up_to)
    for name, flag in (("attention", attention), ("cache", cache), ("linears", linears)):
        require(isinstance(flag, bool), _OP, name, "a bool", flag)
    require(isinstance(experts, str), _OP, "experts", '"keep" or the name of an implementation', experts)
    require_choice(_OP, "backend", backend, ("auto", "cpu", "triton"))
    present = model.__dict__.get(_HANDLE)
    if isinstance(present, Acceleration) and present.model is model:  # a shallow copy's is that of the original
        return present
    modules = dict(_latent_attentions(model))
    require(bool(modules), _OP, "model", "one with latent attention (expand_kv and kv_b_proj)", Phrase(type(model).__name__))
    for name, module in modules.items():
        _check(name, module, backend)
    acceleration = Acceleration(model)
    try:
        if experts != "keep":
            acceleration._choose_experts(experts)
        if attention:
            acceleration._read_latents(modules, int(absorb_up_to), backend)
        if linears:
            acceleration._read_weights_once(modules, experts == "keep")
        if cache:
            acceleration._grow_caches(modules)
    except BaseException:
        acceleration.undo()
        raise
    return acceleration


class Acceleration:
    """The changes that `accelerate` has made to a model. As a context manager it undoes them on exit, from the outermost of
    nested blocks."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._switch = Switch(on=True)
        self._replacements: list[Replacement] = []
        self._huge = 0  # bytes of weights in huge pages
        self._configs: list[tuple[Any, Any]] = []  # each with its previous attention implementation
        self._hooks: list[Any] = []
        self._experts: _SelectedExperts | None = None
        self._blocks = 0  # `with` blocks that have been entered and not left
        setattr(model, _HANDLE, self)

    def _choose_experts(self, name: str) -> None:
        before = self.model.get_experts_implementation()
        self.model.set_experts_implementation(name)
        self._experts = _SelectedExperts(self.model.get_experts_implementation(), before)

    def _read_latents(self, attentions: dict[str, nn.Module], absorb_up_to: int, backend: str) -> None:
        self._replace(Latents(module, self._switch, absorb_up_to, backend) for module in attentions.values())
        for decoder in _owners(self.model, attentions):
            self._configs.append((decoder.config, decoder.config._attn_implementation))
            decoder.set_attn_implementation(NAME)  # only warns if the model's code does not support it
            found = decoder.config._attn_implementation
            require(found == NAME, _OP, "model", "one whose attention can be chosen", Phrase(type(decoder).__name__))

    def _read_weights_once(self, attentions: dict[str, nn.Module], experts: bool) -> None:
        projections = [module.kv_b_proj for module in attentions.values()]  # `attend_absorbed` reads their weights itself
        taken = {id(projection) for projection in projections}
        linears = [module for module in self.model.modules() if is_served(module) and id(module) not in taken]
        self._replace(FewRows(linear, self._switch) for linear in linears)
        if linears:
            self._huge = huge_pages.collapse(linear.weight for linear in (*linears, *projections))
        if experts:
            self._replace(FewExperts(module, self._switch) for module in self.model.modules() if are_served(module))

    def _replace(self, replacements: Iterable[Replacement]) -> None:
        for each in replacements:
            setattr(each.module, each.method, each)
            self._replacements.append(each)

    def _grow_caches(self, attentions: dict[str, nn.Module]) -> None:
        decoders = _owners(self.model, attentions)
        self._hooks = [decoder.register_forward_pre_hook(grow_in_place, with_kwargs=True) for decoder in decoders]

    def undo(self) -> None:
        """Restores the model, except for an attention or experts implementation that the user has selected since. Caches keep
        their layers, which work with any attention, and weights stay in huge pages. A second call does nothing."""
        if not self._in_force:
            return
        delattr(self.model, _HANDLE)
        self._switch.on = False
        # The model may have copies of its parts by now, and the parts may be elsewhere.
        for module in (*self.model.modules(), *(each.module for each in self._replacements)):
            for name in (Latents.method, FewRows.method):
                if is_off(module.__dict__.get(name), module):
                    delattr(module, name)
        for config, before in self._configs:
            if config._attn_implementation == NAME:
                config._attn_implementation_internal = before
        for hook in self._hooks:
            hook.remove()
        if self._experts is not None and self.model.get_experts_implementation() == self._experts.now:
            self.model.set_experts_implementation(self._experts.before)

    @property
    def _in_force(self) -> bool:
        return self.model.__dict__.get(_HANDLE) is self

    def __enter__(self) -> Acceleration:
        require(self._in_force, _OP, "handle", "one that has not been undone", Phrase("one that has"))
        self._blocks += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._blocks -= 1
        if not self._blocks:
            self.undo()

    def __getstate__(self) -> tuple[dict[str, Any], bool]:
        return {**vars(self), "_blocks": 0}, self._switch.on  # a copy is in no block

    def __setstate__(self, state: tuple[dict[str, Any], bool]) -> None:
        attributes, on = state
        vars(self).update(attributes)
        self._switch.on = on

    def report(self) -> str:
        """What is replaced, what is not, and why: a line for each attention and experts module, the Linears and the cache."""
        if not self._in_force:
            return "undone"
        states = ((name, module, self._state_of(module)) for name, module in self.model.named_modules())
        lines = [f"{name} ({type(module).__name__}): {state}" for name, module, state in states if state]
        within = set(self.model.modules())
        count = sum(isinstance(each, FewRows) and each.in_use and each.module in within for each in self._replacements)
        rows = f"up to {MOST_ROWS} rows in one pass over the weight, {self._huge >> 20} MiB of them in huge pages"
        lines.append(f"{count} Linear layers: {rows}" if count else "Linear layers: kept")
        growing = "new dynamic caches grow in place (LatentLayer)" if self._hooks else "kept, cache=False"
        return "\n".join([*lines, f"cache: {growing}; static and other caches are read as they are"])

    def _state_of(self, module: torch.nn.Module) -> str | None:
        """What serves an attention or experts module; None for any other module."""
        if latents := latents_of(module):
            return _state_of_latents(module, latents)
        kind = type(module).__name__
        if _is_latent_attention(module):
            return "on expanded keys, expand_kv is another one" if "expand_kv" in vars(module) else "kept, attention=False"
        if kind.endswith("Attention") and not any(below.endswith("Attention") for below in _kinds_below(module)):
            return "kept, it caches no latents"
        return self._state_of_experts(module) if kind.endswith("Experts") else None

    def _state_of_experts(self, module: torch.nn.Module) -> str:
        stock = getattr(getattr(module, "config", None), "_experts_implementation", None) or "as it is"
        ours = (each for each in self._replacements if isinstance(each, FewExperts) and each.module is module)
        served = any(each.in_use for each in ours)
        return f"up to {MOST_ROWS} rows in one pass over the weights, else {stock}" if served else f"kept, {stock}"


class _SelectedExperts(NamedTuple):
    """The experts implementation that was selected by name, and the one before it."""

    now: str
    before: str


def _state_of_latents(module: torch.nn.Module, latents: Latents) -> str:
    in_use = module.config._attn_implementation
    if in_use != NAME:
        return f'"{in_use}", selected since: on expanded keys'
    if latents.absorb_up_to == 0:
        return "on expanded keys, absorb_up_to=0"
    if not latents.switch.on:
        return "on expanded keys, a copy of another module"
    if why := why_expanded(module) if latents.in_use else "the class has another expand_kv":
        return f"on expanded keys, {why}"
    triton = devices.goes_to_triton(latents.backend, module.kv_b_proj.weight)
    return "on the latents, in Triton" if triton else "on the latents"


def _is_latent_attention(module: nn.Module) -> bool:
    return hasattr(type(module), "expand_kv") and hasattr(module, "kv_b_proj")


def _latent_attentions(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name, module) for name, module in model.named_modules() if _is_latent_attention(module))


def _kinds_below(module: nn.Module) -> list[str]:
    return [type(child).__name__ for child in module.modules() if child is not module]


def _owners(model: nn.Module, modules: dict[str, nn.Module]) -> list[Any]:
    """The innermost transformers models that contain the modules: those whose config they read, and that see the cache."""
    owners: dict[int, Any] = {}
    models = [(name, each) for name, each in model.named_modules() if isinstance(each, PreTrainedModel)]
    for name in modules:
        inner = max((m for m in models if not m[0] or name.startswith(f"{m[0]}.")), key=lambda m: len(m[0]))[1]
        owners[id(inner)] = inner
    return list(owners.values())


def _check(name: str, module: torch.nn.Module, backend: str) -> None:
    projection = module.kv_b_proj
    own = "expand_kv" not in vars(module) or is_off(module.expand_kv, module)
    require(own, _OP, f"{name}.expand_kv", "that of its class, in one handle", Phrase("another one"))
    if more := more_than_weight(projection):
        refuse(_OP, f"{name}.kv_b_proj", "a Linear without bias and hooks", Phrase(more))
    weight = projection.weight
    there = weight.is_cpu or weight.is_cuda
    require(there, _OP, f"{name}.kv_b_proj", "on the CPU or a CUDA device", Phrase(f"a weight on {weight.device}"))
    if devices.goes_to_triton(backend, weight):
        devices.choose_triton(_OP, backend, weight)
    plain = weight.dtype in DTYPES and type(weight) is nn.Parameter
    got = Phrase(f"{type(weight).__name__} of {weight.dtype}")  # torchao's tensors have the dtype of what they stand for
    require(plain, _OP, f"{name}.kv_b_proj", "a Parameter of float32 or bfloat16", got)
    require(getattr(module, "sinks", None) is None, _OP, name, "an attention without sinks", Phrase(type(module).__name__))
    nope = module.qk_nope_head_dim
    require(nope > 0, _OP, f"{name}.qk_nope_head_dim", "> 0", nope)  # else a rope key is as wide as an expanded one
    if not _expands_by_its_weight(module):
        refuse(_OP, f"{name}.expand_kv", "the map of kv_b_proj's weight", Phrase(f"another one, of {type(module).__name__}"))


def _expands_by_its_weight(module: torch.nn.Module) -> bool:
    """Whether `expand_kv` makes keys [W_UK latent | rope key] and values W_UV latent, tested on two positions."""
    weight: Tensor = module.kv_b_proj.weight.detach()
    latents = torch.linspace(-1, 1, 2 * weight.shape[1], dtype=weight.dtype, device=weight.device).view(1, 1, 2, -1)
    rope = torch.linspace(2, 3, 2 * module.qk_rope_head_dim, dtype=weight.dtype, device=weight.device).view(1, 1, 2, -1)
    with torch.no_grad():
        key, value = type(module).expand_kv(module, latents, rope)
    expected = nn.functional.linear(latents, weight).view(1, 2, -1, module.qk_nope_head_dim + module.v_head_dim).transpose(1, 2)
    expected_key, expected_value = expected.split([module.qk_nope_head_dim, module.v_head_dim], -1)
    expected_key = torch.cat((expected_key, rope.expand(-1, expected_key.shape[1], -1, -1)), -1)
    return all(a.shape == b.shape and torch.allclose(a, b) for a, b in ((key, expected_key), (value, expected_value)))
