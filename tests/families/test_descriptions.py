"""The descriptions of families: each stands in one file, says all that is read, and has test cases."""

from __future__ import annotations

import ast
import dataclasses
import json

import pytest
import safetensors.torch
import torch

from decodestep.families.common import folder
from decodestep.families.common.names import FOLDER, GGUF
from decodestep.families.common.registry import ARCHITECTURES, FAMILIES, MODEL_TYPES
from decodestep.families.common.unknown import describe
from decodestep.files.model_folder import ModelFolder
from decodestep.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from support import converted_models, families, family_models
from support.families import CASES
from support.project import ROOT

SOURCE = ROOT / "src" / "decodestep"
# GGUF names kinds of tokenizers as some of the families.
# Parts that folders have alone: of biases, and of one tensor in place of several.
OF_FOLDERS = {
    "mixer_input_bias",
    "mixer_output_bias",
    "gate_up",
    "shared_gate_up",
    "experts_down_together",
    "delta_qkvz",
    "delta_beta_alpha",
}
POST_NORMS = {"attention_post_norm", "ffn_post_norm"}
OF_TOKENIZERS = {"llama", "gemma4", *PRE_TOKENIZERS}


def test_every_file_is_a_family():
    files = {path.stem for path in (SOURCE / "families").glob("*.py")} - {"__init__"}
    assert files == set(FAMILIES)
    assert all(family.types or family.gguf for family in FAMILIES.values())


def test_a_name_stands_for_one_family():
    types = [each.name for family in FAMILIES.values() for each in family.types]
    architectures = [family.gguf.name for family in FAMILIES.values() if family.gguf]
    assert sorted(types) == sorted(MODEL_TYPES) and sorted(architectures) == sorted(ARCHITECTURES)


def test_what_is_said_of_converted_models_is_said_of_cases():
    sizes = {(family, size) for family, cases in CASES.items() for size in (*cases.in_gguf, cases.written[0])}
    assert {*converted_models.CHANGES, *converted_models.EXPECTED} <= sizes
    families_named = {*converted_models.PUBLISHED, *converted_models.PREDICTING, *converted_models.SAME_BY_LLAMA_CPP}
    assert families_named <= set(CASES)


def constants(path):
    """The strings of a file that are no docstrings."""
    tree = ast.parse(path.read_text())
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {node.value for node in strings if id(node) not in texts}


@pytest.mark.slow
def test_no_family_is_named_outside_its_file():
    """Or one that is part of a longer name."""
    names, found = {*MODEL_TYPES, *ARCHITECTURES}, {}
    own = {each.name: stem for stem, family in FAMILIES.items() for each in family.types}
    own |= {family.gguf.name: stem for stem, family in FAMILIES.items() if family.gguf}
    for path in sorted(SOURCE.rglob("*.py")):
        room, *_ = path.relative_to(SOURCE).parts
        allowed = OF_TOKENIZERS if room in ("tokenizers", "families") else set()
        is_family = path.parent == SOURCE / "families"
        named = {name for name in constants(path) & names - allowed if not (is_family and own[name] == path.stem)}
        if named:
            found[str(path.relative_to(SOURCE))] = named
    assert not found


@pytest.mark.parametrize("name", MODEL_TYPES)
def test_the_defaults_are_all_that_is_read(name, tmp_path):
    """So that a config.json of model_type alone has the sizes of transformers' class."""
    path = tmp_path / "model"
    path.mkdir()
    needed = CASES[name].needed if name in CASES else {}
    (path / "config.json").write_text(json.dumps({"model_type": name, **needed}))
    safetensors.torch.save_file({"lm_head.weight": torch.zeros(1)}, path / "model.safetensors")
    config = folder.read_config(ModelFolder(path))
    assert config.architecture == name and not config.tied
    assert len(folder.read_ropes(ModelFolder(path), config)) == 1 + any(config.grouped.ropes)


@pytest.mark.parametrize("name", MODEL_TYPES)
def test_a_model_type_names_what_there_is(name):
    each = MODEL_TYPES[name]
    assert each.written_as is ARCHITECTURES[each.written_as.name] and each.written_as.layers == each.layers
    in_turn = {part for part in each.tensors if part.startswith(("experts_gate_up_in_turn", "experts_down_by_inputs"))}
    beside_dense = {"router_scale", "factors_of_experts", "dense_post_norm", "routed_norm", "routed_post_norm"}
    assert set(each.tensors) - in_turn <= {*FOLDER, *GGUF, *OF_FOLDERS, *beside_dense, *POST_NORMS}
    assert each.pre_tokenizer in {None, "default", "gemma4", *PRE_TOKENIZERS}
    assert each.tiktoken is None or each.tiktoken in PRE_TOKENIZERS
    assert all(other is MODEL_TYPES[other.name] for other in each.taken_for.values())


def test_descriptions_cannot_be_changed():
    for family in FAMILIES.values():
        for part in (family, family.gguf, *family.types):
            if part is not None:
                with pytest.raises(dataclasses.FrozenInstanceError):
                    setattr(part, dataclasses.fields(part)[0].name, None)


def test_every_family_has_cases():
    """Those of a type of the same class count for it; files of a family that transformers lacks are tested by themselves."""
    assert families.FAMILIES.keys() == FAMILIES.keys()
    for name, cases in families.FAMILIES.items():
        assert {each.name for each in FAMILIES[name].types} == {*cases.CASES, *getattr(cases, "SAME_CLASSES", ())}
    written = {each.written_as.name for each in MODEL_TYPES.values()}
    assert set(ARCHITECTURES) - written == {family.gguf.name for family in FAMILIES.values() if not family.types}


def test_the_package_has_the_families_of_the_documentation():
    table = (ROOT / "docs" / "models.md").read_text().partition("|---|")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[2:4]] for line in table.splitlines()[1:]]
    assert {name for files, _ in rows for name in files.split(", ") if name} == set(ARCHITECTURES)
    assert {name for _, types in rows for name in types.split(", ") if name} == set(MODEL_TYPES)


UNKNOWN = {
    "ssm": (
        ["attn_norm.weight", "ssm_x.weight", "time_mix_w0.weight"],
        "ssm_x.weight (a recurrent state), time_mix_w0.weight (a recurrent state)",
    ),
    "a norm": (
        ["attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_sub_norm.weight"],
        "attn_sub_norm.weight (other norms)",
    ),
    "nothing new": (
        ["attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_sinks.weight"],
        "only tensors that supported ones",
    ),
}


@pytest.mark.parametrize(("parts", "said"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_an_unknown_family_has_is_said(parts, said):
    told = describe([f"blk.{i}.{part}" for i in range(2) for part in parts], ARCHITECTURES)
    assert said in told


@pytest.mark.parametrize("name", MODEL_TYPES)
def test_a_family_under_another_name_is_nearest_to_itself(name):
    """Or to one whose layers have the same parts."""
    if name in CASES and not MODEL_TYPES[name].experts:
        told = describe(family_models.build_model(name, 0).state_dict(), MODEL_TYPES)
        nearest = MODEL_TYPES[told.rpartition("'")[0].rpartition("'")[2]]
        assert nearest.layers.block_norms == MODEL_TYPES[name].layers.block_norms
        assert nearest.attention.parts == MODEL_TYPES[name].attention.parts
