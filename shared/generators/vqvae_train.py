"""Training a small VQ-VAE on public images, once, with PyTorch; the file it writes is drawn from with numpy alone.

The codebook is a moving average of what it is used for (van den Oord et al. 2017, appendix A.1); latents are pulled to
their code by the commitment loss; codes that nothing uses start again at a latent. With ``adversarial`` a discriminator
of patches sharpens the decoder in the second half (Esser et al. 2021). Afterwards the decoder is rounded to whole
numbers, which the file holds. Nothing here may see a private image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patevolve.shared import checks
from patevolve.shared.errors import InputError
from patevolve.shared.generators.tensors import pack
from patevolve.shared.generators.vqvae import ACTIVATION, FORMAT, UNIT, Layer, VqVae, read

Tensor = Any  # of PyTorch: loaded within functions, whose stubs leave methods untyped

LARGEST_GRID = 8  # images are halved until neither side of the grid is longer
WEIGHT = 2047.0  # a rounded weight is a whole number of at most this size
COMMITMENT, DECAY = 0.25, 0.95
IDLE = 0.1  # a code used less than this share of an even one's use starts again at a latent
LATENT = 8.0  # largest latent while training: far above what is used, far below what the file can say
OPSET, IR_VERSION = 17, 8  # of ONNX: read by every runtime in use
BANK = 2000  # public latents that come with the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to train.

    codes, depth:  K codes of D numbers each
    channels:      width of encoder and decoder
    epochs, batch: passes over the images, images at a time
    adversarial:   weight of the discriminator's part of the decoder's loss; 0 = none
    seed:          names all randomness
    """

    codes: int = 128
    depth: int = 4
    channels: int = 32
    epochs: int = 20
    batch: int = 64
    rate: float = 2e-3
    adversarial: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse numbers outside their domains."""
        checks.integer(codes=self.codes, at_least=2, at_most=4096)
        checks.integer(depth=self.depth, at_least=1, at_most=32)
        checks.integer(channels=self.channels, at_least=4, at_most=256)
        checks.integer(epochs=self.epochs, at_least=1, at_most=10_000)
        checks.integer(batch=self.batch, at_least=2, at_most=4096)
        checks.positive(rate=self.rate)
        checks.non_negative(adversarial=self.adversarial)
        checks.integer(seed=self.seed, at_least=0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """What training gave.

    file:   the generator's file, safetensors
    onnx:   the unrounded decoder, from codes (n, D, rows, columns) to images (n, 1, height, width) in [0, 1]; or None
    error:  root mean square error of the rounded generator on the images it was trained on, in grey levels
    used:   codes that these images use
    """

    file: bytes
    onnx: bytes | None
    error: float
    used: int


def stages_of(height: int, width: int) -> int:
    """Return how often images are halved. Raises InputError if they cannot be."""
    stages = 1
    while max(height, width) > LARGEST_GRID << stages:
        stages += 1
    if height % (1 << stages) or width % (1 << stages):
        raise InputError(
            f"images of {height} × {width} found; expected both sides to be multiples of {1 << stages}, to "
            f"be halved {stages} times. Pad or resize them."
        )
    return stages


def train(
    images: NDArray[np.uint8],
    labels: NDArray[np.str_],
    settings: Settings,
    watch: Callable[[float], None] = lambda _: None,
    *,
    onnx: bool = False,
) -> Trained:
    """Return a VQ-VAE trained on public images (n, height, width), of class names ``labels`` ("" where not known).

    ``watch`` is called with the mean loss after each epoch. Raises InputError if PyTorch is missing, or without images.
    """
    try:
        import torch  # noqa: PLC0415 - an extra: training alone needs it
    except ImportError as reason:
        raise InputError(
            f"training needs {reason.name}; install it: pip install 'patevolve[train]'. A finished file needs neither."
        ) from reason
    if len(images) < 2 or len(labels) != len(images):
        raise InputError(f"{len(images)} image(s) and {len(labels)} labels found; expected two or more, and as many.")
    with torch.random.fork_rng(devices=[]):  # the caller's randomness stays where it is
        torch.manual_seed(settings.seed)
        model = _model(settings, stages_of(*images.shape[1:]))
        pixels = torch.from_numpy(images.astype(np.float32) / np.float32(255))[:, None]
        for epoch in range(settings.epochs):
            sharpen = bool(settings.adversarial) and 2 * epoch >= settings.epochs
            watch(_epoch(model, pixels, settings, sharpen=sharpen))
        return _finished(model, pixels, labels, settings, onnx=onnx)


def _model(settings: Settings, stages: int) -> Any:
    """Return encoder, decoder, discriminator, codebook and optimisers in one namespace."""
    import types  # noqa: PLC0415 - beside torch, which is an extra

    import torch  # noqa: PLC0415 - as above
    from torch import nn  # noqa: PLC0415 - as above

    wide, depth = settings.channels, settings.depth
    down: list[nn.Module] = []
    for stage in range(stages):
        down += [nn.Conv2d(wide if stage else 1, wide, 4, stride=2, padding=1), nn.ReLU()]
    encoder = nn.Sequential(*down, nn.Conv2d(wide, wide, 3, padding=1), nn.ReLU(), nn.Conv2d(wide, depth, 1))
    up: list[nn.Module] = [nn.Conv2d(depth, wide, 3, padding=1), nn.ReLU()]
    for _ in range(stages):
        up += [nn.Upsample(scale_factor=2), nn.Conv2d(wide, wide, 3, padding=1), nn.ReLU()]
    decoder = nn.Sequential(*up, nn.Conv2d(wide, 1, 3, padding=1))
    judge = nn.Sequential(
        nn.Conv2d(1, wide, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(wide, wide, 4, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(wide, 1, 3, padding=1),
    )  # fmt: skip
    return types.SimpleNamespace(
        encoder=encoder, decoder=decoder, judge=judge,
        codes=torch.zeros(settings.codes, depth), uses=torch.zeros(settings.codes),
        sums=torch.zeros(settings.codes, depth),
        learner=torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=settings.rate),
        judging=torch.optim.Adam(judge.parameters(), lr=settings.rate / 4, betas=(0.5, 0.9)),
    )  # fmt: skip


def _epoch(model: Any, pixels: Tensor, settings: Settings, *, sharpen: bool) -> float:
    """Return the mean loss of one pass over the images."""
    import torch  # noqa: PLC0415 - an extra
    from torch.nn import functional  # noqa: PLC0415 - as above

    losses = []
    order, most = torch.randperm(len(pixels)), settings.batch
    for start in range(0, len(order), most):
        real = pixels[order[start : start + most]]
        latent = model.encoder(real).clamp(-LATENT, LATENT)
        code = _quantised(model, latent, learn=True)
        made = model.decoder(latent + (code - latent).detach())  # straight through
        loss: Tensor = functional.mse_loss(made, real) + COMMITMENT * functional.mse_loss(latent, code.detach())
        if sharpen:
            loss = loss - settings.adversarial * model.judge(made).mean()
        model.learner.zero_grad()
        loss.backward()
        model.learner.step()
        if sharpen:
            truth, forged = model.judge(real), model.judge(made.detach())
            hinge: Tensor = functional.relu(1 - truth).mean() + functional.relu(1 + forged).mean()
            model.judging.zero_grad()
            hinge.backward()
            model.judging.step()
        losses.append(float(loss.detach()))
    return float(np.mean(losses))


def _quantised(model: Any, latent: Tensor, *, learn: bool) -> Tensor:
    """Return each place's nearest code; while learning, the codes then move to the mean of what they stand for."""
    import torch  # noqa: PLC0415 - an extra

    places = latent.permute(0, 2, 3, 1).reshape(-1, latent.shape[1]).detach()
    if learn:
        _restart_idle(model, places)
    nearest = torch.cdist(places, model.codes).argmin(dim=1)
    code = model.codes[nearest].reshape(len(latent), *latent.shape[2:], -1).permute(0, 3, 1, 2)
    if learn:
        count = torch.bincount(nearest, minlength=len(model.codes)).float()
        sums = torch.zeros_like(model.codes).index_add_(0, nearest, places)
        model.uses = DECAY * model.uses + (1 - DECAY) * count
        model.sums = DECAY * model.sums + (1 - DECAY) * sums
        model.codes = model.sums / model.uses[:, None]
    return code


