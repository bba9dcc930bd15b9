"""Families: a model's sizes and the parts of its layers, from a checkpoint's keys and tensor names."""
