"""lm-evaluation-harness: `decodestep` as a model, to measure the accuracy of a file in any supported format.

    python -m decodestep.integrations.lm_eval run --model decodestep --model_args pretrained=model.gguf --tasks hellaswag

or, in Python, import this module and pass `model="decodestep"` to `lm_eval.simple_evaluate`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from decodestep._base.array_api import log_softmax, namespace
from decodestep._base.checks import Phrase, refuse, require
from decodestep._base.extras import extra
from decodestep.generation import generate
from decodestep.models import Model, load
from decodestep.random import sample_seed
from decodestep.sampling.params import SamplingParams

with extra("lm-eval"):
    from lm_eval import utils
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.config.evaluate_config import EvaluatorConfig
    from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text

_OP = "lm_eval"
_LOG = logging.getLogger("decodestep.integrations.lm_eval")  # __name__ is __main__ where this is the program
# Fields of a task's generation_kwargs with the same meaning in SamplingParams.
_FIELDS = frozenset({"do_sample", "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "seed"})
_UNSET_DEVICE = EvaluatorConfig().device  # what the harness's command line passes without --device: "cuda:0"
_HERE = "THE MESSAGE GOES ON HERE "  # appended to a message to find its end in the rendered template


@register_model("decodestep")
class DecodestepLM(TemplateLM):  # type: ignore[misc]
    """A model of `decodestep.load` for the harness: requests, windows and truncation as in its transformers backend.

    Log-likelihoods are sums of float64 logs of the float32 logits' softmax.

    Args:
        pretrained: a GGUF file, a folder or a name, or a `Model`; None for the default model.
        dtype: as in `load`.
        threads: as in `load`.
        max_length: tokens of context and continuation together; None for the model's context, but at most 2048, because the
            cost of a window is quadratic.
        max_gen_toks: the length of a generated text if the task gives none.
        batch_size: how many texts are generated at once; does not affect results.
        seed: for sampled texts; text i of a call uses `random.sample_seed(seed, i)`.
        device: None or "cpu"; "cuda:0", the default of the harness's command line, counts as None.

    Raises:
        ValueError: for unknown generation_kwargs, and for a continuation that is longer than max_length.
    """

    def __init__(
        self,
        pretrained: str | Model | None = None,
        *,
        dtype: str = "auto",
        threads: int | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        batch_size: int | str = 8,
        seed: int = 0,
        device: str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        require(device in (None, "cpu", _UNSET_DEVICE), _OP, "device", "None or 'cpu'", device)
        require(str(batch_size).isdecimal() and int(batch_size) >= 1, _OP, "batch_size", "an integer >= 1", batch_size)
        if isinstance(pretrained, Model):
            self.model = pretrained
        else:
            self.model = load(*[] if pretrained is None else [pretrained], dtype=dtype, threads=threads)
        self.max_length = min(self.model.config.context, 2048) if max_length is None else int(max_length)
        context = self.model.config.context
        require(2 <= self.max_length <= context, _OP, "max_length", f"in [2, {context}]", self.max_length)
        self.max_gen_toks, self.batch_size, self.seed = int(max_gen_toks), int(batch_size), int(seed)

    @property
    def eot_token_id(self) -> int:
        token: int | None = self.model.tokenizer.eos_token_id
        if token is None:
            refuse(_OP, "pretrained", "a model with an end token", str(self.model.path))
        return token

    @property
    def prefix_token_id(self) -> int:
        first: int | None = self.model.tokenizer.bos_token_id
        return self.eot_token_id if first is None else first

    @property
    def tokenizer_name(self) -> str:
        return str(self.model.path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """The ids of a text, with the special tokens unless the text begins with them or add_special_tokens is False."""
        tokenizer = self.model.tokenizer
        bare: list[int] = tokenizer.encode_rendered(string)
        first = tokenizer.bos_token_id
        if add_special_tokens is False:
            added = tokenizer.add_bos and bare[:1] == [first] and not string.startswith(tokenizer.token(first))
            return bare[1:] if added else bare
        spelled = first is not None and string.startswith(tokenizer.token(first))
        return bare if spelled else tokenizer.encode(string)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: object
    ) -> list[tuple[float, bool]]:
        results = []
        for key, context, continuation in requests:
            result = self._score(context, continuation)
            results.append(result)
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, result)
        return results

    def _score(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        """The log-probability of the continuation, and whether each of its tokens is the most likely one."""
        rule = f"of 1 to {self.max_length} tokens"
        require(0 < len(continuation) <= self.max_length, _OP, "continuation", rule, len(continuation))
        require(
            len(context) > 0, _OP, "context", "of at least one token, or the empty text", Phrase("whitespace without a token")
        )
        ids = _keep_last([*context, *continuation], self.max_length + 1)[:-1]
        first = len(ids) - len(continuation)  # whose logits are needed
        with self.model.sequence() as sequence:
            sequence.expect(len(ids))
            sequence.reuse(ids[: first + 1])
            if len(sequence) < first:
                self.model.forward([(sequence, ids[len(sequence) : first])])
            logits = self.model.forward([(sequence, ids[len(sequence) :])], every=True)
        return float(_log_probabilities(logits, continuation).sum()), bool((logits.argmax(axis=-1) == continuation).all())

    def loglikelihood_rolling(self, requests: Iterable[Any], disable_tqdm: bool = False) -> list[float]:
        results = []
        for request in requests:
            (string,) = request.args
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(string),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            result = sum(self._score(*utils.make_disjoint_window(window))[0] for window in windows)
            results.append(result)
            self.cache_hook.add_partial("loglikelihood_rolling", (string,), result)
        return results

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        asked = [self._generation(dict(request.args[1]), index) for index, request in enumerate(requests)]
        prompts = []
        for request, (params, _) in zip(requests, asked, strict=True):
            room = self.max_length - int(params.max_new_tokens or 0)
            require(room > 0, _OP, "max_gen_toks", f"below max_length {self.max_length}", params.max_new_tokens)
            prompts.append(_keep_last(self.tok_encode(request.args[0]), room))
        results = []
        for start in range(0, len(prompts), self.batch_size):
            stop = start + self.batch_size
            texts = generate(self.model, prompts[start:stop], [params for params, _ in asked[start:stop]])
            for request, (_, until), text in zip(requests[start:stop], asked[start:stop], texts, strict=True):
                if text.error is not None:
                    raise text.error
                results.append(postprocess_generated_text(self._without_prefix_space(text.text), until, None))
                self.cache_hook.add_partial("generate_until", request.args, results[-1])
        return results

    @cached_property
    def _control_tokens(self) -> dict[str, int]:
        tokenizer = self.model.tokenizer
        return {tokenizer.token(i): i for i in (*tokenizer.special, self.eot_token_id)}

    @cached_property
    def _begins_with_a_space(self) -> bool:
        """Whether the tokenizer prepends a space to a text."""
        tokenizer = self.model.tokenizer
        return tokenizer.decode(tokenizer.encode_rendered("a")) == " a"

    def _without_prefix_space(self, text: str) -> str:
        """A continuation as in the harness: decoded on its own, which removes the space that the tokenizer prepends."""
        return text.removeprefix(" ") if self._begins_with_a_space else text

    def _generation(self, given: dict[str, Any], index: int) -> tuple[SamplingParams, list[str]]:
        """A request's generation_kwargs as parameters, and its stop strings."""
        kwargs = normalize_gen_kwargs(given, self.max_gen_toks)
        control = self._control_tokens
        until = handle_stop_sequences(kwargs.pop("until", None), eos=self.model.tokenizer.token(self.eot_token_id))
        fields: dict[str, Any] = {"max_new_tokens": int(kwargs.pop("max_gen_toks"))}
        # A control token does not appear in the text that it ends.
        fields["stop_token_ids"] = tuple(dict.fromkeys(control[text] for text in until if text in control))
        fields["stop_strings"] = tuple(dict.fromkeys(text for text in until if text and text not in control))
        unknown = sorted(kwargs.keys() - _FIELDS)
        require(
            not unknown,
            _OP,
            "generation_kwargs",
            f"until, a length and {', '.join(sorted(_FIELDS))}",
            Phrase(", ".join(unknown)),
        )
        fields |= kwargs
        if fields.setdefault("do_sample", False):
            fields.setdefault("seed", sample_seed(self.seed, index))
        return SamplingParams(**fields), until

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a conversation; without add_generation_prompt it ends in its last message, to be continued."""
        if add_generation_prompt:
            return self.model.chat_prompt(chat_history)
        *before, last = chat_history
        messages = [*before, {**last, "content": last["content"] + _HERE}]
        prompt, found, after = self.model.chat_prompt(messages, add_generation_prompt=False).rpartition(_HERE.strip())
        if not found:
            refuse(_OP, "chat_history", "of messages that the chat template writes verbatim", last["content"])
        # A template that trims messages has trimmed the space of the mark, and would have trimmed those of the message.
        return prompt if after.startswith(_HERE[-1]) else prompt.rstrip()

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The name of the template, which the harness records."""
        return "" if chat_template is False else "the model's own"


def _keep_last(tokens: list[int], room: int) -> list[int]:
    """The last tokens, as many as there is room for. That others are lost is logged, as by the harness's own backends."""
    if len(tokens) > room:
        _LOG.warning("max_length leaves room for the last %d of %d tokens: the others are left out", room, len(tokens))
    return tokens[-room:]


def _log_probabilities(logits: np.ndarray, tokens: list[int]) -> np.ndarray:
    """That of each row's token, float64. One row at a time: a window of 2048 tokens has gigabytes of logits."""
    xp = namespace(logits)
    return np.array([log_softmax(xp, row.astype(np.float64))[token] for row, token in zip(logits, tokens, strict=True)])


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
