"""What a `.grad` expression is used for: each case is the body of a function of `model`, `p`, `x` and `log`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from amplint.gradient_use import sees_size
from amplint.source import Source
from amplint.tree import parse

SIZED = [
    "log(p.grad.norm())",
    "norm = p.grad.data.norm(2)\n    log(norm.item())",
    "total = 0\n    for q in model.parameters():\n        total += q.grad.pow(2).sum()\n    return total ** 0.5",
    "grads = [q.grad.flatten() for q in model.parameters()]\n    return torch.cat(grads).norm()",
    "sizes = []\n    sizes.append(p.grad.abs().mean())\n    print(sizes)",
    "print(f'{p.grad}')",
    "if p.grad.abs().max() > 10:\n        log('large')",
    "p.grad.add_(p.data, alpha=0.1)",
    "p.grad += torch.randn_like(p.grad)",
    "p.grad = p.grad + 0.1 * p.data",
    "g = p.grad\n    g = g.detach()\n    log(g.std().item())",
    "writer.add_histogram('g', p.grad.cpu().numpy(), 1)",
]
UNSIZED = [
    "if p.grad is None:\n        return",
    "if not torch.isfinite(p.grad).all():\n        log('overflow')",
    "bad = torch.isnan(p.grad.norm())\n    log(bad)",
    "g = p.grad\n    log(g / g.norm())",
    "log(torch.sign(p.grad))",
    "log(F.cosine_similarity(p.grad.flatten(), x.grad.flatten(), dim=0))",
    "p.grad.mul_(0.5)",
    "p.grad /= 8",
    "log(p.grad.shape, p.grad.dtype)",
    "if (p.grad == 0).all():\n        log('dead')",
    "p.grad = None",
    "saved = [q.grad.clone() for q in model.parameters()]\n    return saved",
    "flat = torch.cat([q.grad.view(-1) for q in model.parameters()])\n    dist.all_reduce(flat)",
    "p.grad.sub_(p.grad.mean(dim=1, keepdim=True))",
    "log(len([q for q in model.parameters() if q.grad is not None]))",
]


def uses_size(body: str) -> bool:
    text = f"import torch\nimport torch.nn.functional as F\ndef f(model, p, x, log):\n    {body}\n"
    module = parse(Source(Path("main.py"), text))
    gradients = [n for n in ast.walk(module.tree) if isinstance(n, ast.Attribute) and n.attr == "grad"]
    assert gradients
    return any(sees_size(module, node) for node in gradients)


@pytest.mark.parametrize("body", SIZED)
def test_size_is_used(body: str) -> None:
    assert uses_size(body)


@pytest.mark.parametrize("body", UNSIZED)
def test_size_is_not_used(body: str) -> None:
    assert not uses_size(body)
