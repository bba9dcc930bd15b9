"""onnxruntime-genai's search on given logits, with a model that only returns zeros.

Its interface takes logits only after a run of the model, which is not timed; the copy that it makes of them is. It has no
min-p, and what it keeps cannot be queried: its tokens alone are checked.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_genai as genai
from onnx import TensorProto, helper

from decodestep.ops.decode_step import steps as s
from measuring.sampling import Case, Logits, UnableError


class Search:
    ties = "kept"
    lacks = (s.MinP,)

    def __init__(self, case: Case) -> None:
        params = case.params[0]
        if not case.alike:
            raise UnableError("the same parameters for all rows")
        if case.batch > 32:
            raise UnableError("at most 32 rows")
        if params.repetition_penalty != 1:
            raise UnableError("history comes from its own model")
        if not (params.greedy or params.top_k):
            raise UnableError("without a top-k it draws from more than the prefix of mass p")
        self.folder = tempfile.TemporaryDirectory()
        self.shape = (case.batch, 1, case.vocab)
        self.model = genai.Model(str(_zeros_model(Path(self.folder.name), case.vocab)))
        search = genai.GeneratorParams(self.model)
        options = {} if params.greedy else {"top_k": params.top_k, "top_p": params.top_p, "temperature": params.temperature}
        search.set_search_options(do_sample=not params.greedy, batch_size=case.batch, max_length=16, random_seed=1, **options)
        self.generator = genai.Generator(self.model, search)
        self.token = np.zeros((case.batch, 1), np.int32)
        self.generator.append_tokens(self.token)

    def prepare(self) -> None:
        self.generator.rewind_to(0)
        self.generator.append_tokens(self.token)

    def sample(self, logits: Logits) -> np.ndarray:
        self.generator.set_logits(logits.array.astype(np.float32, copy=False).reshape(self.shape))
        self.generator.generate_next_token()
        return self.generator.get_next_tokens()


def _zeros_model(folder: Path, vocab: int) -> Path:
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["ids", "axis"], ["columns"]),
        helper.make_node("Mul", ["columns", "zeros"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "zeros",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", vocab])],
        initializer=[
            helper.make_tensor("shape", TensorProto.INT64, [3], [1, 1, vocab]),
            helper.make_tensor("axis", TensorProto.INT64, [1], [2]),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    decoder = {
        "filename": "model.onnx",
        "head_size": 1,
        "hidden_size": 1,
        "num_attention_heads": 1,
        "num_hidden_layers": 0,
        "num_key_value_heads": 1,
        "inputs": {"input_ids": "input_ids"},
        "outputs": {"logits": "logits"},
    }
    model = {
        "type": "llama",
        "vocab_size": vocab,
        "context_length": 16,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    (folder / "genai_config.json").write_text(
        json.dumps({"model": {**model, "decoder": decoder}, "search": {"max_length": 16}})
    )
    return folder
