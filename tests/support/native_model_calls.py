"""Right calls of the entry points that models are made of: products, norms, experts, attention, whole decoders."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

from support.native_call_arguments import ROW_BYTES, Arguments, Held, Source, formats_of, panel_bytes

STEP_PARTS = 11
ROUNDED = {3, 5, 6, 7, 8, 9, 14, 15}  # the numbers of the formats that values are rounded to
NO_BLOCK = ([], 0, [None] * 3)

FILE_BYTES = 1 << 16
FILE = tempfile.TemporaryFile()  # noqa: SIM115, what weights are read from, to the end
FILE.write(np.random.default_rng(0).integers(0, 120, FILE_BYTES, np.uint8).tobytes())
FILE.flush()


def linear(s: Source) -> Arguments:
    tokens, inputs, outputs = s.size(9), s.width(), s.size(40)
    w, number = s.weight(inputs, outputs)
    x, y = s.rows(s.array(tokens, inputs)), s.array(tokens, outputs)
    return {"x": x, "w": w, "format": number, "y": y, "threads": s.threads()}


def grouped_products(s: Source) -> Arguments:
    tokens, inputs, groups, outputs = s.size(9), s.width(), s.size(4), s.size(40)
    w, number = s.weight(inputs, groups * outputs)
    of_tokens = np.sort(s.rng.integers(-s.one_of(*[0] * 9, 1), max(groups, 1), tokens))
    x, y = s.rows(s.array(tokens, inputs)), s.array(tokens, outputs)
    return {"x": x, "w": w, "format": number, "groups": of_tokens, "y": y, "threads": s.threads()}


def head_products(s: Source) -> Arguments:
    tokens, inputs, heads, of_head = s.size(9), s.width(), s.one_of(1, 2, 5), s.size(70)
    w, number = s.weight(inputs, heads * of_head)
    first = s.size(of_head)
    count, transposed = s.size(70) if s.one_of(*[False] * 9, True) else max(of_head - first, 0), s.one_of(False, True)
    width = count if transposed else inputs
    x = s.array(tokens, heads, 3 + width)[:, :, s.one_of(0, 3) :][:, :, :width]
    y = s.array(tokens, heads, inputs if transposed else count)
    return {"x": x, "w": w, "format": number, "inputs": inputs, "first": first, "count": count,
            "transposed": transposed, "y": y, "threads": s.threads()}  # fmt: skip


def packable(s: Source, number: int, inputs: int) -> int:
    """A format of panels for rows of format `number`: their own, bfloat16, or one that values are rounded to."""
    return int(s.one_of(number, number, 2, *ROUNDED.intersection(formats_of(inputs))))


def quantise_blocks(s: Source) -> Arguments:
    rows, inputs = s.size(70), 32 * s.size(10)
    number = int(s.one_of(*ROUNDED.intersection(formats_of(inputs))))
    return {"values": s.array(rows, inputs), "format": number,
            "blocks": s.array(rows, ROW_BYTES[number](inputs), dtype=np.uint8), "threads": s.threads()}  # fmt: skip


def pack_linear_panels(s: Source) -> Arguments:
    inputs, outputs = s.width(), s.size(70)
    w, number = s.weight(inputs, outputs)
    made = packable(s, number, inputs)
    panels = np.zeros(panel_bytes(made, inputs, outputs), np.uint8)
    return {"w": w, "format": number, "inputs": inputs, "panels": panels, "panel_format": made,
            "threads": s.threads()}  # fmt: skip


def unpack_linear_panels(s: Source) -> Arguments:
    inputs, outputs, count = s.width(), s.size(70), s.size()
    panels, number, _ = panels_of(s, inputs, outputs)
    return {"panels": panels, "format": number, "inputs": inputs, "outputs": outputs, "ids": s.ids(count, end=outputs),
            "rows": s.array(count, ROW_BYTES[number](inputs), dtype=np.uint8), "threads": s.threads()}  # fmt: skip


def read_file_rows(s: Source) -> Arguments:
    inputs, counts = s.width() or 32, [s.size(40) for _ in range(s.size(3))]
    number = int(s.one_of(*formats_of(inputs)))
    size, outputs = ROW_BYTES[number](inputs), sum(counts)
    parts = [[FILE.fileno(), s.one_of(0, 1, size, 1 << 20, FILE_BYTES), count] for count in counts]
    made = packable(s, number, inputs)
    packs = s.one_of(True, False)
    return {"parts": np.array(parts, np.int64).reshape(-1, 3), "format": number, "inputs": inputs,
            "memory": None if packs else np.zeros((outputs, size), np.uint8),
            "panels": np.zeros(panel_bytes(made, inputs, outputs), np.uint8) if packs else None, "panel_format": made,
            "threads": s.threads()}  # fmt: skip


def checksum_bytes(s: Source) -> Arguments:
    memory = s.array(s.one_of(0, 64, 2**20, 2**20 + 64, 3 * 2**20 - 64), dtype=np.uint8)
    return {"memory": memory, "checksums": np.zeros((-(-memory.size // 2**20), 8), np.uint64), "threads": s.threads()}


def read_checked_bytes(s: Source) -> Arguments:
    return {"file": FILE.fileno(), "at": s.one_of(0, 1, 4096, FILE_BYTES, 2**40), **checksum_bytes(s)}


def pin_workers(s: Source) -> Arguments:
    return {"cpus": [s.one_of(0, 0, 1, -1, 1023, 1024, 2**31 - 1) for _ in range(s.size(4))]}


def linear_panels(s: Source) -> Arguments:
    tokens, inputs, outputs = s.size(9), s.width(), s.size(70)
    panels, number, _ = panels_of(s, inputs, outputs)
    x, y = s.rows(s.array(tokens, inputs)), s.array(tokens, outputs)
    return {"x": x, "panels": panels, "format": number, "y": y, "threads": s.threads()}


def panels_of(s: Source, inputs: int, outputs: int) -> tuple[np.ndarray, int, int]:
    number = int(s.one_of(*formats_of(inputs)))
    return s.array(panel_bytes(number, inputs, outputs), dtype=np.uint8), number, outputs


def feed_forward(s: Source, hidden: int, width: int, count: int = 1) -> tuple[Any, ...]:
    """With a gate or without."""
    wide = [(hidden, count * width)] * s.one_of(1, 2)
    lengths = (count * width * (len(wide) > 1), count * width, count * hidden)
    biases = [s.one_of(None, s.array(length)) if length else None for length in lengths]
    return [panels_of(s, *size) for size in (*wide, (width, count * hidden))], s.one_of(0, 1, 2), biases


def decoder(s: Source) -> Arguments:
    hidden, inner, width, groups = s.one_of(32, 64), s.one_of(32, 96), s.one_of(16, 32, 48), s.one_of(1, 2, 3)
    heads = groups * s.one_of(1, 2, 3, 13)
    values = width - s.one_of(0, 0, 1, 15)

    def vector(size: int) -> np.ndarray | None:
        return s.one_of(None, s.array(size)) if size else None

    def grouped() -> Arguments:
        queries, keys = heads * width, groups * width
        rows = s.one_of(False, True)
        sizes_of_norms = (values * heads, values * groups) if rows else (values, values)
        norms = s.one_of([None, None], [s.array(size) for size in sizes_of_norms])
        apart = s.one_of(False, True)
        return {"query": panels_of(s, hidden, queries), "values_keys": panels_of(s, hidden, keys if apart else 2 * keys),
                "keys": panels_of(s, hidden, keys) if apart else None, "output": panels_of(s, heads * values, hidden),
                "gate": s.one_of(None, panels_of(s, hidden, queries)),
                "query_bias": vector(queries), "values_keys_bias": vector(2 * keys), "output_bias": vector(hidden),
                "query_norm": norms[0], "key_norm": norms[1], "norms_of_rows": rows, "window": s.one_of(0, 1, 5, 20),
                "rope": s.one_of(0, 0, 1), "query_rope": s.one_of(0, 0, 1), "norms_after_rope": s.one_of(False, True),
                "sinks": vector(heads), "score_cap": s.one_of(0.0, 0.0, 5.0),
                "keys_of": None, "kv_heads": groups, "head_dim": width, "head_values": values,
                "value_norm": norms[0] is not None and s.one_of(False, True)}  # fmt: skip

    def recurrence(kind: str) -> Arguments:
        if kind == "convolution":
            heads, columns, key_heads, rows, outputs, channels = 1, hidden, 0, 0, (3 * hidden,), hidden
        else:
            key_heads, columns, rows = s.one_of(1, 2), s.one_of(1, 16, 33, 64), s.one_of(1, 8, 16, 33)
            heads = key_heads * s.one_of(1, 3)
            channels = 2 * key_heads * rows + heads * columns
            outputs = (channels + heads * columns + heads,)
            if kind == "delta":
                outputs = s.one_of((channels, heads * columns, 2 * heads), (channels, heads * columns, heads, heads))
        norm = {"delta": columns, "mamba": heads * columns, "convolution": 0}[kind]
        return {"heads": heads, "columns": columns, "key_heads": key_heads, "rows": rows, "tiled": s.one_of(False, True),
                "inputs": [panels_of(s, hidden, count) for count in outputs],
                "output": panels_of(s, heads * columns, hidden), "input_bias": vector(sum(outputs)),
                "output_bias": vector(hidden), "convolution": s.array(s.one_of(1, 2, 4, 6), channels),
                "convolution_bias": vector(channels), "decay": s.array(heads), "step_bias": s.array(heads),
                "skip": vector(heads), "norm": s.array(norm) if norm else None}  # fmt: skip

    def by_latents() -> Arguments:
        nope, rope, latent, value = (sizes[name] for name in ("nope", "rope", "latent", "value"))
        down = 64 if sizes["selected"] else s.one_of(0, 64)
        return {"query_down": panels_of(s, hidden, down) if down else None, "query_norm": s.array(down) if down else None,
                "query_down_bias": vector(down), "query": panels_of(s, down or hidden, heads * width),
                "latent": panels_of(s, hidden, latent + rope), "latent_norm": s.array(latent),
                "latent_bias": vector(latent + rope), "key_up": panels_of(s, nope, heads * latent),
                "value_up": panels_of(s, latent, heads * value), "output": panels_of(s, heads * value, hidden),
                "output_bias": vector(hidden), "indexer": None}  # fmt: skip

    def indexer() -> Arguments:
        heads, width = sizes["index_heads"], sizes["index_width"]
        return {"query": panels_of(s, 64, heads * width), "key": panels_of(s, hidden, width), "key_norm": s.array(width),
                "by_head": panels_of(s, hidden, heads), "key_norm_bias": s.array(width)}  # fmt: skip

    def layer_input() -> Arguments:
        return {"gate": panels_of(s, hidden, 32), "output": panels_of(s, 32, hidden), "norm": s.array(hidden)}

    def mixture(beside: bool) -> Arguments:
        experts = s.one_of(4, 6)
        shared = NO_BLOCK if beside else s.one_of(NO_BLOCK, feed_forward(s, hidden, 64))
        gated = bool(shared[0]) and shared[2][2] is None and s.one_of(False, True)
        rule = {"used": s.one_of(1, 2), "scores": s.one_of(0, 1), "groups": 2, "kept_groups": s.one_of(1, 2),
                "group_score": s.one_of(0, 1), "normalise": s.one_of(True, False), "scale": 1.5, "eps": 1e-20}  # fmt: skip
        latent = None if beside else s.one_of(None, None, 32, 96)
        latents = {"latent_down": panels_of(s, hidden, latent) if latent else None,
                   "latent_up": panels_of(s, latent, hidden) if latent else None}  # fmt: skip
        return {**latents, "router": panels_of(s, hidden, experts), "rule": rule, "bias": vector(experts),
                "router_bias": vector(experts), "factors": vector(experts),
                "routed": feed_forward(s, latent or hidden, 32, experts),
                "shared": shared, "shared_gate": panels_of(s, hidden, 1) if gated else None}  # fmt: skip

    def layer() -> Arguments:
        mixer = s.one_of(*["attention"] * 4, "delta", "mamba", "convolution", "none")
        mixed, empty = s.one_of(False, True), mixer != "none" and s.one_of(*[False] * 5, True)
        parallel = mixer != "none" and not empty and s.one_of(False, False, True)
        beside = mixed and not empty and not parallel and s.one_of(False, True)
        dense = NO_BLOCK if empty or mixed > beside else feed_forward(s, hidden, inner)
        norms = {name: s.array(hidden) for name in ("router_norm", "experts_norm", "dense_post_norm", "experts_post_norm")}
        block = {"feed_forward": dense, "mixture": mixture(beside) if mixed and not empty else None,
                 "beside": norms if beside else None}  # fmt: skip
        after, of_mixer = None if parallel else vector(hidden), mixer != "none"
        made = {} if mixer == "none" else {"weights": (by_latents if sizes else grouped)()}
        if mixer in ("delta", "mamba", "convolution"):
            made = {"weights": recurrence(mixer)}
        return {"attention_norm": vector(hidden) if of_mixer else None, "ffn_norm": None if empty else vector(hidden),
                "attention_post_norm": after if of_mixer else None,
                "ffn_post_norm": None if mixed > beside or parallel or empty else vector(hidden),
                "parallel": parallel, "scale": 1.0,
                "input": s.one_of(None, layer_input) and layer_input(), "mixer": mixer, **made, **block}  # fmt: skip

    latents = {"nope": 32, "rope": s.one_of(16, 32), "latent": s.one_of(32, 64), "value": 32, "eps": 1e-6}
    selected = s.one_of(0, 0, 1, 5)
    latents |= {"selected": selected, "index_heads": s.one_of(1, 5) if selected else 0, "index_width": 48 if selected else 0}
    sizes = s.one_of(None, latents)
    if sizes:
        groups, heads, width = 1, 2 * s.one_of(1, 2, 8), sizes["nope"] + sizes["rope"]
        values = width
    layers = [layer() for _ in range(s.one_of(1, 2))]
    if sizes and sizes["selected"]:
        attending = [each["weights"] for each in layers if each["mixer"] == "attention"]
        for number, weights in enumerate(attending):
            weights["indexer"] = indexer() if number == 0 or s.one_of(False, True) else None
    embedding = s.one_of(s.weight, lambda *size: panels_of(s, *size))(hidden, 1 + s.size(40))
    return {"heads": heads, "kv_heads": groups, "head_dim": width, "head_values": values, "latent": sizes, "norm_eps": 1e-5,
            "scale": 0.25, "embedding_scale": 2.0, "residual_scale": s.one_of(1.0, 0.5), "logits_scale": 0.5,
            "logits_cap": s.one_of(0.0, 0.0, 3.0), "centred_norms": s.one_of(False, True),
            "layers": layers, "norm": s.array(hidden),
            "logits": panels_of(s, hidden, 1 + s.size(40)), "embedding": embedding}  # fmt: skip


def state_size(layers: list[Arguments]) -> int:
    """The values of a row of states."""
    size = 0
    for layer in layers:
        if layer["mixer"] in ("delta", "mamba", "convolution"):
            w = layer["weights"]
            taps, channels = w["convolution"].shape
            for values in (w["heads"] * w["rows"] * w["columns"], (taps - 1) * channels):
                size += -(-values // 16) * 16
    return size


def kept_size(layers: list[Arguments]) -> int:
    """The values that are kept of a token for a replay of its states."""
    by_head = {"delta": 2, "mamba": 1, "convolution": 0}
    ours = [(layer["mixer"], layer["weights"]) for layer in layers if layer["mixer"] in by_head]
    return sum(w["convolution"].shape[1] + by_head[mixer] * w["heads"] for mixer, w in ours)


def replay_states(s: Source) -> Arguments:
    made = decoder(s)
    rows, width, size = s.size(4), kept_size(made["layers"]), state_size(made["layers"])
    slots, written = np.split(s.rng.permutation(2 * rows), 2)
    return {
        "decoder": Held("Decoder", made), "kept": tuple(s.array(s.size(5), width) for _ in range(rows)),
        "states": s.array(2 * rows + 1, size), "slots": slots, "into": s.one_of(slots, written), "threads": s.threads(),
    }  # fmt: skip


def decoder_forward(s: Source) -> Arguments:
    made = decoder(s)
    tokens, sequences, room, pages, positions = (
        s.size(9),
        1 + s.size(2),
        s.one_of(1, 2, 20),
        1 + s.size(3),
        s.one_of(1, 16, 300),
    )
    slabs = s.one_of(1, 2)
    layers = sum(layer["mixer"] == "attention" for layer in made["layers"])
    groups, width, sizes = made["kv_heads"], made["head_dim"], made["latent"]
    half = key_bytes = False
    if sizes:
        width, keys = sizes["rope"], (slabs, layers, pages, 16, sizes["rope"])
        in_bytes = s.one_of(False, True)
        values = (slabs, layers, pages, 16, sizes["latent"] + 4 * in_bytes)
    else:
        in_bytes = key_bytes = s.one_of(False, False, True)
        half = s.one_of(False, True)
        block = (slabs, layers, groups, pages, width // 16, 18 if in_bytes else 16, 16)
        pairs = (slabs, layers, groups, pages, width // 2, 16, 2), (slabs, layers, groups, pages, 8, width, 2)
        keys, values = (block, block) if in_bytes or half else pairs
    index = None
    if sizes and sizes["selected"]:
        own = sum(layer["mixer"] == "attention" and layer["weights"]["indexer"] is not None for layer in made["layers"])
        byte_index = s.one_of(False, True)
        row = sizes["index_width"] + 4 * byte_index
        index = s.array(slabs, own, pages, 16, row, dtype=np.int8 if byte_index else np.uint16)
    wanted = s.ids(s.size() if tokens else 0, end=tokens)
    rows, _, *outputs = made["embedding"]
    size, sequence = state_size(made["layers"]), s.ids(tokens, end=sequences)
    places = s.ids(tokens, end=min(positions, 16 * room))
    if size and s.one_of(*[True] * 9, False):  # the tokens of a sequence in order
        sequence = np.sort(sequence)
        places = np.arange(tokens) - np.searchsorted(sequence, sequence)
        positions = max(positions, tokens)
    slots, written = np.split(s.rng.permutation(2 * sequences), 2)
    keeps = size and s.one_of(False, True)
    kept_rows = np.where(s.rng.integers(2, size=tokens) > 0, s.rng.permutation(tokens), -1)
    return {
        "decoder": Held("Decoder", made), "ids": s.ids(tokens, end=outputs[0] if outputs else len(rows)),
        "sequence": sequence, "positions": places, "sin": s.array(2, positions, width // 2),
        "cos": s.array(2, positions, width // 2),
        "keys": s.array(*keys, dtype=np.int8 if key_bytes else np.uint16),
        "values": s.array(*values, dtype=np.int8 if in_bytes else np.uint16), "half": half,
        "page_table": s.ids(sequences, room, end=slabs * pages), "wanted": wanted,
        "logits": s.array(len(wanted), made["logits"][2]), "threads": s.threads(),
        "costs": s.one_of(None, s.array(STEP_PARTS, 2, dtype=np.float64)),
        "hidden": s.one_of(None, s.array(tokens, len(made["norm"]))),
        "states": s.array(2 * sequences + 1, size) if size else None,
        "kept": s.array(tokens, kept_size(made["layers"])) if keeps else None, "kept_rows": kept_rows if keeps else None,
        "index": index, "slots": slots if size else None, "into": s.one_of(slots, slots, written) if size else None,
        "layer_inputs": s.array(tokens, len(made["layers"]), 32) if any(layer["input"] for layer in made["layers"]) else None,
    }  # fmt: skip


def gather_rows(s: Source) -> Arguments:
    inputs, outputs, count = s.width(), s.size(9), s.size()
    w, number = s.weight(inputs, outputs)
    return {"w": w, "format": number, "ids": s.ids(count, end=outputs), "values": s.array(count, inputs),
            "threads": s.threads()}  # fmt: skip


def gather_panels(s: Source) -> Arguments:
    inputs, outputs, count = s.width(), s.size(70), s.size()
    panels, number, _ = panels_of(s, inputs, outputs)
    return {"panels": panels, "format": number, "outputs": outputs, "ids": s.ids(count, end=outputs),
            "values": s.array(count, inputs), "threads": s.threads()}  # fmt: skip


def rms_norm(s: Source) -> Arguments:
    rows, width = s.size(), s.width()
    return {"x": s.rows(s.array(rows, width)), "gamma": s.array(width), "eps": 1e-5, "alpha": 1.0, "y": s.array(rows, width),
            "threads": s.threads()}  # fmt: skip


def state_rows(s: Source, states: int) -> Arguments:
    """Rows of some tokens, and the states that they read and write."""
    count = min(s.size(4), states)
    starts = np.sort(s.ids(count + 1, end=10))
    starts[0] = 0
    return {"starts": starts if count else starts[:1], "read": s.ids(count, end=states),
            "written": s.rng.permutation(states)[:count].astype(np.int64)}  # fmt: skip


def states(s: Source, *shape: int) -> np.ndarray:
    """States that may lie apart."""
    gap = s.one_of(0, 0, 3)
    return s.array(shape[0], shape[1] + gap, *shape[2:-1], shape[-1] + gap)[:, : shape[1], ..., : shape[-1]]


def causal_conv1d(s: Source) -> Arguments:
    channels, taps, count = s.width(), s.one_of(1, 2, 3, 4, 6), s.size()
    rows = state_rows(s, count)
    tokens = int(rows["starts"][-1])
    return {"x": s.rows(s.array(tokens, channels)), "taps": s.rows(s.array(taps, channels)),
            "bias": s.one_of(None, s.array(channels)), "silu": s.one_of(False, True),
            "state": states(s, count, taps - 1, channels), **rows, "y": s.array(tokens, channels),
            "threads": s.threads()}  # fmt: skip


def token_heads(s: Source, *shape: int) -> np.ndarray:
    """Heads of tokens that may be a part of wider ones."""
    gap = s.one_of(0, 0, 5)
    return s.array(shape[0], shape[1], shape[2] + gap)[:, :, : shape[2]]


def gated_delta_rule(s: Source) -> Arguments:
    key_heads, shared, key_width, width, count = s.one_of(1, 2), s.one_of(0, 1, 3), s.width(), s.width(), s.size()
    heads, rows = key_heads * shared, state_rows(s, count)
    tokens = int(rows["starts"][-1])
    decays = s.one_of(None, token_heads(s, tokens, heads, 1), token_heads(s, tokens, heads, key_width))
    return {"query": token_heads(s, tokens, key_heads, key_width), "key": token_heads(s, tokens, key_heads, key_width),
            "value": token_heads(s, tokens, heads, width), "decay": decays,
            "beta": s.one_of(None, token_heads(s, tokens, heads, 1)), "state": states(s, count, heads, key_width, width),
            **rows, "tiled": s.one_of(False, True), "l2_norm": s.one_of(False, True), "scale": 0.25,
            "out": s.array(tokens, heads, width), "threads": s.threads()}  # fmt: skip


def selective_state_update(s: Source) -> Arguments:
    groups, shared, state_width, width, count = s.one_of(1, 2), s.one_of(0, 1, 3), s.width(), s.width(), s.size()
    heads, rows = groups * shared, state_rows(s, count)
    tokens = int(rows["starts"][-1])
    return {"x": token_heads(s, tokens, heads, width), "dt": token_heads(s, tokens, heads, 1), "a": s.array(heads),
            "b": token_heads(s, tokens, groups, state_width), "c": token_heads(s, tokens, groups, state_width),
            "d": s.one_of(None, s.array(heads)), "dt_bias": s.one_of(None, s.array(heads)),
            "state": states(s, count, heads, state_width, width), **rows, "y": s.array(tokens, heads, width),
            "threads": s.threads()}  # fmt: skip


def swiglu(s: Source) -> Arguments:
    rows, width = s.size(), s.width()
    return {"gate": s.rows(s.array(rows, width)), "up": s.rows(s.array(rows, width)), "y": s.array(rows, width),
            "threads": s.threads()}  # fmt: skip


def expert_router(s: Source) -> Arguments:
    groups, in_group = s.one_of(1, 2, 4), s.one_of(1, 2, 5, 16, 17)
    experts, tokens, kept = groups * in_group, s.size(), s.one_of(*range(1, groups + 1))
    used = s.one_of(1, kept * in_group, *range(1, kept * in_group + 1))
    return {"logits": s.rows(s.array(tokens, experts)), "bias": s.one_of(None, s.array(experts)),
            "experts": s.array(tokens, used, dtype=np.int64), "weights": s.array(tokens, used), "used": used,
            "scores": s.one_of(0, 1), "groups": groups, "kept_groups": kept, "group_score": s.one_of(0, 1),
            "normalise": s.one_of(True, False), "scale": 2.5, "eps": s.one_of(1e-20, 0.5), "threads": s.threads()}  # fmt: skip


def mixture_of_experts(s: Source) -> Arguments:
    hidden, tokens, used, count = s.one_of(32, 64), s.size(9), s.size(3), s.one_of(1, 3, 5)

    return {"x": s.rows(s.array(tokens, hidden)), "experts": s.ids(tokens, used, end=count),
            "weights": s.array(tokens, used), "routed": feed_forward(s, hidden, s.one_of(32, 96), count),
            "count": count, "shared": s.one_of(NO_BLOCK, feed_forward(s, hidden, 64)),
            "y": s.array(tokens, hidden), "threads": s.threads()}  # fmt: skip


def cache(s: Source, blocks: int, block_size: int, width: int, dtype: Any = np.float32) -> np.ndarray:
    """A paged cache whose blocks may lie apart."""
    gap = s.one_of(0, 0, 3)
    return s.array(blocks, block_size + gap, 1, width, dtype=dtype)[:, :block_size]


REALS = (np.float32, np.uint16)  # a bfloat16 goes by the integer of its bits


def panel_values(inputs: int, outputs: int) -> int:
    """The length of a packed weight."""
    return -(-outputs // 32) * -(-inputs // 32) * 1024


def columns(s: Source, inputs: int, outputs: int, dtype: Any, count: int = 0) -> np.ndarray:
    """A weight whose values of one input lie together, as it is, NZ, or packed."""
    packed = ("packed",) * (dtype != np.uint8)  # eight-bit floats are not
    form = s.one_of("plain", *packed) if count else s.one_of("plain", "NZ", *packed)
    if form == "packed":
        return s.array(max(count, 1) * panel_values(inputs, outputs), dtype=dtype)
    gap = s.one_of(0, 0, 2)
    if form == "NZ":
        width = s.one_of(1, 8, 16, 32)
        return s.array(-(-outputs // width), inputs + s.one_of(0, 5), width + gap, dtype=dtype)[..., :width]
    return s.array(*(count,) * (count > 0), inputs, outputs + gap, dtype=dtype)[..., :outputs]


def pack_columns(s: Source) -> Arguments:
    inputs, outputs, count = s.size(40), s.one_of(s.size(40), s.size(200)), s.one_of(0, 0, s.size(3))
    dtype = s.one_of(*REALS, np.int8)
    w = columns(s, inputs, outputs, dtype, count)
    while w.ndim == 1:
        w = columns(s, inputs, outputs, dtype, count)
    length = max(count, 1) * panel_values(inputs, outputs) * w.itemsize
    return {"w": w, "inputs": inputs, "outputs": outputs, "count": count, "to": s.array(length, dtype=np.uint8),
            "threads": s.threads()}  # fmt: skip


def mla_prolog(s: Source) -> Arguments:
    real, kind = s.one_of(*REALS), s.one_of(0, 0, 0, 1, 2, 3)
    partial = kind > 0 or s.one_of(True, False)
    full = kind == 2 or (partial and s.one_of(True, False))
    float8 = full and kind != 1 and s.one_of(True, False)
    code = np.uint8 if float8 else np.int8
    real = np.uint16 if kind == 3 else real
    tokens, hidden, width = s.one_of(s.size(), 40, 100), s.one_of(1, 16, 32, 63, 64), s.one_of(15, 16, 32, 48)
    heads, nope, latent = s.one_of(1, 2, 3, 6), s.one_of(0, 1, 8, 16), s.one_of(1, 8, 16, 70)
    nz = bool(kind < 3 and s.one_of(False, True))
    latent = 128 * s.one_of(1, 2) if kind == 3 else 32 * s.one_of(1, 2, 3) if nz else latent
    rope = 32 * s.one_of(1, 2, 3) if nz else 2 * s.one_of(1, 4, 8, 24)

    blocks_of_32 = bool(float8 and hidden % 32 == 0 and width % 32 == 0 and s.one_of(True, False))

    def scales(name: str, rows: int, inputs: int, quantised: bool) -> Arguments:
        return {f"{name}_scale": vector(rows, quantised and not blocks_of_32),
                f"{name}_exponents": s.array(rows, inputs // 32, dtype=np.uint8) if blocks_of_32 else None}  # fmt: skip

    def weight(name: str, inputs: int, outputs: int, quantised: bool) -> Arguments:
        if quantised or s.one_of(True, True, False):
            given = columns(s, inputs, outputs, code if quantised else real), -1
        elif s.one_of(True, False):
            given = panels_of(s, inputs, outputs)[:2]
        else:
            given = s.weight(inputs, outputs)
        return {name: given[0], f"{name}_format": given[1], **scales(name, outputs, inputs, quantised)}

    def vector(length: int, wanted: bool) -> np.ndarray | None:
        return s.array(length) if wanted else None

    def cache_of(width: int, dtype: Any) -> np.ndarray | None:
        rows = cache(s, blocks, block_size, width, dtype)
        return s.one_of(rows, rows, rows[::-1], np.repeat(rows, 2, -1)[..., ::2])

    weights = weight("w_dq", hidden, width, full) | weight("w_uq_qr", width, heads * (nope + rope), partial)
    weights |= weight("w_dkv_kr", hidden, latent + rope, full)
    blocks, block_size = s.size(3), s.size(4)
    slots = s.ids(tokens, end=blocks * block_size, start=-1) if blocks * block_size else np.full(tokens, -1)
    row = latent + 2 * rope + latent // 32 if kind == 3 else latent
    query_type = code if kind == 2 else real
    return {
        "x": s.array(tokens, hidden, dtype=code if full else real), **scales("x", tokens, hidden, full), "float8": bool(float8),
        "partial": bool(partial), "width": width,
        "heads": heads, "nope": nope, "latent": latent, **weights,
        "w_uk": columns(s, nope, latent, real, heads),
        "gamma_cq": s.array(width), "gamma_ckv": s.array(latent), "eps_cq": 1e-5, "eps_ckv": 1e-5,
        "alpha_cq": 1.0, "alpha_ckv": 1.0,
        "sin": s.array(tokens, rope), "cos": s.array(tokens, rope),
        "smooth": vector(width, partial and not blocks_of_32 and s.one_of(True, False)),
        "slots": slots, "kv_cache": cache_of(row, code if kind else real),
        "kr_cache": None if kind == 3 else cache_of(rope, np.int8 if kind == 1 else real), "nz": nz, "cache_scale": kind,
        "ckv_scale": vector(latent if kind == 1 else 1, kind in (1, 2)), "ckr_scale": vector(rope, kind == 1), "clip": 0.8,
        "query": s.array(tokens, heads, latent, dtype=query_type),
        "query_scale": s.array(tokens, heads) if kind == 2 else None, "half_away": bool(s.one_of(False, True)),
        "query_rope": s.array(tokens, heads, rope, dtype=real),
        "query_norm": s.one_of(None, s.array(tokens, width, dtype=code if partial else real)),
        "norm_scale": vector(tokens, partial and not blocks_of_32 and s.one_of(True, False)),
        "norm_exponents": s.one_of(None, s.array(tokens, width // 32, dtype=np.uint8)) if blocks_of_32 else None,
        "threads": s.threads(),
    }  # fmt: skip


def mla_attention(s: Source) -> Arguments:
    tokens, groups = s.size(), s.one_of(1, 1, 2, 3)
    heads, latent, rope = groups * s.one_of(0, 1, 2, 5), groups * s.one_of(0, 1, 8, 16, 20), 2 * groups * s.one_of(0, 1, 4, 8)
    blocks, block_size, sequences, room = 1 + s.size(4), 1 + s.one_of(0, 1, 4, 99), 1 + s.size(2), 1 + s.size(3)
    kv, kr = (s.one_of(np.float32, np.float16, np.uint16, np.int8, *more) for more in ((np.uint8,), ()))
    nz = s.one_of(False, False, True) and not (latent % (32 // np.dtype(kv).itemsize) or rope % (32 // np.dtype(kr).itemsize))
    joined = groups == 1 and not nz and s.one_of(False, False, True)
    latent = 128 * s.one_of(1, 2) if joined else latent
    row, kv = (latent + 2 * rope + latent // 32, s.one_of(np.int8, np.uint8)) if joined else (latent, kv)
    return {
        "query": s.one_of(None, s.array(tokens, heads, latent)), "query_rope": s.array(tokens, heads, rope),
        "kv_cache": cache(s, blocks, block_size, row, kv), "nz": nz,
        "kr_cache": None if joined else cache(s, blocks, block_size, rope, kr),
        "kv_scale": None if joined else s.one_of(None, s.array(latent)),
        "kr_scale": None if joined else s.one_of(None, s.array(rope)), "lse": s.one_of(None, s.array(tokens, heads)),
        "block_table": s.ids(sequences, room, end=blocks), "sequence": s.ids(tokens, end=sequences),
        "lengths": s.ids(tokens, start=1, end=room * block_size + 1), "scale": 0.5, "groups": groups,
        "out": s.array(tokens, heads, latent // groups), "threads": s.threads(), "sinks": s.one_of(None, s.array(heads)),
        "largest": s.one_of(None, s.array(tokens, heads)), "sums": s.one_of(None, s.array(tokens, heads)),
    }  # fmt: skip


def lightning_indexer(s: Source) -> Arguments:
    tokens, heads, width, count = s.size(9), s.one_of(1, 3, 9, 20), s.one_of(1, 4, 16, 20, 132), s.one_of(1, 2, 70)
    blocks, block_size, sequences, room = 1 + s.size(4), 1 + s.one_of(0, 1, 4, 99), 1 + s.size(2), s.size(3)
    dtype = s.one_of(np.float32, np.float16, np.uint16, np.int8, np.int8)
    in_bytes = dtype == np.int8
    width = max(width, 4) if in_bytes else width
    return {
        "query": s.array(tokens, heads, width, dtype=np.int8 if in_bytes else np.float32), "weights": s.array(tokens, heads),
        "keys": cache(s, blocks, block_size, width, dtype), "key_scales": s.array(blocks, block_size) if in_bytes else None,
        "block_table": s.ids(sequences, room, end=blocks), "sequence": s.ids(tokens, end=sequences),
        "visible": s.ids(tokens, end=room * block_size + 1), "ordered": bool(s.one_of(False, True)),
        "selected": s.array(tokens, count, dtype=np.int32), "values": s.one_of(None, s.array(tokens, count)),
        "threads": s.threads(),
    }  # fmt: skip


def tensor_scatter(s: Source) -> Arguments:
    batch, outer, rows, run = s.size(3), s.size(3), s.size(6), s.size(9)
    steps = int(s.rng.integers(rows + 1))

    def bytes_of(length: int) -> np.ndarray:
        order = s.one_of((0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1))
        sizes = (batch, outer, length)
        array = s.array(*(sizes[i] for i in order), run + s.one_of(0, 0, 2), dtype=np.uint8)[..., :run]
        array = array.transpose(*np.argsort(order), 3)
        return array[::-1, :, :: s.one_of(1, -1)] if s.one_of(True, False) else array

    return {"cache": bytes_of(rows), "update": bytes_of(steps), "start": s.array(batch, dtype=np.int64), "axis": 2}


def tensor_scatter_in_place(s: Source) -> Arguments:
    given = tensor_scatter(s)
    kind = s.one_of(np.uint8, np.bool_, np.int8)
    starts = s.one_of(None, given["start"], given["start"].astype(np.int32))
    return {"cache": given["cache"].view(kind), "update": given["update"].view(kind), "starts": starts,
            "axis": s.one_of(2, -2, 1, 3), "mode": s.one_of("circular", "linear")}  # fmt: skip
