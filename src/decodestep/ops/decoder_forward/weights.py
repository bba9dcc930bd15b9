"""The weights of a decoder, in the form that decoder_forward expects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from decodestep._base.checks import Phrase, is_finite, is_int, require
from decodestep.ops.decoder_forward.checks import CLASS, require_bias, require_cap, require_panels, require_vector
from decodestep.ops.decoder_forward.feed_forward_checks import check_beside, check_dense, check_mixture
from decodestep.ops.decoder_forward.layers import GroupedAttention, LatentAttention, LayerWeights, Mixture, SideBySide
from decodestep.ops.decoder_forward.recurrent_layers import Recurrence, state_places
from decodestep.weights.feed_forward import FeedForward
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import PackedWeight


@dataclass(frozen=True)
class LatentSizes:
    """The widths of latent attention.

    Attributes:
        nope: Dn, of the part of a head without rope.
        rope: Dr, even, of the rope key.
        latent: Hckv.
        value: Dv, of a head's value.
        eps: of the norms of the latent and of the compressed query, finite, >= 0.
        selected: K, how many positions a token attends to at most; 0: to all. With K > 0 the first layer has an `Indexer`.
        index_heads, index_width: Hi and Di of indexers, Di at least Dr; 0 without.
    """

    nope: int
    rope: int
    latent: int
    value: int
    eps: float = 1e-6
    selected: int = 0
    index_heads: int = 0
    index_width: int = 0


@dataclass(frozen=True, eq=False)
class DecoderWeights:
    """All weights and constants of a decoder. The shapes are checked when it is made.

    Attributes:
        embedding: (He, V) as a `PackedWeight`, one row per token, or as `LinearPanels`, which may be `logits` itself.
        layers: one `LayerWeights` or more, of one kind of attention where they have attention.
        norm: (He,) float32, before the logits.
        logits: (He, V) as `LinearPanels`.
        heads: N query heads, a multiple of kv_heads.
        kv_heads: G key-value heads; query head n reads head n // (N / G). 1 with latent attention.
        head_dim: D, even, the width of a query; Dn + Dr with latent attention.
        norm_eps: finite, >= 0, added to the mean square in every norm except those of `latent`.
        scale: finite, the factor of the scores.
        latent: its sizes; None with grouped-query attention.
        embedding_scale: finite, the factor of the embedding's rows.
        residual_scale: finite, the factor of the output of each attention and feed-forward block.
        logits_scale: finite, the factor of the logits.
        head_values: Dv, the number of values of a head that `output` reads; the rest are zeros that pad heads to a size that
            the kernel supports. None: D.
        logits_cap: c of logits that become c * tanh(logit / c); 0: none.
        centred_norms: whether norms of the residual stream, and of what is added to it, subtract the mean first: LayerNorm.
    """

    embedding: PackedWeight | LinearPanels
    layers: tuple[LayerWeights, ...]
    norm: np.ndarray
    logits: LinearPanels
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    scale: float
    latent: LatentSizes | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    head_values: int | None = None
    logits_cap: float = 0.0
    centred_norms: bool = False

    def __post_init__(self) -> None:
        ok = isinstance(self.layers, Sequence) and all(isinstance(layer, LayerWeights) for layer in self.layers)
        require(ok, CLASS, "layers", "a sequence of LayerWeights", self.layers)
        require(len(self.layers) > 0, CLASS, "layers", "one or more", Phrase("none"))
        sizes = (self.heads, self.kv_heads, self.head_dim)
        positive = all(is_int(size) and size > 0 for size in sizes)
        require(positive, CLASS, "heads, kv_heads and head_dim", "integers > 0", sizes)
        require(self.heads % self.kv_heads == 0, CLASS, "heads", f"a multiple of kv_heads {self.kv_heads}", self.heads)
        require(self.head_dim % 2 == 0, CLASS, "head_dim", "even", self.head_dim)
        ok = self.head_values is None or (is_int(self.head_values) and 0 < self.head_values <= self.head_dim)
        require(ok, CLASS, "head_values", f"in [1, {self.head_dim}]", self.head_values)
        require(is_finite(self.norm_eps) and self.norm_eps >= 0, CLASS, "norm_eps", "a finite number >= 0", self.norm_eps)
        for name in ("scale", "embedding_scale", "residual_scale", "logits_scale"):
            require(is_finite(getattr(self, name)), CLASS, name, "a finite number", getattr(self, name))
        require_cap("logits_cap", self.logits_cap)
        require(isinstance(self.centred_norms, bool), CLASS, "centred_norms", "True or False", self.centred_norms)
        if self.latent is not None:
            _check_latent_sizes(self.latent, self.kv_heads, self.head_dim)
        ok = isinstance(self.embedding, (PackedWeight, LinearPanels))
        require(ok, CLASS, "embedding", "a PackedWeight or a LinearPanels", self.embedding)
        require_vector("norm", self.norm, self.hidden)
        require_panels("logits", self.logits, (self.hidden, self.vocab_size))
        require(self.vocab_size > 0, CLASS, "embedding", "of one token or more", Phrase("none"))
        for number, layer in enumerate(self.layers):
            self._check_layer(f"layers[{number}]", layer, number)

    def _check_layer(self, name: str, layer: LayerWeights, number: int) -> None:
        for norm in ("attention_norm", "ffn_norm", "attention_post_norm", "ffn_post_norm"):
            if getattr(layer, norm) is not None:
                require_vector(f"{name}.{norm}", getattr(layer, norm), self.hidden)
        of_mixer = layer.attention_norm is None and layer.attention_post_norm is None
        require(
            layer.mixer is not None or of_mixer, CLASS, f"{name}.attention_norm", "None without a mixer", layer.attention_norm
        )
        both = layer.mixer is not None and layer.feed_forward is not None
        require(both or not layer.parallel, CLASS, f"{name}.parallel", "False without two blocks", layer.parallel)
        alone = not layer.parallel or (layer.attention_post_norm is None and layer.ffn_post_norm is None)
        require(alone, CLASS, f"{name}.parallel", "False with norms after blocks", layer.parallel)
        if self.latent is None and isinstance(layer.mixer, GroupedAttention):
            self._check_sizes(f"{name}.mixer", layer.mixer, number)
        if isinstance(layer.mixer, Recurrence):
            layer.mixer.check(f"{name}.mixer", self.hidden)
        elif layer.mixer is not None:
            self._check_attention(f"{name}.mixer", layer.mixer)
        self._check_input(name, layer)
        block = layer.feed_forward
        if block is None:
            ok = layer.mixer is not None and layer.ffn_norm is None and layer.ffn_post_norm is None
            require(ok, CLASS, f"{name}.feed_forward", "given where a layer has no mixer, or norms of it", block)
        elif isinstance(block, Mixture):
            require(layer.ffn_post_norm is None, CLASS, f"{name}.ffn_post_norm", "None after a mixture", layer.ffn_post_norm)
            check_mixture(f"{name}.feed_forward", block, self.hidden)
        elif isinstance(block, SideBySide):
            require(not layer.parallel, CLASS, f"{name}.parallel", "False with blocks side by side", layer.parallel)
            check_beside(f"{name}.feed_forward", block, self.hidden)
        else:
            ok, kinds = isinstance(block, FeedForward), "a FeedForward, a Mixture or a SideBySide"
            require(ok, CLASS, f"{name}.feed_forward", kinds, Phrase(type(block).__name__))
            check_dense(f"{name}.feed_forward", block, self.hidden)

    def _check_sizes(self, name: str, a: GroupedAttention, number: int) -> None:
        sizes = self.sizes(a)
        ok = all(is_int(size) and size > 0 for size in sizes) and self.heads % sizes[0] == 0 and sizes[1] % 2 == 0
        within = sizes[0] <= self.kv_heads and sizes[2] <= sizes[1] <= self.head_dim and sizes[2] <= self.value_dim
        require(ok and within, CLASS, f"{name}.kv_heads, head_dim and head_values", "those of the decoder or less", sizes)
        if a.keys_of is None:
            return
        other = self.layers[a.keys_of].mixer if is_int(a.keys_of) and 0 <= a.keys_of < number else None
        ok = isinstance(other, GroupedAttention) and other.keys_of is None and self.sizes(other) == sizes
        require(ok, CLASS, f"{name}.keys_of", "an earlier layer with keys of the same sizes", a.keys_of)

    def _check_input(self, name: str, layer: LayerWeights) -> None:
        scaled = layer.scale == 1 or layer.ffn_post_norm is not None or layer.input is not None
        require(is_finite(layer.scale) and scaled, CLASS, f"{name}.scale", "1 where no norm is after the layer", layer.scale)
        if layer.input is not None:
            width = self.input_width
            require_panels(f"{name}.input.gate", layer.input.gate, (self.hidden, width))
            require_panels(f"{name}.input.output", layer.input.output, (width, self.hidden))
            require_vector(f"{name}.input.norm", layer.input.norm, self.hidden)

    def _check_attention(self, name: str, attention: GroupedAttention | LatentAttention) -> None:
        kind = GroupedAttention if self.latent is None else LatentAttention
        require(isinstance(attention, kind), CLASS, name, f"a {kind.__name__}", Phrase(type(attention).__name__))
        for product, shape in self._attention_shapes(attention).items():
            require_panels(f"{name}.{product}", getattr(attention, product), shape)
        if isinstance(attention, GroupedAttention):
            self._check_options(name, attention)
        else:
            assert self.latent is not None
            require_vector(f"{name}.latent_norm", attention.latent_norm, self.latent.latent)
            if attention.query_down is not None:
                require_vector(f"{name}.query_norm", attention.query_norm, attention.query_down.outputs)
            else:
                absent = attention.query_norm is None
                require(absent, CLASS, f"{name}.query_norm", "None without query_down", attention.query_norm)
            for part in ("query_down", "latent", "output"):
                require_bias(f"{name}.{part}_bias", getattr(attention, f"{part}_bias"), getattr(attention, part))
            self._check_indexer(name, attention, self.latent)

    def _check_indexer(self, name: str, a: LatentAttention, sizes: LatentSizes) -> None:
        if a.indexer is None:
            first = next(layer.mixer for layer in self.layers if isinstance(layer.mixer, LatentAttention))
            require(not sizes.selected or a is not first, CLASS, f"{name}.indexer", "given in the first layer", None)
            return
        ok = sizes.selected > 0 and a.query_down is not None
        require(ok, CLASS, f"{name}.indexer", "None without a compressed query and `selected` of `latent`", a.indexer)
        assert a.query_down is not None
        require_panels(f"{name}.indexer.query", a.indexer.query, (a.query_down.outputs, sizes.index_heads * sizes.index_width))
        require_panels(f"{name}.indexer.key", a.indexer.key, (self.hidden, sizes.index_width))
        require_panels(f"{name}.indexer.by_head", a.indexer.by_head, (self.hidden, sizes.index_heads))
        require_vector(f"{name}.indexer.key_norm", a.indexer.key_norm, sizes.index_width)
        require_vector(f"{name}.indexer.key_norm_bias", a.indexer.key_norm_bias, sizes.index_width)

    def _check_options(self, name: str, a: GroupedAttention) -> None:
        kv_heads, head_dim, values = self.sizes(a)
        both = 2 * kv_heads * head_dim
        require(isinstance(a.norms_of_rows, bool), CLASS, f"{name}.norms_of_rows", "True or False", a.norms_of_rows)
        queries, keys = (self.heads, kv_heads) if a.norms_of_rows else (1, 1)
        lengths = {"query_bias": a.query.outputs, "values_keys_bias": both, "output_bias": self.hidden}
        lengths |= {"query_norm": queries * values, "key_norm": keys * values}
        for vector, length in lengths.items():
            if getattr(a, vector) is not None:
                require_vector(f"{name}.{vector}", getattr(a, vector), length)
        alike = a.key_norm is None if a.keys_of is not None else (a.query_norm is None) == (a.key_norm is None)
        require(alike, CLASS, f"{name}.key_norm", "given where query_norm is, and only there", a.key_norm)
        ok = a.value_norm is False or (a.value_norm is True and a.query_norm is not None)
        require(ok, CLASS, f"{name}.value_norm", "False, or True where queries have norms", a.value_norm)
        require(isinstance(a.norms_after_rope, bool), CLASS, f"{name}.norms_after_rope", "True or False", a.norms_after_rope)
        sizes = {"window": a.window, "rope": a.rope} | ({} if a.query_rope is None else {"query_rope": a.query_rope})
        for size, value in sizes.items():
            require(is_int(value) and 0 <= value < 1 << 24, CLASS, f"{name}.{size}", "an integer in [0, 2^24)", value)
        require_cap(f"{name}.score_cap", a.score_cap)
        if a.sinks is not None:
            require_vector(f"{name}.sinks", a.sinks, self.heads)

    def _attention_shapes(self, attention: GroupedAttention | LatentAttention) -> dict[str, tuple[int, int]]:
        queries = self.heads * self.head_dim
        if isinstance(attention, GroupedAttention):
            kv_heads, head_dim, values = self.sizes(attention)
            keys, given = kv_heads * head_dim, {"query": (self.hidden, self.heads * head_dim)}
            if attention.keys_of is None:
                given["values_keys"] = (self.hidden, keys if attention.keys is not None else 2 * keys)
            if attention.keys is not None:
                given["keys"] = (self.hidden, keys)
            if attention.gate is not None:
                given["gate"] = given["query"]
            return given | {"output": (self.heads * values, self.hidden)}
        s, down = self.latent, attention.query_down
        assert s is not None
        read, shapes = self.hidden, {}
        if down is not None:
            require_panels("query_down", down, (self.hidden, getattr(down, "outputs", 0)))
            read = down.outputs
        shapes["query"] = (read, queries)
        shapes["latent"] = (self.hidden, s.latent + s.rope)
        shapes["key_up"] = (s.nope, self.heads * s.latent)
        shapes["value_up"] = (s.latent, self.heads * s.value)
        shapes["output"] = (self.heads * s.value, self.hidden)
        return shapes

    @property
    def hidden(self) -> int:
        """He, the width of the residual stream."""
        return self.embedding.inputs

    @property
    def value_dim(self) -> int:
        """Dv, the number of values of a head that the output reads."""
        return self.head_dim if self.head_values is None else self.head_values

    def sizes(self, a: GroupedAttention) -> tuple[int, int, int]:
        """G, D and Dv of a layer."""
        head_dim = self.head_dim if a.head_dim is None else a.head_dim
        values = min(self.value_dim, head_dim) if a.head_values is None else a.head_values
        return self.kv_heads if a.kv_heads is None else a.kv_heads, head_dim, values

    @property
    def input_width(self) -> int:
        """P, the width of a layer's input; 0 if no layer has one."""
        return max((layer.input.gate.outputs for layer in self.layers if layer.input is not None), default=0)

    @property
    def recurrences(self) -> list[Recurrence]:
        """Of the layers that have a state, in order."""
        return [layer.mixer for layer in self.layers if isinstance(layer.mixer, Recurrence)]

    @property
    def state_size(self) -> int:
        """The values of a row of states; 0 if no layer has a state."""
        return state_places(self.recurrences)[1]

    @property
    def cache_layers(self) -> list[int | None]:
        """Of every layer the number of the cache's layer that it reads: its own, or that of the layer whose keys it reads; None
        without attention."""
        numbers: list[int | None] = []
        own = 0
        for layer in self.layers:
            if layer.mixer is None or isinstance(layer.mixer, Recurrence):
                numbers.append(None)
            elif isinstance(layer.mixer, GroupedAttention) and layer.mixer.keys_of is not None:
                numbers.append(numbers[layer.mixer.keys_of])
            else:
                numbers.append(own)
                own += 1
        return numbers

    @property
    def cache_depth(self) -> int:
        """L, the number of layers with keys and values of their own."""
        return 1 + max((number for number in self.cache_layers if number is not None), default=-1)

    @property
    def index_layers(self) -> list[int | None]:
        """Of every layer the number of the index cache's layer; None without an indexer."""
        own = [isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer is not None for layer in self.layers]
        return [sum(own[:number]) if has else None for number, has in enumerate(own)]

    @property
    def index_depth(self) -> int:
        """X, the number of layers with an indexer."""
        return sum(number is not None for number in self.index_layers)

    @property
    def rope_count(self) -> int:
        """The number of ropes that the layers refer to."""
        grouped = [layer.mixer for layer in self.layers if isinstance(layer.mixer, GroupedAttention)]
        return 1 + max((rope for a in grouped for rope in (a.rope, a.query_rope or 0)), default=0)

    @property
    def rope_dim(self) -> int:
        """The number of values of a head with rope."""
        return self.head_dim if self.latent is None else self.latent.rope

    @property
    def feed_forwards(self) -> Iterator[FeedForward]:
        """All blocks: those of dense layers, those of the experts, and the shared ones."""
        for layer in self.layers:
            if layer.dense is not None:
                yield layer.dense
            if layer.mixture is not None:
                yield layer.mixture.routed
                if layer.mixture.shared is not None:
                    yield layer.mixture.shared

    @property
    def mixtures(self) -> list[Mixture]:
        """Of the layers that have experts, in order."""
        return [layer.mixture for layer in self.layers if layer.mixture is not None]

    @property
    def vocab_size(self) -> int:
        return self.embedding.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the panels: everything but the embedding and the norms. A step of many tokens reads all of them once."""
        of_mixtures = [(m.router, m.shared_gate, m.latent_down, m.latent_up) for m in self.mixtures]
        routers = [panels for given in of_mixtures for panels in given if panels is not None]
        products = [panels for layer in self.layers if layer.mixer for panels in layer.mixer.products()]
        products += [panels for layer in self.layers if layer.input for panels in (layer.input.gate, layer.input.output)]
        blocks = sum(block.nbytes for block in self.feed_forwards)
        return blocks + sum(w.nbytes for w in (self.logits, *products, *routers))


def _check_latent_sizes(sizes: LatentSizes, kv_heads: int, head_dim: int) -> None:
    require(isinstance(sizes, LatentSizes), CLASS, "latent", "a LatentSizes or None", sizes)
    widths = (sizes.nope, sizes.rope, sizes.latent, sizes.value)
    ok = all(is_int(width) and width > 0 for width in widths) and sizes.rope % 2 == 0
    require(ok, CLASS, "latent", "of widths > 0, the rope's even", widths)
    selects = is_int(sizes.selected) and sizes.selected >= 0
    of_indexer = (sizes.index_heads, sizes.index_width)
    known = all(map(is_int, of_indexer)) and selects
    within = known and (of_indexer == (0, 0) if not sizes.selected else of_indexer[0] > 0 and of_indexer[1] >= sizes.rope)
    rule = f"0 without an indexer; with one heads > 0 of a width of at least {sizes.rope}"
    require(within, CLASS, "latent.selected, index_heads and index_width", rule, (sizes.selected, *of_indexer))
    require(is_finite(sizes.eps) and sizes.eps >= 0, CLASS, "latent.eps", "a finite number >= 0", sizes.eps)
    require(kv_heads == 1, CLASS, "kv_heads", "1 with latent attention", kv_heads)
    require(head_dim == sizes.nope + sizes.rope, CLASS, "head_dim", f"{sizes.nope} + {sizes.rope}, as in `latent`", head_dim)