def _restart_idle(model: Any, places: Tensor) -> None:
    """Set codes that nothing uses, at first all of them, to random latents."""
    import torch  # noqa: PLC0415 - an extra

    even = len(places) / len(model.codes)
    idle = model.uses < IDLE * even
    model.codes[idle] = places[torch.randint(len(places), (int(idle.sum()),))]
    model.uses[idle] = even
    model.sums[idle] = even * model.codes[idle]


def _finished(model: Any, pixels: Tensor, labels: NDArray[np.str_], settings: Settings, *, onnx: bool) -> Trained:
    """Return the file with the decoder in whole numbers, checked on the images themselves."""
    import torch  # noqa: PLC0415 - an extra

    with torch.no_grad():
        latents = torch.cat([model.encoder(part).clamp(-LATENT, LATENT) for part in pixels.split(256)])
        model.codes = torch.round(model.codes * UNIT) / UNIT
        step = -(-len(latents) // BANK)
        code = _quantised(model, latents[::step], learn=False)
        layers = _rounded(model.decoder, code)
    grid = latents.permute(0, 2, 3, 1).numpy()
    bank = np.rint(grid[::step] * UNIT).reshape(len(code), -1).astype(np.int16)
    names = sorted(set(labels.tolist()))
    arrays: dict[str, NDArray[Any]] = {
        "grid": np.array(grid.shape[1:], np.int32),
        "codes": np.rint(model.codes.numpy() * UNIT).astype(np.int32),
        "bank": bank,
        "bank labels": np.array([names.index(label) for label in labels[::step].tolist()], np.int32),
        "shifts": np.array([layer.shift for layer in layers], np.int32),
        "doubles": np.array([layer.doubles for layer in layers], np.uint8),
    }
    for number, layer in enumerate(layers):
        arrays[f"weights {number}"] = layer.weights.astype(np.int16)
        arrays[f"bias {number}"] = layer.bias.astype(np.int64)
    file = pack(arrays, {"format": FORMAT, "labels": "\x1f".join(names), "settings": repr(settings)})
    made = read(file, "", ())
    error = _error(made, bank, pixels[::step])
    used = len(
        torch.unique(torch.cdist(latents.permute(0, 2, 3, 1).reshape(-1, grid.shape[3]), model.codes).argmin(dim=1))
    )
    return Trained(file=file, onnx=_exported(model.decoder, settings.depth) if onnx else None, error=error, used=used)


def _error(made: VqVae, bank: NDArray[np.int16], pixels: Tensor) -> float:
    again = made.render(bank / UNIT, np.zeros(len(bank), np.int64)).astype(np.float64)
    return float(np.sqrt(np.mean((again - 255.0 * pixels[:, 0].numpy()) ** 2)))


def _rounded(decoder: Any, code: Tensor) -> list[Layer]:
    """Return the decoder in whole numbers: powers of two scale each layer so that what these codes cause fits twice."""
    from torch import nn  # noqa: PLC0415 - an extra

    layers, scale, doubles, modules = [], float(np.log2(UNIT)), False, list(decoder)
    for number, module in enumerate(modules):
        code = module(code)
        doubles = doubles or isinstance(module, nn.Upsample)
        if not isinstance(module, nn.Conv2d):
            continue
        weight, bias = module.weight.detach().double().numpy(), module.bias
        own = np.floor(np.log2(WEIGHT / max(float(np.abs(weight).max()), 1e-6)))
        if number == len(modules) - 1:
            grey, after = 255.0, 0.0  # the last layer gives grey levels themselves
            own -= np.ceil(np.log2(grey))
        else:
            grey, after = 1.0, np.floor(np.log2(ACTIVATION / max(2.0 * float(code.max()), 1e-6)))
        after = min(after, scale + own)  # shifts are never negative
        whole = np.rint(np.ldexp(grey * weight, int(own))).transpose(2, 3, 1, 0).reshape(-1, weight.shape[0])
        offset = np.rint(np.ldexp(grey * bias.detach().double().numpy(), int(scale + own))) if bias is not None else 0.0
        layers.append(Layer(weights=whole, bias=np.asarray(offset), shift=int(scale + own - after), doubles=doubles))
        scale, doubles = after, False
    return layers


def _exported(decoder: Any, depth: int) -> bytes:
    """Return the decoder as ONNX bytes, node by node. Raises InputError if the library is missing."""
    try:
        from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415 - an extra
    except ImportError as reason:
        raise InputError(f"ONNX needs {reason.name}; install it: pip install 'patevolve[train]'.") from reason
    from torch import nn  # noqa: PLC0415 - an extra

    doubled = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "doubled")
    nodes, constants, before = [], [doubled], "codes"
    for number, module in enumerate(decoder):
        after = "images" if number == len(decoder) - 1 else f"layer {number}"
        if isinstance(module, nn.Conv2d):
            names = [f"weight {number}", f"bias {number}"]
            values = (module.weight, module.bias)
            constants += [
                numpy_helper.from_array(value.detach().numpy(), name)
                for name, value in zip(names, values, strict=True)
                if value is not None
            ]
            nodes.append(helper.make_node("Conv", [before, *names], [after], pads=[1, 1, 1, 1]))
        elif isinstance(module, nn.Upsample):
            how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            nodes.append(helper.make_node("Resize", [before, "", "doubled"], [after], **how))
        else:
            nodes.append(helper.make_node("Relu", [before], [after]))
        before = after
    given = helper.make_tensor_value_info("codes", TensorProto.FLOAT, ["n", depth, "rows", "columns"])
    made = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 1, "height", "width"])
    graph = helper.make_graph(nodes, "decoder", [given], [made], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    data: bytes = model.SerializeToString()
    return data
