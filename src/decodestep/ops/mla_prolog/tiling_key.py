"""The key with which the host selects the device kernel of MlaProlog."""

from __future__ import annotations

from dataclasses import dataclass, fields

from decodestep._base.checks import is_int, require

_OP = "MlaPrologTilingKey"
_WIDTHS = (4, 2, 4, 1, 1, 2, 2, 2, 8)
_EMPTY_QUERY, _EMPTY_SHIFT, _CV_SHIFT = 2, 12, 18
CV_MODES = {1: 6, 2: 7}  # by the vector cores of a cube core


@dataclass(frozen=True)
class MlaPrologTilingKey:
    """The fields of the 64-bit key that selects the device kernel of MlaProlog, lowest bits first.

    The last three are those of 2026; without them the key is that of November 2025.

    Attributes:
        cache_mode: bits 0-3; 0 BNSD (reserved; in 2026 BSND and TND), 1 PA_BSND, 2 PA_NZ, and in 2026 3 PA_BLK_BSND, 4
            PA_BLK_NZ.
        scenario: bits 4-5; 0 float16 (reserved), 1 without quantisation, 2 quantised.
        quant_mode: bits 6-9; 0 weight_uq_qr, 1 weight_uq_qr and the caches, 2 all weights, 3 all weights and the caches; 0
            without quantisation. In 2026, in the order of the scenarios of `mla_prolog_v3`: 0 NO_QUANT, 1 PARTIAL, 2
            PARTIAL_KV, 3 FULL, 4 FULL_KV, 5 PARTIAL_TILE, 6 FULL_TILE, 7 to 9 MXFP8, 10 and 11 FP8 and FP8_KV, 12 and 13
            HiFloat8, 14 FP8_TILE, 15 HiFloat8 by tile.
        dequant_optional: bit 10; the dequantisation is split over the heads.
        group_compute_optional: bit 11; never together with dequant_optional.
        empty_tensor_mode: bits 12-13; 0 none, 1 empty caches, 2 no tokens. With 2 every other bit of the key but those of
            cv_mode is 0.
        actual_seq_len_mode: bits 14-15; 1 where merged tokens come with the ends of their sequences.
        split_m_mode: bits 16-17; 1 where the cores share the tokens, 0 where they share the weights' columns.
        cv_mode: bits 18-25; 6 with one vector core for each cube core, 7 with two; 0 in the key of November 2025.

    Raises:
        ValueError: for a field outside its width, for both optionals at once, and for a field of 2026 beside cv_mode 0.

    Source:
        Ascend MlaProlog (CANN ops-transformer, November 2025 and July 2026).
    """

    cache_mode: int
    scenario: int
    quant_mode: int
    dequant_optional: int = 0
    group_compute_optional: int = 0
    empty_tensor_mode: int = 0
    actual_seq_len_mode: int = 0
    split_m_mode: int = 0
    cv_mode: int = 0

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

        require(self.cv_mode in (0, *CV_MODES.values()), _OP, "cv_mode", "0, 6 or 7", self.cv_mode)
        later = self.actual_seq_len_mode or self.split_m_mode
        require(self.cv_mode != 0 or not later, _OP, "cv_mode", "6 or 7 beside the other fields of 2026", self.cv_mode)

    def encode(self) -> int:
        """The key as an integer."""
        if self.empty_tensor_mode == _EMPTY_QUERY:
            return _EMPTY_QUERY << _EMPTY_SHIFT | self.cv_mode << _CV_SHIFT
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
        is_key = values[-1] in CV_MODES.values() or not key >> sum(_WIDTHS[:6])
        require(is_key, _OP, "key", "with 6 or 7 in bits 18-25, or no bits above 13", key)
        decoded = cls(*values)
        require(decoded.encode() == key, _OP, "key", f"{decoded.encode()} where there are no tokens", key)
        return decoded
