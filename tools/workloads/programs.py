"""Programs in plain torch: what users write around and instead of a library's models.

Each function is one program. It makes its data on the device and calls the operators of one
subject, forwards and backwards, as training code does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workloads import Workload
from workloads.training import evaluate, train

Device = torch.device


def _leaf(*shape: int, device: Device) -> Tensor:
    """Normal numbers with a gradient, float32."""
    return torch.randn(*shape, device=device, requires_grad=True)


def _backward(outputs: Iterable[Tensor]) -> None:
    """Backward through the sum of all elements of each output that has a gradient."""
    for output in outputs:
        if output.requires_grad:
            value = output.abs() if output.is_complex() else output
            value.float().sum().backward(retain_graph=True)


def recurrent_nets(device: Device) -> None:
    """LSTM, GRU and Elman networks on padded and packed sequences, and their cells."""
    lengths = torch.tensor([7, 5, 3])
    words = torch.randint(1, 20, (3, 7), device=device)
    embedding = nn.Embedding(20, 8, padding_idx=0, device=device)
    nets: tuple[nn.RNNBase, ...] = (
        nn.LSTM(8, 8, num_layers=2, bidirectional=True, dropout=0.1, batch_first=True),
        nn.LSTM(8, 8, proj_size=4, batch_first=True),
        nn.GRU(8, 8, num_layers=2, batch_first=True),
        nn.RNN(8, 8, batch_first=True),
        nn.RNN(8, 8, nonlinearity="relu", batch_first=True),
    )
    for net in nets:
        model = nn.ModuleList([embedding, net.to(device)])

        def loss_of(net: nn.RNNBase = net) -> Tensor:
            inputs = embedding(words)
            padded, _ = net(inputs)
            packed = nn.utils.rnn.pack_padded_sequence(inputs, lengths, batch_first=True)
            output, _ = net(packed)
            unpacked, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
            loss: Tensor = padded.square().mean() + unpacked[:, -1].mean()
            return loss

        train(model, loss_of)
        evaluate(model, lambda net=net: net(embedding(words))[0])  # type: ignore[misc]
    step = torch.randn(3, 8, device=device)
    for cell in (nn.LSTMCell(8, 8), nn.GRUCell(8, 8), nn.RNNCell(8, 8)):
        cell.to(device)
        state = cell(step)
        state = cell(step, state)
        _backward(state if isinstance(state, tuple) else (state,))
    nn.utils.rnn.pad_sequence([step[0], step[1, :4]], batch_first=True)


def classifier_losses(device: Device) -> None:
    """The losses of torch.nn for classes, rankings and sequences."""
    logits = _leaf(6, 5, device=device)
    classes = torch.randint(5, (6,), device=device)
    many = torch.randint(2, (6, 5), device=device).float()
    sign = many[:, 0] * 2 - 1
    other = _leaf(6, 5, device=device)
    maps = _leaf(2, 5, 4, 4, device=device)
    map_classes = torch.randint(5, (2, 4, 4), device=device)
    weight = torch.rand(5, device=device)
    speech = _leaf(12, 2, 5, device=device).log_softmax(-1)
    words = torch.randint(1, 5, (2, 3), device=device)
    lengths = torch.tensor([12, 10]), torch.tensor([3, 2])
    _backward(
        (
            F.cross_entropy(logits, classes),
            F.cross_entropy(logits, classes, weight=weight, label_smoothing=0.1),
            F.cross_entropy(logits, classes, ignore_index=0, reduction="none"),
            F.cross_entropy(logits, many.softmax(-1)),
            F.cross_entropy(maps, map_classes, weight=weight),
            F.nll_loss(logits.log_softmax(-1), classes),
            F.binary_cross_entropy_with_logits(logits, many, pos_weight=weight),
            F.binary_cross_entropy(logits.sigmoid(), many),
            F.kl_div(logits.log_softmax(-1), many.softmax(-1), reduction="batchmean"),
            F.multi_margin_loss(logits, classes),
            F.multilabel_margin_loss(logits, torch.randint(5, (6, 5), device=device)),
            F.multilabel_soft_margin_loss(logits, many),
            F.soft_margin_loss(logits[:, 0], sign),
            F.hinge_embedding_loss(logits[:, 0], sign),
            F.margin_ranking_loss(logits[:, 0], logits[:, 1], sign),
            F.cosine_embedding_loss(logits, other, sign),
            F.triplet_margin_loss(logits, other, other.flip(0)),
            F.ctc_loss(speech, words, *lengths),
            F.gumbel_softmax(logits, hard=True),
            -torch.distributions.Categorical(logits=logits).log_prob(classes),
        )
    )


def regression_losses(device: Device) -> None:
    """The losses of torch.nn for numbers, and distances."""
    guess, truth = _leaf(6, 5, device=device), torch.randn(6, 5, device=device)
    positive = guess.exp()
    _backward(
        (
            F.mse_loss(guess, truth),
            F.l1_loss(guess, truth),
            F.smooth_l1_loss(guess, truth, beta=0.5),
            F.huber_loss(guess, truth),
            F.poisson_nll_loss(guess, truth.abs()),
            F.gaussian_nll_loss(guess, truth, positive),
            F.cosine_similarity(guess, truth),
            F.pairwise_distance(guess, truth),
            F.pdist(guess),
            torch.cdist(guess, truth),
            torch.cdist(guess, truth, p=1.0),
            torch.dist(guess, truth),
            (guess - truth).norm(dim=1),
            torch.linalg.vector_norm(guess - truth, ord=1),
            torch.log1p(positive).sub(torch.log1p(truth.abs())).square().mean().sqrt(),
            torch.where((guess - truth).abs() < 1, guess.square(), guess.abs()),
            torch.maximum(0.9 * (truth - guess), -0.1 * (truth - guess)).mean(),
            (1 - (guess - truth).var() / truth.var()),
            F.normalize(guess, dim=-1),
        )
    )


def activations(device: Device) -> None:
    """Every activation of torch.nn.functional, forwards and backwards, and in place."""
    x = _leaf(4, 8, device=device)
    functions: tuple[Callable[[Tensor], Tensor], ...] = (
        F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.softplus,
        F.softsign, F.hardtanh, F.hardsigmoid, F.hardswish, F.hardshrink, F.softshrink,
        F.tanhshrink, F.logsigmoid, F.glu,
        torch.tanh, torch.sigmoid,
    )  # fmt: skip
    _backward(function(x) for function in functions)
    slope = torch.full((8,), 0.25, device=device, requires_grad=True)
    _backward(
        (
            F.prelu(x, slope), F.rrelu(x, training=True), F.threshold(x, 0.1, 0.0),
            F.gelu(x, approximate="tanh"), F.softmax(x, -1), F.log_softmax(x, -1), F.softmin(x, -1),
            x.clamp(-1, 1), x.clamp_min(0.0), x.clamp_max(1.0), x * torch.sigmoid(1.702 * x),
        )
    )  # fmt: skip
    layers = (
        nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid,
        nn.Hardtanh, nn.SELU, nn.CELU,
    )  # fmt: skip
    for layer in layers:
        _backward((layer(inplace=True)(x * 1.0),))
    y = x.detach().clone()
    y.tanh_().sigmoid_().exp_().log_().sqrt_().neg_().abs_().clamp_(0, 1)
    for rate in (F.dropout, F.alpha_dropout, F.feature_alpha_dropout):
        _backward((rate(x, 0.3, training=True),))
    _backward((F.dropout2d(x.view(1, 4, 2, 4), 0.3), F.dropout1d(x, 0.3)))


def norms_and_pools(device: Device) -> None:
    """Normalization, pooling and padding layers in one, two and three dimensions."""
    line, plane = _leaf(2, 4, 8, device=device), _leaf(2, 4, 8, 8, device=device)
    volume = _leaf(2, 4, 4, 8, 8, device=device)
    for norm, x in (
        (nn.BatchNorm1d(4), line),
        (nn.BatchNorm2d(4), plane),
        (nn.BatchNorm3d(4), volume),
        (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), plane),
        (nn.GroupNorm(2, 4), plane),
        (nn.LayerNorm(8), line),
        (nn.RMSNorm(8), line),
        (nn.LocalResponseNorm(2), plane),
    ):
        norm.to(device)
        _backward((norm(x),))
        norm.eval()
        _backward((norm(x),))
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8, device=device))
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8, device=device))
    _backward((linear(line), spectral(line)))
    pooled, where = F.max_pool2d(plane, 2, return_indices=True)
    _backward(
        (
            F.max_pool1d(line, 2), F.max_pool2d(plane, 3, 2, 1), F.max_pool3d(volume, 2),
            F.avg_pool1d(line, 2), F.avg_pool2d(plane, 2), F.avg_pool3d(volume, 2),
            F.adaptive_avg_pool1d(line, 1), F.adaptive_avg_pool2d(plane, 3),
            F.adaptive_avg_pool2d(plane, 1), F.adaptive_avg_pool3d(volume, 2),
            F.adaptive_max_pool1d(line, 3), F.adaptive_max_pool2d(plane, 3),
            F.adaptive_max_pool3d(volume, 2), F.lp_pool2d(plane, 2.0, 2),
            F.fractional_max_pool2d(plane, 2, 3), F.max_unpool2d(pooled, where, [2, 2]),
            F.pad(line, (1, 1)), F.pad(plane, (1, 1, 2, 2), value=1.0),
            F.pad(line, (1, 2), mode="reflect"), F.pad(plane, (1, 1, 1, 1), mode="reflect"),
            F.pad(line, (1, 1), mode="replicate"), F.pad(plane, (1, 1, 1, 1), mode="replicate"),
            F.pad(volume, (1, 1, 1, 1, 1, 1), mode="replicate"),
            F.pad(volume, (1, 1, 1, 1, 1, 1), mode="reflect"),
            F.pad(plane, (1, 1, 1, 1), mode="circular"),
        )
    )  # fmt: skip


def convolutions(device: Device) -> None:
    """Convolutions of all kinds in one, two and three dimensions, trained."""
    line, plane = _leaf(2, 4, 8, device=device), _leaf(2, 4, 8, 8, device=device)
    volume = _leaf(1, 4, 4, 4, 4, device=device)
    model = nn.ModuleList(
        (
            nn.Conv1d(4, 4, 3, padding="same"), nn.Conv2d(4, 8, 3, stride=2, padding=1),
            nn.Conv2d(4, 4, 3, groups=4, dilation=2), nn.Conv3d(4, 4, 2),
            nn.ConvTranspose1d(4, 4, 2), nn.ConvTranspose2d(4, 4, 2, stride=2),
            nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        )
    ).to(device)  # fmt: skip
    inputs = (line, plane, plane, volume, line, plane, plane)

    def loss_of() -> Tensor:
        means = [layer(x).square().mean() for layer, x in zip(model, inputs, strict=True)]
        return torch.stack(means).sum()

    train(model, loss_of)
    patches = F.unfold(plane, 3, padding=1)
    _backward(
        (
            F.fold(patches, (8, 8), 3, padding=1), F.pixel_shuffle(plane, 2),
            F.pixel_unshuffle(plane, 2), F.channel_shuffle(plane, 2),
            plane.unfold(2, 3, 1).unfold(3, 3, 1), nn.Bilinear(8, 8, 3, device=device)(line, line),
        )
    )  # fmt: skip


def resampling(device: Device) -> None:
    """Interpolation in all modes, affine grids and grid sampling: augmentation, flow, NeRF."""
    line, plane = _leaf(1, 2, 8, device=device), _leaf(1, 2, 8, 8, device=device)
    volume = _leaf(1, 2, 4, 4, 4, device=device)
    _backward(
        (
            F.interpolate(line, scale_factor=2), F.interpolate(line, size=5, mode="linear"),
            F.interpolate(plane, scale_factor=2), F.interpolate(plane, size=5, mode="bilinear"),
            F.interpolate(plane, size=5, mode="bilinear", antialias=True),
            F.interpolate(plane, size=12, mode="bicubic", align_corners=True),
            F.interpolate(plane, size=5, mode="bicubic", antialias=True),
            F.interpolate(plane, size=5, mode="nearest-exact"),
            F.interpolate(plane, size=4, mode="area"), F.interpolate(volume, scale_factor=2),
            F.interpolate(volume, size=6, mode="trilinear"),
        )
    )  # fmt: skip
    theta = torch.eye(2, 3, device=device).unsqueeze(0).requires_grad_()
    grid = F.affine_grid(theta, [1, 2, 5, 5], align_corners=False)
    box = F.affine_grid(torch.eye(3, 4, device=device)[None], [1, 2, 3, 3, 3], align_corners=False)
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            _backward((F.grid_sample(plane, grid, mode, padding, align_corners=False),))
    _backward((F.grid_sample(volume, box, align_corners=True),))


def embeddings_and_attention(device: Device) -> None:
    """Embeddings, bags of them, attention in all forms, and torch.nn's own transformer."""
    words = torch.randint(1, 20, (3, 7), device=device)
    offsets = torch.tensor([0, 3], device=device)
    for mode in ("sum", "mean", "max"):
        bag = nn.EmbeddingBag(20, 8, mode=mode, device=device)
        _backward((bag(words), bag(words.view(-1), offsets)))
    weighted = nn.EmbeddingBag(20, 8, mode="sum", device=device)
    _backward((weighted(words, per_sample_weights=torch.rand(3, 7, device=device)),))
    table = nn.Embedding(20, 8, max_norm=1.0, scale_grad_by_freq=True, device=device)
    _backward((table(words),))
    model = nn.Transformer(16, 2, 2, 2, 32, batch_first=True).to(device)
    source, target = torch.randn(2, 6, 16, device=device), torch.randn(2, 5, 16, device=device)
    causal = nn.Transformer.generate_square_subsequent_mask(5, device=device)
    padding = torch.zeros(2, 6, dtype=torch.bool, device=device)
    padding[1, 4:] = True

    def predict() -> Tensor:
        output: Tensor = model(source, target, tgt_mask=causal, src_key_padding_mask=padding)
        return output

    train(model, lambda: predict().square().mean())
    model.eval()(source, target)
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).to(device).eval()
    with torch.no_grad():  # the fused path
        encoder(source)
        nn.TransformerEncoder(encoder, 1)(source, src_key_padding_mask=padding)
        nn.MultiheadAttention(16, 2, batch_first=True).to(device).eval()(source, source, source)
    query = _leaf(2, 2, 6, 8, device=device)
    mask = torch.ones(6, 6, dtype=torch.bool, device=device).tril()
    _backward(
        (
            F.scaled_dot_product_attention(query, query, query),
            F.scaled_dot_product_attention(query, query, query, is_causal=True),
            F.scaled_dot_product_attention(query, query, query, attn_mask=mask),
            F.scaled_dot_product_attention(query, query, query, dropout_p=0.1),
            F.scaled_dot_product_attention(query, query[:, :1], query[:, :1], enable_gqa=True),
        )
    )


