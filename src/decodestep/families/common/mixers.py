"""Which layers mix positions by a state in place of attention, and the sizes of these: from config.json, or from a GGUF file's
metadata and tensors, and the keys of one that is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from decodestep.decoding.config import Config, DeltaConfig, MambaConfig, Mixer
from decodestep.errors import ModelError
from decodestep.families.common import names
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Fields
from decodestep.families.common.gguf_keys import GgufKeys
from decodestep.families.common.limits import MAX_HEADS

# transformers' names of kinds of layers, newer and older.
ATTENTION = ("full_attention", "attention")
RECURRENT = ("linear_attention", "mamba")
_MAX_TAPS = 1 << 10


def kinds_of_layers(keys: Keys, key: str, known: Sequence[str]) -> list[str] | None:
    """The kinds that a list of config.json gives the layers; None without."""
    kinds = keys.get(key)
    if kinds is None:
        return None
    if not isinstance(kinds, list) or not kinds:
        raise keys.refusal(f"{key} must be a list")
    other = next((kind for kind in kinds if kind not in known), None)
    if other is not None:
        raise keys.refusal(f"{key} with {other!r} is not supported ({', '.join(map(repr, known))} are)")
    return kinds


def mixers_by_type(
    recurrent: Mixer, unsaid: Callable[[Keys, int], tuple[Mixer, ...]]
) -> Callable[[Keys, int], tuple[Mixer, ...]]:
    """By layer_types. recurrent: the mixer of layers that do not attend. unsaid: what a config.json without the key means."""
    others = ("conv",) if recurrent == "convolution" else RECURRENT

    def mixers(keys: Keys, layers: int) -> tuple[Mixer, ...]:
        kinds = kinds_of_layers(keys, "layer_types", (*ATTENTION, *others))
        if kinds is None:
            return checked(unsaid(keys, layers), keys.refusal)
        if len(kinds) != layers:
            raise keys.refusal(f"layer_types must have one for each of {layers} layers")
        return checked(tuple("attention" if kind in ATTENTION else recurrent for kind in kinds), keys.refusal)

    return mixers


def mixers_by_interval(recurrent: Mixer, interval: int, layers: int) -> tuple[Mixer, ...]:
    """Where every n-th layer attends."""
    return tuple("attention" if (i + 1) % interval == 0 else recurrent for i in range(layers))


def checked(mixers: tuple[Mixer, ...], refusal: Callable[[str], ModelError]) -> tuple[Mixer, ...]:
    """() for attention alone. Refuses a model without: its cache would have no pages."""
    if "attention" not in mixers:
        raise refusal("a model without attention is not supported")
    return () if all(mixer == "attention" for mixer in mixers) else mixers


def file_mixers(
    recurrent: Mixer, names_of_parts: Mapping[str, str] | None = None
) -> Callable[[GgufKeys, int], tuple[Mixer, ...]]:
    """By the tensors of a GGUF file: layers with a convolution have the `recurrent` mixer, those with an output of attention
    attend, and the others have neither. Refuses a file whose keys say something else. names_of_parts: the architecture's own
    names, within a layer."""
    table = names.changed(names.GGUF, names.of_gguf_layers(names_of_parts or {}))

    def mixers(keys: GgufKeys, layers: int) -> tuple[Mixer, ...]:
        has = {
            part: [table[part].format(i=i) in keys.file.tensors for i in range(layers)]
            for part in ("convolution", "attention_output")
        }
        found: list[Mixer] = [
            recurrent if has["convolution"][i] else "attention" if has["attention_output"][i] else "none" for i in range(layers)
        ]
        _compare(keys, found)
        return checked(tuple(found), keys.refusal)

    return mixers


def _compare(keys: GgufKeys, found: list[Mixer]) -> None:
    """The keys by which llama.cpp tells the kinds of layers apart."""
    attends = tuple(mixer == "attention" for mixer in found)
    key = "attention.head_count_kv"
    said = None
    if keys.key(key) in keys.file.metadata and not isinstance(keys.file.metadata[keys.key(key)], int):
        said = tuple(count > 0 for count in keys.sizes(key, most=MAX_HEADS, least=0)[: len(found)])
        if said != attends and not all(said):
            raise keys.refusal(f"{keys.key(key)} is not 0 in the same layers as the tensors have no attention")
    if (flags := keys.flags("attention.recurrent_layers")) is not None:
        if flags[: len(found)] != tuple(mixer not in ("attention", "none") for mixer in found):
            raise keys.refusal(f"{keys.key('attention.recurrent_layers')} contradicts the tensors")
    elif said is None and "full_attention_interval" in keys:
        interval = keys.size("full_attention_interval")
        if attends != tuple((i + 1) % interval == 0 for i in range(len(found))):
            raise keys.refusal(f"{keys.key('full_attention_interval')} {interval} contradicts the tensors")


def folder_delta(keys: Keys) -> DeltaConfig:
    heads = {part: keys.size(f"linear_num_{part}_heads", most=MAX_HEADS) for part in ("key", "value")}
    dims = {part: keys.size(f"linear_{part}_head_dim") for part in ("key", "value")}
    if heads["value"] % heads["key"]:
        raise keys.refusal(f"{heads['value']} value heads on {heads['key']} key heads of linear attention: not supported")
    return DeltaConfig(
        heads["key"], heads["value"], dims["key"], dims["value"], keys.size("linear_conv_kernel_dim", most=_MAX_TAPS)
    )


def file_delta(keys: GgufKeys, *, tiled: bool) -> DeltaConfig:
    key_heads, heads = (keys.size(f"ssm.{key}", most=MAX_HEADS) for key in ("group_count", "time_step_rank"))
    inner = keys.size("ssm.inner_size")
    if heads % key_heads or inner % heads:
        raise keys.refusal(f"{heads} value heads of {inner} values on {key_heads} key heads of linear attention: not supported")
    taps = keys.size("ssm.conv_kernel", most=_MAX_TAPS)
    return DeltaConfig(key_heads, heads, keys.size("ssm.state_size"), inner // heads, taps, tiled=tiled and heads > key_heads)


def file_mamba(keys: GgufKeys, convolution_bias: bool) -> MambaConfig:
    heads, groups = (keys.size(f"ssm.{key}", most=MAX_HEADS) for key in ("time_step_rank", "group_count"))
    inner = keys.size("ssm.inner_size")
    if heads % groups or inner % heads:
        raise keys.refusal(f"{heads} heads of {inner} values in {groups} groups of Mamba2: not supported")
    return MambaConfig(
        heads,
        inner // heads,
        groups,
        keys.size("ssm.state_size"),
        keys.size("ssm.conv_kernel", most=_MAX_TAPS),
        convolution_bias,
    )


def folder_mamba(keys: Keys, said: Mapping[str, str], head_dim: int) -> MambaConfig:
    """said: the keys of heads, groups, state, taps and bias."""
    heads, groups = (keys.size(said[part], most=MAX_HEADS) for part in ("heads", "groups"))
    if heads % groups:
        raise keys.refusal(f"{heads} heads in {groups} groups of Mamba2: not supported")
    return MambaConfig(
        heads,
        head_dim,
        groups,
        keys.size(said["state"]),
        keys.size(said["taps"], most=_MAX_TAPS),
        keys.flag(said["bias"], True),
    )


def has_part(keys: GgufKeys, part: str) -> bool:
    """Whether a layer of the file has the part."""
    suffix = names.GGUF[part].partition("{i}")[2]
    return any(name.endswith(suffix) for name in keys.file.tensors)


def written_head_counts(config: Config) -> Fields:
    """The key of a GGUF file that says which layers attend, for most architectures."""
    if not config.mixers:
        return {}
    return {"attention.head_count_kv": [config.kv_heads if mixer == "attention" else 0 for mixer in config.mixers]}


def written_sizes(config: Config) -> Fields:
    """The keys of the sizes of layers with a state."""
    made: Fields = {}
    if (d := config.delta) is not None:
        made |= {"ssm.conv_kernel": d.taps, "ssm.state_size": d.key_dim, "ssm.group_count": d.key_heads}
        made |= {"ssm.time_step_rank": d.value_heads, "ssm.inner_size": d.values}
    if (m := config.mamba) is not None:
        made |= {"ssm.conv_kernel": m.taps, "ssm.state_size": m.state, "ssm.group_count": m.groups}
        made |= {"ssm.time_step_rank": m.heads, "ssm.inner_size": m.inner}
    return made
