"""All families, found as the files beside this package, by the names that checkpoints give them."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from decodestep import families
from decodestep.errors import ModelError
from decodestep.families.common.description import Architecture, Family, ModelType
from decodestep.files.model_folder import ModelFolder

FAMILIES: dict[str, Family] = {
    found.name: import_module(f"{families.__name__}.{found.name}").FAMILY
    for found in iter_modules(families.__path__)
    if not found.ispkg
}
ARCHITECTURES: dict[str, Architecture] = {family.gguf.name: family.gguf for family in FAMILIES.values() if family.gguf}
MODEL_TYPES: dict[str, ModelType] = {each.name: each for family in FAMILIES.values() for each in family.types}
# The names of the rules by which tiktoken.model cuts texts, of the model types whose folders may have it.
TIKTOKEN_RULES = {name: each.tiktoken for name, each in MODEL_TYPES.items() if each.tiktoken is not None}


def model_type_of(folder: ModelFolder) -> ModelType:
    """Raises ModelError for one that is not supported."""
    name = folder.config.get("model_type")
    if not isinstance(name, str) or name not in MODEL_TYPES:
        supported = ", ".join(map(repr, MODEL_TYPES))
        raise ModelError(f"{folder.path}: config.json: model_type {name!r} is not supported ({supported} are)")
    found = MODEL_TYPES[name]
    return next((other for key, other in found.taken_for.items() if key in folder.config), found)
