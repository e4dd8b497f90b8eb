"""Programs written for CUDA, on the CPU."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from amplint.runtime.simulated_cuda import simulated_cuda

HALF = torch.float16


def train(
    model: nn.Module,
    *inputs: torch.Tensor,
    loss: Callable[[torch.Tensor], torch.Tensor] = lambda output: output.float().square().mean(),
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    dtype: torch.dtype = HALF,
) -> torch.dtype:
    """Three mixed precision steps with clipping; the dtype of the model's output."""
    torch.manual_seed(0)
    model = model.cuda()
    given = [tensor.to("cuda") for tensor in inputs]
    stepper = optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    for _ in range(3):
        stepper.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            output = model(*given)
            output = output[0] if isinstance(output, tuple) else output
            value = loss(output)
        scaler.scale(value).backward()
        scaler.unscale_(stepper)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(stepper)
        scaler.update()
    assert torch.isfinite(value)
    assert all(p.grad is None or p.grad.dtype == p.dtype for p in model.parameters())
    return output.dtype


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.attention(tokens, tokens, tokens)[0]


class FusedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(tokens).chunk(3, -1)
        return F.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None], is_causal=True)


class Exponential(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tensor)
        return tensor.exp()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0].exp()


class WithCustomFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return Exponential.apply(self.linear(rows) * 0.1)


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))
        self.use_reentrant = use_reentrant

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(self.block, rows.requires_grad_(), use_reentrant=self.use_reentrant)


ROWS, TOKENS, IMAGES = (8, 16), (2, 5, 16), (4, 3, 8, 8)
CNN = (nn.Conv2d, nn.BatchNorm2d)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype]] = {
    "linear": (lambda: nn.Linear(16, 4), ROWS, HALF),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)),
        IMAGES,
        HALF,
    ),
    "upsampling": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(3, 8, 2, 2), nn.GroupNorm(2, 8), nn.SiLU(), nn.Upsample(scale_factor=2)
        ),
        IMAGES,
        torch.float32,
    ),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3), (2, 3, 8), HALF),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(3, 4, 3), nn.AvgPool3d(2)), (2, 3, 6, 6, 6), HALF),
    "layer_norm": (lambda: nn.Sequential(nn.Linear(16, 4), nn.LayerNorm(4)), ROWS, torch.float32),
    "instance_norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4)), IMAGES, HALF),
    "attention": (SelfAttention, TOKENS, HALF),
    "fused attention": (FusedAttention, TOKENS, HALF),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), TOKENS, torch.float32),
    "lstm": (lambda: nn.LSTM(16, 8, 2, batch_first=True, bidirectional=True), TOKENS, HALF),
    "gru": (lambda: nn.GRU(16, 8), TOKENS, HALF),
    "rnn": (lambda: nn.RNN(16, 8), TOKENS, HALF),
    "lstm cell": (lambda: nn.LSTMCell(16, 8), ROWS, HALF),
    "prelu": (lambda: nn.Sequential(nn.Linear(16, 4), nn.PReLU(), nn.GELU(), nn.Dropout(0.5)), ROWS, HALF),
    "softmax": (lambda: nn.Sequential(nn.Linear(16, 4), nn.Softmax(-1)), ROWS, torch.float32),
    "custom function": (WithCustomFunction, ROWS, torch.float32),
    "checkpoint": (lambda: Checkpointed(False), ROWS, HALF),
    "reentrant checkpoint": (lambda: Checkpointed(True), ROWS, HALF),
    "data parallel": (lambda: nn.DataParallel(nn.Linear(16, 4)), ROWS, HALF),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_train(name: str, cuda: None) -> None:
    make, shape, dtype = MODELS[name]
    assert train(make(), torch.randn(shape)) == dtype


