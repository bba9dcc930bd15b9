"""Tensors on a GPU: where their kernels run."""

from __future__ import annotations

from contextlib import contextmanager

import torch

from decodestep._base import devices


def test_kernels_run_on_the_device_of_their_tensors(monkeypatch):
    """Triton launches on the current device, which of several may be another."""
    current = []

    @contextmanager
    def made_current(device):
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", made_current)
    second = torch.device("cuda", 1)
    assert devices.run_there("op", second, lambda *args: (args, list(current)), 1, 2) == ((1, 2), [second])
    assert devices.run_there("op", torch.device("cpu"), lambda: list(current)) == []
