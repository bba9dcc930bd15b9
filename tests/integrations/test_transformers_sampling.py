"""sampling: `generate` with our decode step against `generate` as it is."""

from __future__ import annotations

import copy
import random
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from tokenizers import Tokenizer, decoders, models
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MambaConfig,
    MambaForCausalLM,
    MaxLengthCriteria,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    TopKLogitsWarper,
)
from transformers.generation import GenerationMixin
from transformers.generation.streamers import BaseStreamer
from transformers.utils import generic

import decodestep as ds
from decodestep.integrations.transformers import accelerate, sampling
from support.latent_models import VOCABULARY, build_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def model():
    model = build_model("deepseek_v3", num_hidden_layers=1, first_k_dense_replace=1)
    model.generation_config = GenerationConfig(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return model


def prompt(batch=2, length=6, seed=0):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


REPORT = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


def some_options(choose: random.Random) -> dict:
    """A GenerationConfig's fields, each given or not."""
    ids = [choose.sample(range(3, VOCABULARY), 3) for _ in range(4)]
    options = {
        "max_new_tokens": choose.randint(1, 12),
        "min_new_tokens": choose.randint(0, 4),
        "min_length": choose.randint(0, 12),
        "repetition_penalty": choose.uniform(0.7, 1.6),
        "no_repeat_ngram_size": choose.randint(1, 3),
        "bad_words_ids": [ids[0][:1], ids[1][:2]],
        "sequence_bias": [[ids[2][:1], choose.uniform(-9, 9)], [ids[3][:2], 5.0], [ids[3][1:2], -np.inf]],
        "suppress_tokens": ids[2],
        "begin_suppress_tokens": ids[3],
        "forced_eos_token_id": 2,
        "exponential_decay_length_penalty": (2, choose.uniform(1.0, 1.5)),
        "eos_token_id": choose.choice([2, [2, 7], choose.sample(range(3, VOCABULARY), 20)]),
        "renormalize_logits": True,
        "remove_invalid_values": True,
        "use_cache": choose.random() < 0.5,
    }
    given = {name: value for name, value in options.items() if choose.random() < 0.4}
    return {"max_new_tokens": 6, **given}


@pytest.mark.parametrize("seed", range(40))
def test_greedy_as_stock(model, seed):
    """Tokens, logits and scores."""
    choose = random.Random(seed)
    options, ids = some_options(choose), prompt(choose.randint(1, 3), seed=seed)
    mask = torch.ones_like(ids)
    mask[0, : choose.randint(0, 2)] = 0
    stock = model.generate(ids, attention_mask=mask, **options, **REPORT)
    ours = model.generate(ids, attention_mask=mask, **options, **REPORT, custom_generate=sampling())
    assert torch.equal(stock.sequences, ours.sequences)
    assert torch.equal(model.generate(ids, attention_mask=mask, **options, custom_generate=sampling()), stock.sequences)
    for name in ("logits", "scores"):
        assert len(stock[name]) == len(ours[name])
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(stock[name], ours[name], strict=True))
    assert type(stock) is type(ours)


@contextmanager
def nan_from(model, first):
    """The logits of the tokens from `first` are NaN, those before 0."""
    weight = model.lm_head.weight
    before = weight.detach().clone()
    try:
        with torch.no_grad():
            weight[first:], weight[:first] = torch.nan, 0
        yield
    finally:
        with torch.no_grad():
            weight.copy_(before)


def test_repair_as_stock(model):
    """NaN is 0 to repair, whatever has run before it."""
    ids = prompt(2)
    options = {"max_new_tokens": 8, "remove_invalid_values": True, "no_repeat_ngram_size": 1, "min_new_tokens": 8}
    with nan_from(model, 3):
        stock = model.generate(ids, **options)
        assert torch.equal(model.generate(ids, **options, custom_generate=sampling()), stock)


@pytest.mark.parametrize("options", [{}, {"do_sample": True}, {"logits_processor": [lambda _, scores: scores]}])
def test_nan_is_never_taken(model, options):
    """Unlike in transformers, whether it runs our chain or its own."""
    ids, options = prompt(2), {"max_new_tokens": 4, **options}
    with nan_from(model, 3):
        made = model.generate(ids, **options, custom_generate=sampling())
    assert (made[:, 6:] < 3).all()
    with nan_from(model, 0), pytest.raises(ValueError, match="such that a token is left"):
        model.generate(ids, **options, custom_generate=sampling())


