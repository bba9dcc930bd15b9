"""Ray Data on one machine: the same texts in any number of blocks, through failing rows and a killed actor."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import decodestep as ds
from support import processes
from support.project import ROOT

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")

from decodestep.integrations.ray import Generate, _plain, row_seed  # noqa: E402

PARAMS = {"max_new_tokens": 6, "top_p": 0.95}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the actors cannot import the tests
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def rows() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{"key": i, "prompt": f"Number {i} is", "temperature": 0.5 + i / 10} for i in range(16)]
    for i, row in enumerate(made):
        row["top_k"] = None if i % 3 else 40
    made[3]["prompt"] = ""
    made[5]["temperature"] = -1.0
    made[7]["prompt"] = "long " * 300
    return made


def texts(dataset: Any) -> dict[int, tuple[Any, ...]]:
    columns = ("completion", "finish_reason", "completion_seed", "error")
    return {row["key"]: (*(row[name] for name in columns), tuple(row["completion_ids"])) for row in dataset.take_all()}


@pytest.fixture
def path(tiny_file: Any) -> Path:
    return tiny_file(context=64)


@pytest.fixture
def expected(path: Path) -> dict[int, tuple[Any, ...]]:
    """Without Ray, one row at a time."""
    made = {}
    model = ds.load(path)
    for row in rows():
        seed = row_seed(0, row["key"])
        try:
            params = ds.SamplingParams(**PARAMS, temperature=row["temperature"], top_k=row["top_k"] or 0, seed=seed)
            [text] = ds.generate(model, [row["prompt"]], params)
            made[row["key"]] = (text.text, text.finish_reason, seed, "", tuple(text.token_ids))
        except ValueError:
            made[row["key"]] = None
    assert [key for key, value in made.items() if value is None] == [3, 5, 7]
    return made


def assert_same(got: dict[int, Any], expected: dict[int, Any]) -> None:
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        if value is None:
            assert got[key][:2] == ("", "error") and "RequestError: " in got[key][3], got[key]
        else:
            assert got[key] == value


def map_rows(path: Path, blocks: int, cls: Any = Generate, **options: Any) -> Any:
    dataset = ray.data.from_items(rows(), override_num_blocks=blocks)
    given = {"model": str(path), "params": PARAMS, **options}
    compute = ray.data.ActorPoolStrategy(size=2)
    return dataset.map_batches(cls, fn_constructor_kwargs=given, compute=compute, num_cpus=1, batch_size=4)


@pytest.mark.parametrize("blocks", [1, 3, 8])
def test_texts_are_those_without_ray_in_any_number_of_blocks(cluster: None, path: Path, expected: Any, blocks: int) -> None:
    assert_same(texts(map_rows(path, blocks)), expected)


@pytest.mark.parametrize("blocks", [1, 5])
def test_nulls_among_lists_lose_no_row(cluster: None, path: Path, blocks: int) -> None:
    """Where all batches of the block but one have the column as numbers; where a batch is of a block that has nulls alone."""
    stops = [{"stop_token_ids": [3] if i else None, "stop_strings": None if i else ["never"]} for i in range(9)]
    rows = [{"key": i, "prompt": None if i == 5 else [97, 98 + i], **stops[i]} for i in range(9)]
    dataset = ray.data.from_items(rows, override_num_blocks=blocks)
    compute = ray.data.ActorPoolStrategy(size=1)
    given = {"model": str(path), "params": PARAMS}
    made = dataset.map_batches(Generate, fn_constructor_kwargs=given, compute=compute, num_cpus=1, batch_size=3).take_all()
    alone = Generate(**given)
    for row in sorted(made, key=lambda row: row["key"]):
        prompt, key = rows[row["key"]]["prompt"], row["key"]
        assert prompt == (None if row["prompt"] is None else list(row["prompt"]))
        column = np.empty(1, object)
        column[0] = prompt
        assert row["completion"] == alone({"prompt": column, "key": np.array([key])})["completion"][0]
        assert ("prompt must be" in row["error"]) == (key == 5)
    assert len(made) == 9


class Killed(Generate):
    """Its first actor ends in the middle of a batch, as if killed."""

    def __init__(self, mark: str, **options: Any) -> None:
        super().__init__(**options)
        self.mark = mark

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        made = super().__call__(batch)
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return made
        os._exit(1)


def test_a_killed_actor_changes_nothing(cluster: None, path: Path, expected: Any, tmp_path: Path) -> None:
    mark = tmp_path / "killed"
    assert_same(texts(map_rows(path, 4, Killed, mark=str(mark))), expected)
    assert mark.exists()


def test_rays_processor_of_http_has_the_texts_of_generate_from_the_server(cluster: None, path: Path) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("uvicorn")
    from ray.data.llm import HttpRequestProcessorConfig, build_processor

    command = [sys.executable, "-m", "decodestep", "serve", str(path), "--port", "0", "--grace", "0.1"]
    with processes.started(command) as process:
        found = (re.search(r"listening on (http://127.0.0.1:\d+)", line) for line in process.stderr or ())
        url = next(match[1] for match in found if match)
        config = HttpRequestProcessorConfig(url=f"{url}/v1/completions", batch_size=4, concurrency=1)

        def asked(row: dict[str, Any]) -> dict[str, Any]:
            return {"payload": {"model": "", "prompt": row["prompt"], "seed": row["key"], "max_tokens": 5}, "key": row["key"]}

        def answered(row: dict[str, Any]) -> dict[str, Any]:
            return {"key": row["key"], "text": row["http_response"]["choices"][0]["text"]}

        processor = build_processor(config, preprocess=asked, postprocess=answered)
        prompts = [{"key": i, "prompt": f"Number {i} is"} for i in range(8)]
        got = [
            {row["key"]: row["text"] for row in processor(ray.data.from_items(prompts, override_num_blocks=blocks)).take_all()}
            for blocks in (1, 3)
        ]
    model = ds.load(path)
    params = [ds.SamplingParams(seed=row["key"], max_new_tokens=5) for row in prompts]
    alone = [ds.generate(model, [row["prompt"]], each)[0].text for row, each in zip(prompts, params, strict=True)]
    assert got == [dict(enumerate(alone))] * 2


def test_seeds_depend_on_the_key_and_the_seed_alone() -> None:
    # BLAKE2b by hashlib of "0 i 7" and "0 s 7"
    import hashlib

    assert row_seed(0, 7) == int.from_bytes(hashlib.blake2b(b"0 i 7", digest_size=8).digest(), "little")
    assert len({row_seed(0, 7), row_seed(0, "7"), row_seed(1, 7), row_seed(0, 8)}) == 4
    with pytest.raises(ValueError, match="key must be an integer or a string"):
        row_seed(0, 1.5)  # type: ignore[arg-type]


def test_integers_that_a_column_with_nulls_has_rounded_are_refused() -> None:
    """The column has become one of floats, which hold no odd integer above 2^53."""
    assert _plain(np.float64(2**53 - 1), None) == 2**53 - 1
    assert _plain(np.float64(np.nan), None) is None
    with pytest.raises(ValueError, match=r"below 2\^53 in a column with nulls, which holds floats; got 9007199254740994.0"):
        _plain(np.array([2.0**53 + 2, np.nan])[0], None)
    assert _plain(np.int64(2**60), None) == 2**60 and _plain(1e300, 1.0) == 1e300


@pytest.mark.parametrize(
    ("name", "cell", "value"),
    [
        ("logit_bias", '{"7": 100}', {7: 100.0}),
        ("sequence_bias", "[[[7], 50.5], [[8, 9], -1]]", {(7,): 50.5, (8, 9): -1.0}),
        ("exponential_decay_length_penalty", "[1, 1.5]", (1, 1.5)),
    ],
)
def test_a_column_of_json_sets_what_no_other_column_holds(path: Path, name: str, cell: str, value: Any) -> None:
    fixed: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False}
    cells = np.array([cell, None, "{", {"7": 100}], object)
    made = Generate(str(path), params=fixed)({"key": np.arange(4), "prompt": np.array(["a b"] * 4, object), name: cells})
    params = [ds.SamplingParams(**fixed, **changes) for changes in ({name: value}, {})]
    assert made["completion"].tolist()[:2] == [each.text for each in ds.generate(ds.load(path), ["a b"] * 2, params)]
    assert made["error"].tolist()[:2] == ["", ""]
    assert all(f"Generate: {name} must be JSON of the field in a column; got" in error for error in made["error"][2:])


def test_a_column_overrides_params_under_any_of_their_names(path: Path) -> None:
    lengths = np.array([2, None], object)
    made = Generate(str(path), params={"max_tokens": 4, "stop": ["never"], "seed": 1})
    got = made({"key": np.arange(2), "prompt": np.array(["a b"] * 2, object), "max_new_tokens": lengths})
    assert got["error"].tolist() == ["", ""] and [len(ids) for ids in got["completion_ids"]] == [2, 4]


@pytest.mark.parametrize("params", [ds.SamplingParams(), 5, [("seed", 1)]])
def test_params_that_are_no_mapping_are_refused(path: Path, params: Any) -> None:
    with pytest.raises(ValueError, match="^Generate: params must be a mapping of fields of SamplingParams; got"):
        Generate(str(path), params=params)


def test_columns_that_are_missing_or_in_the_way_are_refused(path: Path) -> None:
    made = Generate(str(path), params=PARAMS)
    with pytest.raises(ValueError, match="a column 'key'"):
        made({"prompt": np.array(["a"], object)})
    with pytest.raises(ValueError, match="without columns"):
        made({"prompt": np.array(["a"], object), "key": np.array([1]), "error": np.array([""])})
    with pytest.raises(ValueError, match="batch_format"):
        made(pytest.importorskip("pandas").DataFrame({"prompt": ["a"], "key": [1]}))
    own = made({"prompt": np.array(["a"], object), "key": np.array([1]), "seed": np.array([9.0])})
    assert own["completion_seed"].tolist() == [9]


def test_the_example_runs(tiny_file: Any) -> None:
    example = ROOT / "examples/ray_generate.py"
    lines = processes.run([sys.executable, str(example), "--model", str(tiny_file())], check=True).stdout.splitlines()
    assert [line[:5] for line in lines if line.startswith("row ")] == [f"row {i}" for i in range(8)]
