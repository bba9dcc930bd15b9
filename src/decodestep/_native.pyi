"""The native core. The operators' `cpu.py` call it, and the few modules that own its objects.

Every function checks its arguments before it writes. It writes to the arrays `y`, `out` and to those that its contract in
csrc/bindings names, and returns None where nothing else is said.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Panels = tuple[NDArray[np.uint8], int, int]  # data, format, outputs
_FeedForward = tuple[Sequence[_Panels], int, Sequence[NDArray[np.float32] | None]]  # gate if any, up, down; activation; biases

def isa() -> str:
    """The name of the tier in use."""

def tiers() -> str:
    """The names of the tiers that this core is built for and this machine has, separated by ", "."""

def compiler() -> str:
    """The name and the version of the compiler."""

def pin_workers(cpus: Sequence[int]) -> bool:
    """From now on, worker n of the pool, from 1, runs on cpus[n % len(cpus)] alone. False if the system does not let it."""

class DefaultFloats:
    """The calling thread computes in the default floating-point environment within a `with` block, which it also ends."""

    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *raised: object) -> None: ...

def formats() -> list[tuple[str, int, int, int, tuple[int, ...], bool]]:
    """Of each weight format, by its number: its name; the values and the bytes of a block; the bytes of 32 outputs' blocks in
    panels; the bytes of a block where its float16 numbers are; whether values are rounded to it.
    """

# Matrix products. A format is a `Format` of weights/packed.py; x is [rows, inputs], y [rows, outputs].

def linear(x: NDArray[np.float32], w: NDArray[np.uint8], format: int, y: NDArray[np.float32], threads: int) -> None: ...
def linear_panels(
    x: NDArray[np.float32], panels: NDArray[np.uint8], format: int, y: NDArray[np.float32], threads: int
) -> None: ...
def grouped_products(
    x: NDArray[np.float32],
    w: NDArray[np.uint8],
    format: int,
    groups: NDArray[np.int64],
    y: NDArray[np.float32],
    threads: int,
) -> None: ...
def head_products(
    x: NDArray[np.float32],
    w: NDArray[np.uint8],
    format: int,
    inputs: int,
    first: int,
    count: int,
    transposed: bool,
    y: NDArray[np.float32],
    threads: int,
) -> None: ...
def gather_rows(
    w: NDArray[np.uint8], format: int, ids: NDArray[np.int64], values: NDArray[np.float32], threads: int
) -> None: ...
def gather_panels(
    panels: NDArray[np.uint8],
    format: int,
    outputs: int,
    ids: NDArray[np.int64],
    values: NDArray[np.float32],
    threads: int,
) -> None: ...
def pack_linear_panels(
    w: NDArray[np.uint8], format: int, inputs: int, panels: NDArray[np.uint8], panel_format: int, threads: int
) -> None: ...
def unpack_linear_panels(
    panels: NDArray[np.uint8],
    format: int,
    inputs: int,
    outputs: int,
    ids: NDArray[np.int64],
    rows: NDArray[np.uint8],
    threads: int,
) -> None: ...
def pack_columns(w: NDArray[Any], inputs: int, outputs: int, count: int, to: NDArray[np.uint8], threads: int) -> None: ...
def quantise_blocks(values: NDArray[np.float32], format: int, blocks: NDArray[np.uint8], threads: int) -> None: ...
def checksum_bytes(memory: NDArray[np.uint8], checksums: NDArray[np.uint64], threads: int) -> None: ...
def read_checked_bytes(
    file: int, at: int, memory: NDArray[np.uint8], checksums: NDArray[np.uint64], threads: int
) -> int: ...  # 0, an errno, or -1: the file ends early
def read_file_rows(
    parts: NDArray[np.int64],
    format: int,
    inputs: int,
    memory: NDArray[np.uint8] | None,
    panels: NDArray[np.uint8] | None,
    panel_format: int,
    threads: int,
) -> tuple[int, int, int] | None:
    """None, or the first problem: the number of the part, the row whose scales are not finite or -1, the system's error."""

# A layer's other operators.

def rms_norm(
    x: NDArray[np.float32], gamma: NDArray[np.float32], eps: float, alpha: float, y: NDArray[np.float32], threads: int
) -> None: ...
def swiglu(gate: NDArray[np.float32], up: NDArray[np.float32], y: NDArray[np.float32], threads: int) -> None: ...
def causal_conv1d(
    x: NDArray[np.float32],
    taps: NDArray[np.float32],
    bias: NDArray[np.float32] | None,
    silu: bool,
    state: NDArray[np.float32],
    starts: NDArray[np.int64],
    read: NDArray[np.int64],
    written: NDArray[np.int64],
    y: NDArray[np.float32],
    threads: int,
) -> None:
    """Writes to `state` too."""

