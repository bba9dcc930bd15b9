"""Architectures: from the keys and names of a checkpoint to a model's sizes and the parts of its layers."""
