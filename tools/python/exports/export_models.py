"""Makes testdata/exports with PyTorch: exported models, inputs, and what the original modules computed.

    python tools/python/exports/export_models.py [NAME ...]

NAME.pt2 is the export; NAME.safetensors has all tensors; NAME.json lists calls: arguments, output, loss (the sum of mean
squares of all outputs that have gradients), gradients, and buffers afterwards. Values: {"tensor": key}, {"float": x},
{"dict": ...}, lists, and plain ones. Written with PyTorch 2.15.
"""

import copy
import dataclasses
import json
import struct
import sys
from pathlib import Path

import torch

import architectures
import features

OUT = Path(__file__).parents[3] / "testdata" / "exports"
NAMES = {
    torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.int32: "I32", torch.bool: "BOOL",
    torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8", torch.int8: "I8", torch.complex64: "C64",
}  # fmt: skip


def save_safetensors(path, tensors):
    header, blobs, at = {}, [], 0
    for key, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        flat = tensor.detach().contiguous().reshape(-1)
        blob = bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""
        header[key] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def parts(value):
    """The parts of a value that has any, by name or position."""
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if getattr(value, f.name) is not None}
    if isinstance(value, tuple) and hasattr(value, "_fields") and type(value).__module__ != "torch.return_types":
        return value._asdict()
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    return list(value) if isinstance(value, (list, tuple)) else None


def describe(value, tensors, prefix):
    if isinstance(value, torch.Tensor):
        key = f"{prefix}{len(tensors)}"
        tensors[key] = value.detach().clone()
        return {"tensor": key}
    inside = parts(value)
    if isinstance(inside, dict):
        return {"dict": {key: describe(item, tensors, prefix) for key, item in inside.items()}}
    if isinstance(inside, list):
        return [describe(item, tensors, prefix) for item in inside]
    return {"float": value} if isinstance(value, float) else value


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    inside = parts(value)
    items = inside.values() if isinstance(inside, dict) else inside or []
    return [leaf for item in items for leaf in leaves(item)]


def record(module, args, kwargs, tensors):
    """One call of the original module."""
    torch.manual_seed(7)
    args, kwargs = copy.deepcopy(args), copy.deepcopy(kwargs)
    call = {"args": describe(args, tensors, "i"), "kwargs": describe(kwargs, tensors, "i")["dict"]}
    output = module(*args, **kwargs)
    call["out"] = describe(output, tensors, "o")
    trained = [leaf for leaf in leaves(output) if leaf.is_floating_point() and leaf.requires_grad]
    call["grads"] = {}
    if trained:
        loss = sum(leaf.double().square().mean() for leaf in trained)
        loss.backward()
        call["loss"] = loss.item()
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                call["grads"][name] = describe(parameter.grad, tensors, "g")["tensor"]
    call["buffers"] = {name: describe(buffer, tensors, "b")["tensor"] for name, buffer in module.named_buffers()}
    return call


def write(name, example):
    torch.manual_seed(0)
    module, calls, options = example()
    module.train(options.pop("train", False))
    decompose, gradients = options.pop("decompose", False), options.pop("gradients", True)
    args, kwargs = calls[0]
    program = torch.export.export(copy.deepcopy(module), args, kwargs, **options)
    if decompose:
        program = program.run_decompositions()
    for part in program.graph_module.modules():
        for node in getattr(part, "graph", torch.fx.Graph()).nodes:
            node.meta.pop("stack_trace", None)  # paths of the machine that ran this
    torch.export.save(program, OUT / f"{name}.pt2")
    tensors = {}
    with torch.set_grad_enabled(gradients):
        recorded = [record(copy.deepcopy(module), args, kwargs, tensors) for args, kwargs in calls]
    save_safetensors(OUT / f"{name}.safetensors", tensors)
    (OUT / f"{name}.json").write_text(json.dumps(recorded))


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    examples = {**architectures.EXAMPLES, **features.EXAMPLES}
    for wanted in sys.argv[1:] or examples:
        write(wanted, examples[wanted])
        print(wanted)
