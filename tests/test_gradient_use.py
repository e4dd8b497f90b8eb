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
    "gs = [q.grad for q in model.parameters()]\n    log(torch.nn.utils.get_total_norm(tensors=gs))",
    "for g in (p.grad, x.grad):\n        log(g.abs().max())",
    "log((g := p.grad).norm())",
    "g = (p.grad if x else x.grad)\n    print(-g)",
    "size = p.grad.square().sum() + 1\n    return size",
    "size = torch.sum(p.grad)\n    return size",
    "total = 0\n    total += p.grad.norm() ** 2\n    return total",
    "n = [p.grad.norm(), 1]\n    return max(n)",
    "self.norm = p.grad.norm()",
    "log(p.grad[0].item())",
    "log((p.grad - x).norm())",
    "log(p.grad ** 2)",
    "a = p.grad.norm()\n    b = x.grad.norm()\n    return a * b",
    "g = p.grad\n    return g - model.weight",
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
    "names = {}\n    return names[p.grad]",
    "if not p.grad:\n        return",
    "return 1 if p.grad else 2",
    "if p.grad in (x, log):\n        return",
    "if p.grad != p.grad:\n        return",
    "return p.grad < x.grad",
    "for k in range(len(p.grad.shape)):\n        log(k)",
    "self.kept = p.grad.clone()",
    "p.grad.add_(x.grad)",
    "p.grad += x.grad",
    "p.grad += p.grad / 2",
    "p.grad.norm()",
    "log(p.grad.norm() / x.grad.norm())",
    "return (p.grad.norm() / 2).isfinite()",
    "flags = []\n    flags.append(torch.isfinite(p.grad.sum()))",
    "both = p.grad + x.grad\n    return both",
    "p.grad.copy_(x)",
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
