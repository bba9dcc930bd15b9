"""DeepSeek V3.2: V3's layers, in which a lightning indexer selects the positions that latent attention attends to."""

from __future__ import annotations

from dataclasses import replace

from decodestep.decoding.config import IndexerConfig
from decodestep.families import deepseek2
from decodestep.families.common import indexer
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Family, Fields, ModelType
from decodestep.families.common.experts import ExpertKeys, Gating, file_experts, stored_gating
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.latent import LatentFile, LatentKeys


def _of_file(keys: GgufKeys, common: Fields, rope_dim: int) -> IndexerConfig:
    return indexer.of_file(keys, rope_dim, (True,) * common["layers"], half_split=True)


def _of_keys(keys: Keys, common: Fields, rope_dim: int) -> IndexerConfig:
    return indexer.of_keys(keys, rope_dim, (True,) * common["layers"], half_split=True)


def gating(keys: GgufKeys, common: Fields) -> Gating:
    return stored_gating(keys, unsaid="sigmoid")


def sparse(keys: Keys, layers: int) -> tuple[bool, ...]:
    kinds = keys.get("mlp_layer_types")
    if kinds is None:
        return deepseek2.sparse(keys, layers)
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in ("dense", "sparse") for kind in kinds):
        raise keys.refusal(f"mlp_layer_types must have 'dense' or 'sparse' for each of {layers} layers")
    return tuple(kind == "sparse" for kind in kinds)


def adjacent_pairs(keys: Keys) -> bool:
    """Of the rope of attention, whatever that of the indexer."""
    return False


GGUF = replace(
    deepseek2.GGUF,
    name="deepseek32",
    attention=LatentFile(deepseek2.widths, indexer=_of_file),
    experts=file_experts(gating),
)
EXPERTS = ExpertKeys(sparse, deepseek2.v3_rule, count="n_routed_experts", shared="n_shared_experts", corrected=True)
FAMILY = Family(
    types=(
        ModelType(
            "deepseek_v32",
            written_as=GGUF,
            attention=LatentKeys(adjacent_pairs, indexer=_of_keys),
            defaults=deepseek2.V3_DEFAULTS | indexer.DEFAULTS | {"max_position_embeddings": 163840},
            aliases={"num_local_experts": "n_routed_experts"},
            experts=EXPERTS,
            next_token_layers=True,
        ),
    ),
    gguf=GGUF,
)