def metrics(device: Device) -> None:
    """What evaluation computes: accuracy, confusion, ranking, calibration, quantiles."""
    scores = torch.rand(32, 5, device=device)
    truth = torch.randint(5, (32,), device=device)
    best = scores.argmax(1)
    scores.topk(3, dim=1).indices.eq(truth[:, None]).any(1).float().mean().item()
    (best == truth).sum().item()
    (best != truth).nonzero()
    confusion = torch.bincount(truth * 5 + best, minlength=25).view(5, 5)
    precision = confusion.diag() / confusion.sum(0).clamp(min=1)
    recall = confusion.diag() / confusion.sum(1).clamp(min=1)
    torch.nan_to_num(2 * precision * recall / (precision + recall)).mean().item()
    torch.bincount(truth, weights=scores[:, 0])
    positive = (truth == 0).long()
    order = torch.argsort(scores[:, 0], descending=True)
    hits = positive[order].cumsum(0)
    misses = (1 - positive[order]).cumsum(0)
    torch.trapezoid(hits / hits[-1], misses / misses[-1]).item()
    precision_at = hits / torch.arange(1, 33, device=device)
    torch.flip(torch.cummax(torch.flip(precision_at, [0]), 0).values, [0])
    torch.cummin(precision_at, 0)
    values, counts = torch.unique(truth, return_counts=True)
    torch.unique(torch.stack((truth, best), 1), dim=0, return_inverse=True)
    torch.unique_consecutive(truth.sort().values, return_counts=True)
    values[counts.argmin()].item()
    torch.histc(scores, 10, 0, 1)
    torch.histogram(scores, 10)
    bins = torch.linspace(0, 1, 11, device=device)
    bucket = torch.bucketize(scores.max(1).values, bins)
    torch.searchsorted(bins, scores[:, 0].contiguous())
    torch.zeros(12, device=device).index_add_(0, bucket, (best == truth).float())
    torch.zeros(12, device=device).scatter_add_(0, bucket, scores.amax(1))
    torch.isin(truth, torch.tensor([0, 2], device=device)).any().item()
    scores.median(), scores.median(0), scores.nanmedian(0), scores.kthvalue(3, 0), scores.mode(0)
    scores.quantile(torch.tensor([0.1, 0.9], device=device), 0), scores.nanquantile(0.5)
    scores.std(0), scores.var(0, unbiased=False), torch.std_mean(scores), torch.var_mean(scores, 0)
    scores.mean((0, 1)), scores.sum(), scores.prod(0), scores.amin(0), scores.aminmax(dim=0)
    scores.max(), scores.min(), scores.max(0), scores.min(0), scores.all(), scores.any(0)
    scores.logsumexp(0), scores.nansum(), scores.nanmean(), scores.count_nonzero(0)
    torch.corrcoef(scores.T), torch.cov(scores.T), scores.isnan().any().item()
    torch.allclose(scores, scores.clone()), torch.equal(scores, scores), scores.isfinite().all()
    torch.isclose(scores, scores.flip(0)).sum(), scores.isinf().sum()
    torch.logcumsumexp(scores, 0), scores.cumprod(0), scores.diff(dim=0), scores.msort()
    intersection, union = (scores > 0.5) & (scores < 0.9), (scores > 0.5) | (scores < 0.1)
    (intersection.sum() / union.sum()).item()
    (
        torch.logical_xor(intersection, union),
        torch.logical_not(union),
        torch.logical_and(intersection, union),
    )