def test_on_an_accelerated_model(model):
    ids = prompt(3, 40)
    stock = model.generate(ids, max_new_tokens=20)
    with accelerate(model):
        assert torch.equal(model.generate(ids, max_new_tokens=20, custom_generate=sampling()), stock)


FILTERS = [
    {"top_k": 8},
    {"top_k": 0, "top_p": 0.7, "temperature": 1.7},
    {"top_k": 0, "min_p": 0.1},
    {"top_k": 20, "typical_p": 0.8, "repetition_penalty": 1.3},
    {"top_k": 0, "top_h": 0.6},
    {"top_k": 0, "epsilon_cutoff": 0.02},
]


@pytest.mark.parametrize("options", FILTERS, ids=lambda options: "-".join(options))
def test_draws_follow_stocks_scores(model, options):
    """The kept tokens are those of transformers' chain, and each is drawn as often as its softmax says."""
    draws, ids = 4000, prompt(1)
    stock = model.generate(ids, do_sample=True, max_new_tokens=1, **options, **REPORT)
    probabilities = stock.scores[0][0].double().softmax(-1).numpy()
    # The same row of logits for every draw: one forward pass of the prompt.
    loop = sampling(seed=5)
    forward = model.forward
    try:
        once = forward(ids).logits.detach()
        model.forward = lambda **given: type(forward(ids))(logits=once.expand(draws, -1, -1))
        new = model.generate(
            ids, do_sample=True, max_new_tokens=1, num_return_sequences=draws, use_cache=False, **options, custom_generate=loop
        )
    finally:
        del model.forward
    counts = np.bincount(new[:, -1].numpy(), minlength=VOCABULARY)
    kept = probabilities > 0
    assert not counts[~kept].any()
    if kept.sum() > 1:
        assert chisquare(counts[kept], draws * probabilities[kept]).pvalue > 1e-4


