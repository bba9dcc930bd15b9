"""GLM-5: DeepSeek V3.2's layers, of which some attend to what the indexer of an earlier one selects."""

from __future__ import annotations

from dataclasses import replace

from decodestep.decoding.config import Config, IndexerConfig
from decodestep.families import deepseek2, deepseek_v32
from decodestep.families.common import indexer
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Family, Fields, ModelType
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.latent import LatentFile, LatentKeys

_DEFAULTS = deepseek2.V3_DEFAULTS | {
    "vocab_size": 154880,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
}


def _of_file(keys: GgufKeys, common: Fields, rope_dim: int) -> IndexerConfig:
    return indexer.of_file(keys, rope_dim, indexer.layers_by_tensors(keys, common["layers"]), half_split=False)


def _of_keys(keys: Keys, common: Fields, rope_dim: int) -> IndexerConfig:
    return indexer.of_keys(keys, rope_dim, indexer.layers_by_keys(keys, common["layers"]), half_split=False)


def _written(config: Config) -> Fields:
    latent = config.latent_attention
    assert latent is not None and latent.indexer is not None
    return deepseek2.written(config) | {indexer.TYPES: list(latent.indexer.full)}


_GGUF = replace(
    deepseek_v32.GGUF,
    name="glm-dsa",
    attention=LatentFile(deepseek2.widths, indexer=_of_file),
    more=indexer.most_context,
    shares_selections=True,
    written=_written,
)
FAMILY = Family(
    types=(
        ModelType(
            "glm_moe_dsa",
            written_as=_GGUF,
            attention=LatentKeys(deepseek_v32.adjacent_pairs, indexer=_of_keys),
            defaults=_DEFAULTS | indexer.DEFAULTS | {"index_n_heads": 32},
            aliases={"num_local_experts": "n_routed_experts"},
            experts=deepseek_v32.EXPERTS,
            next_token_layers=True,
            pre_tokenizer="glm4",
        ),
    ),
    gguf=_GGUF,
)
