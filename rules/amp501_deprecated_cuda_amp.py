"""AMP501: the old spellings of torch.amp, one namespace for each device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from amplint.context import Context
from amplint.deprecated import deprecated_uses, modernised
from amplint.rule import Example, Finding, Rule, Severity


class DeprecatedCudaAmp(Rule):
    """The names of torch.cuda.amp and torch.cpu.amp, which torch.amp replaces.

    ## What it does
    Reports uses of `torch.cuda.amp.autocast`, `GradScaler`, `custom_fwd` and `custom_bwd`, of `torch.cpu.amp`, and of
    the old queries such as `torch.get_autocast_gpu_dtype()`, however they are imported. Code for old versions of torch
    is left alone: in a branch on a version, or in a `try` that catches a failed import.

    ## Why
    Since torch 2.4 each of them warns with `FutureWarning` or `DeprecationWarning`, at every decorated function and
    every constructor, and they name a device in the middle of code that is otherwise free of it. The new names take
    the device as an argument. Note that the first parameter of the old `autocast` is `enabled`, that of the new one
    the device: `autocast(use_amp)` becomes `autocast("cuda", enabled=use_amp)`.

    ## Example
    ```python
    from torch.cuda.amp import GradScaler, autocast

    scaler = GradScaler()
    with autocast(use_amp):
        ...
    ```
    Use instead:
    ```python
    from torch.amp import GradScaler, autocast

    scaler = GradScaler("cuda")
    with autocast("cuda", enabled=use_amp):
        ...
    ```

    ## Fix
    Safe: the new name with its device, and the import. All uses of an imported name change together; where one of
    them cannot (the name is passed on as a value), none does. Nothing is suggested that the torch of `torch-version`
    does not have: `torch.amp.GradScaler` came with 2.3, `custom_fwd`, `custom_bwd` and the queries with 2.4.

    ## References
    - [torch.amp](https://docs.pytorch.org/docs/stable/amp.html)
    """

    code = "AMP501"
    name = "deprecated-cuda-amp"
    severity = Severity.INFO
    summary = "torch.cuda.amp and torch.cpu.amp, which torch.amp replaces"
    triggers = ((b".amp",), (b"import amp",), (b"_autocast_",))
    fixable = "safe"
    INVALID: ClassVar = (
        Example(
            """
            import torch
            from torch.cuda.amp import GradScaler, autocast

            class Net(torch.nn.Module):
                @autocast()  # expect
                def forward(self, x):
                    return self.head(x)

            def fit(net, batches, opt, use_amp, options):
                scaler = GradScaler(init_scale=1024.0)  # expect
                with torch.no_grad(), autocast(use_amp, torch.bfloat16):  # expect
                    net.warm_up()
                with autocast(**options):  # expect
                    return net(batches[0])
            """,
            """
            import torch
            from torch.amp import GradScaler, autocast

            class Net(torch.nn.Module):
                @autocast("cuda")
                def forward(self, x):
                    return self.head(x)

            def fit(net, batches, opt, use_amp, options):
                scaler = GradScaler("cuda", init_scale=1024.0)
                with torch.no_grad(), autocast("cuda", enabled=use_amp, dtype=torch.bfloat16):
                    net.warm_up()
                with autocast("cuda", **options):
                    return net(batches[0])
            """,
        ),
        Example(
            """
            import torch as th
            from torch.cuda import amp, device_count

            def scaler_for(cfg) -> amp.GradScaler:  # expect
                if device_count() == 0:
                    with th.cpu.amp.autocast(enabled=cfg.amp):  # expect
                        return th.cuda.amp.GradScaler(enabled=False)  # expect
                return amp.GradScaler(  # expect
                    init_scale=cfg.scale,
                    enabled=cfg.amp,
                )
            """,
            """
            import torch as th
            from torch.cuda import device_count
            from torch import amp

            def scaler_for(cfg) -> amp.GradScaler:
                if device_count() == 0:
                    with th.amp.autocast("cpu", enabled=cfg.amp):
                        return th.amp.GradScaler("cuda", enabled=False)
                return amp.GradScaler(
                    "cuda",
                    init_scale=cfg.scale,
                    enabled=cfg.amp,
                )
            """,
        ),
        Example(
            """
            import torch
            from torch.cuda.amp import custom_bwd, custom_fwd

            class Scan(torch.autograd.Function):
                @staticmethod
                @custom_fwd  # expect
                def forward(ctx, x):
                    return scan(x)

                @staticmethod
                @custom_bwd  # expect
                def backward(ctx, grad):
                    return scan_backward(grad)

            class Mix(torch.autograd.Function):
                @staticmethod
                @custom_fwd(cast_inputs=torch.float32)  # expect
                def forward(ctx, x):
                    return mix(x)
            """,
            """
            import torch
            from torch.amp import custom_bwd, custom_fwd

            class Scan(torch.autograd.Function):
                @staticmethod
                @custom_fwd(device_type="cuda")
                def forward(ctx, x):
                    return scan(x)

                @staticmethod
                @custom_bwd(device_type="cuda")
                def backward(ctx, grad):
                    return scan_backward(grad)

            class Mix(torch.autograd.Function):
                @staticmethod
                @custom_fwd(device_type="cuda", cast_inputs=torch.float32)
                def forward(ctx, x):
                    return mix(x)
            """,
        ),
        Example(
            """
            from functools import partial

            import torch
            from torch import get_autocast_gpu_dtype, is_autocast_enabled
            from torch.cuda.amp.autocast_mode import autocast as mixed
            from torch.cuda.amp.grad_scaler import GradScaler as Scaler

            def compute_dtype(x):
                if x.is_cuda and is_autocast_enabled():
                    return get_autocast_gpu_dtype()  # expect
                return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else x.dtype  # expect

            region = partial(mixed, enabled=True)  # expect
            scaler = Scaler(2.0**10)  # expect
            """,
            """
            from functools import partial

            import torch
            from torch import get_autocast_dtype, is_autocast_enabled
            from torch.amp import autocast as mixed
            from torch.amp import GradScaler as Scaler

            def compute_dtype(x):
                if x.is_cuda and is_autocast_enabled():
                    return get_autocast_dtype("cuda")
                return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype

            region = partial(mixed, "cuda", enabled=True)
            scaler = Scaler("cuda", 2.0**10)
            """,
        ),
        Example(
            """
            from contextlib import nullcontext

            from torch.cuda.amp import GradScaler, autocast

            def fit(net, x, use_amp):
                region = autocast if use_amp else nullcontext  # expect
                with region():
                    net(x)
                return GradScaler(enabled=use_amp)  # expect
            """,
            """
            import functools
            from contextlib import nullcontext

            from torch.amp import GradScaler, autocast

            def fit(net, x, use_amp):
                region = functools.partial(autocast, "cuda") if use_amp else nullcontext
                with region():
                    net(x)
                return GradScaler("cuda", enabled=use_amp)
            """,
        ),
        Example(
            """
            from torch.cuda.amp import GradScaler, autocast

            def fit(engine, args):
                engine.set_region(autocast)  # expect
                try:
                    if args.model_version == 2 and hasattr(args, "amp"):
                        return GradScaler(enabled=args.amp)  # expect
                except Exception:
                    return None
            """,
            """
            from torch.cuda.amp import autocast
            from torch.amp import GradScaler

            def fit(engine, args):
                engine.set_region(autocast)
                try:
                    if args.model_version == 2 and hasattr(args, "amp"):
                        return GradScaler("cuda", enabled=args.amp)
                except Exception:
                    return None
            """,
        ),
        Example(
            """
            import torch.cuda.amp

            def evaluate(net, x):
                with torch.cuda.amp.autocast():  # expect
                    return net(x)
            """,
            """
            import torch.amp

            def evaluate(net, x):
                with torch.amp.autocast("cuda"):
                    return net(x)
            """,
        ),
    )
    VALID: ClassVar = (
        """
        import torch
        from torch.amp import GradScaler, autocast, custom_fwd

        scaler = GradScaler("cuda")
        with autocast("cuda", dtype=torch.float16), torch.autocast("cpu"):
            print(torch.is_autocast_enabled(), torch.get_autocast_dtype("cuda"))
        """,
        """
        try:
            from torch.amp import GradScaler
        except ImportError:
            from torch.cuda.amp import GradScaler

        scaler = GradScaler()
        """,
        """
        import torch

        if hasattr(torch.amp, "custom_fwd"):
            from torch.amp import custom_fwd
        else:
            from torch.cuda.amp import custom_fwd

        @custom_fwd
        def forward(ctx, x):
            return x
        """,
        """
        import torch

        try:
            scaler = torch.amp.GradScaler("cuda")
        except TypeError:
            scaler = torch.cuda.amp.GradScaler()

        try:
            from torch.cuda.amp import autocast
        except Exception:
            autocast = None
        """,
        """
        import torch
        from packaging.version import parse

        def make_scaler():
            if parse(torch.__version__) >= parse("2.3"):
                return torch.amp.GradScaler("cuda")
            return torch.cuda.amp.GradScaler()

        region = torch.cuda.amp.autocast if not hasattr(torch, "autocast") else torch.autocast
        """,
        """
        # torch.cuda.amp.autocast() in a comment, and in a string
        import torch

        HELP = "use torch.cuda.amp.GradScaler"
        scaler = None  # type: torch.cuda.amp.GradScaler
        """,
        """
        from apex import amp
        from mylib.cuda.amp import autocast

        model, optimizer = amp.initialize(model, optimizer)
        with autocast():
            model(x)
        """,
        """
        from torch.cuda.amp import autocast
        from mine import autocast

        with autocast():
            pass
        """,
    )

    def check(self, context: Context) -> Iterator[Finding]:
        module = context.module
        uses = list(deprecated_uses(module, context.options.torch_version))
        fixes = modernised(module, uses)
        for use in uses:
            message = f"{use.old} is deprecated: {use.replacement.spelling} replaces it"
            yield self.finding(context, use.node, message, fix=fixes.get(id(use.node)))