def test_a_seed_gives_the_same_rows_again(model):
    ids = prompt(1).repeat(3, 1)
    options = {"do_sample": True, "max_new_tokens": 8}

    def run(ids=ids, **given):
        return model.generate(ids, **options, custom_generate=sampling(**given)).tolist()

    rows = run(seed=7)
    assert rows == run(seed=7) and rows[0] != rows[1] != rows[2] != rows[0]
    assert run(seed=[ds.random.sample_seed(7, row) for row in (2, 0, 1)]) == [rows[2], rows[0], rows[1]]
    assert run(ids[:1], seed=7) == rows[:1]
    assert run() != run()
    for seed in ([1, 2], "abc", -1, 1.5, True):
        with pytest.raises(ValueError, match="seed"):
            run(seed=seed)


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 0.9},
        {"no_repeat_ngram_size": 2},
        {"repetition_penalty": 1.2},
        {"logits_processor": LogitsProcessorList([TopKLogitsWarper(40)])},
        {"processors": [ds.processors.XTCLogitsWarper(0.5, 0.01, seed=4)]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_row_draws_the_same_beside_longer_prompts(model, options):
    """The noise belongs to a row's own positions, whatever the padding on its left."""
    batch, mask = prompt(2, 9), torch.ones(2, 9, dtype=torch.long)
    batch[1, :5], mask[1, :5] = 0, 0
    options = {"do_sample": True, "max_new_tokens": 12, **options}
    processors = options.pop("processors", ())

    def last_row(ids, mask, seed):
        loop = sampling(seed=seed, processors=processors)
        return model.generate(ids, attention_mask=mask, **options, custom_generate=loop)[-1, ids.shape[1] :].tolist()

    alone = last_row(batch[1:, 5:], mask[1:, 5:], [8])
    assert last_row(batch, mask, [7, 8])[: len(alone)] == alone


class Halve(LogitsProcessor):
    """One that must see the whole batch: rows are told apart by their place."""

    def __call__(self, input_ids, scores):
        assert len(input_ids) == len(scores) == 2
        scores = scores.clone()
        scores[0, ::2] = -torch.inf
        scores[1, 1::2] = -torch.inf
        return scores


def test_processors_of_the_users_own(model):
    ids = prompt()
    options = {"max_new_tokens": 8, "repetition_penalty": 1.2, "logits_processor": [Halve()]}
    stock = model.generate(ids, **options, **REPORT)
    ours = model.generate(ids, **options, **REPORT, custom_generate=sampling())
    assert torch.equal(stock.sequences, ours.sequences)
    assert all(torch.equal(a, b) for a, b in zip(stock.scores, ours.scores, strict=True))
    sampled = model.generate(ids, do_sample=True, **options, custom_generate=sampling(seed=1))[:, ids.shape[1] :]
    assert (sampled[0][sampled[0] > 0] % 2 == 1).all() and (sampled[1] % 2 == 0).all()
    only = {"max_new_tokens": 8, "prefix_allowed_tokens_fn": lambda row, ids: [5 + row, 9, 2]}
    assert torch.equal(model.generate(ids, **only), model.generate(ids, **only, custom_generate=sampling()))
    from transformers import RepetitionPenaltyLogitsProcessor

    other = {**options, "logits_processor": [RepetitionPenaltyLogitsProcessor(5.0)]}
    stock = model.generate(ids, **other)
    assert torch.equal(stock, model.generate(ids, **other, custom_generate=sampling()))
    mine = sampling(processors=[ds.processors.SuppressTokensLogitsProcessor(list(range(3, 90)))])
    assert (model.generate(ids, max_new_tokens=5, custom_generate=mine)[:, ids.shape[1] :] % 90 <= 5).all()


def of_class(model, **methods):
    """The model as one of a class with other methods."""
    twin = copy.copy(model)
    twin.__class__ = type("Special", (type(model),), methods)
    return twin


def test_processors_of_a_models_class(model):
    def chain(model, *given, **named):
        return LogitsProcessorList([*GenerationMixin._get_logits_processor(model, *given, **named), Halve()])

    special, ids = of_class(model, _get_logits_processor=chain), prompt()
    stock = special.generate(ids, max_new_tokens=8, **REPORT)
    ours = special.generate(ids, max_new_tokens=8, **REPORT, custom_generate=sampling())
    assert torch.equal(stock.sequences, ours.sequences)
    assert all(torch.equal(a, b) for a, b in zip(stock.scores, ours.scores, strict=True))
    assert not torch.equal(stock.sequences, model.generate(ids, max_new_tokens=8))
    assert torch.equal(special.generate(ids, max_new_tokens=8, custom_generate=sampling()), stock.sequences)


@pytest.mark.parametrize("most", [0, 3])
def test_the_end_of_a_models_class(model, most):
    """Of one that ends with the sound that it hears, for example."""

    def unfinished(model, finished, synced_gpus, device):
        calls.append(finished)
        return not finished and len(calls) <= most

    special, lengths = of_class(model, _has_unfinished_sequences=unfinished), []
    for how in ({}, {"custom_generate": sampling()}):
        calls = []
        lengths.append(special.generate(prompt(), max_new_tokens=8, **how).shape[1])
    assert lengths == [6 + most] * 2


def test_a_model_with_a_loop_of_its_own_is_refused(model):
    special = of_class(model, _sample=lambda *_, **__: None)
    with pytest.raises(ValueError, match="model must be one without a decoding loop of its own; got Special"):
        special.generate(prompt(), max_new_tokens=8, custom_generate=sampling())


class AfterFour(StoppingCriteria):
    """Whether each row has ended: a tensor, or what else transformers takes."""

    def __init__(self, form):
        self.form = form

    def __call__(self, input_ids, scores, **kwargs):
        return self.form(torch.tensor([input_ids.shape[1] >= 10 + 2 * row for row in range(len(input_ids))]))


@pytest.mark.parametrize("form", [torch.clone, torch.Tensor.long, lambda ended: bool(ended.all())])
@pytest.mark.parametrize("ends", [2, None])
def test_stopping_criteria_of_the_users_own(model, ends, form):
    """Without an end token, rows that have ended go on until all have: as in stock."""
    ids = prompt()
    options = {"max_new_tokens": 12, "stopping_criteria": [AfterFour(form)]}
    before = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = ends
    try:
        stock = model.generate(ids, **options)
        assert torch.equal(stock, model.generate(ids, **options, custom_generate=sampling()))
    finally:
        model.generation_config.eos_token_id = before
    assert stock.shape[1] == 12


@pytest.mark.parametrize("more", [{}, {"forced_eos_token_id": 7}, {"min_new_tokens": 4}], ids=lambda more: "-".join(more))
def test_criteria_of_the_users_own_take_the_place_of_the_configs(model, more):
    """Of the same type: transformers drops the config's then, and its length and end tokens end nothing."""
    ids = prompt()
    free = model.generate(ids, max_new_tokens=12, eos_token_id=None)
    first, second = int(free[0, 8]), int(free[1, 9])
    for criterion in (EosTokenCriteria(second), MaxLengthCriteria(15), MaxLengthCriteria(8)):
        options = {"max_new_tokens": 6, "eos_token_id": first, "stopping_criteria": [criterion], **more}
        stock = model.generate(ids, **options)
        assert torch.equal(model.generate(ids, **options, custom_generate=sampling()), stock), criterion


@pytest.mark.parametrize("length", [1, 2])
def test_begin_suppress_tokens_after_a_forced_first_token(model, length):
    """transformers counts the padded length: a padded row of one token is not forced."""
    ids = prompt(3, length)
    mask = torch.ones_like(ids)
    mask[0, : length - 1] = 0
    options = {"attention_mask": mask, "max_new_tokens": 4, "forced_bos_token_id": 9}
    first, second = model.generate(ids, **options, min_new_tokens=2)[:, length : length + 2].T.tolist()
    assert (first == [9] * 3) == (length == 1)
    options["begin_suppress_tokens"] = [*first, *second]
    stock = model.generate(ids, **options)
    assert torch.equal(model.generate(ids, **options, custom_generate=sampling()), stock)
    assert not {*stock[:, length + (length == 1)].tolist()} & {*first, *second}


@pytest.fixture(scope="module")
def tokenizer():
    plain = Tokenizer(models.BPE({chr(33 + i): i for i in range(VOCABULARY)}, []))
    plain.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=plain)


