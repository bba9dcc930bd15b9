"""GLM-4 of 2024 and GLM-Edge: GLM-4-0414's layers without norms after blocks."""

from __future__ import annotations

from decodestep.families import glm4
from decodestep.families.common.description import Architecture, Family, ModelType
from decodestep.families.common.grouped import GroupedFile
from decodestep.families.common.refusals import wide_heads

_GGUF = Architecture(
    "chatglm",
    GroupedFile(partial_rope=True),
    tensors={"gate_up": "ffn_up.weight"},
    output_bias=False,
    refused=wide_heads,
)
FAMILY = Family(
    types=(
        ModelType(
            "glm",
            written_as=_GGUF,
            attention=glm4.ATTENTION,
            defaults=glm4.DEFAULTS,
            tensors={"gate_up": "mlp.gate_up_proj.weight"},
            pre_tokenizer="chatglm-bpe",
        ),
    ),
    gguf=_GGUF,
)
