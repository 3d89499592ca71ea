"""All modules of PyTorch's module database: `python modules.py FOLDER` writes FOLDER/modules.jsonl and .safetensors."""

import inspect
import sys
import warnings

import torch
from cases import Cases, camel_case, tensors_in
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_map


def construction(kind, given):
    """Arguments without a default, and options."""
    places = {name: place for name, place in inspect.signature(kind.__init__).parameters.items() if name != "self"}
    if any(place.kind == place.VAR_POSITIONAL for place in places.values()):
        return list(given.args), dict(given.kwargs)
    options = {**dict(zip(places, given.args)), **given.kwargs}
    return [options.pop(name) for name, place in places.items() if name in options and place.default is inspect.Parameter.empty], options


def is_random(module):
    return module.training and any(getattr(part, "p", 0) and "Dropout" in type(part).__name__ or isinstance(getattr(part, "dropout", 0), float) and part.dropout for part in module.modules())


def record(case, kind, training, sample):
    args, options = construction(kind, sample.constructor_input)
    made = {"module": kind.__name__, "training": training, "args": case.encode(args), "options": {camel_case(name): case.encode(value) for name, value in options.items()}}
    torch.manual_seed(0)
    module = kind(*sample.constructor_input.args, **sample.constructor_input.kwargs).train(training)
    if is_random(module):
        return None
    made["state"] = {name: case.encode(value) for name, value in module.state_dict().items()}
    before = {name: value.clone() for name, value in module.state_dict().items()}
    as_leaf = lambda leaf: leaf.detach().clone().requires_grad_() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf
    inputs, named = tree_map(as_leaf, (tuple(sample.forward_input.args), dict(sample.forward_input.kwargs)))
    made["input"] = case.encode(inputs)
    made["inputOptions"] = {camel_case(name): case.encode(value) for name, value in named.items()}
    made["text"] = repr(module)
    output = module(*inputs, **named)
    made["output"] = case.encode(output)
    outputs = [each for each in tensors_in(output) if each.requires_grad]
    if outputs:
        sum(each.sum() for each in outputs).backward()
    made["grads"] = {name: case.encode(parameter.grad) for name, parameter in module.named_parameters() if parameter.grad is not None}
    made["inputGrads"] = [case.encode(leaf.grad) for leaf in tensors_in(inputs) if leaf.is_floating_point()]
    changed = {name: case.encode(value) for name, value in module.state_dict().items() if not torch.equal(value, before[name])}
    return {**made, "stateAfter": changed} if changed else made


def main(folder):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    cases = Cases()
    for entry in module_db:
        for training in (False, True):
            for sample in entry.module_inputs_func(entry, device="cpu", dtype=torch.float32, requires_grad=False, training=training):
                case = cases.new()
                try:
                    made = record(case, entry.module_cls, training, sample)
                except (TypeError, ValueError, RuntimeError) as error:  # arguments that the file cannot hold; no derivative; lazy modules
                    print(f"{entry.module_cls.__name__}: {error}", file=sys.stderr)
                    continue
                if made is not None:
                    cases.add(case, made)
    cases.save(f"{folder}/modules")
    print(f"{len(cases.records)} modules of {len({made['module'] for made in cases.records})} classes")


if __name__ == "__main__":
    main(sys.argv[1])
