"""PLM: latent attention without a latent of queries, and dense blocks of squared ReLU. transformers has no class for it."""

from __future__ import annotations

from decodestep.families.common.description import Architecture, Family, Fields, Layers
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.latent import LatentFile


def _widths(keys: GgufKeys, common: Fields) -> tuple[int, int]:
    return keys.size("attention.key_length"), keys.size("attention.value_length")


FAMILY = Family(gguf=Architecture("plm", LatentFile(_widths, compressed=False), Layers(activation="relu_squared")))
