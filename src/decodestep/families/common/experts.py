"""A mixture of experts, from config.json or from a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from decodestep.decoding.config import Config, Experts
from decodestep.errors import ModelError, RequestError
from decodestep.families.common import names
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Fields
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.limits import MAX_EXPERTS, MAX_LAYERS
from decodestep.ops.expert_router.arguments import RouterRule

_SCORES = {1: "softmax", 2: "sigmoid"}  # by expert_gating_func
_GATING_FUNCTIONS = {scores: function for function, scores in _SCORES.items()}
# The keys of a rule's fields.
_FOLDER_RULE = {"used": "num_experts_per_tok", "groups": "n_group", "kept_groups": "topk_group"}
_FILE_RULE = {"used": "expert_used_count", "groups": "expert_group_count", "kept_groups": "expert_group_used_count"}


@dataclass(frozen=True)
class ExpertKeys:
    """The mixture of experts of a folder.

    sparse: which of so many layers have experts. rule: how they are selected. count, shared: the keys of their number, and of
    the shared ones; None: there are none. corrected, biases, shared_gated, beside_dense: as in `Experts`; corrected may be said
    by the config. width: the key of that of an expert. shared_width: of that of the one shared expert, where it is another.
    latent: the key of `Experts.latent`.
    """

    sparse: Callable[[Keys, int], tuple[bool, ...]]
    rule: Callable[[Keys], RouterRule]
    count: str
    shared: str | None
    corrected: bool | Callable[[Keys], bool]
    width: str = "moe_intermediate_size"
    biases: bool = False
    shared_width: str | None = None
    shared_gated: bool = False
    latent: str | None = None
    beside_dense: bool = False

    def __call__(self, keys: Keys, layers: int) -> Experts | None:
        sparse = self.sparse(keys, layers)
        if not any(sparse):
            return None
        count, width = keys.size(self.count, most=MAX_EXPERTS), keys.size(self.width)
        shared = 0 if self.shared is None else width * keys.size(self.shared, least=0, most=MAX_EXPERTS)
        shared = shared if self.shared_width is None else keys.size(self.shared_width)
        corrected = self.corrected if isinstance(self.corrected, bool) else self.corrected(keys)
        latent = 0 if self.latent is None else keys.size_or_none(self.latent) or 0
        rule = _checked(self.rule(keys), count, f"{keys.path}: config.json", _FOLDER_RULE)
        return Experts(
            count=count,
            width=width,
            shared=shared,
            rule=rule,
            corrected=corrected,
            layers=sparse,
            biases=self.biases,
            shared_gated=self.shared_gated,
            latent=latent,
            beside_dense=self.beside_dense,
        )


def every_layer(keys: Keys, layers: int) -> tuple[bool, ...]:
    """Of a family all of whose layers have experts."""
    return (True,) * layers


class Gating(NamedTuple):
    """How the scores of the experts become their weights. eps: what is added to their sum."""

    scores: str
    normalise: bool
    scale: float
    eps: float = 1e-20


def stored_gating(keys: GgufKeys, unsaid: str = "softmax") -> Gating:
    """What the file's keys say. unsaid: the scores of a file that does not say which."""
    function = keys.size("expert_gating_func", 0, least=0) or _GATING_FUNCTIONS[unsaid]  # 0 is as if it were missing
    if function not in _SCORES:
        raise keys.refusal(f"expert_gating_func {function} is not supported (1, softmax, and 2, sigmoid, are)")
    scale = keys.number("expert_weights_scale", 1.0, least=0.0, most=1e6) or 1.0
    return Gating(_SCORES[function], keys.flag("expert_weights_norm"), scale)


def sparse_by_keys(keys: GgufKeys, layers: int) -> tuple[bool, ...]:
    """Which layers of a file have experts: after the dense ones every n-th."""
    dense = keys.size("leading_dense_block_count", 0, least=0, most=MAX_LAYERS)
    step = keys.size("interleave_moe_layer_step", 1, most=MAX_LAYERS)
    return tuple(i >= dense and (i + 1) % step == 0 for i in range(layers))


def file_experts(
    gating: Callable[[GgufKeys, Fields], Gating],
    *,
    biases: bool = False,
    sparse_layers: Callable[[GgufKeys, int], tuple[bool, ...]] = sparse_by_keys,
    own_shared: bool = False,
    shared_gated: bool = False,
    beside_dense: bool = False,
) -> Callable[[GgufKeys, Fields], Experts | None]:
    """Reads the mixture of experts of a GGUF file. biases, shared_gated, beside_dense: as in `Experts`. own_shared: whether the
    shared expert has a width of its own."""

    def read(keys: GgufKeys, common: Fields) -> Experts | None:
        count, layers = keys.size("expert_count", 0, least=0, most=MAX_EXPERTS), common["layers"]
        sparse = sparse_layers(keys, layers) if count else ()
        if not any(sparse):
            return None
        own, width = gating(keys, common), keys.size_of_layers(_width_key(keys), of=sparse)
        shared = width * keys.size("expert_shared_count", 0, least=0, most=MAX_EXPERTS)
        if own_shared:
            shared = keys.size("expert_shared_feed_forward_length", 0, least=0)
        groups = keys.size("expert_group_count", 1, least=0, most=MAX_EXPERTS) or 1
        rule = RouterRule(
            used=keys.size_of_layers("expert_used_count", of=sparse),
            scores=own.scores,
            groups=groups,
            kept_groups=(keys.size("expert_group_used_count", groups, least=0) or groups) if groups > 1 else 1,
            group_score="maximum" if groups == 1 or own.scores == "softmax" else "top_two",
            normalise=own.normalise,
            scale=own.scale,
            eps=own.eps,
        )
        said = {field: f"metadata {keys.key(key)}" for field, key in _FILE_RULE.items()}
        return Experts(
            count,
            width,
            shared=shared,
            rule=_checked(rule, count, str(keys.file.path), said),
            corrected=any(names.GGUF["correction"].format(i=i) in keys.file.tensors for i in range(layers)),
            layers=sparse,
            biases=biases,
            shared_gated=shared_gated,
            latent=keys.size("moe_latent_size", 0, least=0),
            beside_dense=beside_dense,
        )

    return read


def _width_key(keys: GgufKeys) -> str:
    """The key of the width of an expert. Mixtral's and OLMoE's files have that of a dense block alone, which stands for it."""
    return "expert_feed_forward_length" if "expert_feed_forward_length" in keys else "feed_forward_length"


def written_experts(config: Config) -> Fields:
    """A GGUF file's keys of a mixture of experts."""
    experts = config.experts
    if experts is None:
        return {}
    rule = experts.rule
    made: Fields = {
        "expert_count": experts.count,
        "expert_used_count": rule.used,
        "expert_feed_forward_length": experts.width,
        "expert_shared_count": -(-experts.shared // experts.width),
        "expert_weights_scale": rule.scale,
        "expert_gating_func": _GATING_FUNCTIONS[rule.scores],
        "expert_weights_norm": rule.normalise,
    }
    if rule.groups > 1:
        made |= {"expert_group_count": rule.groups, "expert_group_used_count": rule.kept_groups}
    return made


def _checked(rule: RouterRule, experts: int, where: str, keys: Mapping[str, str]) -> RouterRule:
    """The rule, if it is valid for this number of experts. keys: the checkpoint's, of its fields, for the ModelError."""
    try:
        rule.check(experts)
    except RequestError as error:  # of a file, not of a call
        named = RequestError(where, keys.get(error.arg, error.arg), error.rule, error.got)
        raise ModelError(str(named)) from error
    return rule