@pytest.mark.parametrize("batch", [1, 3])
def test_stop_strings(model, tokenizer, batch):
    ids = prompt(batch)
    free = model.generate(ids, max_new_tokens=16)
    strings = [tokenizer.convert_ids_to_tokens(int(row[9])) for row in free]
    stock = model.generate(ids, max_new_tokens=16, stop_strings=strings, tokenizer=tokenizer)
    ours = sampling(stop_strings=strings, tokenizer=tokenizer)
    assert torch.equal(model.generate(ids, max_new_tokens=16, custom_generate=ours), stock)
    assert stock.shape[1] < free.shape[1]
    with pytest.raises(ValueError, match="tokenizer must be given together with stop_strings"):
        sampling(stop_strings="a")


def test_stop_strings_without_an_end_token(model, tokenizer):
    """Rows that have ended go on until all have: as in stock."""
    ids = prompt(2)
    free = model.generate(ids, max_new_tokens=16, eos_token_id=None)
    strings = tokenizer.convert_ids_to_tokens([int(free[0, 9]), int(free[1, 12])])
    config = GenerationConfig(max_new_tokens=16)
    before = model.generation_config
    try:
        model.generation_config = GenerationConfig()
        stock = model.generate(ids, config, stop_strings=strings, tokenizer=tokenizer)
        ours = model.generate(ids, config, custom_generate=sampling(stop_strings=strings, tokenizer=tokenizer))
    finally:
        model.generation_config = before
    assert torch.equal(ours, stock) and stock.shape[1] < free.shape[1]


