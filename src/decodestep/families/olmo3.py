"""OLMo 3: OLMo 2's layers, most of them with windows; what scales the rope does so in the others alone. As files they are
OLMo 2's."""

from __future__ import annotations

from decodestep.families import olmo2
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Family, Fields, ModelType
from decodestep.families.common.grouped import ATTENTION_BIAS, GroupedKeys, layer_types, windows_by_type

_THETA = 500000.0


def _slides(i: int) -> bool:
    return (i + 1) % olmo2.PERIOD != 0


def _windows(keys: Keys, layers: int) -> tuple[int, ...]:
    return windows_by_type(keys, layers, _slides)


def _ropes(keys: Keys, layers: int) -> tuple[int, ...]:
    return tuple(int(kind == "sliding_attention") for kind in layer_types(keys, layers, _slides))


def _check(keys: Keys, common: Fields) -> None:
    """Refuses what transformers' class does not read, or reads for the layers of one kind alone."""
    parameters = keys.get("rope_parameters") or {}
    if isinstance(parameters, dict) and parameters.get("rope_type", "default") != "default":
        raise keys.refusal("rope_parameters of no layers are not supported: 'full_attention' and 'sliding_attention' have some")
    if not parameters and keys.get("rope_theta") != _THETA:
        raise keys.refusal(f"rope_theta other than {_THETA:g}, of which layers it is not said, is not supported")


FAMILY = Family(
    types=(
        ModelType(
            "olmo3",
            written_as=olmo2.GGUF,
            attention=GroupedKeys(bias_keys=ATTENTION_BIAS, windows=_windows, ropes=_ropes),
            defaults=olmo2.DEFAULTS | {"sliding_window": 4096, "rope_theta": _THETA, "rope_local_base_freq": _THETA},
            layers=olmo2.LAYERS,
            check=_check,
            ropes_by_layer_type=True,
            tensors=olmo2.TENSORS,
            pre_tokenizer="dbrx",
        ),
    ),
)
