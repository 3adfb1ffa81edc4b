"""Runs problems of gradients on the current CUDA device and compares them with the float64 oracle.

The problems are those of the CPU tests, and O and LSE are those of a CPU kernel, so that a gradient
is wrong only where a kernel of gradients is.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import gradient_problems
import numpy as np
import torch
from device_memory import Guarded, upload
from flashattn import DType, Feature
from flashattn.gradient_oracle import Gradients
from gpu_problems import CONTIGUOUS, device_options
from gradient_problems import NAMES, GradientProblem, Run
from problems import AttentionProblem, make_inputs

OPS = gradient_problems.OPS
_ADD = gradient_problems.FLAGS


def gradient_rows(op: flashattn.Op) -> list[flashattn.Kernel]:
    """Returns the CUDA kernels of an operation that this device runs."""
    return [
        kernel
        for kernel in flashattn.kernels()
        if kernel.config.op == op
        and kernel.config.arch >= flashattn.Arch.SM80
        and kernel.is_runnable
    ]


def needed_features(p: AttentionProblem) -> Feature:
    """Returns the features that a row must have to serve the problem."""
    needed = Feature(0)
    lengths = (p.cu_seqlens_q, p.cu_seqlens_k, p.seqused_q, p.seqused_k, p.leftpad_k)
    if any(x is not None for x in lengths):
        needed |= Feature.VARLEN
    if p.softcap:
        needed |= Feature.SOFTCAP
    if p.bias is not None:
        needed |= Feature.BIAS
    if p.dropout_p:
        needed |= Feature.DROPOUT
    left, right = p.window_size
    if left >= 0 or right > 0 or p.attention_chunk:
        needed |= Feature.WINDOW
    elif p.causal or right == 0:
        needed |= Feature.CAUSAL
    return needed


def heads_of(d_head: int) -> dict[str, int | None]:
    """Returns both head dimensions of a problem with this d_head: 192 has a d_head_v of 128."""
    return {"d_head": d_head, "d_head_v": 128 if d_head == 192 else None}


def serves(config: flashattn.Config, p: AttentionProblem) -> bool:
    """Says whether a row serves the problem by its type, its head dimension and its features."""
    dtype = {"float16": DType.FP16, "bfloat16": DType.BF16}[p.dtype]
    fits = config.d_head >= p.d_head
    fits &= (config.d_head_v or config.d_head) >= (p.d_head_v or p.d_head)
    missing = needed_features(p) & ~Feature(config.features)
    if missing == Feature.CAUSAL and config.features & Feature.WINDOW:
        missing = Feature(0)
    return config.dtype == dtype and fits and not missing


def first_rows(arch: int, p: AttentionProblem) -> list[flashattn.Config | None]:
    """Returns the row of the family for either operation that has the least d_head and features;
    None, the library's choice, if none serves the problem or the device runs none."""
    rows = [[x.config for x in gradient_rows(op) if x.config.arch == arch] for op in OPS]
    fits = [[config for config in configs if serves(config, p)] for configs in rows]
    return [min(x, key=lambda c: (c.d_head, c.features), default=None) for x in fits]


class DeviceRun:
    """Holds the inputs of a call in device memory, which can be made again and again."""

    def __init__(
        self,
        g: GradientProblem,
        inputs: list[np.ndarray] | None = None,
        d_o: np.ndarray | None = None,
    ) -> None:
        self.g = g
        p = replace(g.forward, layouts=CONTIGUOUS)
        self.on_host: Run = gradient_problems.make(
            replace(g, forward=p, layouts=CONTIGUOUS), inputs, d_o=d_o
        )
        run, layouts = self.on_host, g.forward.layouts
        qkv = inputs or make_inputs(p)
        self.qkv = [upload(x, layout) for x, layout in zip(qkv, layouts)]
        self.o = upload(run.o, layouts[3])
        self.d_o = upload(np.ascontiguousarray(run.d_o), g.layouts[0])
        self.lse = torch.from_numpy(np.array(run.keep[2].array)).cuda()
        self.d_lse = None if run.d_lse is None else torch.from_numpy(np.array(run.d_lse)).cuda()
        self.options = device_options(g.forward)

    def launch(
        self, dq_config: object = None, dkv_config: object = None, **keywords: object
    ) -> Gradients:
        """Makes the call, and returns what it wrote; nothing else may be written."""
        outputs = {name: self._output(name) for name in self.g.results}
        given = {name: x.tensor for name, x in outputs.items()}
        wanted = {name: given.get(name, False) for name in NAMES}
        flashattn.flash_attn_backward(
            self.d_o,
            *self.qkv,
            self.o,
            self.lse,
            d_lse=self.d_lse,
            add=bool(self.g.adds),
            dq_config=dq_config,
            dkv_config=dkv_config,
            **wanted,
            **self.options,
            **keywords,
        )
        return Gradients(*(outputs[x].take() if x in outputs else None for x in NAMES))

    def _output(self, name: str) -> Guarded:
        g = self.g
        layout = "contiguous" if name == "d_sinks" else g.layouts[1 + NAMES.index(name)]
        guarded = Guarded(g.shapes[name], g.dtypes[name].name, layout)
        if name in g.adds:
            guarded.tensor.copy_(torch.from_numpy(self.on_host.before[name]))
        return guarded

    def compare(self, found: Gradients, inputs: list[np.ndarray] | None = None) -> None:
        gradient_problems.compare_run(
            self.g, self.on_host, found, inputs, of_p=self.g.forward.dtype
        )


def check(
    g: GradientProblem,
    dq_config: object = None,
    dkv_config: object = None,
    inputs: list[np.ndarray] | None = None,
) -> Gradients:
    """Runs the problem, asserts that its gradients agree with the oracle, and returns them."""
    run = DeviceRun(g, inputs)
    found = run.launch(dq_config, dkv_config)
    run.compare(found, inputs)
    return found
