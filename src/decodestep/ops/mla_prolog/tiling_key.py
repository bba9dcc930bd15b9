"""The key with which the host selects the device kernel of MlaProlog."""

from __future__ import annotations

from dataclasses import dataclass, fields

from decodestep._base.checks import is_int, require

_OP = "MlaPrologTilingKey"
_WIDTHS = (4, 2, 4, 1, 1, 2)
_EMPTY_QUERY = 2


@dataclass(frozen=True)
class MlaPrologTilingKey:
    """The fields of the 64-bit key that selects the device kernel of MlaProlog, lowest bits first.

    Attributes:
        cache_mode: bits 0-3; 0 BNSD (reserved), 1 PA_BSND, 2 PA_NZ.
        scenario: bits 4-5; 0 float16 (reserved), 1 without quantisation, 2 quantised.
        quant_mode: bits 6-9; 0 weight_uq_qr, 1 weight_uq_qr and the caches, 2 all weights, 3 all weights and the caches; 0
            without quantisation.
        dequant_optional: bit 10; the dequantisation is split over the heads.
        group_compute_optional: bit 11; never together with dequant_optional.
        empty_tensor_mode: bits 12-13; 0 none, 1 empty caches, 2 no tokens. With 2 every other bit of the key is 0.

    Raises:
        ValueError: for a field outside its width and for both optionals at once.

    Source:
        Ascend MlaProlog (CANN ops-transformer, November 2025).
    """

    cache_mode: int
    scenario: int
    quant_mode: int
    dequant_optional: int = 0
    group_compute_optional: int = 0
    empty_tensor_mode: int = 0

    def __post_init__(self) -> None:
        for field, width in zip(fields(self), _WIDTHS, strict=True):
            value = getattr(self, field.name)
            require(
                (is_int(value) or isinstance(value, bool)) and 0 <= value < 1 << width,
                _OP,
                field.name,
                f"an integer in [0, {1 << width})",
                value,
            )
            object.__setattr__(self, field.name, int(value))
        require(
            not (self.dequant_optional and self.group_compute_optional),
            _OP,
            "group_compute_optional",
            "0 beside dequant_optional",
            1,
        )

    def encode(self) -> int:
        """The key as an integer."""
        if self.empty_tensor_mode == _EMPTY_QUERY:
            return _EMPTY_QUERY << 12
        key, shift = 0, 0
        for field, width in zip(fields(self), _WIDTHS, strict=True):
            key |= getattr(self, field.name) << shift
            shift += width
        return key

    @classmethod
    def decode(cls, key: int) -> MlaPrologTilingKey:
        """The inverse of `encode`.

        Raises:
            ValueError: for a number that is no key.
        """
        require(is_int(key) and 0 <= key < 1 << sum(_WIDTHS), _OP, "key", f"an integer in [0, {1 << sum(_WIDTHS)})", key)
        rest, values = int(key), []
        for width in _WIDTHS:
            values.append(rest & ((1 << width) - 1))
            rest >>= width
        decoded = cls(*values)
        require(decoded.encode() == key, _OP, "key", f"{_EMPTY_QUERY << 12} where there are no tokens", key)
        return decoded