def gated_delta_rule(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    value: NDArray[np.float32],
    decay: NDArray[np.float32] | None,
    beta: NDArray[np.float32] | None,
    state: NDArray[np.float32],
    starts: NDArray[np.int64],
    read: NDArray[np.int64],
    written: NDArray[np.int64],
    tiled: bool,
    l2_norm: bool,
    scale: float,
    out: NDArray[np.float32],
    threads: int,
) -> None:
    """Writes to `state` too."""

def selective_state_update(
    x: NDArray[np.float32],
    dt: NDArray[np.float32],
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    c: NDArray[np.float32],
    d: NDArray[np.float32] | None,
    dt_bias: NDArray[np.float32] | None,
    state: NDArray[np.float32],
    starts: NDArray[np.int64],
    read: NDArray[np.int64],
    written: NDArray[np.int64],
    y: NDArray[np.float32],
    threads: int,
) -> None:
    """Writes to `state` too."""

def expert_router(
    logits: NDArray[np.float32],
    bias: NDArray[np.float32] | None,
    experts: NDArray[np.int64],
    weights: NDArray[np.float32],
    used: int,
    scores: int,
    groups: int,
    kept_groups: int,
    group_score: int,
    normalise: bool,
    scale: float,
    eps: float,
    threads: int,
) -> None: ...
def mixture_of_experts(
    x: NDArray[np.float32],
    experts: NDArray[np.int64],
    weights: NDArray[np.float32],
    routed: _FeedForward,
    count: int,
    shared: _FeedForward,
    y: NDArray[np.float32],
    threads: int,
) -> None: ...
def mla_attention(
    query: NDArray[np.float32] | None,
    query_rope: NDArray[np.float32],
    kv_cache: NDArray[Any],
    kr_cache: NDArray[Any] | None,  # None: kv_cache holds both, quantised by tiles
    nz: bool,
    kv_scale: NDArray[np.float32] | None,
    kr_scale: NDArray[np.float32] | None,
    block_table: NDArray[np.int64],
    sequence: NDArray[np.int64],
    lengths: NDArray[np.int64],
    scale: float,
    groups: int,
    out: NDArray[np.float32],
    lse: NDArray[np.float32] | None,
    threads: int,
    sinks: NDArray[np.float32] | None = None,
    largest: NDArray[np.float32] | None = None,
    sums: NDArray[np.float32] | None = None,
) -> None: ...
def lightning_indexer(
    query: NDArray[Any],
    weights: NDArray[np.float32],
    keys: NDArray[Any],
    key_scales: NDArray[np.float32] | None,
    block_table: NDArray[np.int64],
    sequence: NDArray[np.int64],
    visible: NDArray[np.int64],
    ordered: bool,
    selected: NDArray[np.int32],
    values: NDArray[np.float32] | None,
    threads: int,
) -> None: ...
def mla_prolog(**kwargs: Any) -> None: ...
def tensor_scatter(cache: NDArray[Any], update: NDArray[Any], start: NDArray[np.int64], axis: int) -> None: ...
def tensor_scatter_in_place(cache: object, update: object, starts: object, axis: object, mode: object) -> Any: ...

# A step of a decoder.

STEP_PARTS: tuple[str, ...]  # the names of the rows of `costs`, which receive seconds and the number of stages

class Decoder:
    def __init__(self, **kwargs: Any) -> None: ...

def decoder_forward(
    decoder: Decoder,
    ids: NDArray[np.int64],
    sequence: NDArray[np.int64],
    positions: NDArray[np.int64],
    sin: NDArray[np.float32],
    cos: NDArray[np.float32],
    keys: NDArray[Any],
    values: NDArray[Any],
    half: bool,
    page_table: NDArray[np.int64],
    wanted: NDArray[np.int64],
    logits: NDArray[np.float32],
    threads: int,
    costs: NDArray[np.float64] | None = None,
    hidden: NDArray[np.float32] | None = None,
    layer_inputs: NDArray[np.float32] | None = None,
    states: NDArray[np.float32] | None = None,
    slots: NDArray[np.int64] | None = None,
    into: NDArray[np.int64] | None = None,
    index: NDArray[Any] | None = None,
    kept: NDArray[np.float32] | None = None,
    kept_rows: NDArray[np.int64] | None = None,
) -> None: ...
def replay_states(
    decoder: Decoder,
    kept: tuple[NDArray[np.float32], ...],
    states: NDArray[np.float32],
    slots: NDArray[np.int64],
    into: NDArray[np.int64],
    threads: int,
) -> None: ...

