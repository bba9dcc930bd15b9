"""Arcee's AFM: Llama's layers with feed-forward blocks of squared ReLU, which have no gate."""

from __future__ import annotations

from decodestep.families import llama
from decodestep.families.common.description import Activation, Architecture, Family, Layers, ModelType
from decodestep.families.common.grouped import ATTENTION_BIAS, GroupedFile, GroupedKeys

_LAYERS = Layers(activation="relu_squared")
_DEFAULTS = llama.DEFAULTS | {
    "hidden_size": 2560,
    "intermediate_size": 18432,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "relu2",
}
_GGUF = Architecture("arcee", GroupedFile(), _LAYERS, rope_divisors=True, output_bias=False)
FAMILY = Family(
    types=(
        ModelType(
            "arcee",
            written_as=_GGUF,
            attention=GroupedKeys(bias_keys=ATTENTION_BIAS),
            defaults=_DEFAULTS,
            layers=_LAYERS,
            activation=Activation(names=("relu2",)),
            mlp_bias="mlp_bias",
            pre_tokenizer="llama-bpe",
        ),
    ),
    gguf=_GGUF,
)