def indexing(device: Device) -> None:
    """Reading and writing by index and mask, and rearranging."""
    x = _leaf(6, 8, device=device)
    rows = torch.tensor([0, 2, 5, 2], device=device)
    columns = torch.tensor([1, 3, 0, 7], device=device)
    at = torch.randint(8, (6, 3), device=device)
    mask = torch.rand(6, 8, device=device) > 0.5
    _backward(
        (
            x[rows], x[rows, columns], x[:, columns], x[mask], x[1:5:2, None], x[..., -1],
            x.index_select(1, columns), x.gather(1, at), x.take_along_dim(at, 1), x.take(rows),
            x.masked_select(mask), x.masked_fill(mask, 0.0), x.masked_fill(mask, x.sum()),
            x.masked_scatter(mask, x * 2), x.where(mask, -x), torch.where(mask, x, 0.0),
            x.index_add(0, rows, x[:4]), x.index_copy(0, rows[:3], x[:3]),
            x.index_fill(0, rows, 1.0), x.index_put((rows, columns), x[:4, 0], accumulate=True),
            x.scatter(1, at, x[:, :3]), x.scatter(1, at, 1.0), x.scatter_add(1, at, x[:, :3]),
            x.scatter_reduce(1, at, x[:, :3], "amax"), x.scatter_reduce(1, at, x[:, :3], "mean"),
            x.index_reduce(0, rows, x[:4], "prod"),
            x.slice_scatter(x[:2] * 2, 0, 1, 3), x.select_scatter(x[0] * 2, 0, 1),
            x.diagonal_scatter(torch.ones(6, device=device)),
            x.tril(), x.triu(1), x.diag(), x.diagonal(), torch.diag_embed(x), x.trace(),
            x.roll(1, 0), x.flip(0), x.rot90(), x.t(), x.transpose(0, 1).contiguous(),
            x.permute(1, 0).reshape(-1), x.view(2, 3, 8).movedim(0, 1),
            x.flatten().unflatten(0, (6, 8)),
            x.repeat(2, 1), x.repeat_interleave(2, 0), x.repeat_interleave(rows.new_ones(6) * 2, 0),
            x.tile(2), x.expand(2, -1, -1), x.unfold(1, 4, 2), x.as_strided((3, 4), (8, 2)),
            torch.cat((x, x), 1), torch.stack((x, x)), torch.hstack((x, x)), torch.block_diag(x, x),
            *x.chunk(2), *x.split([2, 4]), *x.unbind(), *x.tensor_split(3, 1), *x.split(4, 1),
            torch.cartesian_prod(x[0], x[1]), torch.combinations(x[0]), x.squeeze().unsqueeze(-1),
            x.sort(1).values, x.sort(dim=1, stable=True).values, x.topk(2).values,
            x.kthvalue(2).values,
        )
    )  # fmt: skip
    y = x.detach().clone()
    y[mask] = 0.0
    y[rows] = 1.0
    y[0] = x[1].detach()
    y[:, 1:3] += 1
    y[rows, columns] += 1
    y.masked_fill_(mask, -math.inf).fill_diagonal_(0.0)
    y.index_copy_(0, rows[:3], x.detach()[:3]).index_fill_(0, rows, 2.0)
    y.scatter_(1, at, 1.0).scatter_(1, at, x.detach()[:, :3])
    y.scatter_reduce_(1, at, x.detach()[:, :3], "sum")
    y.put_(rows, x.detach()[0, :4]).masked_scatter_(mask, x.detach()).zero_().fill_(1.0)
    y.tril_().triu_().copy_(x.detach()).transpose_(0, 1).t_().unsqueeze_(0).squeeze_()
    y.resize_(4, 4)
    F.one_hot(rows, 6), torch.tril_indices(4, 4, device=device)
    torch.triu_indices(4, 4, device=device)
    torch.meshgrid(rows, columns, indexing="ij"), torch.argwhere(mask), mask.nonzero(as_tuple=True)
    torch.unravel_index(rows, (2, 4)), rows.tolist(), y.numel(), torch.bernoulli(mask.float())


