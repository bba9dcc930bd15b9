"""SGLang: a custom logit processor for fields that SGLang lacks, and a sampling backend whose draws do not depend on the batch.

Usage:

    python -m sglang.launch_server ... --enable-custom-logit-processor --disable-overlap-schedule
    {"custom_logit_processor": Processor.to_str(),
     "sampling_params": {"temperature": 0.8, "sampling_seed": 7, "custom_params": custom_params(dry_multiplier=0.8)}}

    python -m sglang.launch_server ... --sampling-backend decodestep
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from decodestep._base.checks import Phrase, require
from decodestep._base.extras import extra
from decodestep.integrations.host_params import KEY, host_params, in_vocabulary, seed_from_name
from decodestep.integrations.host_row import HostRow
from decodestep.ops.decode_step import decode_step
from decodestep.ops.decode_step.steps import MinP, Temperature, TopK, TopP
from decodestep.sampling.params import SamplingParams

if TYPE_CHECKING:
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

with extra("sglang"):
    import torch
    from sglang.srt.layers.sampler import Sampler as TheirSampler
    from sglang.srt.layers.sampler import register_sampler_backend
    from sglang.srt.managers.schedule_batch import FINISH_ABORT
    from sglang.srt.runtime_context import get_schedule
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
    from sglang.srt.sampling.sampling_params import TOP_K_ALL

_OP = "decodestep.integrations.sglang"
_REQ, _ROW = "__req__", "__decodestep__"  # keys of a request's custom_params: SGLang's own, and ours


def custom_params(**fields: object) -> dict[str, Any]:
    """The custom_params of a request that `Processor` draws: `host_params.FIELDS`.

    SGLang has no hook before a request is admitted, so the fields are checked here, before they are sent.

    Raises:
        ValueError: as `SamplingParams` does, and for other fields: SGLang's own are given in the request itself.
    """
    host_params(_OP, fields, {})
    return {KEY: fields}


class Processor(CustomLogitProcessor):  # type: ignore[misc]
    """Draws requests with "decodestep" in their custom_params as rows of `Sampler`, by their logits, params, seed and tokens.

    All other logits of such a row become -inf, so that SGLang chooses the drawn token. temperature, top_p, top_k, min_p and
    sampling_seed are the request's own; without a seed, its id determines one. SGLang's penalties, biases and grammars are
    applied before the draw; logprobs are those of the resulting row.

    A request that cannot be served (invalid values, the overlap schedule, in which a request's last token is not yet known,
    drafts, no token left) is aborted with the reason; other requests are not affected.
    """

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        asked = [(i, params) for i, params in enumerate(custom_param_list or ()) if params and {KEY, _REQ} <= params.keys()]
        for i, params in asked:
            req = params[_REQ]
            try:
                alone = get_schedule().disable_overlap_schedule
                require(alone, _OP, "the server", "started with --disable-overlap-schedule", Phrase("the overlap schedule"))
                rows = sum(each is params for _, each in asked)
                require(rows == 1, _OP, "the server", "started without speculation", Phrase("drafts"))
                token = self._draw(req, params, logits[i])
            except ValueError as error:
                req.to_finish = FINISH_ABORT(str(error), HTTPStatus.BAD_REQUEST, "BadRequestError")
                continue
            logits[i] = -torch.inf
            logits[i, token] = 0.0
        return logits

    def _draw(self, req: Req, params: dict[str, Any], logits: torch.Tensor) -> int:
        row = params.get(_ROW)
        if not isinstance(row, HostRow):  # the first token, whatever a client has sent under this name
            made = in_vocabulary(_convert_params(req, params[KEY]), len(logits))
            params[_ROW] = row = HostRow(made, vocab_size=len(logits), prompt_ids=list(req.origin_input_ids))
        row.follow(list(req.output_ids))
        drawn: int = row.draw(logits.to("cpu", torch.float32).numpy()[None])
        return drawn


def _convert_params(req: Req, given: object) -> SamplingParams:
    """The params of an SGLang request, whose fields are normalised: greedy is top_k 1, no top_k is a huge one."""
    own = req.sampling_params
    params = host_params(
        _OP,
        given,
        {
            "temperature": 0.0 if own.top_k == 1 else own.temperature,
            "top_p": own.top_p,
            "top_k": 0 if own.top_k in (1, TOP_K_ALL) else own.top_k,
            "min_p": own.min_p,
            "seed": None if own.sampling_seed is None else own.sampling_seed % 2**64,
        },
    )
    if params.greedy or params.seed is not None:
        return params
    return params.replace(seed=seed_from_name(str(req.rid)))


class Sampler(TheirSampler):  # type: ignore[misc]
    """SGLang's sampler with the draw of `decodestep.Sampler`: `--sampling-backend decodestep`.

    top_k, top_p and min_p keep the same tokens as in SGLang's "pytorch" backend, where each applies to the whole distribution;
    top_k keeps all tokens that tie with the last one, as SGLang's CUDA kernels do (0.5.23's "pytorch" drops some).
    A row's token depends only on its logits, parameters, seed and position, and is the one that `decodestep.Sampler` draws at
    that position. With --enable-deterministic-inference the seeds are the requests' sampling_seed, also with min_p; otherwise
    they come from torch's generator. Logits on a GPU are drawn there.

    Raises:
        ValueError: for sampling masks and for rl_on_policy_target.
    """

    def __init__(self) -> None:
        super().__init__()
        require(self.rl_on_policy_target is None, _OP, "rl_on_policy_target", "None", self.rl_on_policy_target)
        self.use_ascend_backend = True  # the branch of `forward` that delegates filters and draw to the method below

    def forward(
        self, logits_output: LogitsProcessorOutput, sampling_info: SamplingBatchInfo, *arguments: object, **options: object
    ) -> torch.Tensor:
        masks = sampling_info.sampling_mask_batch_indices
        require(masks is None, _OP, "return_sampling_mask", "off", Phrase("a request that asks for it"))
        return super().forward(logits_output, sampling_info, *arguments, **options)

    def _forward_ascend_backend(
        self,
        logits: torch.Tensor,
        sampling_info: SamplingBatchInfo,
        simple: bool,
        return_logprob: bool,
        positions: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        info, batch = sampling_info, len(logits)
        columns = (info.temperatures, info.top_ps, info.top_ks, info.min_ps)
        rows = list(zip(*(column.reshape(-1).tolist() for column in columns), strict=True))
        if info.sampling_seed is None:
            seeds = torch.randint(2**63 - 1, (batch,)).tolist()
        else:
            seeds = [seed % 2**64 for seed in info.sampling_seed.tolist()]
        drawn = decode_step(
            logits,
            [_steps(*row) for row in rows],
            greedy=[top_k <= 1 for _, _, top_k, _ in rows],
            seed=seeds,
            position=[position + 1 for position in positions.tolist()],
        )
        scores = torch.log_softmax(logits.div_(info.temperatures), dim=-1) if return_logprob else None
        tokens = torch.as_tensor(drawn.tokens)
        return torch.where(tokens < 0, 0, tokens).to(torch.int32), scores  # 0, as in SGLang, if no token is left


def _steps(temperature: float, top_p: float, top_k: int, min_p: float) -> tuple[Any, ...]:
    """top_p before top_k keeps the tokens that both keep of the whole distribution; min_p is relative to the maximum."""
    steps = (
        Temperature(temperature) if temperature != 1 else None,
        TopP(top_p) if top_p < 1 else None,
        TopK(top_k) if top_k < TOP_K_ALL else None,
        MinP(min_p) if min_p > 0 else None,
    )
    return tuple(step for step in steps if step is not None)


def register() -> None:
    """Registers the sampling backend "decodestep"; SGLang calls it at startup, by its plugin group "sglang.srt.plugins"."""
    register_sampler_backend("decodestep", Sampler)
