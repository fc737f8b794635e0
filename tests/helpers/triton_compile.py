"""Compile the Triton kernels for an H100 or H200 on a machine without a GPU, as far as ptxas; run by test_gpu.py.

The launches of the real forward and backward are intercepted, so that what is compiled is what would run. By hand,
`python -m tests.helpers.triton_compile softmax 64 8` prints the registers and bytes of stack that one problem takes.
Without arguments everything is compiled; the slow suite compiles `some` of it, the exhaustive one the `rest`.
"""

import re
import subprocess
import sys
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget

from parallel_epochs.models.aggregate import gpu, ops
from parallel_epochs.models.kernels import sorting
from parallel_epochs.models.messages import gpu_attention, gpu_messages, ops as message_ops
from parallel_epochs.models.messages.attention_reference import AttentionCall
from parallel_epochs.models.messages.inputs import MESSAGES
from parallel_epochs.models.messages.scores import SCORES

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
    torch.float64: "*fp64",
}


def compile_launch(kernel, grid, *args, num_warps, **constants) -> None:
    signature, constexprs, aligned = dict.fromkeys(constants, "constexpr"), {**constants}, {}

    def describe(value, path):
        if isinstance(value, tuple):
            parts = [describe(part, (*path, i)) for i, part in enumerate(value)]
            return type(value)(*parts)
        if isinstance(value, torch.Tensor):
            aligned[path] = [["tt.divisibility", 16]]
            return TYPES[value.dtype]
        if value is None or isinstance(value, triton.language.constexpr):
            constexprs[path] = getattr(value, "value", None)
            return "constexpr"
        return "fp32" if isinstance(value, float) else "i64" if value >= 2**31 else "i32"

    for i, (name, value) in enumerate(zip(kernel.arg_names, args, strict=False)):
        signature[name] = describe(value, (i,))
    source = triton.compiler.ASTSource(
        kernel, signature=signature, constexprs=constexprs, attrs=aligned
    )
    options = dict(num_warps=num_warps, enable_fp_fusion=True)
    compiled = triton.compile(source, target=HOPPER, options=options)
    print(f"{kernel.fn.__name__}: {usage(compiled.asm['cubin'])}")


def usage(cubin: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        return "compiled"
    path = Path(triton.knobs.cache.dir) / "last.cubin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cubin)
    report = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True).stdout
    return ", ".join(
        f"{count} {what}" for what, count in re.findall(r"(REG|STACK|SHARED):(\d+)", report)
    )


def compile_problem(
    aggr,
    channels,
    edge_dim,
    *,
    encoded=False,
    dtype=torch.float32,
    index=torch.int32,
    need_attr=False,
):
    print(
        f"{aggr}, {channels} channels, {'encoded' if encoded else edge_dim} edge features, {dtype}, {index}"
    )
    edge_index = torch.randint(100, (2, 2000)).to(index)
    structure = sorting.sort_edges(edge_index, 100, 100)
    x, attr, weight, bias = torch.zeros(100, channels, dtype=dtype), None, None, None
    if encoded:
        attr = torch.zeros(2000, channels, dtype=dtype)
    elif edge_dim:
        attr = torch.zeros(2000, edge_dim, dtype=dtype)
        weight, bias = torch.zeros(channels, edge_dim), torch.zeros(channels)
    param = torch.zeros(1)
    call = ops.AggregateCall(x, structure, attr, weight, bias, None, param, aggr, 1e-7)
    outputs = gpu.forward(call, True)
    needed = ops.Needed(need_attr, weight is not None, False)
    gpu.backward(ops.AggregateResults(outputs[0], *outputs), call, needed)


def compile_attention(score, channels, edge_dim, *, dtype=torch.float32, loops=False, dropout=0.0):
    print(f"attention {score}, 4 heads x {channels} channels, {edge_dim} edge features, {dtype}")
    edges, wide = sorting.sort_edges(torch.randint(100, (2, 2000)), 100, 100), (100, 4, channels)
    narrow, rows = ((100, 4), 4) if score == "gat" else (wide, 4 * channels)
    message, target = torch.zeros(wide, dtype=dtype), torch.zeros(narrow, dtype=dtype)
    source = None if score == "gatv2" else torch.zeros(narrow, dtype=dtype)
    attr, weight = (
        (torch.zeros(1900, edge_dim), torch.zeros(rows, edge_dim)) if edge_dim else (None, None)
    )
    call = AttentionCall(
        message,
        source,
        target,
        edges,
        attr,
        torch.zeros(100, edge_dim) if loops else None,
        weight,
        torch.zeros(4, channels) if score == "gatv2" else None,
        torch.zeros(1, dtype=torch.int64),
        score,
        0.2,
        dropout,
        dropout,
        2000,
    )
    out, lse, _ = gpu_attention.forward(call, True)
    gpu_attention.backward(out, out, lse, call, attr is not None)


def compile_messages(message, reduce, left, right, *, dtype=torch.float32, index=torch.int32):
    print(f"{message} {reduce}, {left} and {right}, {dtype} of edges")
    edges, parsed = (
        sorting.sort_edges(torch.randint(100, (2, 2000)).to(index), 100, 100),
        MESSAGES[message],
    )
    operands = {
        name: torch.zeros(
            2000 if name == "e" else 100, *shape, dtype=dtype if name == "e" else torch.float32
        )
        for name, shape in zip(parsed.names, (left, right), strict=False)
    }
    given = [operands.get(name) for name in "uve"]
    call = message_ops.MessageCall(*given, edges, 100, message, reduce)
    outputs = gpu_messages.update_all(call, True)
    results = message_ops.MessageResults(outputs[0], *outputs)
    gpu_messages.backward(results, call, "".join(operands))


if __name__ == "__main__":
    gpu.register(
        "cpu"
    )  # only registers the functions for CPU tensors; their launches go to compile_launch
    gpu.launch = compile_launch
    chosen = sys.argv[1] if len(sys.argv) > 1 else "all"
    if len(sys.argv) > 2:
        compile_problem(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
        sys.exit()
    if chosen != "rest":
        for score in SCORES:
            compile_attention(score, 16, 8, loops=True, dropout=0.1)
        compile_messages("u_div_e", "max", (4, 16), (4, 1), dtype=torch.bfloat16)
        compile_messages("copy_u", "sum", (64,), ())
        compile_problem("softmax", 64, 8)
        compile_problem("max", 64, 0)
        compile_problem("softmax", 130, 8, need_attr=True, dtype=torch.bfloat16)
    if chosen == "some":
        sys.exit()
    for score in SCORES:
        compile_attention(score, 130, 0, dtype=torch.bfloat16)
    compile_attention("gatv2", 64, 20, loops=True)
    for reduce in ("sum", "min"):
        compile_messages("u_div_e", reduce, (4, 16), (4, 1), dtype=torch.bfloat16)
    compile_messages("v_sub_u", "max", (200,), (1,), index=torch.int64)
    for aggr in (kind for kind in ops.KINDS if kind != "max"):
        compile_problem(aggr, 64, 0)
    compile_problem("softmax", 112, 20, need_attr=True, dtype=torch.bfloat16)
    compile_problem("softmax", 112, 20, need_attr=True, index=torch.int64)
    compile_problem("softmax", 64, 0, encoded=True, need_attr=True, dtype=torch.bfloat16)
