"""sampling with drafts, by prompt lookup and by an assistant: every text is the one without them.

The models are of float64, in which the last bits of one token and of several in a pass do not decide between tokens.
"""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    StoppingCriteria,
)
from transformers.generation.streamers import BaseStreamer

from decodestep.integrations.transformers import sampling
from support.latent_models import build_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")

VOCABULARY = 96
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.3,
}  # fmt: skip
ENDS = GenerationConfig(pad_token_id=0, bos_token_id=1, eos_token_id=2)


def build(kind: str):
    torch.manual_seed(1)
    if kind == "latent":
        made = build_model("deepseek_v3", num_hidden_layers=1, first_k_dense_replace=1)
    elif kind == "window":
        made = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=9))
    else:
        made = LlamaForCausalLM(LlamaConfig(**SIZES))
    made.generation_config = copy.deepcopy(ENDS)
    return made.double().eval()


@pytest.fixture(scope="module", params=["grouped", "window", "latent"])
def model(request):
    return build(request.param)


@pytest.fixture(scope="module")
def grouped():
    return build("grouped")


def noisy(model, share=0.02):
    """An assistant: the model with noise on its weights, and drafts of four tokens."""
    made, generator = copy.deepcopy(model), torch.Generator().manual_seed(3)
    for weight in made.parameters():
        weight.data += share * weight.std() * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    made.generation_config.num_assistant_tokens = 4
    made.generation_config.assistant_confidence_threshold = 0.0
    return made


def prompt(length=12, seed=0):
    """Tokens that recur."""
    return torch.randint(3, 11, (1, length), generator=torch.Generator().manual_seed(seed))


class Shift(LogitsProcessor):
    """Of the caller's own: it notes the lengths that it is called with."""

    def __init__(self):
        self.lengths = []

    def __call__(self, input_ids, scores):
        self.lengths.append(input_ids.shape[1])
        return scores + (torch.arange(scores.shape[1]) % 5 == 0)


OPTIONS = [
    {},
    {"do_sample": True, "temperature": 0.7},
    {"do_sample": True, "top_k": 3, "repetition_penalty": 1.2},
    {"do_sample": True, "top_p": 0.8, "no_repeat_ngram_size": 4, "min_new_tokens": 30},
    {"bad_words_ids": [[5, 6], [7]], "forced_eos_token_id": 2},
    {"do_sample": True, "eos_token_id": list(range(2, 20)), "exponential_decay_length_penalty": (4, 1.1)},
]


def count_passes(model, call):
    lengths = []
    with model.register_forward_pre_hook(lambda _, given, named: lengths.append(named["input_ids"].shape[1]), with_kwargs=True):
        return call(), lengths


