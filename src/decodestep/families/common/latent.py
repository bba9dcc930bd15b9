"""Multi-head latent attention, from config.json or from a GGUF file's metadata, and the keys of one that is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from decodestep.decoding import rope
from decodestep.decoding.config import Config, IndexerConfig, LatentConfig
from decodestep.families.common import indexer, names
from decodestep.families.common.config_json import Keys, RopeParameters
from decodestep.families.common.description import Architecture, Fields, ModelType
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.limits import LEAST_FACTOR, MOST_FACTOR

PARTS = frozenset(("query_down", "query_norm", "query_up", "latent_rope", "latent_norm", "keys_values_up"))


@dataclass(frozen=True)
class LatentFile:
    """In a GGUF file.

    widths: of a head of keys and of one of values, by the fields that all models have. compressed: whether queries may have a
    latent. indexer: by which tokens select positions, by the fields and the width of the rope; None: there is none.
    """

    widths: Callable[[GgufKeys, Fields], tuple[int, int]]
    compressed: bool = True
    indexer: Callable[[GgufKeys, Fields, int], IndexerConfig] | None = None
    parts = PARTS

    def read(self, keys: GgufKeys, common: Fields, architecture: Architecture) -> Fields:
        (head, value), rope_dim = self.widths(keys, common), keys.size("rope.dimension_count")
        if rope_dim > head or rope_dim % 2:
            raise keys.refusal(f"rope.dimension_count {rope_dim} is odd, or more than a head's {head} values")
        scaling = keys.text("rope.scaling.type", "linear")
        if scaling not in ("none", "linear", "yarn", "longrope"):
            raise keys.refusal(f"rope scaling {scaling!r} is not supported")
        scale = head**-0.5
        if scaling != "none" and (
            strength := architecture.yarn_strength(keys)
        ):  # as in transformers, whatever stretches positions
            scale *= rope.yarn_growth(keys.rope_factor(), strength) ** 2
        # The tensors say whether queries have a latent; llama.cpp counts layers.
        direct = not self.compressed or names.GGUF["query"].format(i=0) in keys.file.tensors
        rank = None if direct else keys.size("attention.q_lora_rank")
        own = None if self.indexer is None else self.indexer(keys, common, rope_dim)
        latent = keys.size("attention.kv_lora_rank")
        attention = LatentConfig(rank, latent, head - rope_dim, rope_dim, value, scale, indexer=own)
        return {"kv_heads": common["heads"], "head_dim": head, "latent_attention": attention}

    def written(self, config: Config) -> Fields:
        latent = config.latent_attention
        assert latent is not None
        made = {
            "attention.kv_lora_rank": latent.latent_dim,
            "rope.dimension_count": latent.rope_dim,
            "attention.key_length": latent.nope_dim + latent.rope_dim,
        }
        made |= {} if latent.query_rank is None else {"attention.q_lora_rank": latent.query_rank}
        return made | ({} if latent.indexer is None else indexer.written(latent.indexer))


def half_split_by_key(keys: Keys) -> bool:
    return not keys.flag("rope_interleave")


@dataclass(frozen=True)
class LatentKeys:
    """In config.json. half_split: whether the columns of a rope pair are half a head apart. indexer: as in `LatentFile`."""

    half_split: Callable[[Keys], bool] = half_split_by_key
    indexer: Callable[[Keys, Fields, int], IndexerConfig] | None = None
    parts = PARTS

    def read(self, keys: Keys, common: Fields, model_type: ModelType) -> Fields:
        heads, hidden = common["heads"], common["hidden"]
        nope = keys.size("qk_nope_head_dim", least=0)
        rope_dim, value = keys.size("qk_rope_head_dim"), keys.size_or_none("v_head_dim") or hidden // heads
        if rope_dim % 2 or value < 1:
            raise keys.refusal(f"qk_rope_head_dim {rope_dim} and v_head_dim {value}: not supported")
        scale = (nope + rope_dim) ** -0.5
        parameters = RopeParameters(keys)
        strength = parameters.number("mscale_all_dim", 0.0, least=0.0, most=100.0)
        if parameters.rope_type != "default" and strength:
            scale *= rope.yarn_growth(parameters.number("factor", least=LEAST_FACTOR, most=MOST_FACTOR), strength) ** 2
        attention = LatentConfig(
            keys.size_or_none("q_lora_rank"),
            keys.size("kv_lora_rank"),
            nope,
            rope_dim,
            value,
            scale,
            biases=keys.flag("attention_bias"),
            indexer=None if self.indexer is None else self.indexer(keys, common, rope_dim),
        )
        return {
            "kv_heads": heads,
            "head_dim": nope + rope_dim,
            "latent_attention": attention,
            "rope_half_split": self.half_split(keys),
        }
