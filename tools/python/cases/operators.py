"""Calls of ATen operators from PyTorch's operator database: `python operators.py FOLDER` writes FOLDER/ops.jsonl and .safetensors.

Two ways to them: what the database's functions call below, and the overloads of their names that take the same arguments.
"""

import collections
import itertools
import signal
import sys
import warnings

import torch
from cases import Cases, tensors_in
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

PER_OVERLOAD = 14
SAMPLES = 8
LARGEST = 4000  # elements of a tensor
SECONDS = 8  # for the samples of one type
TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float16, torch.int32)


def copied(tree):
    return tree_map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format) if isinstance(leaf, torch.Tensor) else leaf, tree)


def same(a, b):
    return len(a) == len(b) and all(x.shape == y.shape and torch.equal(x.nan_to_num(), y.nan_to_num()) if x.is_floating_point() else torch.equal(x, y) for x, y in zip(a, b))


class Calls(TorchDispatchMode):
    """Notes the operators that are called."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "aten":
            self.noted.append((func, copied(args), copied(kwargs or {})))
        return func(*args, **(kwargs or {}))


class Operators:
    def __init__(self):
        self.cases, self.seen = Cases(), collections.defaultdict(set)

    def add(self, func, args, kwargs):
        name = func._schema.name + ("" if func._overloadname == "default" else f".{func._overloadname}")
        if torch.Tag.nondeterministic_seeded in func.tags or "empty" in name or not torch._C._dispatch_has_kernel(name):
            return
        types = {place.name: str(place.type) for place in func._schema.arguments}
        if not func._schema.returns or any(isinstance(value, torch.Tensor) and "Tensor" not in types.get(name, "") for name, value in [*zip(types, args), *kwargs.items()]):
            return  # nothing to compare, or Python's conversion of tensors to numbers
        given = tensors_in((args, kwargs))
        if any(tensor.numel() > LARGEST or tensor.is_quantized or tensor.layout != torch.strided for tensor in given):
            return
        key = repr(tree_map(lambda leaf: (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)))
        if key in self.seen[name] or len(self.seen[name]) >= PER_OVERLOAD:
            return
        self.seen[name].add(key)
        try:
            self.record(name, func, *copied((args, kwargs)))
        except (TypeError, ValueError, RuntimeError, NotImplementedError):
            pass  # a value that the file cannot hold, or a call that PyTorch refuses

    def record(self, name, func, args, kwargs):
        case = self.cases.new()
        record = {"op": name, "args": case.encode(args), "kwargs": {key: case.encode(value) for key, value in kwargs.items()}}
        before = list(case.tensors.values())
        work = copied((args, kwargs))
        with torch.no_grad():
            out = func(*work[0], **work[1])
            again = copied((args, kwargs))
            if not same(tensors_in(out), tensors_in(func(*again[0], **again[1]))):
                return  # depends on more than its arguments
        record["out"] = case.encode(out)
        after = tensors_in(work)
        changed = {str(i): case.encode(tensor) for i, tensor in enumerate(after) if not same([tensor], [before[i]])}
        if changed:
            record["changed"] = changed
        elif not func._schema.is_mutable:
            gradients = self.gradients(func, args, kwargs)
            if gradients:
                record["gradOfSum"] = {str(i): case.encode(gradient) for i, gradient in gradients.items()}
        self.cases.add(case, record)

    @staticmethod
    def gradients(func, args, kwargs):
        leaves = [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in tensors_in((args, kwargs))]
        remaining = iter(leaves)
        args, kwargs = tree_map(lambda leaf: next(remaining) if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs))
        wanted = {i: leaf for i, leaf in enumerate(leaves) if leaf.requires_grad}
        try:
            outputs = [out for out in tensors_in(func(*args, **kwargs)) if out.requires_grad and out.is_floating_point()]
            if not outputs or not wanted:
                return {}
            total = sum((out.float() if out.dtype in (torch.float16, torch.bfloat16) else out).sum() for out in outputs)
            found = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
        except (RuntimeError, NotImplementedError):
            return {}  # no derivative
        return {i: gradient for i, gradient in zip(wanted, found) if gradient is not None}


def samples(entry):
    for dtype in TYPES:
        if not entry.supports_dtype(dtype, "cpu"):
            continue
        signal.alarm(SECONDS)
        try:
            made = list(itertools.islice(entry.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES))
        except Exception as error:  # samples that need another device or package, or take too long
            print(f"{entry.name} {dtype}: {error}", file=sys.stderr)
            continue
        finally:
            signal.alarm(0)
        yield from made


def out_of_time(*_):
    raise TimeoutError("too slow")


def main(folder):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, out_of_time)
    operators = Operators()
    for entry in op_db:
        named = [getattr(torch.ops.aten, name, None) for name in {entry.aten_name, f"{entry.aten_name}_", entry.name.split(".")[-1]}]
        overloads = [getattr(packet, name) for packet in named if packet is not None for name in packet.overloads() if not name.endswith("out")]
        for sample in samples(entry):
            calls = Calls()
            args = (sample.input, *sample.args)
            try:
                with torch.no_grad(), calls:
                    entry(*copied(args), **sample.kwargs)
            except Exception as error:  # what needs another device or package, also by AssertionError
                print(f"{entry.name}: {error}", file=sys.stderr)
            for call in calls.noted:
                operators.add(*call)
            for overload in overloads:
                operators.add(overload, args, sample.kwargs)
    operators.cases.save(f"{folder}/ops")
    records = operators.cases.records
    print(f"{len(records)} calls of {len({record['op'] for record in records})} overloads")


if __name__ == "__main__":
    main(sys.argv[1])