def linear_algebra(device: Device) -> None:
    """Products, decompositions and solvers, with gradients where training uses them."""
    a, b = _leaf(4, 4, device=device), _leaf(3, 4, 4, device=device)
    v = _leaf(4, device=device)
    definite = a @ a.T + torch.eye(4, device=device) * 4
    lower = torch.linalg.cholesky(definite)
    _backward(
        (
            a @ a, a @ v, v @ v, b @ a, b @ b, torch.mm(a, a), torch.bmm(b, b), torch.mv(a, v),
            torch.dot(v, v), torch.outer(v, v), torch.addmm(a, a, a), torch.addmv(v, a, v),
            torch.addbmm(a, b, b), torch.baddbmm(b, b, b), torch.addr(a, v, v),
            torch.einsum("bij,bjk->bik", b, b), torch.einsum("ij,j->i", a, v),
            torch.einsum("bij,kj->bik", b, a), torch.tensordot(b, a, 1), torch.kron(a, a),
            torch.linalg.multi_dot((a, a, a)), torch.chain_matmul(a, a),
            torch.linalg.cross(a[:, :3], a[:, 1:]), torch.matrix_power(a, 3), torch.matrix_exp(a),
            lower, *torch.linalg.qr(a), torch.linalg.svdvals(a), torch.linalg.svd(a)[1],
            torch.linalg.eigvalsh(definite), *torch.linalg.eigh(definite),
            torch.linalg.inv(definite),
            torch.linalg.solve(definite, v), torch.linalg.lstsq(definite, a).solution,
            torch.linalg.det(definite), torch.linalg.slogdet(definite)[1], torch.logdet(definite),
            torch.linalg.norm(a), torch.linalg.matrix_norm(a, "nuc"), torch.linalg.cond(definite),
            torch.linalg.pinv(definite), torch.linalg.solve_triangular(lower, a, upper=False),
            torch.cholesky_solve(a, lower), torch.cholesky_inverse(lower),
            *torch.linalg.lu(definite), a.norm(), a.norm(2, 1), a.norm(1, 1, True),
        )
    )  # fmt: skip
    torch.vander(v.detach()), torch.linalg.matrix_rank(a)
    torch.linalg.eigvals(a), torch.linalg.eig(a.detach())
    torch.lu_solve(a.detach(), *torch.linalg.lu_factor(definite.detach()))
    torch.linalg.inv_ex(definite.detach()), torch.linalg.cholesky_ex(definite.detach())
    torch.svd_lowrank(a.detach(), 2), torch.pca_lowrank(a.detach(), 2)