def test_rows_that_end_need_a_padding(model):
    """Where the config has no end token, transformers makes no padding of it."""
    plain = GenerationConfig(max_new_tokens=9)
    criteria, kept = [EosTokenCriteria(list(range(VOCABULARY // 2)))], model.generation_config
    try:
        model.generation_config = GenerationConfig()
        with pytest.raises(ValueError, match="pad_token_id must be given"):
            model.generate(prompt(3), plain, stopping_criteria=criteria, custom_generate=sampling())
        assert model.generate(prompt(1), plain, stopping_criteria=criteria, custom_generate=sampling()).shape[0] == 1
    finally:
        model.generation_config = kept


class Heard(BaseStreamer):
    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended = True


def test_a_streamer_hears_every_token(model):
    ids, heard = prompt(1), Heard()
    new = model.generate(ids, max_new_tokens=5, streamer=heard, custom_generate=sampling(streamer=heard))
    assert heard.tokens == new[0].tolist() and heard.ended
    with pytest.raises(ValueError, match="streamer must be None for a batch"):
        model.generate(prompt(2), max_new_tokens=5, custom_generate=sampling(streamer=heard))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "greedy search or sampling; got 'beam_search'"),
        ({"use_mtp": True}, "got 'assisted_generation' with use_mtp=True$"),
        ({"assistant_early_exit": 1}, "got 'assisted_generation' with assistant_early_exit=1$"),
        ({"assistant_ensemble_weight": 0.5}, "got 'greedy_search' with assistant_ensemble_weight=0.5$"),
        ({"guidance_scale": 1.5}, "guidance_scale"),
        ({"encoder_repetition_penalty": 1.5}, "encoder_repetition_penalty"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        model.generate(prompt(1), max_new_tokens=3, **options, custom_generate=sampling())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"streamer": 5}, r"streamer must be None or an object with methods put and end; got 5"),
        ({"processors": [TopKLogitsWarper(3)]}, r"processors must be decodestep's; pass those .*; got TopKLogitsWarper"),
        ({"processors": TopKLogitsWarper(3)}, r"processors must be decodestep's; pass those .*; got TopKLogitsWarper"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_that_are_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=f"sampling: {message}"):
        sampling(**arguments)


def test_processors_of_a_row_that_are_refused(model):
    mine = sampling(processors=lambda row: [TopKLogitsWarper(3)])
    with pytest.raises(ValueError, match="sampling: processors must be decodestep's; .*; got TopKLogitsWarper"):
        model.generate(prompt(1), max_new_tokens=3, custom_generate=mine)


@pytest.mark.parametrize("seed", [b"a", "7", 1.0, True, [1, 2], [1.5], -1, np.array([1, 2])], ids=repr)
def test_seeds_that_are_refused(model, seed):
    with pytest.raises(ValueError, match="seed must be"):
        model.generate(prompt(1), max_new_tokens=3, custom_generate=sampling(seed=seed))


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor])
def test_seeds_are_a_sequence_or_an_array(model, kind):
    ids, options = prompt(2), {"max_new_tokens": 8, "do_sample": True}
    expected = model.generate(ids, **options, custom_generate=sampling(seed=[3, 4]))
    assert torch.equal(model.generate(ids, **options, custom_generate=sampling(seed=kind([3, 4]))), expected)


def test_the_notes_of_generate_in_a_config_are_passed_over(model):
    """custom_generate is handed a config with tensors such as _eos_token_tensor in it."""
    seen = []
    model.generate(
        prompt(1), max_new_tokens=2, custom_generate=lambda *_, generation_config, **__: seen.append(generation_config)
    )
    assert "_eos_token_tensor" in seen[0].to_dict()
    assert ds.SamplingParams.from_generation_config(seen[0]).eos_token_id == 2


def test_time_attentions_and_hidden_states(model):
    ids = prompt(1)
    assert model.generate(ids, max_new_tokens=50, max_time=0.0, custom_generate=sampling()).shape[1] == ids.shape[1] + 1
    options = {"max_new_tokens": 3, "return_dict_in_generate": True, "output_hidden_states": True}
    stock, ours = (model.generate(ids, **options, **how) for how in ({}, {"custom_generate": sampling()}))
    assert ours.scores is None and ours.past_key_values.get_seq_length() == stock.past_key_values.get_seq_length()
    for a, b in zip(stock.hidden_states, ours.hidden_states, strict=True):
        assert all(torch.equal(*pair) for pair in zip(a, b, strict=True))


def test_caches_of_other_names_are_returned():
    torch.manual_seed(0)
    mamba = MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()
    options = {"max_new_tokens": 2, "return_dict_in_generate": True}
    stock, ours = (mamba.generate(prompt(1), **options, **how) for how in ({}, {"custom_generate": sampling()}))
    assert type(ours.past_key_values) is type(stock.past_key_values) is not type(None)