# Sampling.

class History:
    """The tokens of a row, and indexes over them that grow and shrink with each token; `tokens` starts with the prompt."""

    def __init__(self, prompt_ids: list[int]) -> None: ...
    def __len__(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def prompt_length(self) -> int: ...
    @property
    def highest(self) -> int: ...  # the highest id, -1 if there is no token

def append_token(history: History, token: int) -> None: ...
def truncate_history(history: History, length: int) -> None: ...  # keeps the first tokens, the prompt at least
def token_ids(history: History) -> NDArray[np.int64]: ...
def tally(history: History, skipped: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The distinct tokens after the first `skipped`, and their counts."""

def followers(history: History, n: int) -> NDArray[np.int64]: ...

class SequenceEndings:
    """Sequences of tokens, indexed by the tokens before their last.

    tokens: the sequences one after the other, of `lengths` tokens each, >= 1; of equal ones the first counts.
    """

    def __init__(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], values: NDArray[np.float32] | None) -> None: ...

def endings(history: History, sequences: SequenceEndings) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The distinct tokens that complete sequences after the history, and the sums of these sequences' values."""

def continuations(
    history: History, shortest: int, longest: int, breakers: NDArray[np.int64], range: int
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The distinct tokens that would continue a repetition, and the length of the longest that each continues."""

class Row:
    """A row that lives from one decode step to the next.

    parts: in their order, tuples or lists of steps, steps of steps.py that depend on the history, and callables that take the
    history and return steps. ends, stops: ids that end the row as "eos" or "stop"; limit: the length of what is generated.
    """

    ended: bool
    def __init__(
        self,
        vocab: int,
        history: History,
        parts: list[Any],
        greedy: bool,
        seed: int,
        top_logprobs: int | None,
        ends: list[int],
        stops: list[int],
        limit: int | None,
    ) -> None: ...

def decode_step(
    logits: np.ndarray,
    steps: Sequence[Any],
    greedy: object,
    seed: object,
    position: object,
    top_logprobs: object,
    need_processed: bool,
    threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32] | None, Sequence[Any] | None]:
    """Tokens, processed scores, log-probabilities per row. greedy to top_logprobs: a value for all rows, or a list."""

def step_rows(
    logits: np.ndarray, rows: list[Row], threads: int, places: list[int] | None = None
) -> tuple[NDArray[np.int64], bytes | None, Sequence[Any] | None]:
    """Tokens, end codes if a row has ended, log-probabilities per row.

    places: which row of the logits each row reads; None: its own.
    """

def accept_tokens(rows: list[Row], tokens: list[int], vocab: int) -> bytes | None:
    """Takes tokens that were drawn elsewhere; returns end codes if a row has ended."""

def apply_top_k_top_p(
    logits: NDArray[Any],
    dtype: int,
    k: NDArray[np.int32] | None,
    p: NDArray[np.float32] | None,
    out: NDArray[Any],
    threads: int,
) -> None: ...
def top_k_top_p_sample(
    logits: NDArray[Any],
    dtype: int,
    k: NDArray[np.int32],
    p: NDArray[np.float32],
    m: NDArray[np.float32] | None,
    largest_k: int,
    input_is_logits: bool,
    kernel_exact: bool,
    guess: int,
    q: NDArray[np.float32] | None,
    seed: NDArray[np.uint64] | None,
    position: NDArray[np.uint32] | None,
    eps: float,
    chosen: NDArray[np.int64] | None,
    masked: NDArray[np.float32] | None,
    ids: NDArray[np.int64] | None,
    values: NDArray[np.float32] | None,
    threads: int,
) -> None: ...

# Noise of (seed, position, token), arrays of equal length.

def noise_bits(
    seed: NDArray[np.uint64], position: NDArray[np.uint32], token: NDArray[np.uint32], out: NDArray[np.uint32]
) -> None: ...
def uniform(
    seed: NDArray[np.uint64], position: NDArray[np.uint32], token: NDArray[np.uint32], out: NDArray[np.float32]
) -> None: ...
def exponential(
    seed: NDArray[np.uint64], position: NDArray[np.uint32], token: NDArray[np.uint32], out: NDArray[np.float32]
) -> None: ...
def gumbel(
    seed: NDArray[np.uint64], position: NDArray[np.uint32], token: NDArray[np.uint32], out: NDArray[np.float32]
) -> None: ...
def set_onnxruntime_registrar(address: int | None, /) -> int:
    """Sets the function that onnxruntime calls when it loads the extension; returns one that destroys a kernel."""
