"""Model: a tokenizer, a chat template, a decoder and the cache of its keys and values, ready to run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import decodestep
from decodestep._base.checks import require, require_choice, require_ids
from decodestep._base.float_environment import default_floats
from decodestep._base.threads import isa, use_threads
from decodestep.chat.template import until_content
from decodestep.chat.traced_text import runs
from decodestep.chat.user_mark import UserMark, find_user_mark
from decodestep.decoding import cache_file
from decodestep.decoding.config import Config
from decodestep.decoding.decoder import Decoder
from decodestep.decoding.forward import forward
from decodestep.decoding.kv_cache import PAGE, PairedPages
from decodestep.decoding.page_pool import PagePool, new_pool
from decodestep.decoding.sequence import CachedSequence
from decodestep.models.sampling_defaults import default_params
from decodestep.sampling.params import SamplingParams

if TYPE_CHECKING:
    from decodestep.chat.template import ChatTemplate, Conversation
    from decodestep.tokenizers.tokenizer import Tokenizer


class Model:
    """A loaded model, ready to run. Made by `load`.

    Several threads may use a model at once. The contents of the cache save time and never change a result.

    Attributes:
        path: the GGUF file or the folder. It is not read after `load`.
        config: the sizes: vocab_size, context, layers, hidden, heads and others.
        tokenizer: text to token ids and back; `tokenizer.end_token_ids` are the tokens that end a text.
        decoder: runs tokens through the model. `decoder.description` says how, `decoder.cache_dtype` is the type of cached keys
            and values.
        cache: the paged cache of keys and values: `cache.pages` and `cache.page_bytes`, the number and size of its pages;
            `cache.held`, pages held by sequences; `cache.kept`, pages kept for reuse, which `cache.clear()` drops. Of a model
            with recurrent layers `cache.rows` has their states: `count`, `row_bytes`, and `snapshots`, those kept for reuse.
        generation_config: generation_config.json of a folder, for `SamplingParams.from_generation_config`; {} without.
        template: the chat template; `template.text()` is its source.
        threads: of the native kernels in `generate`, `forward` and `logits`, an integer in [1, 256] or None; see `load`.
    """

    path: Path
    config: Config
    tokenizer: Tokenizer
    decoder: Decoder
    cache: PagePool
    generation_config: dict[str, Any]
    template: ChatTemplate
    threads: int | None

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer,
        decoder: Decoder,
        template: ChatTemplate,
        threads: int | None,
        cache_bytes: int | None = None,
        generation_config: Mapping[str, Any] | None = None,
        sampling_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.tokenizer = tokenizer
        self.decoder = decoder
        self.config = decoder.config
        states = decoder.state_layout
        row_bytes = 0 if states is None else states.row_bytes
        self.cache = new_pool(decoder.new_storage, decoder.page_bytes, cache_bytes, decoder.long_after, row_bytes)
        self.threads = threads
        self.generation_config = dict(generation_config or {})
        self.template = template
        self._sampling_defaults = dict(sampling_defaults or {})

    @cached_property
    def default_params(self) -> SamplingParams:
        """What `generate`, the streams and `Engine` take where no params are given.

        `SamplingParams()` with the temperature, top_k, top_p, min_p and repetition_penalty that the checkpoint gives, in a
        folder's generation_config.json or a GGUF file's general.sampling.*; greedy only where do_sample is false there. Params
        that are given replace all of it.

        Raises:
            ModelError: if one of the checkpoint's values is outside its rule.
        """
        return default_params(self.path, self._sampling_defaults)

    def capacity(self, sequences: int = 1) -> int:
        """The largest number of tokens of each of so many sequences, prompt included, that context and cache hold.

        Args:
            sequences: an integer >= 1.
        """
        if self.cache.rows is not None and sequences > self.cache.rows.count:
            return 0
        return min(self.config.context, self.cache.pages // sequences * PAGE)

    def chat_prompt(
        self,
        messages: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: object,
    ) -> str:
        """The text of a conversation, rendered with the model's chat template.

        Equal to the text of `apply_chat_template` of transformers, whose template environment is used, for messages in the form
        that the template reads. Others are brought into it:

            contents as strings or lists of parts {"type": "text", "text": ...}, of which a string has a line each
            the content beside tool_calls None, if the template asks for that, or ""
            the arguments of calls JSON as text, or mappings
            system messages at the beginning of the next user message, if the template has no such role

        The template runs in a separate process, limited to 1 second of processor time and 128 MiB of memory; in this one
        without limits if DECODESTEP_PYTHON is "in-process".

        Args:
            messages: mappings, {"role": ..., "content": ...} with any further keys that the template reads.
            tools: a JSON schema for each function that the model may call. Templates that do not support tools ignore them.
            documents: texts to answer from, {"title", "text"} each; likewise.
            add_generation_prompt: whether the text ends with the start of the assistant's answer.
            continue_final_message: whether the text ends with the content of the last message, for the model to go on with it,
                in place of the start of an answer. White space at its end may be dropped, as by the template.
            **variables: further variables of the template, in addition to bos_token, eos_token, unk_token and pad_token.

        Raises:
            ModelError: if the file has no template, or its template fails, refuses these messages, does not write the last
                content that is to be continued, or is stopped.
            ValueError: for arguments of other types.
        """
        return str.__str__(self._rendered(messages, tools, documents, add_generation_prompt, continue_final_message, variables))

    def chat_ids(
        self,
        messages: Conversation,
        *,
        control_tokens: str = "text",
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: object,
    ) -> list[int]:
        """The token ids of `chat_prompt` with the same arguments, as `generate` uses them for a conversation.

        Args:
            messages: as for `chat_prompt`.
            control_tokens: how a control token spelled in a message, tool or document is read, such as "<|im_end|>".
                "text": as its characters, so that no content can end or begin a message. Only a token of which the template
                wrote
                    every character is a control token; the usual roles and the special tokens count as written by it.
                "parse": as the control token, as in transformers; for trusted contents.
            tools: as for `chat_prompt`.
            documents: as for `chat_prompt`.
            add_generation_prompt: as for `chat_prompt`.
            continue_final_message: as for `chat_prompt`.
            **variables: as for `chat_prompt`.

        Raises:
            ModelError: as `chat_prompt` does.
            ValueError: likewise.
            UnicodeEncodeError: for a lone surrogate.
        """
        require_choice("chat_ids", "control_tokens", control_tokens, ("text", "parse"))
        prompt = self._rendered(messages, tools, documents, add_generation_prompt, continue_final_message, variables)
        if self.cache.rows is not None:
            self.cache.user_mark = self._user_mark
        return self.tokenizer.encode_rendered(str.__str__(prompt)) if control_tokens == "parse" else self._encode(prompt)

    @cached_property
    def _user_mark(self) -> UserMark | None:
        """By which recurrent states are kept where a chat may go on in another way."""
        return find_user_mark(lambda messages: self._encode(self._rendered(messages, None, None, True, False, {})))

    def _encode(self, prompt: str) -> list[int]:
        return self.tokenizer.encode_pieces(self.tokenizer.control_tokens.split(runs(prompt)))

    def _rendered(
        self,
        messages: Conversation,
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
    ) -> str:
        special = {f"{name}_token": self.tokenizer.token(i) for name, i in self.tokenizer.named_ids.items()}
        given = {"add_generation_prompt": add_generation_prompt and not continue_final_message, **variables}
        form = self.template.form(special, tools=tools is not None)
        text = self.template.render(messages, tools, documents, given, special, form)
        return until_content(text, messages[-1].get("content")) if continue_final_message else text

    def logits(self, token_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Teacher-forced logits: float32 (T, V), row t from tokens [0, t].

        Args:
            token_ids: T integers in [0, V), at least one and no more than the context holds.

        Raises:
            ValueError: for an id out of range, an empty or too long sequence.
            CacheFullError: if the cache lacks pages.
        """
        ids = require_ids("logits", "token_ids", self.config.vocab_size, token_ids)
        require(0 < len(ids) <= self.config.context, "logits", "token_ids", f"1 to {self.config.context} token ids", len(ids))
        with CachedSequence(self.cache) as sequence:
            return self.forward([(sequence, ids)], every=True)

    def sequence(self, token_ids: Sequence[int] = (), *, capacity: int | None = None) -> CachedSequence:
        """A new sequence in this model's cache, starting with as much of a prompt as the cache already holds.

            sequence = model.sequence(prompt)
            logits = model.forward([(sequence, prompt[len(sequence) :])])

        Args:
            token_ids: the prompt. Pages of 16 tokens are reused if any sequence of this model, open or closed, began with the
                same tokens; if only the beginning of a page matches, that part is copied. The last token is never reused, so
                that one is left to run. With recurrent layers as much is reused as ends at a snapshot of their state.
            capacity: the number of tokens for which pages are reserved now, so that `forward` cannot run out of them; None to
                take pages on demand.

        Returns:
            A `CachedSequence`.

        Raises:
            ValueError: for ids outside the vocabulary and for a capacity that is not a number of tokens.
            CacheFullError: if the cache has no room for `capacity`.
        """
        ids = require_ids("sequence", "token_ids", self.config.vocab_size, token_ids)
        sequence = CachedSequence(self.cache, capacity)
        sequence.reuse(ids)
        return sequence

    def save_cache(self, path: str | os.PathLike[str], texts: Sequence[Sequence[int]] | None = None) -> int:
        """Writes keys and values of the cache to a file, for `restore_cache` of a later process.

        Args:
            path: of the file, which is replaced as a whole once all has been written, and keeps its permissions; of a link,
                the file to which it leads.
            texts: token ids; what the cache holds of their beginnings is written, in pages of 16 tokens. With recurrent layers
                the states that it keeps there, too. None: all that the cache holds and other sequences may reuse.

        Returns:
            The number of tokens whose keys and values were written.

        Raises:
            ValueError: for ids outside the vocabulary.
            CacheFileError: if the path is that of a folder, a pipe or a device.
            OSError: if the file cannot be written; it is then as it was.
        """
        vocab = self.config.vocab_size
        ids = None if texts is None else [require_ids("save_cache", "texts", vocab, text) for text in texts]
        return cache_file.save(self._cache_of, Path(path), ids)

    def restore_cache(self, path: str | os.PathLike[str]) -> int:
        """Takes the keys and values of a file that `save_cache` wrote into the cache, for texts that begin with its tokens.

        No result changes, to the bit. The file must be whole (SHA-256), and of the same version of this package, instruction
        set, form and weights of the model; and its first page is computed again, which must give the same bits. Do not restore
        a file that others could have written: beyond its first page it decides what the model has read.

        Args:
            path: of the file.

        Returns:
            The number of tokens whose keys and values were read.

        Raises:
            CacheFileError: if the file is another one, or damaged, or of another model, with nothing changed.
            CacheFullError: if the cache is too small for it.
            OSError: if the file cannot be read.
        """
        return cache_file.restore(self._cache_of, Path(path), self._computes)

    @property
    def _cache_of(self) -> cache_file.CacheOf:
        layers = self.decoder.next_tokens
        config = replace(self.config, name="")
        with use_threads(self.threads):
            weights = self.decoder.fingerprint
        hangs_on = (decodestep.__version__, isa(), self.decoder.description, self.decoder.cache_dtype, repr(config), weights)
        key = hashlib.sha256("\0".join(hangs_on).encode()).hexdigest()
        return cache_file.CacheOf(self.cache, key, None if layers is None else (layers.count, self.config.hidden))

    def _computes(self, tokens: Sequence[int], long: bool, number: int) -> bool:
        """Whether the keys and values of a text are those of a page of the cache. long: whether long-rope rotates it."""
        storage, after = self.cache.storage, self.cache.long_after
        storage = storage.model if isinstance(storage, PairedPages) else storage
        if max(tokens) >= self.config.vocab_size or (long and after is None):
            return False
        with CachedSequence(self.cache) as sequence:
            if long and after is not None:
                sequence.expect(after + 1)
            self.forward([(sequence, tokens)])
            pairs = zip(storage.parts(int(sequence.page_numbers[0])), storage.parts(number), strict=True)
            return all(one.tobytes() == other.tobytes() for one, other in pairs)

    def forward(
        self,
        batch: Iterable[tuple[CachedSequence, Sequence[int] | np.ndarray]],
        *,
        every: bool | Sequence[bool] = False,
        wanted: Sequence[bool] | None = None,
        drafted: Sequence[int] | None = None,
    ) -> np.ndarray:
        """Appends new tokens to sequences, all in the same passes over the weights, and returns logits.

            for each (sequence, tokens): append the tokens to the sequence, their keys and values to its pages
            logits of each one's last token, or with `every` of all its new tokens

        Args:
            batch: pairs of a sequence, made by `sequence` or its `fork`, all different, and one or more token ids in [0, V);
                prompts and single tokens may be mixed. More than 512 tokens run in several passes.
            every: whether the logits of all new tokens are returned; or a bool for each sequence.
            wanted: without `every`, for which sequences logits are returned, a bool each; None for all. The logits of a piece
                that ends within a prompt are useless, and cost a fifth of a token of a small model.
            drafted: how many of each sequence's new tokens are drafts, its last ones and not all of them; None for none. Where
                the logits of the last token are wanted, so are those of the drafts and of the token before.
                `CachedSequence.keep` must follow: it drops those that turn out wrong.

        Returns:
            float32 (B, V), a row for each wanted sequence, or with `every` (T, V) for its T new tokens in order. A token's
            logits depend only on its own sequence, to the bit: not on the rest of the batch, on how a prompt is split into
            calls (with long-rope, of a prompt whose length the sequence knows: `CachedSequence.expect`), or on what was reused.

        Raises:
            ValueError: before anything is run, for tokens outside the vocabulary, sequences that are closed, in use or
                repeated, or longer than the context.
            CacheFullError: with no sequence changed, if the cache lacks pages.
        """
        with use_threads(self.threads), default_floats():
            return forward(self.decoder, self.cache, batch, every=every, wanted=wanted, drafted=drafted)
