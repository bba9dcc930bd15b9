"""bench_mla_attention on a GPU: one token of DeepSeek's heads after a context, against FlashMLA, FlashInfer and torch.

Timed is the launch, which a graph can hold; its result is that of the checked call. Interpreted, heads and latents are fewer.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np

import bench_mla_attention as host
import decodestep as ds
from bench_mla_attention import BFLOAT16, SCALE, Case, Shape
from gpu.device import DeviceReport
from measuring.harness import Call, torch

BLOCK = 64  # positions, which FlashMLA requires
SMALL = Shape(16, 64, 16, 1)


class OnDevice:
    """A case's bfloat16 tensors on the device, one sequence."""

    def __init__(self, shape: Shape, context: int, device: str) -> None:
        host.BLOCK = BLOCK
        self.case, self.context = Case(shape, context, 1), context
        self.arrays = [a.astype(BFLOAT16) for a in (self.case.query, self.case.rope, self.case.kv, self.case.kr)]
        self.query, self.rope, self.kv, self.kr = (
            torch.from_numpy(a.astype(np.float32)).to(device).bfloat16() for a in self.arrays
        )
        self.table = torch.from_numpy(self.case.table).to(device)

    def checked(self) -> Any:
        tensors = self.query, self.rope, self.kv, self.kr, self.table
        return ds.mla_attention(*tensors, [self.context], scale=SCALE, backend="triton")

    def ours(self) -> Call:
        from decodestep.ops.mla_attention import triton

        lengths, sequence = (torch.tensor([value], device=self.table.device) for value in (self.context, 0))
        work = triton.Workspace(*self.query.shape, self.context, self.query.device, self.query.dtype)
        tensors = self.query, self.rope, self.kv, self.kr, self.table, lengths, sequence
        call = lambda: triton.launch(*tensors, work, scale=SCALE)  # noqa: E731
        assert torch.equal(call(), self.checked())
        self.check("ours", call())
        return call

    def want(self) -> np.ndarray:
        out: np.ndarray = ds.mla_attention(*self.arrays, self.case.table, [self.context], scale=SCALE, backend="cpu")
        return out.astype(np.float32)

    def check(self, name: str, out: Any) -> None:
        np.testing.assert_allclose(out.float().cpu().numpy().reshape(self.want().shape), self.want(), atol=0.02, err_msg=name)

    def torch(self) -> Call:
        order = self.table[0].long()
        kv, kr = (cache[order].flatten(0, 1)[: self.context, 0] for cache in (self.kv, self.kr))
        keys, queries = torch.cat([kv, kr], -1)[None, None], torch.cat([self.query, self.rope], -1)[None]
        attend = torch.nn.functional.scaled_dot_product_attention
        call = lambda: attend(queries, keys, kv[None, None], scale=SCALE)  # noqa: E731
        self.check("torch", call())
        return call

    def flash_mla(self) -> Call:
        import flash_mla

        queries = torch.cat([self.query, self.rope], -1)[None]
        cache, lengths = torch.cat([self.kv, self.kr], -1), torch.tensor([self.context], dtype=torch.int32, device="cuda")
        plan = flash_mla.get_mla_metadata(lengths, self.query.shape[1], 1)
        table, width = self.table.int(), self.kv.shape[3]

        def call() -> Any:
            return flash_mla.flash_mla_with_kvcache(queries, cache, table, lengths, width, *plan, softmax_scale=SCALE)[0]

        self.check("FlashMLA", call())
        return call

    def flashinfer(self) -> Call:
        import flashinfer

        wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(torch.empty(1 << 27, dtype=torch.int8, device="cuda"))
        ends, blocks = (torch.tensor([0, n], dtype=torch.int32, device="cuda") for n in (1, self.table.shape[1]))
        lengths = torch.tensor([self.context], dtype=torch.int32, device="cuda")
        heads, latent, rope = self.query.shape[1], self.kv.shape[3], self.kr.shape[3]
        kinds = self.query.dtype, self.kv.dtype
        wrapper.plan(ends, blocks, self.table[0].int(), lengths, heads, latent, rope, BLOCK, False, SCALE, *kinds)
        caches = self.kv[:, :, 0], self.kr[:, :, 0]
        call = lambda: wrapper.run(self.query, self.rope, *caches)  # noqa: E731
        self.check("FlashInfer", call())
        return call


def run(chosen: Namespace) -> None:
    report = DeviceReport("mla_attention", chosen.device)
    for context in chosen.contexts:
        one = OnDevice(SMALL if report.interpreted else host.SHAPES["DeepSeek"], context, report.device)
        ours = one.ours()
        theirs = report.peers({"FlashMLA": one.flash_mla, "FlashInfer": one.flashinfer, "torch": one.torch})
        read = context * 2 * (one.kv.shape[3] + one.kr.shape[3])
        report.on_device(f"{one.query.shape[1]} heads, context {context}", {"ours": ours}, chosen.rounds, read, theirs)
    report.save()
