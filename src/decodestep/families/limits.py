"""Limits of a checkpoint's sizes, so that no product overflows before they are compared with the tensors."""

MAX_WIDTH, MAX_HEADS, MAX_LAYERS, MAX_EXPERTS = 1 << 24, 1 << 16, 1 << 16, 1 << 16
MAX_CONTEXT = 1 << 24  # positions that are exact in float32, in which the angles of the rotary embedding are computed
LEAST_FACTOR, MOST_FACTOR = 2.0**-20, 2.0**20  # of the frequencies