def signals(device: Device) -> None:
    """Fourier transforms, spectrograms and complex numbers: sound and spectral networks."""
    wave = _leaf(2, 64, device=device)
    image = _leaf(2, 8, 8, device=device)
    window = torch.hann_window(16, device=device)
    spectrum = torch.stft(wave, 16, 4, window=window, return_complex=True)
    weight = torch.randn(2, 8, 5, dtype=torch.complex64, device=device, requires_grad=True)
    modes = torch.fft.rfft2(image, norm="ortho")
    _backward(
        (
            torch.istft(spectrum, 16, 4, window=window), spectrum.abs().square().log1p(),
            torch.fft.fft(wave), torch.fft.ifft(torch.fft.fft(wave)).real,
            torch.fft.rfft(wave).imag,
            torch.fft.irfft(torch.fft.rfft(wave)), torch.fft.fft2(image), torch.fft.ifft2(modes),
            torch.fft.irfft2(modes * weight, norm="ortho"), torch.fft.fftn(image),
            torch.fft.fftshift(image), torch.einsum("bxy,bxy->xy", modes, weight), modes.angle(),
            torch.view_as_real(modes), modes.conj() * weight, torch.polar(image.exp(), image),
            torch.complex(image, image), torch.view_as_complex(wave.view(2, 32, 2)), modes * 2j,
            torch.fft.hfft(torch.fft.ihfft(wave)), modes / weight, modes.exp(), modes.reciprocal(),
        )
    )  # fmt: skip
    torch.hamming_window(16, device=device), torch.blackman_window(16, device=device)
    torch.bartlett_window(16, device=device), torch.fft.fftfreq(8, device=device)
    torch.fft.rfftfreq(8, device=device), torch.kaiser_window(8, device=device)