@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_drafts_change_no_token(model, number):
    given = {"max_new_tokens": 30, "return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    given |= OPTIONS[number]
    ids = prompt(seed=number)
    alone, single = count_passes(model, lambda: model.generate(ids, **given, custom_generate=sampling(seed=number)))
    for lookup, assistant in ((5, None), (None, noisy(model))):
        made = sampling(seed=number, assistant_model=assistant)
        drafted, passes = count_passes(
            model, lambda made=made, n=lookup: model.generate(ids, **given, prompt_lookup_num_tokens=n, custom_generate=made)
        )
        assert torch.equal(drafted.sequences, alone.sequences)
        for name in ("scores", "logits"):
            for a, b in zip(getattr(alone, name), getattr(drafted, name), strict=True):
                assert torch.allclose(a, b, rtol=0, atol=1e-5)
        assert drafted.past_key_values.get_seq_length() == alone.past_key_values.get_seq_length()
        assert assistant is None or len(single) < 20 or len(passes) < len(single)


def test_text_that_repeats_is_found():
    """A greedy text in which the last token decides the next, so that it soon runs in a circle."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, "initializer_range": 0.02}, eos_token_id=None)).double().eval()
    alone = model.generate(prompt(), max_new_tokens=80, custom_generate=sampling())
    drafted, passes = count_passes(
        model, lambda: model.generate(prompt(), max_new_tokens=80, prompt_lookup_num_tokens=7, custom_generate=sampling())
    )
    assert torch.equal(drafted, alone)
    assert len(passes) < 40 and max(passes[1:]) == 8


def test_what_reads_a_text_is_given_its_tokens_alone(grouped):
    """The caller's processors, criteria and streamer, one token after the other, and end the text within a draft."""

    class Ends(StoppingCriteria):
        def __init__(self):
            self.lengths = []

        def __call__(self, input_ids, scores, **kwargs):
            self.lengths.append(input_ids.shape[1])
            return torch.full((len(input_ids),), input_ids.shape[1] >= 30)

    class Heard(BaseStreamer):
        def __init__(self):
            self.tokens = []

        def put(self, value):
            self.tokens.append(value.tolist())

        def end(self):
            self.tokens.append("end")

    noted = []
    for assistant in (None, grouped, noisy(grouped)):
        shift, ends, heard = Shift(), Ends(), Heard()
        made = grouped.generate(
            prompt(),
            max_new_tokens=60,
            do_sample=True,
            logits_processor=[shift],
            stopping_criteria=[ends],
            custom_generate=sampling(seed=1, streamer=heard, assistant_model=assistant),
        )
        noted.append((made.tolist(), shift.lengths, ends.lengths, heard.tokens))
    assert noted[0] == noted[1] == noted[2]
    assert noted[0][1] == list(range(12, 30)) and len(noted[0][3]) == 19


def test_a_prompt_with_left_padding_and_a_cache_that_goes_on(grouped):
    ids = torch.cat([torch.zeros((1, 3), dtype=torch.long), prompt()], 1)
    mask = (ids != 0).long()
    given = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": True, "return_dict_in_generate": True}
    texts = []
    for assistant in (None, noisy(grouped)):
        first = grouped.generate(ids, **given, custom_generate=sampling(seed=2, assistant_model=assistant))
        more = torch.cat([first.sequences, prompt(3, 5)], 1)
        again = {**given, "attention_mask": (more != 0).long(), "past_key_values": first.past_key_values}
        texts.append(grouped.generate(more, **again, custom_generate=sampling(seed=3, assistant_model=assistant)).sequences)
    assert torch.equal(*texts)


def test_an_assistant_stops_where_it_is_not_sure(grouped):
    """By its assistant_confidence_threshold, 0.4 where it has none, after the first such token."""
    assistant, passes = noisy(grouped), []
    for threshold in (0.0, None, 1.0):
        assistant.generation_config.assistant_confidence_threshold = threshold
        made = sampling(seed=1, assistant_model=assistant)
        _, lengths = count_passes(
            grouped, lambda made=made: grouped.generate(prompt(), max_new_tokens=40, custom_generate=made)
        )
        passes.append(lengths[1:])
    assert max(passes[0]) == 5 and max(passes[2]) == 2
    assert len(passes[0]) <= len(passes[1]) <= len(passes[2])


def test_coupled_draws_are_accepted_far_more_often_than_draws_of_another_seed(grouped):
    """At a temperature at which a text is not foreseen."""
    assistant, counts = noisy(grouped), []
    for other in (False, True):
        made = sampling(seed=7, assistant_model=assistant)
        with pytest.MonkeyPatch.context() as patch:
            if other:
                patch.setattr("decodestep.generation.drafts.coupled_row.Row.seed", property(lambda row: 1))
            _, passes = count_passes(
                grouped,
                lambda made=made: grouped.generate(
                    prompt(), max_new_tokens=120, do_sample=True, temperature=1.5, top_k=0, custom_generate=made
                ),
            )
        counts.append(len(passes))
    assert counts[0] < 60 < counts[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_cache": False}, "use_cache must be True with drafts"),
        (
            {"cache_implementation": "static"},
            "model must be one whose cache can be cropped, to forget drafts; got one with Static",
        ),
        ({"return_dict_in_generate": True, "output_attentions": True}, "output_attentions must be False with drafts"),
        ({"return_dict_in_generate": True, "output_hidden_states": True}, "output_hidden_states must be False with drafts"),
        ({"num_beams": 2}, "greedy search or sampling"),
        ({"use_mtp": True}, "with use_mtp=True"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_refused_with_drafts(grouped, options, message):
    with pytest.raises(ValueError, match=message):
        grouped.generate(prompt(), max_new_tokens=6, **options, custom_generate=sampling(assistant_model=grouped))


def test_rows_and_assistants_that_are_refused(grouped):
    two = prompt().repeat(2, 1)
    for how in ({"assistant_model": grouped}, {}):
        options = {} if how else {"prompt_lookup_num_tokens": 3}
        with pytest.raises(ValueError, match="input_ids must be of a single row with drafts; got 2 rows"):
            grouped.generate(two, max_new_tokens=4, **options, custom_generate=sampling(**how))
    how = sampling(assistant_model=grouped)
    with pytest.raises(ValueError, match="prompt_lookup_num_tokens must be None beside an assistant_model; got 3"):
        grouped.generate(prompt(), max_new_tokens=4, prompt_lookup_num_tokens=3, custom_generate=how)
    other = LlamaForCausalLM(LlamaConfig(**{**SIZES, "vocab_size": 90}))
    with pytest.raises(ValueError, match="assistant_model must be a decoder with the model's 96 tokens; got one with 90"):
        grouped.generate(prompt(), max_new_tokens=4, custom_generate=sampling(assistant_model=other))
    mamba = MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()
    with pytest.raises(ValueError, match="assistant_model must be one whose cache can be cropped"):
        grouped.generate(prompt(), max_new_tokens=4, custom_generate=sampling(assistant_model=mamba))
    with pytest.raises(ValueError, match="model must be one whose cache can be cropped"):
        mamba.generate(prompt(), max_new_tokens=4, custom_generate=sampling(assistant_model=grouped))
    with pytest.raises(ValueError, match="assistant_model must be a model of transformers or None; got 'small'"):
        sampling(assistant_model="small")
