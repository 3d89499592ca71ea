"""One random call of fuzz-ops.mjs, read as JSON from stdin, made in Python as often as the argument says: tells how it
ends, or crashes."""

import json
import math
import sys

import torch

torch.set_num_threads(1)


def numbers(fill, count, dtype):
    whole = "float" not in dtype and "complex" not in dtype
    return [
        {
            "ramp": (i % 7) if whole else (i % 11) / 3 - 1.5,
            "index": i % 3,
            "zero": 0,
            "nan": 1 if whole else math.nan,
            "infinite": 2 if whole else (math.inf if i % 2 == 0 else -math.inf),
            "huge": 100 if whole else 1e30,
        }[fill]
        for i in range(count)
    ]


def tensor(recipe):
    shape, dtype = recipe["shape"], recipe["dtype"]
    made = torch.tensor(numbers(recipe["fill"], math.prod(shape), dtype), dtype=torch.float64).reshape(shape).to(getattr(torch, dtype))
    if recipe["form"] == "transposed" and len(shape) >= 2:
        made = made.transpose(-1, -2).contiguous().transpose(-1, -2)
    elif recipe["form"] == "expanded":
        made = made.unsqueeze(0).expand([2, *shape]).select(0, 1)
    elif recipe["form"] == "offset":
        made = torch.stack([made, made]).select(0, 1)
    if recipe["device"] == "meta":
        made = made.to("meta")
    if recipe["grad"] and (made.dtype.is_floating_point or made.dtype.is_complex) and made.dtype.itemsize > 1:
        made = made.detach().requires_grad_()
    return made


bad = {"undefined": None, "null": None, "NaN": math.nan, "Infinity": math.inf, "1.5": 1.5, "bigint": 3, "string": "float32", "proxy": [1, 2]}
layouts = {name: getattr(torch, name) for name in ("strided", "sparse_coo", "sparse_csr", "sparse_bsr")}
layouts["mkldnn"] = torch._mkldnn
formats = {name: getattr(torch, name) for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")}


def build(value):
    if isinstance(value, list):
        return [build(each) for each in value]
    if isinstance(value, str):
        return layouts.get(value, formats.get(value, value))
    if not isinstance(value, dict):
        return value
    ((key, content),) = value.items()
    if key == "tensor":
        return tensor(content)
    if key == "int":
        return int(content)
    if key == "float":
        return float(content.replace("Infinity", "inf"))
    if key == "dtype":
        return getattr(torch, content)
    if key == "device":
        return torch.device(content)
    if key == "complex":
        return complex(*content)
    if key == "generator":
        return torch.Generator().manual_seed(1)
    return bad.get(content, object())


call = json.load(sys.stdin)
space, _, rest = call["op"].partition("::")
name, _, overload = rest.partition(".")
operator = getattr(getattr(getattr(torch.ops, space), name), overload or "default")
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
    try:
        operator(*[build(value) for value in call["args"]], **{key: build(value) for key, value in call["kwargs"].items()})
        end = "returns"
    except Exception as error:
        end = "raises " + str(error).split("\n")[0][:150]
print(end)