def optimizers(device: Device) -> None:
    """Every optimizer of torch.optim, one parameter at a time, in lists, and fused."""
    o = torch.optim
    plain: tuple[type[o.Optimizer], ...] = (
        o.Adadelta, o.Adagrad, o.Adam, o.Adamax, o.AdamW, o.ASGD, o.NAdam, o.RAdam, o.RMSprop,
        o.Rprop, o.SGD,
    )  # fmt: skip
    fused: tuple[type[o.Optimizer], ...] = (o.Adagrad, o.Adam, o.AdamW, o.SGD)
    ways: list[Callable[[Iterable[nn.Parameter]], o.Optimizer]] = [
        *(lambda p, c=c: c(p, lr=1e-3, foreach=False) for c in plain),
        *(lambda p, c=c: c(p, lr=1e-3, foreach=True) for c in plain),
        *(lambda p, c=c: c(p, lr=1e-3, fused=True) for c in fused),
        lambda p: o.Adam(p, lr=1e-3, amsgrad=True, weight_decay=0.1, foreach=True),
        lambda p: o.Adam(p, lr=1e-3, amsgrad=True, fused=True),
        lambda p: o.AdamW(p, lr=torch.tensor(1e-3), foreach=False, maximize=True),
        lambda p: o.NAdam(p, lr=1e-3, weight_decay=0.1, decoupled_weight_decay=True),
        lambda p: o.RMSprop(p, lr=1e-3, centered=True, momentum=0.9, foreach=True),
        lambda p: o.RMSprop(p, lr=1e-3, centered=True, momentum=0.9, foreach=False),
        lambda p: o.SGD(p, lr=1e-3, momentum=0.9, dampening=0.1, weight_decay=0.1, foreach=True),
    ]
    x = torch.randn(8, 4, device=device)
    for way in ways:
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
        train(model, lambda model=model: model(x).square().mean(), way)  # type: ignore[misc]
    linear = nn.Linear(4, 4).to(device)
    search = o.LBFGS(linear.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> float:
        search.zero_grad()
        loss = linear(x).square().mean()
        loss.backward()
        return float(loss)

    search.step(closure)


def training_loops(device: Device) -> None:
    """Scaled gradients, accumulation, clipping, averaging of weights, checkpoints, a VAE, a GAN."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 8))
    model.to(device)
    x = torch.randn(16, 8, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, init_scale=256.0)
    for _ in range(2):
        with torch.autocast(device.type, torch.float16):
            loss = F.mse_loss(model(x), x)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    average.update_parameters(model)
    average.update_parameters(model)
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    flat = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(flat * 0.5, model.parameters())
    with torch.no_grad():  # a moving average by hand
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.mul_(0.9).add_(new, alpha=0.1)
            kept.lerp_(new, 0.1)
            kept.copy_(kept * 0.5 + new.data * 0.5)
    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
    # A variational autoencoder.
    mean, spread = model(x).chunk(2, dim=1)
    sample = mean + (0.5 * spread).exp() * torch.randn_like(spread)
    divergence = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()
    (F.binary_cross_entropy_with_logits(sample, x[:, :4].sigmoid()) + divergence).backward()
    # A critic with a gradient penalty: derivatives of derivatives.
    mixed = torch.lerp(x, x.flip(0), torch.rand(16, 1, device=device)).requires_grad_()
    (slope,) = torch.autograd.grad(model(mixed).sum(), mixed, create_graph=True)
    ((slope.norm(2, dim=1) - 1) ** 2).mean().backward()
    # A policy gradient with clipped ratios and discounted returns.
    logits = model(x)
    policy = torch.distributions.Categorical(logits=logits)
    action = policy.sample()
    rewards, total = torch.rand(16, device=device), torch.zeros((), device=device)
    returns = torch.empty_like(rewards)
    for step in reversed(range(16)):
        total = rewards[step] + 0.99 * total
        returns[step] = total
    advantage = (returns - returns.mean()) / (returns.std() + 1e-8)
    ratio = (policy.log_prob(action) - policy.log_prob(action).detach()).exp()
    clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    (-clipped.mean() - 0.01 * policy.entropy().mean()).backward()


def random_numbers(device: Device) -> None:
    """Random factories, samplers, distributions and initialization."""
    weight = torch.empty(8, 8, device=device)
    for fill in (
        nn.init.uniform_, nn.init.normal_, nn.init.ones_, nn.init.zeros_, nn.init.xavier_uniform_,
        nn.init.xavier_normal_, nn.init.kaiming_uniform_, nn.init.kaiming_normal_,
        nn.init.trunc_normal_, nn.init.orthogonal_, nn.init.eye_,
    ):  # fmt: skip
        fill(weight)
    nn.init.constant_(weight, 0.5), nn.init.sparse_(weight, 0.5)
    nn.Linear(4, 4, device=device).reset_parameters()
    torch.rand(4, device=device), torch.randn(4, device=device), torch.randperm(9, device=device)
    torch.randint(0, 9, (4,), device=device), torch.rand_like(weight), torch.randn_like(weight)
    torch.randint_like(weight, 5), torch.normal(weight, 1.0), torch.normal(0.0, weight.abs())
    torch.normal(weight, weight.abs()), torch.multinomial(weight.abs() + 0.1, 2)
    torch.bernoulli(weight.sigmoid()), torch.poisson(weight.abs())
    weight.uniform_().exponential_().geometric_(0.5).cauchy_().log_normal_().random_(0, 9)
    weight.bernoulli_(0.5).bernoulli_(weight)
    d = torch.distributions
    one = torch.ones(4, device=device, requires_grad=True)
    for law in (
        d.Normal(one, one), d.Beta(one, one), d.Gamma(one, one), d.Dirichlet(one),
        d.Exponential(one), d.Laplace(one, one), d.StudentT(one * 3), d.LogNormal(one, one),
        d.Uniform(one - 1, one), d.Gumbel(one, one), d.MultivariateNormal(one, torch.diag(one)),
    ):  # fmt: skip
        sample = law.rsample()
        _backward((sample, law.log_prob(sample.detach().clamp(0.01, 0.99))))
    for discrete in (
        d.Bernoulli(logits=one), d.Poisson(one), d.Binomial(5, logits=one),
        d.Categorical(logits=one), d.OneHotCategorical(logits=one), d.Geometric(logits=one),
        d.NegativeBinomial(torch.full_like(one, 3.0), logits=one),
    ):  # fmt: skip
        _backward((discrete.log_prob(discrete.sample()),))
    _backward((d.kl_divergence(d.Normal(one, one), d.Normal(one * 2, one)),))
    _backward((d.kl_divergence(d.Beta(one, one), d.Beta(one * 2, one)), d.Beta(one, one).entropy()))


def preprocessing(device: Device) -> None:
    """Making tensors, casting, integer and bit arithmetic, comparisons: data on its way in."""
    pixels = torch.randint(256, (2, 8, 8, 3), dtype=torch.uint8, device=device)
    image = pixels.permute(0, 3, 1, 2).float().div(255).contiguous()
    mean = torch.tensor([0.5, 0.4, 0.3], device=device).view(1, 3, 1, 1)
    image = image.sub_(mean).div_(mean)
    image.to(torch.bfloat16).to(memory_format=torch.channels_last), image.half(), image.double()
    image.cpu(), image.to("cpu", torch.float64).to(device), image.type_as(pixels), image.long()
    flipped = torch.where(torch.rand(2, 1, 1, 1, device=device) < 0.5, image.flip(-1), image)
    share = torch.tensor(0.3, device=device)
    mixed = image * share + flipped * (1 - share)
    mixed.add_(1.0).mul_(0.5).pow_(2).sub_(0.1).div_(2).clamp_(0, 1).round_().floor_().ceil_()
    image.round(decimals=2), image.trunc(), image.frac(), image.floor(), image.ceil(), image.sign()
    image.clamp(min=mean, max=mean + 1), image.quantile(0.9), image.addcmul(mean, mean)
    image.addcdiv(mean, mean), image.lerp(flipped, 0.5), image.hypot(flipped), image.atan2(flipped)
    n = torch.arange(24, device=device)
    n // 5, n % 5, n * 2 + 1, -n, n**2, 2**n, n.float() // 5.0, n.float() % 3.0, n.float().fmod(3.0)
    n & 3, n | 4, n ^ 5, ~n, n << 1, n >> 1, n.bitwise_and(n), n.bitwise_or(n), n.bitwise_xor(n)
    n.gcd(n + 4), n.lcm(n + 4), n.remainder(n + 1), n.div(n + 1, rounding_mode="floor"), 1 / (n + 1)
    n.eq(n), n.ne(3), n.lt(n + 1), n.le(3), n.gt(n - 1), n.ge(3), n == 3, n.float() > 0.5, 5 - n
    n.int(), n.short(), n.char(), n.bool(), n.to(torch.float8_e4m3fn).float(), n.abs(), n.sgn()
    f = n.float() / 24
    f.exp(), f.expm1(), f.log(), f.log2(), f.log10(), f.log1p(), f.sqrt(), f.rsqrt(), f.square()
    f.sin(), f.cos(), f.tan(), f.asin(), f.acos(), f.atan(), f.sinh(), f.cosh(), f.asinh()
    (
        f.erf(),
        f.erfc(),
        f.erfinv(),
        f.lgamma(),
        f.digamma(),
        f.logit(1e-6),
        f.sinc(),
        f.exp2(),
        f.atanh(),
    )
    f.reciprocal(), f.neg(), f.pow(2.5), f.pow(f), f.fmin(f), f.fmax(f), f.maximum(f), f.minimum(f)
    f.copysign(-f), f.heaviside(f), f.logaddexp(f), f.xlogy(f), f.signbit(), f.deg2rad(), f.acosh()
    f.nextafter(f + 1), f.ldexp(n), f.frexp(), f.polygamma(1), torch.rsub(f, 1), f.float_power(2)
    torch.special.i0(f), torch.special.ndtri(f), torch.special.ndtr(f), torch.special.entr(f)
    torch.special.erfcx(f), torch.special.i1e(f), torch.special.zeta(f + 2, f + 1)
    torch.zeros(3, device=device), torch.ones(3, device=device), torch.empty(3, device=device)
    torch.full((3,), 2.0, device=device), torch.eye(3, device=device)
    torch.zeros_like(f), torch.ones_like(f), torch.full_like(f, 2.0), f.new_zeros(3)
    torch.logspace(0, 1, 5, device=device), f.new_full((2,), 1.0), f.positive()
    torch.linspace(0, 1, 5, device=device), torch.arange(0, 1, 0.1, device=device)
    f.new_tensor([1.0]), torch.tensor([[1, 2]], device=device)
    torch.empty_strided((2, 2), (1, 2), device=device)
    position = torch.outer(n.float(), 10000 ** -(torch.arange(0, 8, 2, device=device) / 8))
    torch.cat((position.sin(), position.cos()), -1)[None].expand(2, -1, -1).clone()
    torch.nn.utils.rnn.pad_sequence([n, n[:5]]), torch.cumsum(n.flip(0), 0)
    torch.renorm(image, 2, 0, 1)
    torch.empty(0, device=device).set_(f.untyped_storage()), f[0].item()
    torch.vmap(lambda row: row.dot(row))(position), torch.func.grad(lambda z: z.sin().sum())(f)
    torch.func.jvp(torch.tanh, (f,), (f,)), torch.histogramdd(position[:, :2], [2, 2])


PROGRAMS: tuple[Callable[[Device], None], ...] = (
    recurrent_nets,
    classifier_losses,
    regression_losses,
    activations,
    norms_and_pools,
    convolutions,
    resampling,
    embeddings_and_attention,
    metrics,
    indexing,
    linear_algebra,
    signals,
    optimizers,
    training_loops,
    random_numbers,
    preprocessing,
)


def workloads() -> list[Workload]:
    """One for each program."""
    return [
        Workload("torch", program.__name__.replace("_", " "), _prepare(program))
        for program in PROGRAMS
    ]


def _prepare(program: Callable[[Device], None]) -> Callable[[Device], Callable[[], None]]:
    return lambda device: lambda: program(device)
