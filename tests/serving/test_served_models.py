"""The models of a server: loaded when they are asked for, unloaded to make room or when idle, each as alone."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import Future

import pytest

import decodestep as ds
from decodestep.errors import EngineClosedError, ModelError, QueueFullError, RequestError
from decodestep.serving import served_models
from decodestep.serving.served_models import ModelSource, ServedModels
from support import tiny_gguf_files
from support.servers import load, wait_until

PARAMS = ds.SamplingParams(max_new_tokens=12, seed=3)


@pytest.fixture
def paths(tmp_path):
    hidden = {"a": 96, "b": 128, "c": 160}  # which gives each other weights
    files = {name: tmp_path / f"{name}.gguf" for name in hidden}
    return {name: tiny_gguf_files.write(path, kind="Q8_0", context=200, hidden=hidden[name]) for name, path in files.items()}


class Served:
    """Models from files; counts what is loaded."""

    def __init__(self, paths, **options):
        self.loads = []
        self.hold = {name: threading.Event() for name in paths}  # cleared: the load waits
        self.living = weakref.WeakSet()
        for event in self.hold.values():
            event.set()
        self.models = ServedModels({name: self._source(name, path) for name, path in paths.items()}, **options)
        self.first = self.models.start(lambda deltas: [request.put(delta) for request, delta in deltas])

    def _source(self, name, path):
        def read(progress):
            self.loads.append(name)
            assert self.hold[name].wait(30)
            progress(0, 1)
            model = load(path)
            self.living.add(model)
            return model

        return ModelSource(lambda: path.stat().st_size, read)

    def answer(self, name):
        with self.models.ask(name).result(30) as served:
            return served.engine.submit("ab", PARAMS).result(30)[0].text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.models.close()


@pytest.fixture
def alone(paths):
    found = {name: ds.generate(load(path), "ab", PARAMS)[0].text for name, path in paths.items()}
    assert len(set(found.values())) == len(found)
    return found


def states(served):
    return [served.models.state(name) for name in served.models.names]


def test_models_are_loaded_when_first_asked_for_and_answer_as_alone(paths, alone):
    with Served(paths) as served:
        assert served.first is None and states(served) == ["unloaded"] * 3
        for name in ("b", "a", "b", "c", "a"):
            assert served.answer(name) == alone[name]
        assert served.loads == ["b", "a", "c"] and states(served) == ["loaded"] * 3
    with pytest.raises(EngineClosedError):
        served.models.ask("a").result(30)


def test_names_that_requests_give(paths):
    with Served(paths) as served:
        assert [served.models.find(name) for name in ("b", "", None)] == ["b", "a", "a"]
        with pytest.raises(RequestError, match="model must be one of a, b, c; got 'd'") as refused:
            served.models.ask("d")
        assert refused.value.code == "model_not_found"
    with Served({"a": paths["a"]}) as served:
        assert [served.models.find(name) for name in ("a", "gpt-4", "", None)] == ["a"] * 4
        assert served.first.result(30).served.name == "a"


def test_an_error_lists_few_of_many_names():
    source = ModelSource(lambda: 0, lambda progress: pytest.fail("it was not asked for"))
    models = ServedModels({f"model-{i}": source for i in range(1000)})
    models.start(lambda deltas: None)
    with pytest.raises(RequestError) as refused:
        models.ask("x" * 10**6)
    assert len(str(refused.value)) < 500
    models.close()


def test_a_load_holds_up_nobody_else(paths, alone):
    with Served(paths) as served:
        assert served.answer("a") == alone["a"]
        served.hold["b"].clear()
        waiting = [served.models.ask("b") for _ in range(3)]
        wait_until(lambda: "b" in served.loads)
        assert served.answer("a") == alone["a"] and states(served) == ["loaded", "loading", "unloaded"]
        assert not any(future.done() for future in waiting)
        served.hold["b"].set()
        engines = {future.result(30).served.engine for future in waiting}
        assert len(engines) == 1 and served.loads == ["a", "b"]


def test_few_may_wait_for_a_model(paths):
    with Served(paths, max_rows=2, max_waiting=1) as served:
        served.hold["a"].clear()
        waiting = [served.models.ask("a") for _ in range(3)]
        with pytest.raises(QueueFullError):
            served.models.ask("a")
        waiting[1].cancel()
        served.hold["a"].set()
        for future in (waiting[0], waiting[2]):
            future.result(30).release()
        wait_until(lambda: served.models._entries["a"].users == 0)  # who waits no more has no use of it


@pytest.mark.parametrize("error", [ModelError("/secret: broken"), OSError("/secret: gone"), KeyError("a fault"), MemoryError()])
def test_a_load_that_fails_is_the_error_of_those_who_wait(paths, alone, monkeypatch, caplog, error):
    def fail(progress):
        tries.append(None)
        if len(tries) == 1:
            raise error
        return load(paths["a"])

    tries = []
    models = ServedModels({"a": ModelSource(lambda: 0, fail), "b": ModelSource(lambda: 0, lambda _: load(paths["b"]))})
    models.start(lambda deltas: [request.put(delta) for request, delta in deltas])
    try:
        for _ in range(2):  # the second one gets the error of the first
            with pytest.raises(ModelError, match="the model a could not be loaded") as failed:
                models.ask("a").result(30)
            assert "secret" not in str(failed.value) and failed.value.__cause__ is error and error.__traceback__ is None
        assert len(tries) == 1 and "the model a could not be loaded" in caplog.text
        with models.ask("b").result(30) as other:
            assert other.engine.submit("ab", PARAMS).result(30)[0].text == alone["b"]
        monkeypatch.setattr(served_models, "_AGAIN", 0.0)
        with models.ask("a").result(30) as found:
            assert found.engine.submit("ab", PARAMS).result(30)[0].text == alone["a"]
    finally:
        models.close()


def test_the_model_that_was_used_least_recently_makes_room(paths, alone):
    with Served(paths, most_loaded=2) as served:
        for name in ("a", "b", "a", "c"):
            assert served.answer(name) == alone[name]
        assert states(served) == ["loaded", "unloaded", "loaded"]
        assert served.answer("b") == alone["b"]
        assert served.loads == ["a", "b", "c", "b"] and states(served) == ["unloaded", "loaded", "loaded"]
        gc.collect()
        assert len(served.living) == 2


def test_a_model_makes_room_where_memory_is_short(paths, alone, monkeypatch):
    free = [10**12]
    monkeypatch.setattr(served_models, "available_memory", lambda: free[0])
    with Served(paths) as served:
        assert [served.answer(name) for name in ("a", "b")] == [alone[name] for name in ("a", "b")]
        assert states(served) == ["loaded", "loaded", "unloaded"]
        free[0] = 1000
        assert served.answer("c") == alone["c"]  # what does not fit beside others is tried alone
        assert states(served) == ["unloaded", "unloaded", "loaded"]


def test_a_model_that_answers_makes_room_when_it_has(paths, alone):
    """Who asks for it meanwhile gets it again after that."""
    with Served(paths, most_loaded=1) as served:
        use = served.models.ask("a").result(30)
        other = served.models.ask("b")
        wait_until(lambda: served.models._entries["a"].leaving)
        again = served.models.ask("a")
        time.sleep(0.05)
        assert not other.done() and not again.done()
        assert use.served.engine.submit("ab", PARAMS).result(30)[0].text == alone["a"]
        use.release()
        use.release()  # which is no second one
        with other.result(30) as served_b:
            assert not again.done() and served_b.engine.submit("ab", PARAMS).result(30)[0].text == alone["b"]
        with again.result(30) as served_a:
            assert served_a.engine.submit("ab", PARAMS).result(30)[0].text == alone["a"]


def test_an_unloaded_model_is_freed(paths, alone):
    with Served(paths, most_loaded=1) as served:
        assert served.answer("a") == alone["a"]
        [model] = served.living
        found = weakref.ref(model)
        del model
        gc.collect()
        assert found() is not None
        gc.disable()  # memory comes back at once, not when the garbage is collected
        try:
            assert served.answer("b") == alone["b"]
            wait_until(lambda: found() is None)
        finally:
            gc.enable()


def test_idle_models_are_unloaded(paths, alone):
    with Served(paths, unload_after=0.2) as served:
        assert served.answer("a") == alone["a"]
        use = served.models.ask("b").result(30)
        wait_until(lambda: served.models.state("a") == "unloaded")
        time.sleep(0.4)
        assert served.models.state("b") == "loaded"
        use.release()
        wait_until(lambda: served.models.state("b") == "unloaded")
        assert served.answer("a") == alone["a"]


def test_models_come_and_go_under_load(paths, alone):
    """Each of many clients gets the answers of the model that it names."""
    wrong = []

    def ask(i):
        for turn in range(6):
            name = "abc"[(i + turn) % 3]
            text = served.answer(name)
            if text != alone[name]:
                wrong.append((name, text))

    with Served(paths, most_loaded=2, unload_after=0.01) as served:
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    assert not wrong and len(served.loads) > 3


def test_closing_ends_a_load_at_the_next_layer(paths):
    with Served(paths) as served:
        served.hold["a"].clear()
        future = served.models.ask("a")
        wait_until(lambda: served.loads)
        threading.Timer(0.2, served.hold["a"].set).start()
        served.models.close()
        with pytest.raises(EngineClosedError):
            future.result(30)
        assert not served.living and isinstance(future, Future)
