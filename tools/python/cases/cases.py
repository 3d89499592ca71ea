"""Cases for the tests that compare with PyTorch, in the format of testdata/golden: one JSON line each, tensors in a safetensors file."""

import json
import re

import torch
from safetensors.torch import save_file
from torch.utils._pytree import tree_flatten

DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64}


def camel_case(name):
    return re.sub(r"(?<=[a-zA-Z0-9])_+([a-z0-9])", lambda match: match.group(1).upper(), name)


def tensors_in(tree):
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


class Cases:
    """Cases that are being written."""

    def __init__(self):
        self.records, self.tensors = [], {}

    def new(self):
        return Case(len(self.records))

    def add(self, case, record):
        self.records.append({"case": case.number, **record})
        self.tensors.update({f"{case.number}.{name}": tensor for name, tensor in case.tensors.items()})

    def save(self, path):
        with open(f"{path}.jsonl", "w") as file:
            file.writelines(json.dumps(record) + "\n" for record in self.records)
        save_file(self.tensors, f"{path}.safetensors")


class Case:
    """One case: its number and the tensors it names."""

    def __init__(self, number):
        self.number, self.tensors = number, {}

    def encode(self, value):
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.dtype not in DTYPES:
                raise TypeError("a tensor that the file cannot hold")
            name = f"t{len(self.tensors)}"
            self.tensors[name] = value.detach().clone(memory_format=torch.contiguous_format)
            return {"tensor": name}
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return {"int": value}
        if isinstance(value, float):
            return {"float": repr(value)}
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, (list, tuple)):
            return [self.encode(each) for each in value]
        for key, kind in {"dtype": torch.dtype, "device": torch.device, "layout": torch.layout, "memoryFormat": torch.memory_format}.items():
            if isinstance(value, kind):
                return {key: str(value).replace("torch.", "")}
        raise TypeError(f"a value of {type(value)}")