def test_a_bfloat16_region(cuda: None) -> None:
    assert train(nn.Linear(16, 4), torch.randn(ROWS), dtype=torch.bfloat16) == torch.bfloat16


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters),
    "foreach": lambda parameters: torch.optim.Adam(parameters, foreach=True),
    "fused": lambda parameters: torch.optim.Adam(parameters, fused=True),
    "capturable": lambda parameters: torch.optim.AdamW(parameters, capturable=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step(name: str, cuda: None) -> None:
    assert train(nn.Linear(16, 4), torch.randn(ROWS), optimizer=OPTIMIZERS[name]) == HALF


CLASSES = torch.zeros(8, dtype=torch.long)
LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cross entropy": lambda x: F.cross_entropy(x, CLASSES.cuda(), label_smoothing=0.1),
    "with logits": lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(8, 4, device="cuda")),
    "kl": lambda x: F.kl_div(F.log_softmax(x, -1), torch.full((8, 4), 0.25, device="cuda"), reduction="batchmean"),
    "huber": lambda x: F.huber_loss(x, torch.zeros(8, 4, device="cuda")),
    "cosine": lambda x: 1 - F.cosine_similarity(x, torch.ones_like(x)).mean(),
    "triplet": lambda x: F.triplet_margin_loss(x, x * 0.5, torch.ones_like(x)),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x).mean(),
    "cdist": lambda x: torch.cdist(x, x.detach() + 1).mean(),
    "ctc": lambda x: F.ctc_loss(
        x.view(4, 2, 4).log_softmax(-1), torch.ones(2, 1, dtype=torch.long), torch.tensor([4, 4]), torch.tensor([1, 1])
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_run(name: str, cuda: None) -> None:
    assert train(nn.Linear(16, 4), torch.randn(ROWS), loss=LOSSES[name]) == HALF


def mlp(device: str, steps: int = 30) -> tuple[list[float], list[torch.Tensor]]:
    """Losses and parameters of a model whose operations CPU and CUDA autocast treat alike; weights used twice."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Sigmoid(), nn.Linear(32, 4)).to(device)
    inputs, targets = torch.randn(64, 16).to(device), torch.randn(64, 4).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, foreach=False)
    scaler = torch.amp.GradScaler(device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=HALF):
            loss = F.mse_loss(model(inputs), targets) + F.mse_loss(model(inputs * 0.5), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def test_bitwise_as_cpu_autocast_where_the_lists_agree() -> None:
    losses, parameters = mlp("cpu")
    with simulated_cuda(half_kernels=False):
        our_losses, our_parameters = mlp("cuda")
    assert our_losses == losses
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(our_parameters, parameters, strict=True))
    with simulated_cuda():
        with_half_kernels, _ = mlp("cuda")
    assert with_half_kernels == pytest.approx(losses, rel=1e-3)


def uses_device(check: Callable[[], object]) -> Any:
    return pytest.param(check, id=check.__name__)


def factories() -> None:
    made = [
        torch.zeros(1, device="cuda:0"),
        torch.tensor([1.0], device=torch.device("cuda", 0)),
        torch.empty(1).cuda(),
        torch.full((1,), 1.0, device=0),
        torch.ones(1).to(0),
        torch.ones(1).to("cuda", HALF),
        torch.ones(1).to(device="cuda", dtype=HALF, non_blocking=True),
        torch.ones(1).to(torch.ones(1, device="cuda")),
        torch.zeros(1, device="cuda").new_zeros(2),
        torch.cuda.FloatTensor([1.0]),
    ]
    assert all(tensor.is_cuda and tensor.device == torch.device("cuda:0") for tensor in made)


def default_device() -> None:
    with torch.device("cuda"):
        assert torch.randn(3).is_cuda
    torch.set_default_device("cuda")
    try:
        assert torch.ones(2).is_cuda
    finally:
        torch.set_default_device(None)


def modules() -> None:
    assert nn.Linear(2, 2, device="cuda", dtype=HALF).weight.dtype == HALF
    assert nn.Linear(2, 2).to("cuda", HALF).weight.dtype == HALF
    assert nn.Linear(2, 2).to(0).cuda(0).half().float().weight.is_cuda
    copy.deepcopy(nn.LSTM(2, 2).cuda())


def typed_by_string() -> None:
    assert torch.ones(2, device="cuda").type() == "torch.cuda.FloatTensor"
    assert torch.ones(2).type("torch.cuda.HalfTensor").dtype == HALF
    assert isinstance(torch.ones(2, device="cuda"), torch.cuda.FloatTensor)


def checkpoints() -> None:
    model, file = nn.Linear(2, 2).cuda(), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file, map_location="cuda:0"))
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(torch.ones(1, device="cuda"))
    scaler.load_state_dict(scaler.state_dict())
    assert scaler.get_scale() == 65536.0


def queries() -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert "simulated" in torch.cuda.get_device_name(0)
    assert torch.cuda.get_device_properties(0).total_memory > 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.manual_seed_all(0)
    torch.cuda.max_memory_allocated()


def accelerator() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()


def streams() -> None:
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        event.record()
    torch.cuda.current_stream(device=torch.device("cuda")).wait_stream(stream)
    assert event.elapsed_time(event) == 0.0


def generators() -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    assert torch.randn(2, generator=generator, device="cuda").is_cuda
    assert isinstance(generator, torch.Generator)


def data_loader() -> None:
    rows = torch.utils.data.TensorDataset(torch.randn(8, 4))
    loader = torch.utils.data.DataLoader(rows, batch_size=4, pin_memory=True, num_workers=2)
    assert [batch.to("cuda", non_blocking=True).shape for (batch,) in loader] == [(4, 4), (4, 4)]


def packed_sequences() -> None:
    lstm = nn.LSTM(4, 8, batch_first=True).cuda()
    with torch.autocast("cuda"):
        packed = nn.utils.rnn.pack_padded_sequence(
            torch.randn(2, 5, 4, device="cuda"), torch.tensor([5, 3]), batch_first=True
        )
        output, _ = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
    assert output.dtype == HALF


def compiled() -> None:
    @torch.compile(mode="max-autotune")
    def double(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    model = torch.compile(nn.Linear(2, 2).cuda())
    assert double(model(torch.ones(1, 2, device="cuda"))).is_cuda


def nested_regions() -> None:
    square = torch.ones(2, 2, device="cuda")
    with torch.autocast(square.device.type):
        assert (square @ square).dtype == HALF
        with torch.autocast("cuda", enabled=False):
            assert (square @ square).dtype == torch.float32
        assert torch.is_autocast_enabled("cuda")
    assert (square @ square).dtype == torch.float32


def older_names() -> None:
    scaler = torch.cuda.amp.GradScaler()
    square = torch.ones(2, 2, device="cuda", requires_grad=True)
    with torch.cuda.amp.autocast():
        assert (square @ square).dtype == HALF
        assert torch.get_autocast_dtype("cuda") == HALF
    scaler.scale(square.sum()).backward()
    assert scaler.is_enabled()


def functional_transforms() -> None:
    squares = torch.ones(3, 2, 2, device="cuda")
    with torch.autocast("cuda"):
        assert torch.vmap(lambda square: square @ square)(squares).dtype == HALF
        gradient = torch.func.grad(lambda square: (square @ square).float().sum())(squares[0])
    assert gradient.dtype == torch.float32


def inference() -> None:
    with torch.inference_mode(), torch.autocast("cuda"):
        assert nn.Linear(4, 4).cuda()(torch.ones(2, 4, device="cuda")).dtype == HALF


def scripted() -> None:
    assert torch.jit.script(nn.Linear(2, 2).cuda())(torch.ones(1, 2, device="cuda")).is_cuda


def cpu_region() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        assert torch.ones(2, 2).softmax(-1).dtype == torch.float32


class CountsCasts(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def weights_are_cast_once_a_region() -> None:
    linear, rows = nn.Linear(4, 4, bias=False).cuda(), torch.ones(2, 4, device="cuda", dtype=HALF)
    for _ in range(2):
        with CountsCasts() as casts, torch.autocast("cuda"):
            linear(linear(linear(rows)))
        assert casts.count == 1


def weights_cast_under_no_grad_still_train() -> None:
    linear, rows = nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
    with torch.autocast("cuda"):
        with torch.no_grad():
            linear(rows)
        linear(rows).float().sum().backward()
    assert linear.weight.grad is not None


def double_backward() -> None:
    model, rows = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).cuda(), torch.randn(2, 4, device="cuda", requires_grad=True)
    (gradient,) = torch.autograd.grad(model(rows).sum(), rows, create_graph=True)
    gradient.square().sum().backward()
    assert model[0].weight.grad is not None


@pytest.mark.parametrize(
    "check",
    [
        uses_device(check)
        for check in (
            *(
                factories,
                default_device,
                modules,
                typed_by_string,
                checkpoints,
                queries,
                accelerator,
                streams,
                generators,
            ),
            *(older_names, functional_transforms, inference, scripted),
            *(weights_are_cast_once_a_region, weights_cast_under_no_grad_still_train),
            *(data_loader, packed_sequences, compiled, nested_regions, cpu_region, double_backward),
        )
    ],
)
def test_programs(check: Callable[[], None], cuda: None) -> None:
    check()


def test_threads_are_covered(cuda: None) -> None:
    seen: list[torch.dtype] = []

    def work() -> None:
        with torch.autocast("cuda"):
            seen.append((torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")).dtype)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [HALF]


def test_a_batch_on_the_device_is_a_copy(cuda: None) -> None:
    data = torch.zeros(8, 2)
    batch = data[2:4].to("cuda")
    batch += 1
    assert data.sum() == 0


def test_a_snapshot_on_the_cpu_is_a_copy(cuda: None) -> None:
    weight = torch.zeros(2, device="cuda")
    snapshots = [weight.cpu(), weight.to("cpu"), weight.to(torch.device("cpu"))]
    weight += 1
    assert all(snapshot.sum() == 0 for snapshot in snapshots)


def state() -> list[object]:
    names = [name for name in dir(torch.cuda) if not name.startswith("__")]
    return [
        [getattr(torch.cuda, name) for name in names],
        [torch.load, torch.compile, torch.Generator, torch.set_default_device, torch.clear_autocast_cache],
        [torch.utils.data.DataLoader.__init__, nn.Module.compile, nn.DataParallel.forward, threading.Thread.run],
        torch.ones(1).device,
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.AutocastCUDA),
        torch.is_autocast_enabled("cuda"),
    ]


def test_torch_is_restored() -> None:
    before = state()
    with simulated_cuda():
        assert state() != before
    assert state() == before


def test_torch_is_restored_after_an_exception() -> None:
    before = state()
    with pytest.raises(ZeroDivisionError), simulated_cuda(), torch.autocast("cuda"):
        _ = 1 / 0
    assert state() == before
    with pytest.raises((RuntimeError, AssertionError)):
        torch.ones(1, device="cuda")


def test_it_can_be_entered_again() -> None:
    for _ in range(2):
        with simulated_cuda():
            assert train(nn.Linear(16, 4), torch.randn(ROWS)) == HALF
