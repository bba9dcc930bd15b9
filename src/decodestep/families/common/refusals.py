"""What llama.cpp's loader takes for granted in a file of some families, for `Architecture.refused`: each function returns what
a model has instead, or None."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from decodestep.decoding.config import Config

Objection = Callable[[Config, Mapping[str, np.ndarray]], str | None]


def first_of(*objections: Objection) -> Objection:
    """What the first of several objects to, or None."""

    def refused(config: Config, vectors: Mapping[str, np.ndarray]) -> str | None:
        return next((found for each in objections if (found := each(config, vectors)) is not None), None)

    return refused


def wide_heads(config: Config, vectors: object) -> str | None:
    if config.heads * config.head_dim == config.hidden:
        return None
    return f"{config.heads} heads of {config.head_dim} values in a hidden state of {config.hidden}"


def few_key_heads(config: Config, vectors: object) -> str | None:
    return None if config.kv_heads == config.heads else f"{config.kv_heads} key heads for {config.heads} query heads"


def attention_biases(config: Config, vectors: object) -> str | None:
    return "biases of attention" if config.grouped.biases else None


def tied_output(config: Config, vectors: object) -> str | None:
    return "an embedding that is the logits matrix" if config.tied else None


def own_output(config: Config, vectors: object) -> str | None:
    return None if config.tied else "a logits matrix beside the embedding"


def unbiased_convolution(config: Config, vectors: object) -> str | None:
    return "convolutions of Mamba2 without biases" if config.mamba is not None and not config.mamba.bias else None


def dense_layers(config: Config, vectors: object) -> str | None:
    return "dense layers alone" if config.experts is None else None
