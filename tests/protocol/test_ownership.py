"""Whose parameters a clip is about where there are several optimizers, and which optimizers clip by themselves."""

from __future__ import annotations

import pytest

from amplint.protocol import Kind
from amplint.protocol.ownership import optimizer_clips, optimizers_on, owners
from tests.protocol.test_paths import function, paths, walked

TWO = """
    {made}
    first.zero_grad()
    second.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(first)
    scaler.unscale_(second)
    clip_grad_norm_({clipped}, 1.0)
    scaler.step(first)
    scaler.step(second)
    scaler.update()
"""
FROM_MODELS = "first, second = SGD(gen.parameters(), 0.1), SGD(disc.parameters(), 0.1)"
FROM_PARTS = "first, second = SGD(model.gen.parameters(), 0.1), SGD(model.disc.parameters(), 0.1)"
FROM_LISTS = "some, others = list(gen), list(disc)\n    first, second = SGD(some), SGD(others)"


def owned(made: str, clipped: str, renamed: tuple[str, str] = ("first", "second")) -> list[int] | None:
    """Which of the two optimizers hold what is clipped; None if that is not told."""
    body = TWO.format(made=made, clipped=clipped).replace("first", renamed[0]).replace("second", renamed[1])
    source = "from torch.optim import SGD\n" + function(
        body, "scaler, gen, disc, model, loss, opts, opt_g, opt_d, net_d"
    )
    (path,) = (path for path in paths(source) if any(event.kind is Kind.CLIP for event in path.events))
    clip = next(event for event in path.events if event.kind is Kind.CLIP)
    held = owners(path, clip)
    optimizers = optimizers_on(path)
    assert len(optimizers) == 2
    return None if held is None else sorted(optimizers.index(optimizer) for optimizer in held)


@pytest.mark.parametrize(
    ("made", "clipped", "expected"),
    [
        (FROM_MODELS, "gen.parameters()", [0]),
        (FROM_MODELS, "disc.parameters()", [1]),
        (FROM_MODELS, "gen.head.parameters()", [0]),
        (FROM_MODELS, "[*gen.parameters(), *disc.parameters()]", [0, 1]),
        (FROM_MODELS, "loss.parameters()", None),
        (FROM_PARTS, "model.disc.parameters()", [1]),
        (FROM_PARTS, "model.parameters()", [0, 1]),
        (FROM_PARTS, "model.other.parameters()", None),
        (FROM_LISTS, "some", [0]),
        (FROM_LISTS, "others", [1]),
        (FROM_MODELS, "second.param_groups[0]['params']", [1]),
    ],
)
def test_what_is_clipped_belongs_to(made: str, clipped: str, expected: list[int] | None) -> None:
    assert owned(made, clipped) == expected


@pytest.mark.parametrize(("clipped", "expected"), [("net_d.parameters()", [1]), ("model.parameters()", None)])
def test_names_tell_where_nothing_else_does(clipped: str, expected: list[int] | None) -> None:
    assert owned("pass", clipped, ("opt_g", "opt_d")) == expected


def test_the_only_optimizer_holds_what_is_clipped() -> None:
    body = "scaler.scale(loss).backward()\nclip_grad_norm_(model.parameters(), 1.0)\nscaler.step(opt)"
    (path,) = (path for path in paths(function(body)) if any(event.kind is Kind.CLIP for event in path.events))
    clip = next(event for event in path.events if event.kind is Kind.CLIP)
    assert owners(path, clip) == frozenset(optimizers_on(path))


OWN = """
    import torch
    from torch.optim import SGD, AdamW
    from transformers import Adafactor
    from torch.nn.utils import clip_grad_norm_

    class Careful(SGD):
        def step(self, closure=None):
            clip_grad_norm_(self.parameters, 1.0)
            return super().step(closure)

    class Plain(SGD):
        def step(self, closure=None):
            return super().step(closure)

    def built(model, config):
        optimizer = SGD(model.parameters(), 0.1)
        return config.maybe_add_gradient_clipping(optimizer)

    def plain(model):
        return SGD(model.parameters(), 0.1)

    def train(model, loader, config, flag):
        scaler = torch.amp.GradScaler()
        optimizer = {made}
        for x in loader:
            scaler.scale(model(x)).backward()
            scaler.step(optimizer)
            scaler.update()
"""


@pytest.mark.parametrize(
    ("made", "clips"),
    [
        ("SGD(model.parameters(), 0.1)", False),
        ("AdamW(model.parameters(), 0.1, max_grad_norm=1.0)", True),
        ("Careful(model.parameters(), 0.1)", True),
        ("Plain(model.parameters(), 0.1)", False),
        ("built(model, config)", True),
        ("plain(model)", False),
        ("Adafactor(model.parameters())", True),
        ("Careful(model.parameters()) if flag else Plain(model.parameters())", True),
        ("Plain(model.parameters()) if flag else SGD(model.parameters())", False),
    ],
)
def test_optimizers_that_clip(made: str, clips: bool) -> None:
    protocol, module = walked(OWN.format(made=made))
    optimizers = {o for path in protocol.paths(module) for o in optimizers_on(path)}
    assert optimizers
    assert any(optimizer_clips(protocol.project, optimizer) for optimizer in optimizers) is clips
