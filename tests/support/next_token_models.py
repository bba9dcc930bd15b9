"""Small random models with layers for next-token prediction: by transformers, and as folders; and what loaded ones draft."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from transformers.modeling_layers import MtpModel

import decodestep as ds
from decodestep.decoding.next_tokens import SequenceEnd
from decodestep.decoding.slot_feed import SlotFeed, fill_slots
from decodestep.families.common.registry import MODEL_TYPES
from support import family_models

# Qwen's names of parts of the layer that stand apart from it.
_APART = {
    "eh_proj.": "mtp.fc.",
    "post_norm.": "mtp.norm.",
    "enorm.": "mtp.pre_fc_norm_embedding.",
    "hnorm.": "mtp.pre_fc_norm_hidden.",
}


class Predicting:
    """A model of transformers, and layers that predict the tokens after those that it does.

    depths: how many. agreeing: whether they often predict what the model does, because blocks add little to the embedding.
    changes: of the config.
    """

    def __init__(
        self, family: str, size: int, depths: int = 1, *, seed: int = 0, agreeing: bool = False, **changes: Any
    ) -> None:
        self.model = family_models.build_model(family, size, seed=seed, **changes)
        config = self.model.config
        config.num_mtp_layers, config.mtp_mlp_layer_types = depths, ["sparse"] * depths
        config.mtp_layer_types = ["full_attention"] * depths
        self._apart = MODEL_TYPES[family].norm_shift > 0  # Qwen's, whose norms are stored as differences from 1
        torch.manual_seed(seed + 1)
        self.layers = self._new_layers(depths)
        with torch.no_grad():
            for name, parameter in [*self.layers.layers.named_parameters(), *self.layers.layers.named_buffers()]:
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5)
                elif "bias" in name:
                    parameter.normal_(0, 0.2)
                else:
                    parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)

        if agreeing:
            self._agree()

    def _new_layers(self, depths: int) -> MtpModel:
        """With an indexer each has one of its own, which needs a mask."""
        config = self.model.config
        if not hasattr(config, "index_topk"):
            return MtpModel(self.model, depths).eval()
        config._attn_implementation = "eager"
        types, config.indexer_types = getattr(config, "indexer_types", None), ["full"] * depths
        layers = MtpModel(self.model, depths).eval()
        config.indexer_types = types
        for layer in layers.layers:  # GLM's also returns what it selects
            layer.mtp_block.register_forward_hook(lambda _, __, made: made[0] if isinstance(made, tuple) else made)
        return layers

    @torch.no_grad()
    def _agree(self) -> None:
        for module in (self.model, self.layers.layers):
            for name, parameter in module.named_parameters():
                if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj", "down_proj.weight")):
                    parameter.mul_(0.02 if self._apart else 0.1)  # with norms of 1 and more they add more
        for layer in self.layers.layers:
            layer.eh_proj.weight.copy_(torch.eye(*layer.eh_proj.weight.shape))
            layer.enorm.weight.fill_(0.0 if self._apart else 1.0)
            layer.post_norm.weight.copy_(self.model.model.norm.weight)

    def save(self, path: Path, **changes: torch.Tensor | None) -> Path:
        """As a folder. changes: tensors by their names, None for one that it lacks."""
        family_models.save(self.model, path)
        file = path / "model.safetensors"
        tensors = safetensors.torch.load_file(file) | self.tensors() | changes
        safetensors.torch.save_file({name: value for name, value in tensors.items() if value is not None}, file)
        return path

    def tensors(self) -> dict[str, torch.Tensor]:
        """Those of the layers, by their names in a folder, with copies of the embedding and the logits weight except Qwen's."""
        found: dict[str, torch.Tensor] = {}
        if self._apart:
            for name, value in _single_experts(_block(self.layers.layers[0])).items():
                part = next((part for part in _APART if name.startswith(part)), "")
                found[_APART.get(part, "mtp.layers.0.") + name.removeprefix(part)] = value
            return found
        for k, layer in enumerate(self.layers.layers):
            prefix = f"model.layers.{self.model.config.num_hidden_layers + k}."
            own = _block(layer)
            own["shared_head.norm.weight"] = own.pop("post_norm.weight")
            for name, value in _single_experts(own).items():
                found[prefix + name] = value
            found[f"{prefix}embed_tokens.weight"] = self.model.model.embed_tokens.weight.detach().clone()
            found[f"{prefix}shared_head.head.weight"] = self.model.lm_head.weight.detach().clone()
        return found

    @torch.no_grad()
    def drafts(self, tokens: list[int], count: int) -> tuple[list[int], np.ndarray]:
        """The most probable drafts after tokens, and the logits of each, computed from nothing.

        A single layer goes on with its own outputs in place of the model's hidden states, and if the config says so with what
        its indexer gives for the first draft.
        """
        shares = len(self.layers.layers) == 1 and getattr(self.model.config, "index_share_for_mtp_iteration", False)
        with self._selecting_once() if shares else nullcontext():
            return self._drafts(tokens, count)

    @contextmanager
    def _selecting_once(self) -> Iterator[None]:
        """Drafts attend to what the indexer gives for the first of them, and to the slots since."""
        first: list[torch.Tensor] = []
        steps = count()

        def replace(_: torch.nn.Module, __: object, chosen: torch.Tensor) -> torch.Tensor:
            last, step = chosen.shape[1] - 1, next(steps)
            first.append(chosen[0, last])
            own = torch.cat([first[0], torch.arange(last + 1 - step, last + 1)])
            room = max(chosen.shape[2], len(own))
            made = torch.cat([chosen, chosen[..., :1].expand(-1, -1, room - chosen.shape[2])], dim=2)
            made[0, last] = torch.cat([own, own[:1].expand(room - len(own))])
            return made

        handle = self.layers.layers[0].mtp_block.self_attn.indexer.register_forward_hook(replace)
        try:
            yield
        finally:
            handle.remove()

    def _drafts(self, tokens: list[int], count: int) -> tuple[list[int], np.ndarray]:
        hidden = self.model.model(torch.tensor([tokens[:-1]])).last_hidden_state
        ids, positions = torch.tensor([tokens[1:]]), torch.arange(1, len(tokens))[None]
        drafts: list[int] = []
        rows = []
        for step in range(count):
            if len(self.layers.layers) == 1:
                outputs = self.layers.forward_layer(0, hidden, positions, None, input_ids=ids)
                hidden = torch.cat([hidden, outputs[:, -1:]], dim=1)
            else:
                outputs = hidden = self.layers.forward_layer(step, hidden, positions, None, input_ids=ids)
            rows.append(self.model.lm_head(outputs[0, -1]).numpy())
            drafts.append(int(rows[-1].argmax()))
            ids = torch.cat([ids, torch.tensor([drafts[-1:]])], dim=1)
            positions = torch.cat([positions, positions[:, -1:] + 1], dim=1)
            if len(self.layers.layers) > 1:
                ids, positions = ids[:, 1:], positions[:, 1:]
        return drafts, np.stack(rows)


