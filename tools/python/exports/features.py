"""Models that each use one feature of exports. An example returns the module, the calls, and options."""

import collections
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch.export import Dim

EXAMPLES = {}


def example(make):
    EXAMPLES[make.__name__] = make
    return make


class Function(nn.Module):
    """A module without state."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


class Cond(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, y):
        def positive(x, y):
            return (self.a(x) + y,)

        def negative(x, y):
            return (self.b(x).sin() - y,)

        return torch.cond(x.sum() > 0, positive, negative, (x, y))[0] + 1


@example
def cond():
    # PyTorch gives zeros as gradients of the branch that was not taken, here there are none: not compared
    return Cond(), [((sign * torch.ones(2, 4), torch.randn(2, 4)), {}) for sign in (1, -1)], {"gradients": False}


class CondOnSize(nn.Module):
    def forward(self, x):
        return torch.cond(x.shape[0] > 4, lambda x: x.cos() * 2, lambda x: x.sin(), (x,))


@example
def cond_size():
    return CondOnSize(), [((torch.randn(n, 3),), {}) for n in (6, 3)], {"dynamic_shapes": ({0: Dim.AUTO},)}


class Loops(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, n, x):
        rounds = while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, self.linear(x).tanh()), (n, x))
        last, all_ = scan(lambda h, x: (self.linear(h).tanh() + x, h * 2), x[0] * 1, x, dim=0)
        return rounds, last, all_, map_over(lambda row, y: row.relu() + y, x, x[0] * 1)


@example
def loops():
    # PyTorch has no gradients of loops
    return Loops(), [((torch.tensor(n), torch.randn(2, 3)), {}) for n in (4, 0)], {"gradients": False}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.unused, self.frozen = nn.Linear(3, 2), nn.Parameter(torch.randn(6), requires_grad=False)

    def forward(self, ids):
        return self.head((self.embed(ids) * self.frozen).tanh())


@example
def tied():
    return Tied(), [((torch.randint(0, 11, (2, 5)),), {})], {}


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.randn(4))
        self.register_buffer("mask", torch.tensor([True, False, True, True]), persistent=False)
        self.linear, self.constant = nn.Linear(4, 4), torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x):
        self.count += 1
        self.average.mul_(0.9).add_(x.detach().mean(0) * 0.1)
        y = self.linear(x) * self.mask + self.average * self.constant
        return y + torch.tensor([4.0, 5.0, 6.0, 7.0]) + self.count


@example
def buffers():
    return Buffers(), [((torch.randn(3, 4),), {})], {}


@example
def buffers_aten():
    return Buffers(), [((torch.randn(3, 4),), {})], {"decompose": True}


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        y = self.norm(self.linear(x)).tanh()
        with torch.no_grad():
            self.average.lerp_(y.mean(0), 0.1)
        return y


@example
def averages_aten():
    # decomposed, all buffers are written at the end, and the average depends on the weights
    layers = nn.Sequential(*(Averaged() for _ in range(2)))
    return layers, [((torch.randn(n, 4),), {}) for n in (3, 5)], {"train": True, "decompose": True, "dynamic_shapes": ({0: Dim.AUTO},)}


def change_input(x, y):
    x.add_(1)
    x[:, 0] = y
    return x * 2


@example
def changed_input():
    return Function(change_input), [((torch.randn(3, 4), torch.randn(3)), {})], {}


@example
def changed_input_aten():
    return Function(change_input), [((torch.randn(3, 4), torch.randn(3)), {})], {"decompose": True}


Pair = collections.namedtuple("Pair", "first second")
torch.utils._pytree._register_namedtuple(Pair, serialized_type_name="Pair")


@dataclasses.dataclass
class Record:
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor = None


torch.export.register_dataclass(Record, serialized_type_name="Record")


class Outputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x)
        tree = {"y": y, "pair": (y + 1, [y * 2, None]), "dict": {"k": x, 3: y.sum()}, "n": 5, "f": 2.5, "s": "text", "b": True}
        return tree, Pair(y + 1, x), Record(y, y * 2), collections.OrderedDict(z=y - 1), torch.aminmax(x, dim=0)


@example
def outputs():
    return Outputs(), [((torch.randn(2, 3),), {})], {}


class Inputs(nn.Module):
    def forward(self, x, options, pair, *, scale, bias=None, n=2, f=0.5, flag=True, name="a"):
        y = (x * options["w"] + pair[0] - pair[1][0]) * scale * n * f
        y = y + 1 if flag else y
        y = -y if name == "a" else y
        return y if bias is None else y + bias


@example
def inputs():
    args = (torch.randn(2, 3), {"w": torch.randn(3), "unused": torch.randn(1)}, (torch.randn(3), [torch.randn(1)]))
    kwargs = {"scale": torch.tensor(2.0), "bias": None, "n": 3, "f": 0.25, "flag": True, "name": "a"}
    return Inputs(), [(args, kwargs)], {}


class NumberInput(nn.Module):
    def forward(self, x, n):
        return x.repeat(n, 1) * n + x.shape[0]


@example
def number_input():
    shapes = ({0: Dim.AUTO}, Dim.DYNAMIC)
    return NumberInput(), [((torch.randn(2, 3), 3), {}), ((torch.randn(4, 3), 5), {})], {"dynamic_shapes": shapes}


class Modes(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.a(x)
        with torch.no_grad():
            z = self.b(x)
            with torch.enable_grad():
                w = self.a(z)
        return self.b(y.float()) + z + w


@example
def modes():
    return Modes(), [((torch.randn(2, 8),), {})], {}


class DerivedSizes(nn.Module):
    def forward(self, x, y, z):
        return x + y[::2], z[1:] * x, x.reshape(-1)


@example
def derived_sizes():
    n = Dim("n", min=2, max=64)
    calls = [((torch.randn(k, 3), torch.randn(2 * k, 3), torch.randn(k + 1, 3)), {}) for k in (4, 6)]
    return DerivedSizes(), calls, {"dynamic_shapes": ({0: n}, {0: 2 * n}, {0: n + 1})}


class SizeArithmetic(nn.Module):
    def forward(self, x):
        n, m = x.shape
        grid = torch.arange(n * m).reshape(n, m).to(x.dtype)
        spread = torch.zeros(torch.sym_max(n, m) - torch.sym_min(n, m) + 1)
        return x * grid, spread, x * (n / m), x.repeat(1, m % 3 + 1), torch.ones(n // 2 + 1), n * 2 + m, torch.sym_float(n) / 4


@example
def size_arithmetic():
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    return SizeArithmetic(), [((torch.randn(*s),), {}) for s in ((6, 5), (9, 4))], {"dynamic_shapes": shapes}


class DataDependent(nn.Module):
    def forward(self, x, n, sizes):
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= x.shape[0])
        a, b = sizes.tolist()
        torch._check(a >= 0)
        torch._check(b >= 0)
        torch._check(a + b == x.shape[0])
        return x.narrow(0, 0, k) * 2, torch.nonzero(x > 0), x.masked_select(x > 0), torch.full((k,), 1.5), torch.split(x, [a, b])


@example
def data_dependent():
    calls = [((torch.randn(5, 3), torch.tensor(k), torch.tensor([k, 5 - k])), {}) for k in (3, 1)]
    return DataDependent(), calls, {}


def several_results(x):
    values, positions = x.max(1)
    first, second, _ = x.split([1, 2, 2], 1)
    _, singular, _ = torch.linalg.svd(x, full_matrices=False)
    rows = x.unbind(0)
    return values, positions, second, rows[1], x.topk(2, 1)[0], torch.var_mean(x, 1)[1], singular, x.cummax(0)[1]


@example
def results():
    return Function(several_results), [((torch.randn(4, 5),), {})], {}


class Types(nn.Module):
    def __init__(self):
        super().__init__()
        self.brain = nn.Parameter(torch.randn(4, 4).bfloat16())
        self.wide = nn.Parameter(torch.randn(4, 4).double())
        self.narrow = nn.Parameter(torch.randn(4).half())
        self.scalar, self.empty = nn.Parameter(torch.tensor(2.5)), nn.Parameter(torch.empty(0, 4))
        self.channels_last = nn.Parameter(torch.randn(2, 3, 3, 3).to(memory_format=torch.channels_last))
        self.transposed = nn.Parameter(torch.randn(3, 4).t())
        whole = torch.randn(10, 4)
        for name, value in {
            "byte": torch.arange(4, dtype=torch.uint8), "char": torch.arange(4, dtype=torch.int8),
            "int32": torch.arange(4, dtype=torch.int32), "flags": torch.tensor([True, False, True, False]),
            "complex": torch.randn(4, dtype=torch.complex64), "part": whole[2:6], "other_part": whole.t()[:, 1:5],
            "expanded": torch.randn(1, 4).expand(4, 4),
        }.items():  # fmt: skip
            self.register_buffer(name, value)

    def forward(self, x):
        y = (x.bfloat16() @ self.brain).float() + (x.double() @ self.wide).float() + self.narrow.float() * self.scalar
        y = torch.cat([y, self.empty]) + self.byte + self.char + self.int32 + (self.complex * self.complex.conj()).real
        y = torch.where(self.flags, y + self.part + self.other_part + self.expanded, -y)
        spectrum = torch.view_as_real(torch.fft.fft(y.to(torch.complex64)))
        return y, F.conv2d(torch.ones(1, 3, 5, 5), self.channels_last), y @ self.transposed, spectrum, (x * (1 + 2j)).abs()


@example
def types():
    return Types(), [((torch.randn(4, 4),), {})], {}


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.sequence = nn.Sequential(self.linear, nn.ReLU(), self.linear)

    def forward(self, x):
        y = self.sequence(self.linear(x))
        return y + self.linear(x), x, y, y, self.linear.bias


@example
def shared():
    return Shared(), [((torch.randn(2, 4),), {})], {}


class Random(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(8, 8), nn.Dropout(0.5)

    def forward(self, x):
        y = self.dropout(self.linear(x)) + torch.randn(2, 8) + torch.rand_like(x)
        return y, torch.bernoulli(y.detach().sigmoid()), torch.randperm(6), torch.multinomial(y.detach().softmax(-1), 2)


@example
def random_numbers():
    return Random(), [((torch.randn(2, 8),), {})], {"train": True}


class Names(nn.Module):
    """Names that are members of every module here."""

    def __init__(self):
        super().__init__()
        self.parameters_ = nn.ParameterList(nn.Parameter(torch.randn(3)) for _ in range(2))
        self.named = nn.ModuleDict({"graph": nn.Linear(3, 3), "members": nn.Linear(3, 3), "hooks": nn.Linear(3, 3)})
        self.normed = torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))

    def forward(self, x):
        for parameter in self.parameters_:
            x = x * parameter
        for part in self.named.values():
            x = part(x)
        return self.normed(x)


@example
def names():
    return Names(), [((torch.randn(2, 3),), {})], {}
