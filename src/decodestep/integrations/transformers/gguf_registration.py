"""register_gguf: transformers keeps a GGUF file's blocks on the CPU."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decodestep._base.checks import require_choice
from decodestep._base.extras import extra

if TYPE_CHECKING:
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import GgufConfig

_OP = "register_gguf"
_METHOD = "gguf"  # in transformers' table of quantisers


def register_gguf(*, activations: str = "int8") -> GgufRegistration:
    """Makes `from_pretrained(..., gguf_file=...)` keep a file's blocks on the CPU, and multiply by them.

        register_gguf()
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.Q4_K_M.gguf")

    transformers keeps blocks on GPUs alone, and decodes all of a file to floats on a CPU. From this call on its quantiser for
    GGUF files is this library's, for every architecture that it reads: matrices of the model are `BlockWeight`s, which are
    multiplied as by `linear`, and embeddings are rows of blocks. A model whose attention would be sdpa's gets the
    implementation "decodestep_grouped", and dynamic caches that it is called with grow in place (`LatentLayer`): torch would do
    both on threads of its own, which would spin on the cores of the products. Models that are loaded already do not change.
    Rows that transformers reorders or joins are moved as blocks. Tensors in blocks without a product here, such as IQ2_XS, or
    that transformers converts in another way, are decoded to floats as it does, with a warning that names them. With
    `quantization_config=GgufConfig(dequantize=True)` all are.

    Args:
        activations: "int8": activations are quantised in products, as described for `LinearPanels`; the fast way. "float32":
            they are not, so that results are those of the decoded weights but for the order of sums; several times slower.

    Returns:
        The handle. A second call replaces the first.

    Raises:
        ValueError: for another `activations`.
        MissingExtraError: if accelerate, which transformers demands for GGUF files, or gguf is not installed.
    """
    require_choice(_OP, "activations", activations, ("int8", "float32"))
    with extra("transformers-gguf"):
        for name in ("accelerate", "gguf"):
            if find_spec(name) is None:
                raise ModuleNotFoundError(name=name)
    return GgufRegistration(activations)


class GgufRegistration:
    """The entry of `register_gguf` in transformers' table of quantisers, and of its function that reads headers. As a context
    manager it is undone on exit."""

    def __init__(self, activations: str) -> None:
        from transformers.integrations import gguf
        from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING  # register_quantizer refuses a name that is taken

        self.activations = activations
        self._quantisers, self._readers = AUTO_QUANTIZER_MAPPING, gguf
        if isinstance(present := self._quantisers[_METHOD], GgufRegistration):
            present.undo()
        self._quantiser: Any = self._quantisers[_METHOD]
        self._read_metadata: Any = gguf.read_gguf_metadata
        self._quantisers[_METHOD], gguf.read_gguf_metadata = self, self._read_checked

    def __call__(self, quantization_config: GgufConfig, **kwargs: Any) -> HfQuantizer:
        """The quantiser of a file, as transformers makes one."""
        if quantization_config.dequantize:
            return self._quantiser(quantization_config, **kwargs)
        from decodestep.integrations.transformers.gguf_quantizer import BlockQuantizer

        return BlockQuantizer(quantization_config, quantises_activations=self.activations == "int8", **kwargs)

    def undo(self) -> None:
        """Restores what transformers had, unless another registration has replaced this one. Models keep their blocks."""
        if self._quantisers[_METHOD] is self:
            self._quantisers[_METHOD], self._readers.read_gguf_metadata = self._quantiser, self._read_metadata

    def _read_checked(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """transformers' `read_gguf_metadata`, with which it reads the config and the tokenizer before there is a quantiser. Of
        a damaged file it says neither which nor where: raises the ModelError that does."""
        from decodestep.files.gguf_file import GgufFile

        GgufFile(Path(path))
        return self._read_metadata(path, *args, **kwargs)

    def __enter__(self) -> GgufRegistration:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()