def test_names_that_transformers_deprecates_are_not_used(model, monkeypatch):
    """Version 5.24 renames past_key_values to cache."""
    warned = []
    monkeypatch.setattr(generic.logger, "warning_once", lambda text, *_: warned.append(text))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        model.generate(prompt(1), max_new_tokens=2, return_dict_in_generate=True, custom_generate=sampling())
        for use_cache in (True, False):
            guidance = ds.processors.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, model, use_cache=use_cache)
            for _ in range(3):
                guidance(prompt(1), torch.zeros((1, VOCABULARY)))
    assert not warned


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 2, "min_new_tokens": 3}])
def test_tokens_outside_the_vocabulary(model, options):
    """In a prompt those of images, for example, and end tokens that switch the end off."""
    ids = prompt(2)
    embeds = model.get_input_embeddings()(ids).detach()
    ids[0, 1], ids[1, 0] = VOCABULARY + 3, VOCABULARY if options else -200
    given = {"inputs_embeds": embeds, "max_new_tokens": 8, "eos_token_id": [-1, VOCABULARY], "pad_token_id": 0}
    stock = model.generate(ids, **given, **options, **REPORT)
    ours = model.generate(ids, **given, **options, **REPORT, custom_generate=sampling())
    assert torch.equal(stock.sequences, ours.sequences)
    assert all(torch.equal(a, b) for a, b in zip(stock.scores, ours.scores, strict=True))
    with pytest.raises(ValueError, match="prompt_ids"):
        model.generate(ids, **given, custom_generate=sampling(processors=[ds.processors.TemperatureLogitsWarper(0.5)]))


@pytest.mark.parametrize(
    "change", [lambda scores: scores.double() + torch.arange(scores.shape[1]) / 8, lambda scores: scores[:, :60]]
)
def test_scores_of_another_dtype_or_width_are_drawn_from(model, change):
    class Changed(LogitsProcessor):
        def __call__(self, input_ids, scores):
            return change(scores)

    ids, options = prompt(), {"max_new_tokens": 6, "logits_processor": [Changed()]}
    stock = model.generate(ids, **options, **REPORT)
    ours = model.generate(ids, **options, **REPORT, custom_generate=sampling())
    assert torch.equal(stock.sequences, ours.sequences)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(stock.scores, ours.scores, strict=True))
    drawn = model.generate(ids, **options, do_sample=True, custom_generate=sampling(seed=1))
    assert drawn[:, 6:].max() < stock.scores[0].shape[1]


def test_the_prompt_runs_before_the_model_is_set_up_for_decoding(model, monkeypatch):
    """On a GPU that selects experts that copy the weights of every token, too much for a prompt."""
    set_up, lengths = [], []

    @contextmanager
    def for_decode(model):
        set_up.append(len(lengths))
        yield

    monkeypatch.setattr(type(model), "_optimize_model_for_decode", for_decode)
    with model.register_forward_pre_hook(lambda _, given, named: lengths.append(named["input_ids"].shape[1]), with_kwargs=True):
        model.generate(prompt(1), max_new_tokens=3, custom_generate=sampling())
    assert set_up == [1] and lengths == [6, 1, 1]


def test_a_float64_model(model):
    double, ids = copy.deepcopy(model).double(), prompt()
    stock = double.generate(ids, max_new_tokens=5)
    assert torch.equal(double.generate(ids, max_new_tokens=5, custom_generate=sampling()), stock)


def test_processes_that_share_weights_pass_on_until_all_have_ended(model, monkeypatch):
    """As with FSDP: otherwise those that have not ended would wait for ever."""
    monkeypatch.setattr(model, "_is_fsdp_managed_module", True, raising=False)
    monkeypatch.setattr("transformers.generation.utils._get_torch_distributed_world_size", lambda: 2)
    passes, forward = [], model.forward
    monkeypatch.setattr(model, "forward", lambda *args, **options: (passes.append(1), forward(*args, **options))[1])
    made = []
    for options in ({}, {"custom_generate": sampling()}):
        flags = []

        def with_another_that_takes_9(flag, op, flags=flags):
            flags.append(flag.item())
            flag += len(flags) <= 9

        monkeypatch.setattr(torch.distributed, "all_reduce", with_another_that_takes_9)
        made.append((model.generate(prompt(2), max_new_tokens=5, **options).tolist(), flags, len(passes)))
        passes.clear()
    assert made[0] == made[1]
    assert made[1][2] == 9
