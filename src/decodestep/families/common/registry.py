"""All families, found as the files beside this package, by the names that checkpoints give them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from importlib import import_module
from pkgutil import iter_modules

from decodestep import families
from decodestep.errors import ModelError
from decodestep.families.common import names
from decodestep.families.common.config_json import Keys
from decodestep.families.common.description import Architecture, Family, ModelType, Wrapper
from decodestep.families.common.unknown import describe
from decodestep.files.model_folder import ModelFolder

FAMILIES: dict[str, Family] = {
    found.name: import_module(f"{families.__name__}.{found.name}").FAMILY
    for found in iter_modules(families.__path__)
    if not found.ispkg
}
ARCHITECTURES: dict[str, Architecture] = {family.gguf.name: family.gguf for family in FAMILIES.values() if family.gguf}
MODEL_TYPES: dict[str, ModelType] = {each.name: each for family in FAMILIES.values() for each in family.types}
WRAPPERS: dict[str, Wrapper] = {each.name: each for family in FAMILIES.values() for each in family.wrappers}
# The names of the rules by which tiktoken.model cuts texts, of the model types whose folders may have it.
TIKTOKEN_RULES = {name: each.tiktoken for name, each in MODEL_TYPES.items() if each.tiktoken is not None}


# Keys of a folder with several models that count for all of them.
_OF_ALL = ("tie_word_embeddings", "quantization_config", "_name_or_path")


def text_model(folder: ModelFolder) -> ModelFolder:
    """The text model of a folder that has others beside it; another folder as it is, but for names that stand for others."""
    name = str(folder.config.get("model_type"))
    wrapper = WRAPPERS.get(name)
    if wrapper is None:
        model_type = MODEL_TYPES.get(name)
        return folder if model_type is None else _with_next_token_layer(_renamed(folder, model_type.prefixes), model_type)
    config = folder.config.get("text_config")
    if not isinstance(config, dict):
        raise ModelError(f"{folder.path}: config.json: text_config must be an object")
    made = copy(folder)
    outer = {"tie_word_embeddings": True} | {key: value for key, value in folder.config.items() if key in _OF_ALL}
    made.config = {"model_type": wrapper.unsaid} | config | outer
    made.tensors = {}
    for name, tensor in folder.tensors.items():
        prefix = next((prefix for prefix in wrapper.prefixes if name.startswith(prefix)), None)
        if prefix is not None:
            made.tensors[wrapper.prefixes[prefix] + name.removeprefix(prefix)] = tensor
    model_type = MODEL_TYPES.get(made.config["model_type"])
    return made if model_type is None else _with_next_token_layer(made, model_type)


def _with_next_token_layer(folder: ModelFolder, model_type: ModelType) -> ModelFolder:
    """With the layer for next-token prediction as the one after the last, if the folder has it under names of its own."""
    if not model_type.next_token_names:
        return folder
    keys = Keys(folder, model_type.name, model_type.defaults, model_type.aliases, model_type.rope_types)
    layer = model_type.layer_count(keys)
    made = _renamed(
        folder, {prefix: names.LAYER.format(i=layer) + name for prefix, name in model_type.next_token_names.items()}
    )
    return made if names.FOLDER["next_join"].format(i=layer) in made.tensors else folder


def _renamed(folder: ModelFolder, prefixes: Mapping[str, str]) -> ModelFolder:
    if not prefixes:
        return folder
    made = copy(folder)
    made.tensors = {}
    for name, tensor in folder.tensors.items():
        prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
        made.tensors[prefixes.get(prefix, "") + name.removeprefix(prefix)] = tensor
    return made


def read_model_type(folder: ModelFolder) -> ModelType:
    """Raises ModelError for one that is not supported."""
    name = folder.config.get("model_type")
    if not isinstance(name, str) or name not in MODEL_TYPES:
        supported = ", ".join(map(repr, MODEL_TYPES))
        told = describe(folder.tensors, MODEL_TYPES)
        raise ModelError(f"{folder.path}: config.json: model_type {name!r} is not supported ({supported} are){told}")
    found = MODEL_TYPES[name]
    return next((other for key, other in found.taken_for.items() if key in folder.config), found)
