"""What several tests share: the default model, and small files of the same family made from random numbers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

import fuzz_native

# Another build of the core in place of the installed one, such as one with sanitizers (tests/test_sanitizers.py).
if core := os.environ.get("DECODESTEP_TEST_CORE"):
    sys.modules["decodestep._native"] = fuzz_native.load(core)

from decodestep._base import dispatch

# Where nobody watches, the same examples every time; by hand, new ones.
hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")


# A shell starts jobs in the background with Ctrl-C ignored, and every process of a test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Files with few tests of minutes each.
SLOW = ("test_sanitizers.py", "test_isa.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts them first, so that of several processes none is left with them at the end."""
    items.sort(key=lambda item: item.path.name not in SLOW)


@pytest.fixture(autouse=True, scope="session")
def _more_threads_than_cores() -> Iterator[None]:
    """Tests that name a number of threads get it, on a machine with few cores too."""
    patch = pytest.MonkeyPatch()
    patch.setattr(dispatch, "thread_limit", lambda: max(dispatch.default_threads(), 8))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """Threads that wait for each other in loops take most of the time of small models."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model() -> Any:
    """The default model; fetched once where it is not on the machine yet."""
    import decodestep as ds

    return ds.load()


@pytest.fixture(scope="session")
def model_path(model: Any) -> Path:
    return Path(model.path)


class Passes:
    """The forward passes of `generate`, counted; `at(n, action)` calls an action in the n-th."""

    def __init__(self) -> None:
        self.count = 0
        self._actions: dict[int, Callable[[], object]] = {}

    def at(self, number: int, action: Callable[[], object]) -> None:
        self._actions[number] = action

    def begin(self) -> None:
        self.count += 1
        self._actions.get(self.count, lambda: None)()


@pytest.fixture
def passes(model: Any, monkeypatch: pytest.MonkeyPatch) -> Passes:
    counted, forward = Passes(), model.decoder.logits
    model.cache.clear()  # what other tests have left there would save passes

    def logits(*arguments: Any, **options: Any) -> np.ndarray:
        counted.begin()
        return forward(*arguments, **options)

    monkeypatch.setattr(model.decoder, "logits", logits)
    return counted


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)


TinyFile = Callable[..., Path]


@pytest.fixture
def tiny_file(tmp_path: Path) -> TinyFile:
    """Writes a random Llama-family GGUF of two layers; keyword arguments override its metadata and leave out tensors."""
    import gguf

    def write(
        *,
        heads: int = 6,
        groups: int = 2,
        head_dim: int = 16,
        hidden: int = 96,
        kind: str = "F32",
        tied: bool = True,
        context: int = 64,
        without: tuple[str, ...] = (),
        **metadata: Any,
    ) -> Path:
        path = tmp_path / f"tiny-{kind}.gguf"
        rng = np.random.default_rng(5)
        writer = gguf.GGUFWriter(path, metadata.pop("architecture", "llama"))
        feed_forward, vocab = 256 if kind.endswith("_K") or kind == "IQ4_XS" else 128, 300
        writer.add_embedding_length(hidden)
        writer.add_block_count(2)
        writer.add_context_length(context)
        writer.add_feed_forward_length(feed_forward)
        writer.add_head_count(heads)
        writer.add_head_count_kv(groups)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_rope_dimension_count(head_dim)
        writer.add_rope_freq_base(10000.0)
        writer.add_layer_norm_rms_eps(1e-5)
        byte_tokens = [chr(b) if 33 <= b <= 126 else f"<{b}>" for b in range(vocab - 3)]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(metadata.pop("pre", "gpt-2"))
        writer.add_token_list([*byte_tokens, "<bos>", "<eos>", "<pad>"])
        writer.add_token_types([1] * (vocab - 3) + [3] * 3)
        writer.add_token_merges(["a b", "ab c"][:0])
        writer.add_bos_token_id(vocab - 3)
        writer.add_eos_token_id(vocab - 2)
        kinds = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float64}
        for key, value in metadata.items():
            writer.kv_data[0].pop(key, None)
            kinds.get(type(value), writer.add_array)(key, value)
        queries, keys = heads * head_dim, groups * head_dim
        shapes: dict[str, tuple[int, ...]] = {"token_embd": (vocab, hidden), "output_norm": (hidden,)}
        if not tied:
            shapes["output"] = (vocab, hidden)
        for i in range(2):
            shapes |= {
                f"blk.{i}.attn_norm": (hidden,),
                f"blk.{i}.ffn_norm": (hidden,),
                f"blk.{i}.attn_q": (queries, hidden),
                f"blk.{i}.attn_k": (keys, hidden),
                f"blk.{i}.attn_v": (keys, hidden),
                f"blk.{i}.attn_output": (hidden, queries),
                f"blk.{i}.ffn_gate": (feed_forward, hidden),
                f"blk.{i}.ffn_up": (feed_forward, hidden),
                f"blk.{i}.ffn_down": (hidden, feed_forward),
            }
        type_ = gguf.GGMLQuantizationType[kind]
        for name, shape in shapes.items():
            if name in without:
                continue
            values = rng.standard_normal(shape).astype(np.float32) * (1.0 if len(shape) == 1 else 0.2)
            if len(shape) == 1 or type_ == gguf.GGMLQuantizationType.F32:
                writer.add_tensor(f"{name}.weight", values)
            elif type_ == gguf.GGMLQuantizationType.F16:
                writer.add_tensor(f"{name}.weight", values.astype(np.float16))
            elif kind.endswith("_K") or kind in ("IQ4_NL", "IQ4_XS", "MXFP4"):  # not written by the package: any bytes
                block, size = gguf.GGML_QUANT_SIZES[type_]
                rows = rng.integers(0, 256, (shape[0], shape[1] // block, size), np.uint8)
                tail = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}.get(kind, 0)  # where small scales stand
                for at in (tail, tail + 2)[: 2 if kind in ("Q2_K", "Q4_K", "Q5_K") else 1]:
                    rows[..., at : at + 2] = np.frombuffer(np.float16(2e-3 if kind == "IQ4_NL" else 2e-4).tobytes(), np.uint8)
                if kind == "MXFP4":
                    rows[..., 0] = 121
                writer.add_tensor(f"{name}.weight", rows.reshape(shape[0], -1), raw_dtype=type_)
            else:
                writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, type_), raw_dtype=type_)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write
