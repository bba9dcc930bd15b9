"""vLLM: draws requests as rows of `Sampler`, for fields that vLLM lacks and for results that do not depend on the batch.

    LLM(model, logits_processors=["decodestep.integrations.vllm:Processor"])       # vllm serve --logits-processors ...
    SamplingParams(temperature=0.8, top_p=0.9, seed=7, extra_args={"decodestep": {"dry_multiplier": 0.8, "top_n_sigma": 1.5}})

Over HTTP: {"vllm_xargs": {"decodestep": "{\"dry_multiplier\": 0.8}"}}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from decodestep._base.checks import require
from decodestep._base.extras import extra
from decodestep.integrations.host_params import KEY, host_params, in_vocabulary
from decodestep.integrations.host_row import HostRow
from decodestep.random import sample_seed
from decodestep.sampling.params import SamplingParams

if TYPE_CHECKING:
    from vllm import SamplingParams as VllmParams
    from vllm.config import VllmConfig
    from vllm.v1.sample.logits_processor import BatchUpdate

with extra("vllm"):
    import torch
    from vllm.logger import init_logger
    from vllm.v1.sample.logits_processor import LogitsProcessor as BatchProcessor
    from vllm.v1.sample.logits_processor.builtin import process_dict_updates
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as StagedProcessor

_OP = "decodestep.integrations.vllm"
_GREEDY = 1e-5  # vLLM treats temperatures below this as 0
# Fields of a request that vLLM would apply after this processor, or that would change the draw.
_AFTER = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "watermarking": None}

log = init_logger("vllm.decodestep")


def convert_params(sampling_params: VllmParams) -> SamplingParams | None:
    """The params of a vLLM request; None for a request without extra_args["decodestep"].

    temperature, top_p, top_k, min_p and seed are the request's own; extra_args["decodestep"] is a mapping of fields in
    `host_params.FIELDS`, or its JSON. vLLM's penalties and watermarks must have their defaults; the same penalties are among
    those fields. Raises ValueError for a request that cannot be served.
    """
    given = (sampling_params.extra_args or {}).get(KEY)
    if given is None:
        return None
    for name, default in _AFTER.items():
        value = getattr(sampling_params, name, default)
        where = f"left at its default {default!r} beside extra_args[{KEY!r}]" + ", which takes it" * (default is not None)
        require(value == default or (default is None and not value), _OP, name, where, value)
    seed = sampling_params.seed
    own = {
        "temperature": 0.0 if sampling_params.temperature < _GREEDY else sampling_params.temperature,
        "top_p": sampling_params.top_p,
        "top_k": max(sampling_params.top_k, 0),
        "min_p": sampling_params.min_p,
        "seed": None if seed is None else seed % 2**64,
    }
    return host_params(_OP, given, own)


class Processor(BatchProcessor, StagedProcessor):  # type: ignore[misc]
    """A logits processor for both of vLLM's interfaces: batch updates and the model runner's staged requests.

    A request with "decodestep" in its extra_args is drawn here, which depends only on its logits, params, seed and tokens. All
    other logits of its row become -inf, so that vLLM chooses the drawn token whatever follows. vLLM's biases, bad words,
    allowed tokens, minimum lengths and grammars are applied before. Other requests are not affected.

    Without a seed, a request gets the next one of a sequence that starts from the model's `seed`, the same in every worker.
    With drafts (speculative decoding, in the staged interface) tokens are the same as without.
    If a row has no token left, or its logits cannot be read, vLLM draws it and the reason is logged: a processor cannot end a
    request.
    """

    @classmethod
    def validate_params(cls, sampling_params: VllmParams) -> None:
        """Raises ValueError as `convert_params` does, before vLLM admits the request."""
        convert_params(sampling_params)

    def __init__(self, vllm_config: VllmConfig, device_or_states: object, is_pin_memory: bool | None = None) -> None:
        """vLLM passes (config, device, is_pin_memory) for batch updates and (config, req_states) for staged requests."""
        self._states = None if is_pin_memory is not None else device_or_states
        self._seed = int(getattr(getattr(vllm_config, "model_config", None), "seed", None) or 0) % 2**64
        self._admitted = 0
        self._requests: dict[int, _Request] = {}  # by batch index or slot

    # Batch updates

    def is_argmax_invariant(self) -> bool:
        """False: a greedy request may have penalties."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._requests, batch_update, self._new_request)

    # Staged requests

    def add_request(self, req_idx: int, sampling_params: VllmParams) -> bool:
        request = self._new_request(sampling_params, None, None)
        self._requests.pop(req_idx, None)
        if request is not None:
            self._requests[req_idx] = request
        return request is not None

    # Both

    def apply(self, logits: torch.Tensor, ctx: object = None) -> torch.Tensor:
        """Draws the tokens of the requests' rows, in place. ctx: the layout of the batch, for staged requests."""
        if not self._requests:
            return logits
        work = self._staged_rows(ctx) if ctx is not None else self._batch_rows()
        if not work:
            return logits
        rows = [row for row, _, _ in work]
        values = logits[rows].to("cpu", torch.float32).numpy()
        drawn = [request.draw(tokens, row) for (_, request, tokens), row in zip(work, values, strict=True)]
        served = [(row, token) for row, token in zip(rows, drawn, strict=True) if token is not None]
        if served:
            index = torch.tensor(served, device=logits.device)
            logits[index[:, 0]] = -torch.inf
            logits[index[:, 0], index[:, 1]] = 0.0
        return logits

    def _new_request(self, sampling_params: VllmParams, prompt: list[int] | None, output: list[int] | None) -> _Request | None:
        params = convert_params(sampling_params)
        if params is None:
            return None
        seed = params.seed if params.seed is not None else sample_seed(self._seed, self._admitted)
        self._admitted += 1
        return _Request(params, seed, prompt or [], output)

    def _batch_rows(self) -> list[tuple[int, _Request, Sequence[int]]]:
        return [(index, request, request.output or ()) for index, request in sorted(self._requests.items())]

    def _staged_rows(self, ctx: Any) -> list[tuple[int, _Request, Sequence[int]]]:
        """The rows of this processor's requests, each with its tokens after the prompt."""
        work: list[tuple[int, _Request, Sequence[int]]] = []
        states: Any = self._states
        columns = (ctx.expanded_idx_mapping, ctx.expanded_local_pos, ctx.pos, ctx.input_ids)
        layout = torch.stack([column.to(torch.int64) for column in columns]).tolist()
        before: list[int] = []
        for row, (slot, local, position, token) in enumerate(zip(*layout, strict=True)):
            request = self._requests.get(slot)
            if request is None or position + 1 < states.prefill_len.np[slot]:  # part of a prompt: nothing is drawn
                continue
            if local > 0:  # after earlier drafts of the request
                before = [*before, token]
            else:
                length = int(states.prompt_len.np[slot])
                known = request.tokens
                if known is not None and len(known) == position:
                    before = [*known[length:], token]
                else:
                    tokens = states.all_token_ids.gpu[slot, : position + 1].tolist()
                    request.prompt, before = tokens[:length], tokens[length:]
            work.append((row, request, before))
        return work


class _Request:
    """One request: its row, once the width of the logits is known; with batch updates, vLLM's list of its tokens."""

    def __init__(self, params: SamplingParams, seed: int, prompt: list[int], output: list[int] | None) -> None:
        self._params, self._seed = params, seed
        self._row: HostRow | None = None
        self.prompt, self.output = prompt, output

    @property
    def tokens(self) -> list[int] | None:
        """The prompt and the known tokens after it; None before the first draw."""
        return self._row.tokens if self._row is not None else None

    def draw(self, generated: Sequence[int], logits: np.ndarray) -> int | None:
        """The token after the prompt and `generated`; None, and a log message, if there is none."""
        try:
            if self._row is None:
                params, vocab = in_vocabulary(self._params, len(logits)), len(logits)
                seed = None if params.greedy else self._seed
                self._row = HostRow(params.replace(seed=seed), vocab_size=vocab, prompt_ids=self.prompt)
            self._row.follow(generated)
            return self._row.draw(logits[None])
        except ValueError as error:
            log.error("vLLM will draw this row: %s", error)
            return None
