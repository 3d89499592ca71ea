"""Small models of many kinds. An example returns the module, the calls (arguments, keyword arguments), and options."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

EXAMPLES = {}
BATCH = Dim("batch", min=1, max=1024)
TIME = Dim("time", min=2, max=64)


def example(make):
    EXAMPLES[make.__name__] = make
    return make


class EncoderBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, 16))
        self.positions = nn.Parameter(torch.randn(1, 5, 16))
        self.blocks = nn.ModuleList(EncoderBlock(16, 2) for _ in range(2))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


@example
def vit():
    return ViT(), [((torch.randn(n, 3, 16, 16),), {}) for n in (2, 1, 5)], {"dynamic_shapes": ({0: BATCH},)}


@example
def vit_aten():
    return ViT(), [((torch.randn(2, 3, 16, 16),), {})], {"decompose": True}


class Residual(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.norm2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.down(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.pool = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.MaxPool2d(3, 2, 1)
        self.layer = Residual(8, 8, 2)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        x = self.layer(self.pool(F.relu(self.norm(self.stem(x)), inplace=True)))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


@example
def resnet():
    shapes = ({0: BATCH, 2: Dim.AUTO, 3: Dim.AUTO},)
    return ResNet(), [((torch.randn(2, 3, 32, 32),), {}), ((torch.randn(3, 3, 48, 40),), {})], {"dynamic_shapes": shapes}


@example
def resnet_train():
    return ResNet(), [((torch.randn(4, 3, 32, 32),), {})], {"train": True}


@example
def resnet_train_aten():
    return ResNet(), [((torch.randn(4, 3, 32, 32),), {})], {"train": True, "decompose": True}


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-6))


class RelativeAttention(nn.Module):
    def __init__(self, width, heads, causal, relative):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.heads, self.causal = heads, causal
        self.bias = nn.Embedding(8, heads) if relative else None

    def position_bias(self, n, m):
        if self.bias is None:
            bias = torch.zeros((1, self.heads, n, m))
        else:
            steps = torch.arange(m)[None, :] - torch.arange(n)[:, None]
            steps = -torch.min(steps, torch.zeros_like(steps))
            far = (torch.log(steps.float() / 4 + 1e-6) / math.log(4) * 4).to(torch.long) + 4
            far = torch.min(far, torch.full_like(far, 7))
            bias = self.bias(torch.where(steps < 4, steps, far)).permute(2, 0, 1).unsqueeze(0)
        return bias + torch.triu(torch.full((n, m), float("-inf")), 1) if self.causal else bias

    def forward(self, x, memory, bias=None):
        b, n, d = x.shape
        m = memory.shape[1]
        q = self.q(x).view(b, n, self.heads, -1).transpose(1, 2)
        k = self.k(memory).view(b, m, self.heads, -1).transpose(1, 2)
        v = self.v(memory).view(b, m, self.heads, -1).transpose(1, 2)
        bias = self.position_bias(n, m) if bias is None else bias
        weights = F.dropout(F.softmax((q @ k.transpose(3, 2) + bias).float(), -1).type_as(q), 0.1, self.training)
        return self.o((weights @ v).transpose(1, 2).contiguous().view(b, -1, d)), bias


class T5Layer(nn.Module):
    def __init__(self, width, heads, decoder, relative):
        super().__init__()
        self.attention, self.norm = RelativeAttention(width, heads, decoder, relative), RMSNorm(width)
        self.cross = RelativeAttention(width, heads, False, False) if decoder else None
        self.cross_norm = RMSNorm(width) if decoder else None
        self.wi, self.wg = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.wo, self.mlp_norm = nn.Linear(2 * width, width, bias=False), RMSNorm(width)

    def forward(self, x, encoded=None, bias=None):
        y = self.norm(x)
        y, bias = self.attention(y, y, bias)
        x = x + y
        if self.cross is not None:
            x = x + self.cross(self.cross_norm(x), encoded)[0]
        y = self.mlp_norm(x)
        return x + self.wo(F.gelu(self.wi(y), approximate="tanh") * self.wg(y)), bias


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Embedding(50, 12)
        self.encoder = nn.ModuleList(T5Layer(12, 3, False, i == 0) for i in range(2))
        self.decoder = nn.ModuleList(T5Layer(12, 3, True, i == 0) for i in range(2))
        self.norm = RMSNorm(12)
        self.lm_head = nn.Linear(12, 50, bias=False)
        self.lm_head.weight = self.shared.weight

    def forward(self, input_ids, decoder_input_ids):
        x, bias = self.shared(input_ids), None
        for layer in self.encoder:
            x, bias = layer(x, None, bias)
        y, bias = self.shared(decoder_input_ids), None
        for layer in self.decoder:
            y, bias = layer(y, x, bias)
        return {"logits": self.lm_head(self.norm(y) * 12**-0.5), "encoder_last_hidden_state": x}


@example
def t5():
    def call(batch, n, m):
        return (), {"input_ids": torch.randint(0, 50, (batch, n)), "decoder_input_ids": torch.randint(0, 50, (batch, m))}

    shapes = {"input_ids": {0: BATCH, 1: TIME}, "decoder_input_ids": {0: BATCH, 1: Dim.AUTO}}
    return T5(), [call(2, 9, 7), call(3, 11, 5)], {"dynamic_shapes": shapes}


def rotate(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class RotaryAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(16, 16, bias=False), nn.Linear(16, 8, bias=False)
        self.v, self.o = nn.Linear(16, 8, bias=False), nn.Linear(16, 16, bias=False)

    def forward(self, x, cos, sin):
        b, n, _ = x.shape
        q, k, v = (p(x).view(b, n, -1, 4).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = q * cos + rotate(q) * sin, k * cos + rotate(k) * sin
        k, v = (y[:, :, None].expand(b, 2, 2, n, 4).reshape(b, 4, n, 4) for y in (k, v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, 16))


class LlamaLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm1, self.norm2 = RotaryAttention(), RMSNorm(16), RMSNorm(16)
        self.gate, self.up, self.down = nn.Linear(16, 24, bias=False), nn.Linear(16, 24, bias=False), nn.Linear(24, 16, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", 1 / (10000 ** (torch.arange(0, 4, 2).float() / 4)), persistent=False)

    @torch.no_grad()
    def forward(self, x, positions):
        frequencies = self.inv_freq[None, :, None].float().expand(positions.shape[0], -1, 1)
        with torch.autocast("cpu", enabled=False):
            angles = (frequencies.float() @ positions[:, None, :].float()).transpose(1, 2)
            both = torch.cat((angles, angles), -1)
        return both.cos().to(x.dtype)[:, None], both.sin().to(x.dtype)[:, None]


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rotary = nn.Embedding(64, 16), Rotary()
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(3))
        self.norm, self.head = RMSNorm(16), nn.Linear(16, 64, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        cos, sin = self.rotary(x, torch.arange(ids.shape[1], device=ids.device)[None])
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


@example
def llama():
    calls = [((torch.randint(0, 64, shape),), {}) for shape in ((2, 10), (1, 5), (4, 17))]
    return Llama(), calls, {"dynamic_shapes": ({0: BATCH, 1: TIME},)}


class MixtureOfExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = torch.nonzero((chosen == i).any(-1)).squeeze(-1)
            share = torch.where(chosen == i, weights, torch.zeros_like(weights)).sum(-1)
            out = out.index_add(0, rows, expert(x[rows]) * share[rows][:, None])
        return out, chosen


@example
def moe():
    return MixtureOfExperts(), [((torch.randn(n, 8),), {}) for n in (6, 11)], {"dynamic_shapes": ({0: BATCH},)}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True)
        self.gru, self.rnn = nn.GRU(12, 5, batch_first=True), nn.RNN(5, 3)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        return self.rnn(self.gru(y)[0])[0], h, c


@example
def recurrent():
    return Recurrent(), [((torch.randn(3, 5, 4),), {})], {}


class UNet(nn.Module):
    def __init__(self):
        super().__init__()

        def conv(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(2, o), nn.SiLU())

        self.down1, self.down2, self.middle = conv(3, 4), conv(4, 8), conv(8, 8)
        self.up1, self.up2, self.out = conv(16, 4), conv(8, 4), nn.Conv2d(4, 3, 1)
        self.time = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8))

    def forward(self, x, t):
        angles = t.float()[:, None] * torch.exp(-math.log(10000) * torch.arange(4, device=x.device) / 4)[None]
        a = self.down1(x)
        b = self.down2(F.avg_pool2d(a, 2))
        m = self.middle(F.max_pool2d(b, 2)) + self.time(torch.cat([angles.sin(), angles.cos()], -1))[:, :, None, None]
        u = self.up1(torch.cat([F.interpolate(m, scale_factor=2.0, mode="nearest"), b], 1))
        return self.out(self.up2(torch.cat([F.interpolate(u, scale_factor=2.0, mode="bilinear"), a], 1)))


@example
def unet():
    calls = [((torch.randn(n, 3, 16, 16), torch.arange(n) + 3), {}) for n in (2, 3)]
    return UNet(), calls, {"dynamic_shapes": ({0: BATCH}, {0: BATCH})}


class Bart(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Embedding(30, 8, padding_idx=1), nn.Embedding(22, 8)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True) for _ in range(2))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True) for _ in range(2))
        self.head = nn.Linear(8, 30, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("bias", torch.zeros(1, 30))

    def forward(self, input_ids, labels):
        shifted = torch.full_like(labels, 2)
        shifted[:, 1:] = labels[:, :-1]
        shifted.masked_fill_(shifted == -100, 1)
        x = self.embed(input_ids) + self.positions(torch.arange(input_ids.shape[1]) + 2)
        for layer in self.encoder:
            x = layer(x)
        n = labels.shape[1]
        y = self.embed(shifted) + self.positions(torch.arange(n) + 2)
        for layer in self.decoder:
            y = layer(y, x, tgt_mask=torch.full((n, n), float("-inf")).triu(1))
        logits = self.head(y) + self.bias
        return F.cross_entropy(logits.view(-1, 30), labels.reshape(-1)), logits


@example
def bart():
    return Bart(), [((torch.randint(0, 30, (2, 7)), torch.randint(0, 30, (2, 5))), {})], {}


class Gemma(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.q, self.k = nn.Embedding(40, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 4, bias=False)
        self.v, self.o = nn.Linear(8, 4, bias=False), nn.Linear(8, 8, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(4), nn.RMSNorm(4)

    def forward(self, ids, mask):
        b, n = ids.shape
        x = self.embed(ids) * torch.tensor(8**0.5)
        steps = torch.arange(n)[:, None] - torch.arange(n)[None, :]
        seen = ((steps >= 0) & (steps < 4))[None, None] & mask[:, None, None, :].bool()
        q = self.q_norm(self.q(x).view(b, n, 2, 4)).transpose(1, 2)
        k = self.k_norm(self.k(x).view(b, n, 1, 4)).transpose(1, 2).repeat_interleave(2, 1)
        v = self.v(x).view(b, n, 1, 4).transpose(1, 2).repeat_interleave(2, 1)
        weights = torch.tanh((q @ k.mT) * 0.5 / 50.0) * 50.0 + torch.where(seen, 0.0, torch.finfo(x.dtype).min)
        x = x + self.o((weights.softmax(-1, dtype=torch.float32).to(q.dtype) @ v).transpose(1, 2).reshape(b, n, -1))
        return torch.tanh(x @ self.embed.weight.T / 30) * 30


@example
def gemma():
    calls = [((torch.randint(0, 40, shape),), {"mask": torch.ones(shape, dtype=torch.long)}) for shape in ((2, 8), (3, 11))]
    return Gemma(), calls, {"dynamic_shapes": {"ids": {0: BATCH, 1: TIME}, "mask": {0: BATCH, 1: TIME}}}


class GraphAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.a = nn.Linear(4, 8, bias=False), nn.Parameter(torch.randn(16))

    def forward(self, x, edges):
        h = self.w(x)
        source, target = edges
        e = F.leaky_relu((torch.cat([h[source], h[target]], -1) * self.a).sum(-1), 0.2)
        e = (e - e.max()).exp()
        total = torch.zeros(x.shape[0]).scatter_add(0, target, e)
        share = e / total.index_select(0, target).clamp(min=1e-9)
        return torch.zeros_like(h).index_add_(0, target, share[:, None] * h[source])


@example
def graph_attention():
    calls = [((torch.randn(n, 4), torch.randint(0, n, (2, 2 * n))), {}) for n in (5, 7)]
    return GraphAttention(), calls, {"dynamic_shapes": ({0: Dim.AUTO}, {1: Dim.AUTO})}
