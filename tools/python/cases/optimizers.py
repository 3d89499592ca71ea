"""Optimizers with all combinations of some options: `python optimizers.py FOLDER` writes FOLDER/optim.jsonl and .safetensors."""

import itertools
import sys

import torch
from cases import Cases, camel_case

STEPS = 5
BOTH = (False, True)
DECAY = (0, 0.1)
BETAS = ((0.9, 0.999), (0.5, 0.9))
OPTIONS = {
    "SGD": dict(lr=(0.1,), momentum=(0, 0.9), dampening=(0, 0.3), weight_decay=DECAY, nesterov=BOTH, maximize=BOTH),
    "Adam": dict(lr=(0.01,), betas=BETAS, eps=(1e-8, 1e-3), weight_decay=DECAY, amsgrad=BOTH, maximize=BOTH),
    "AdamW": dict(lr=(0.01,), betas=BETAS, weight_decay=DECAY, amsgrad=BOTH, maximize=BOTH),
    "Adagrad": dict(lr=(0.1,), lr_decay=(0, 0.1), weight_decay=DECAY, initial_accumulator_value=(0, 0.3), eps=(1e-10, 1e-3), maximize=BOTH),
    "RMSprop": dict(lr=(0.01,), alpha=(0.99, 0.5), weight_decay=DECAY, momentum=(0, 0.9), centered=BOTH, maximize=BOTH),
    "Adamax": dict(lr=(0.01,), betas=BETAS, eps=(1e-8, 1e-2), weight_decay=DECAY, maximize=BOTH),
    "NAdam": dict(lr=(0.01,), weight_decay=DECAY, momentum_decay=(4e-3, 0.1), decoupled_weight_decay=BOTH, maximize=BOTH),
    "RAdam": dict(lr=(0.01,), betas=((0.9, 0.999), (0.5, 0.6)), weight_decay=DECAY, decoupled_weight_decay=BOTH, maximize=BOTH),
    "Adadelta": dict(lr=(1.0, 0.1), rho=(0.9, 0.5), weight_decay=DECAY, maximize=BOTH),
    "ASGD": dict(lr=(0.01,), lambd=(1e-4, 0.1), alpha=(0.75, 0.3), t0=(1e6, 2), weight_decay=DECAY, maximize=BOTH),
    "Rprop": dict(lr=(0.01,), etas=((0.5, 1.2), (0.3, 1.5)), step_sizes=((1e-6, 50), (1e-3, 0.02)), maximize=BOTH),
    "Adafactor": dict(lr=(0.01, 1.0), beta2_decay=(-0.8, 0.0), eps=((None, 1e-3), (1e-3, 0.5)), d=(1.0, 3.0), weight_decay=DECAY, maximize=BOTH),
    "Muon": dict(lr=(0.01,), weight_decay=DECAY, momentum=(0, 0.95), nesterov=BOTH, ns_steps=(1, 5), adjust_lr_fn=(None, "original", "match_rms_adamw")),
}


def record(case, name, options):
    random = torch.Generator().manual_seed(case.number)
    draw = lambda shape: torch.randn(shape, dtype=torch.float64, generator=random)
    shapes = [(4, 3), (3, 7) if name == "Muon" else (5,)]
    params = [torch.nn.Parameter(draw(shape)) for shape in shapes]
    made = {"optimizer": name, "options": {camel_case(key): case.encode(value) for key, value in options.items()}, "params": case.encode(params), "grads": [], "after": []}
    optimizer = getattr(torch.optim, name)(params, **options)
    for _ in range(STEPS):
        grads = [draw(shape) for shape in shapes]
        made["grads"].append(case.encode(grads))
        for param, grad in zip(params, grads):
            param.grad = grad
        optimizer.step()
        made["after"].append(case.encode(params))
    return made


def main(folder):
    torch.set_num_threads(1)
    cases = Cases()
    for name, choices in OPTIONS.items():
        for chosen in itertools.product(*choices.values()):
            case = cases.new()
            try:
                cases.add(case, record(case, name, dict(zip(choices, chosen))))
            except ValueError:  # nesterov without momentum
                continue
    cases.save(f"{folder}/optim")
    print(f"{len(cases.records)} runs of {len(OPTIONS)} optimizers")


if __name__ == "__main__":
    main(sys.argv[1])