def fed(model: ds.Model) -> Any:
    """A new sequence that is drafted from."""
    sequence = model.sequence()
    sequence.feed = SlotFeed(model.decoder.next_tokens, model.cache.storage.next_tokens)
    return sequence


def end_of(sequence: Any) -> SequenceEnd:
    fill_slots([sequence])
    return SequenceEnd(len(sequence), sequence.page_numbers, sequence.feed.states(len(sequence) - 1))


def drafted(model: ds.Model, sequence: Any, token: int, count: int) -> np.ndarray:
    """The most probable drafts after a sequence and a token that follows it, and the logits of each."""
    layers, rows = model.decoder.next_tokens, []
    end = end_of(sequence)
    with layers.drafting([end], count, model.cache.storage.next_tokens) as made:
        for _ in range(count):
            rows.append(made.logits({0: token})[0])
            token = int(rows[-1].argmax())
    return np.stack(rows)


def from_nothing(path: Path, tokens: list[int], count: int, **options: Any) -> np.ndarray:
    """`drafted` after tokens that a new model runs at once."""
    model = ds.load(path, **options)
    with fed(model) as sequence:
        model.forward([(sequence, tokens[:-1])])
        return drafted(model, sequence, tokens[-1], count)


def _block(layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    tensors = layer.state_dict().items()
    return {name.removeprefix("mtp_block."): value.detach().clone().contiguous() for name, value in tensors}


def _single_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With a tensor for each expert, as published folders have them."""
    made = {name: value for name, value in tensors.items() if not name.startswith("mlp.experts.")}
    if "mlp.experts.gate_up_proj" in tensors:
        for e, (both, down) in enumerate(
            zip(tensors["mlp.experts.gate_up_proj"], tensors["mlp.experts.down_proj"], strict=True)
        ):
            gate, up = both.chunk(2)
            for part, value in (("gate", gate), ("up", up), ("down", down)):
                made[f"mlp.experts.{e}.{part}_proj.weight"] = value.contiguous()
    return made
