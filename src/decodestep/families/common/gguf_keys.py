"""A GGUF file's metadata; the type and range of each value are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from decodestep.errors import ModelError
from decodestep.families.common import names
from decodestep.families.common.limits import LEAST_FACTOR, MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, MOST_FACTOR
from decodestep.files import metadata as md

NORM_EPS = {False: "layer_norm_rms_epsilon", True: "layer_norm_epsilon"}  # by whether norms are centred


class Described(Protocol):
    """The part of a GGUF file, or of one that is not written yet, that describes the model."""

    @property
    def path(self) -> Path: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, Any]: ...  # by name; only the names count


@dataclass
class GgufKeys:
    """A file's metadata under the prefix of its architecture; a key is read as `files.metadata` reads it."""

    file: Described
    architecture: str

    def __contains__(self, key: str) -> bool:
        return self.key(key) in self.file.metadata

    def key(self, key: str) -> str:
        """The key with its prefix."""
        return f"{self.architecture}.{key}"

    def size(self, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_WIDTH) -> int:
        return md.integer(self.file.metadata, self.key(key), default, least=least, most=most)

    def size_of_layers(
        self, key: str, default: int | None = None, *, most: int = MAX_WIDTH, of: Sequence[bool] | None = None
    ) -> int:
        """A size for which a file may have an array with that of each layer, as Granite 4's do; all must be equal. of: which
        layers have one; None: all."""
        sizes = self.sizes(key, default, most=most, least=1 if of is None else 0)
        if of is not None:
            sizes = tuple(size for size, has in zip(sizes, of, strict=False) if has) or sizes
        if min(sizes) != max(sizes):
            raise self.refusal(f"{self.key(key)} {min(sizes)} to {max(sizes)}, sizes of single layers, is not supported")
        return sizes[0]

    def sizes(self, key: str, default: int | None = None, *, most: int = MAX_WIDTH, least: int = 1) -> tuple[int, ...]:
        """The size of each layer, for which a file may have one for all."""
        count, given = self.size("block_count", most=MAX_LAYERS), self.file.metadata.get(self.key(key))
        if not isinstance(given, (np.ndarray, list)):  # a list is of a file that is not written yet
            return (self.size(key, default, most=most),) * count  # as one for all it is not 0
        found = md.numbers({self.key(key): np.array(given)}, self.key(key), count, integers=True)
        assert found is not None
        return tuple(md.integer({self.key(key): size}, self.key(key), least=least, most=most) for size in found)

    def flags(self, key: str) -> tuple[bool, ...] | None:
        """One of each block, or of each except those for next-token prediction; None if the file has none."""
        given = self.file.metadata.get(self.key(key))
        if given is None:
            return None
        count, found = self.size("block_count", most=MAX_LAYERS), np.asarray(given)
        of_model = count - self.next_token_layers()
        if found.dtype.kind not in "iub" or found.ndim != 1 or not of_model <= len(found) <= count:
            md.refuse(self.key(key), f"an array of true or false for each of {of_model} blocks", given)
        return tuple(map(bool, found))

    def number(self, key: str, default: float | None = None, *, least: float, most: float) -> float:
        return md.number(self.file.metadata, self.key(key), default, least=least, most=most)

    def text(self, key: str, default: str) -> str:
        return md.text(self.file.metadata, self.key(key), default)

    def flag(self, key: str, default: bool = False) -> bool:
        return md.flag(self.file.metadata, self.key(key), default)

    def common(self, centred_norms: bool) -> dict[str, Any]:
        """The sizes that all architectures have. centred_norms: as in `Config`."""
        data = self.file.metadata
        tokens = len(md.texts(data, "tokenizer.ggml.tokens"))
        vocab_size = self.size("vocab_size", tokens or None)  # of a file without tokens; of one with them it is checked alone
        own, other = (f"attention.{NORM_EPS[centred]}" for centred in (centred_norms, not centred_norms))
        if not self.flag("attention.causal", True):
            raise self.refusal(f"{self.key('attention.causal')} false, bidirectional attention, is not supported")
        layers = self.size("block_count", most=MAX_LAYERS) - self.next_token_layers()
        if layers < 1:
            raise self.refusal(f"{self.key('nextn_predict_layers')} {self.next_token_layers()} leaves no layers")
        return {
            "architecture": self.architecture,
            "name": md.text(data, "general.name", self.file.path.stem),
            "vocab_size": tokens or vocab_size,
            "hidden": self.size("embedding_length"),
            "layers": layers,
            "heads": self.size_of_layers("attention.head_count", most=MAX_HEADS),
            "context": self.size("context_length", most=MAX_CONTEXT),
            # Files of Nemotron-H have the other key alone.
            "norm_eps": self.number(other if other in self and own not in self else own, least=1e-30, most=1.0),
            "tied": names.GGUF["output"] not in self.file.tensors,
        }

    def next_token_layers(self) -> int:
        """How many of the blocks, the last ones, are for next-token prediction. A file without the key has one if the last
        block has its tensors."""
        last = self.size("block_count", most=MAX_LAYERS) - 1
        there = int(names.GGUF["next_join"].format(i=last) in self.file.tensors)
        return self.size("nextn_predict_layers", there, least=0, most=MAX_LAYERS)

    def rope_factor(self) -> float:
        """By how much positions are stretched. The second name is that of files from before August 2023."""
        old = self.number("rope.scale_linear", 1.0, least=LEAST_FACTOR, most=MOST_FACTOR)
        return self.number("rope.scaling.factor", old, least=LEAST_FACTOR, most=MOST_FACTOR)

    def refusal(self, what: str) -> ModelError:
        """The error to raise."""
        return ModelError(f"{self.file.path}: {what}")
