"""Samples: views, permutations, slices, joins, indices, scatters, sorting, products of matrices."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from aten_samples import exactly, function, positive, real, truth, whole

aten = torch.ops.aten


def _row(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z[1:3] = y
    return z


def _put_behind(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z[:, i] = y
    return z


def _put_masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z[mask] = 0.0
    return z


function(
    "views",
    lambda x: (x.view(6, 4), x.reshape(-1), x.reshape(4, -1), x.flatten(), x.flatten(1), x.flatten(0, -2), x.ravel()),
    real(2, 3, 4),
)
function(
    "unflatten and squeeze",
    lambda x: (
        x.unflatten(1, (2, 3)),
        x.squeeze(),
        x.squeeze(0),
        x.squeeze(-1),
        x.squeeze((0, 2)),
        x.unsqueeze(-1),
        x.unsqueeze(1),
    ),
    real(1, 6, 1),
)
function(
    "views that copy",
    lambda x: (
        aten.view_copy(x, [6]),
        aten.squeeze_copy.dim(x, 0),
        aten.unsqueeze_copy(x, 0),
        aten._unsafe_view(x, [6]),
        aten._reshape_copy(x, [6]),
    ),
    real(2, 3),
)
function(
    "views of no axes",
    lambda x: (x.view(1), x.reshape(()), x.unsqueeze(0), x.squeeze(), x.expand(3), x.flatten()),
    real(),
)
function(
    "transpose",
    lambda x: (
        x.transpose(0, 2),
        x.transpose(-1, -2),
        x.swapaxes(0, 1),
        x.swapdims(0, -1),
        aten.transpose_copy.int(x, 0, 1),
    ),
    real(2, 3, 4),
)
function(
    "transposed matrices",
    lambda x, y: (x.t(), x.T, x.mT, x.adjoint(), y.mT, y.mH, y.permute(2, 1, 0), aten.t_copy(x), x.H),
    real(2, 3),
    real(2, 3, 4),
)
function("numpy_T", lambda x: (aten.numpy_T(x), aten.matrix_H(x[0]), aten.adjoint(x), aten.mT(x)), real(2, 3, 4))
function("transpose of no axes", lambda x: x.transpose(0, -1), real())
function(
    "movedim",
    lambda x: (
        x.movedim(0, 2),
        x.movedim(-1, 0),
        x.movedim((0, 1), (2, 0)),
        x.moveaxis(1, 0),
        x.moveaxis((0, 2), (1, 0)),
    ),
    real(2, 3, 4),
)
function(
    "expand",
    lambda x, y: (
        x.expand(4, 3),
        x.expand(2, -1, 3),
        x.expand_as(y),
        torch.broadcast_to(x, (2, 4, 3)),
        aten.expand_copy(x, [4, 3]),
    ),
    real(1, 3),
    real(4, 3),
)
function("repeat", lambda x: (x.repeat(2, 1), x.repeat(3, 1, 2), x.tile(2), x.tile((2, 1, 2))), real(2, 3))
function(
    "repeat_interleave",
    lambda x: (x.repeat_interleave(2), x.repeat_interleave(3, 0), x.repeat_interleave(2, -1)),
    real(2, 3),
)
function(
    "slices", lambda x: (x[1:], x[:, ::2], x[..., -2:], x[1:1], x[:, -3:-1], x[-100:100], x[:, 1:100:2]), real(3, 4, 5)
)
function(
    "indices by numbers", lambda x: (x[0], x[-1], x[:, 2], x[..., None, 1], x[1, 2, 3], x[None, 0, 1:]), real(3, 4, 5)
)
function(
    "narrow and select",
    lambda x: (
        x.narrow(0, 1, 2),
        x.narrow(-1, -3, 2),
        x.select(1, -1),
        aten.select_copy.int(x, 0, 1),
        aten.slice_copy.Tensor(x, 0, 1, 3),
    ),
    real(3, 4, 5),
)
function(
    "slice_scatter",
    lambda x, y: (
        torch.slice_scatter(x, y, 0, 1, 3),
        torch.slice_scatter(x, y, 0, 0, 4, 2),
        torch.slice_scatter(x, y, 0, -2),
    ),
    real(4, 3),
    real(2, 3),
)
function("slice_scatter of all", lambda x, y: torch.slice_scatter(x, y, 0), real(2, 3), real(2, 3))
function(
    "slice_scatter of a broadcast row",
    lambda x, y: (x.clone().index_fill_(0, torch.tensor([0]), 2.0), _row(x, y)),
    real(4, 3),
    real(),
)
function(
    "cat",
    lambda x, y: (
        torch.cat((x, y)),
        torch.cat((x, x), -1),
        torch.concat((x, y)),
        torch.concatenate((x, y)),
        torch.cat((x,)),
        torch.hstack((x, x)),
        torch.vstack((x, y)),
    ),
    real(2, 3),
    real(4, 3),
)
function("cat with nothing", lambda x: torch.cat((torch.zeros(0), x)), real(2, 3))
function("cat promotes", lambda x, y: (torch.cat((x, y)), torch.stack((x, y))), whole(3), real(3))
function(
    "cat's own overloads", lambda x: (aten.concat.default((x, x)), aten.concatenate.default((x, x), 1)), real(2, 3)
)
function(
    "stack",
    lambda x, y: (torch.stack((x, y)), torch.stack((x, y), 1), torch.stack((x, y), -1), torch.stack((x,))),
    real(2, 3),
    real(2, 3),
)
function(
    "split",
    lambda x: (
        x.split(2),
        x.split(3, -1),
        x.split((1, 4)),
        x.split([2, 5], 1),
        x.chunk(2),
        x.chunk(3, dim=-1),
        x.tensor_split(3, 1),
    ),
    real(5, 7),
)
function(
    "splits that copy",
    lambda x: (
        aten.split_copy.Tensor(x, 2),
        aten.split_with_sizes_copy(x, [1, 4]),
        aten.unsafe_split.Tensor(x, 2),
        aten.unsafe_chunk(x, 2),
        aten.split.sizes(x, [1, 4]),
        aten.unbind_copy.int(x),
    ),
    real(5, 7),
)
function("unbind", lambda x: (x.unbind(), x.unbind(-1), [row * 2 for row in x]), real(3, 4))
function("flip", lambda x: (x.flip(0), x.flip(0, -1), x.flip(()), x.fliplr(), x.flipud()), real(3, 4))
function("roll", lambda x: (x.roll(1), x.roll(1, 0), x.roll((1, -1), (0, 1)), x.roll(-7, -1), x.roll(4, 1)), real(3, 4))
function(
    "pad with constants",
    lambda x: (
        F.pad(x, (1, 2)),
        F.pad(x, (1, 2, 3, 0), value=1.5),
        F.pad(x, (0, 0, 1, 1)),
        F.pad(x, (-1, 2)),
        F.pad(x, (-1, -1, 0, -1)),
    ),
    real(2, 3, 5),
)
for mode in ("reflect", "replicate", "circular"):
    function(
        f"pads that cut in mode {mode}",
        lambda x, mode=mode: (F.pad(x, (-2, 3), mode), F.pad(x, (2, -3), mode), F.pad(x, (-1, -1), mode)),
        real(2, 3, 5),
    )
function("replicated pads that cut all", lambda x: F.pad(x, (-5, 7), "replicate"), real(2, 3, 5))
function("pad of integers", lambda x: F.pad(x, (1, 2), value=7), whole(2, 3))
function("pad of booleans", lambda x: F.pad(x, (1, 2), value=True), truth(2, 3))
function("constant_pad_nd", lambda x: (aten.constant_pad_nd(x, [1, 2], 3), aten.constant_pad_nd(x, [1, 2])), real(2, 3))
function(
    "diagonal",
    lambda x: (
        x.diagonal(),
        x.diagonal(1),
        x.diagonal(-1),
        x.diagonal(0, 1, 2),
        x.diagonal(1, -1, 0),
        torch.diag(x[0]),
    ),
    real(3, 4, 5),
)
function("empty tensors", lambda x: (x[:0], torch.cat((x, x[:0])), x[:0].sum()), real(3, 4))


function("embedding with padding", lambda i, w: F.embedding(i, w, padding_idx=1), whole(2, 7), real(5, 4))
function("embedding of small integers", F.embedding, whole(3, dtype=torch.int32), real(5, 4))
function(
    "take_along_dim", lambda x, i: (torch.take_along_dim(x, i, 0), torch.take_along_dim(x, i)), real(5, 4), whole(3, 4)
)
function("take_along_dim broadcasts", lambda x, i: torch.take_along_dim(x, i, 0), real(5, 4), whole(3, 1))
function(
    "scatter",
    lambda x, i, y: (x.scatter(1, i, y), x.scatter(0, i, 2.0)),
    real(3, 3),
    exactly([2, 0], [1, 2]),
    real(2, 2),
)
function(
    "scatter of a larger source",
    lambda x, i, y: (x.scatter(1, i, y), x.scatter_add(0, i, y)),
    real(3, 3),
    exactly([2, 0], [1, 2]),
    real(3, 4),
    gradient=False,
)
function(
    "scatter with reduce",
    lambda x, i, y: (x.scatter(0, i, y, reduce="add"), x.scatter(0, i, 2.0, reduce="multiply")),
    real(4, 3),
    whole(5, 3, below=3),
    real(5, 3),
    gradient=False,
)
function(
    "index_add",
    lambda x, i, y: (x.index_add(0, i, y), x.index_add(0, i, y, alpha=2)),
    real(4, 3),
    whole(5, below=4),
    real(5, 3),
)
function(
    "index_add along the last dim", lambda x, i, y: x.index_add(-1, i, y), real(3, 4), whole(5, below=4), real(3, 5)
)
function(
    "index_copy and index_fill",
    lambda x, i, y: (x.index_copy(0, i, y), x.index_fill(0, i, 2.0)),
    real(4, 3),
    exactly(2, 0),
    real(2, 3),
)
function("index by one tensor", lambda x, i: (x[i], x[:, i], x[..., i], x[i, 1:]), real(5, 6, 7), whole(3, 2))
function("index by negative numbers", lambda x, i: (x[i], x[i, i]), real(5, 6), exactly(-1, 0, -5))
function(
    "index by tensors beside each other", lambda x, i, j: (x[i, j], x[:, i, j]), real(5, 6, 7), whole(3), whole(2, 1)
)
function("index by tensors apart", lambda x, i, j: x[i, :, j], real(5, 6, 7), whole(3), whole(3))
function("index by a list", lambda x: (x[[0, 2]], x[[0, 2], [1, 1]]), real(5, 6))
function(
    "index_put",
    lambda x, i, y: (torch.index_put(x, (i,), y), torch.index_put(x, (i,), y, accumulate=True)),
    real(5, 4),
    exactly(0, 3, 1),
    real(3, 4),
)
function(
    "index_put of repeated indices",
    lambda x, i, y: torch.index_put(x, (i,), y, accumulate=True),
    real(5, 4),
    exactly(0, 3, 0),
    real(3, 4),
)
function(
    "index_put of tuples",
    lambda x, i, j, y: torch.index_put(x, (i, j), y),
    real(5, 4),
    exactly(0, 3, 1),
    exactly(1, 2, 3),
    real(3),
)
function("index_put behind a dim", _put_behind, real(5, 4), exactly(0, 3, 1), real(5, 3))
function("index_put of a mask", _put_masked, real(5, 4), truth(5, 4))
function("topk", lambda x: (x.topk(2), x.topk(2, 0), x.topk(2, largest=False), x.topk(1, -1)), real(4, 5))
function("kthvalue", lambda x: x.kthvalue(2), real(4, 5))
function(
    "sort",
    lambda x: (
        x.sort(),
        x.sort(0),
        x.sort(-1, descending=True),
        torch.sort(x, stable=True),
        torch.sort(x, dim=0, descending=True, stable=True),
    ),
    real(4, 5),
)
function(
    "argsort",
    lambda x: (
        x.argsort(),
        x.argsort(0),
        x.argsort(-1, descending=True),
        torch.argsort(x, dim=0, stable=True),
        torch.argsort(x, stable=True, descending=True),
    ),
    real(4, 5),
)
function("sort of integers", lambda x: (x.sort().values, x.argsort(stable=True)), whole(4, 5))
function("one_hot", lambda i: (F.one_hot(i, 5), F.one_hot(i, 7).float()), whole(2, 3))
function("bincount of a known length", lambda i: torch.zeros(5).scatter_add(0, i, torch.ones(7)), whole(7))
function("bucketize", lambda y: torch.bucketize(y, torch.tensor([-1.0, 0.0, 1.0])), real(3))


function("linear onto a number", F.linear, real(2, 3), real(3))
function("products", lambda x, y, v: (x @ y, x.mm(y), x.mv(v), x @ v, v @ y, v @ v), real(2, 3), real(3, 4), real(3))
function("batched products", lambda x, y: (x @ y, x.bmm(y), x @ y[0], x[0] @ y), real(2, 3, 4), real(2, 4, 5))
function("broadcast products", lambda x, y: x @ y, real(5, 1, 3, 4), real(2, 4, 3))
function("products of integers", lambda x, y: x @ y, whole(2, 3), whole(3, 4))
function(
    "dot, inner, outer",
    lambda x, y: (x.dot(y), torch.vdot(x, y), x.inner(y), torch.inner(x, y), torch.outer(x, y), torch.ger(x, y)),
    real(3),
    real(3),
)
function("inner of three axes", torch.inner, real(2, 2, 3), real(4, 5, 3))
function("outer's own overloads", lambda x, y: (aten.ger(x, y), aten.inner(x, y), aten.outer(x, y)), real(3), real(3))
function(
    "addmm",
    lambda b, x, y: (torch.addmm(b, x, y), torch.addmm(b, x, y, beta=0.5, alpha=2), torch.addmm(b, x, y, beta=0)),
    real(4),
    real(2, 3),
    real(3, 4),
)
function(
    "addmv and addbmm",
    lambda b, x, y, v: (torch.addmv(b, x, v), torch.addbmm(b, x[None], y[None]), torch.addr(b, v[:2], v[:2])),
    real(2),
    real(2, 3),
    real(3, 2),
    real(3),
)
function(
    "baddbmm",
    lambda b, x, y: (torch.baddbmm(b, x, y), torch.baddbmm(b, x, y, beta=2, alpha=0.5)),
    real(2, 3, 5),
    real(2, 3, 4),
    real(2, 4, 5),
)
for equation in (
    "ij,jk->ik",
    "bij,bjk->bik",
    "i,i->",
    "ij->ji",
    "ii->i",
    "bhid,bhjd->bhij",
    "...ij,...jk->...ik",
    "ij,kj",
    "b i, b j -> b i j",
):
    terms = equation.replace(" ", "").split("->")[0].split(",")
    shapes = [[{"b": 2, "h": 3, "i": 4, "j": 5, "k": 3, "d": 2}[c] for c in term.replace("...", "b")] for term in terms]
    function(
        f"einsum {equation}",
        lambda *x, equation=equation: torch.einsum(equation, *x),
        *(real(*shape) for shape in shapes),
    )
function("einsum of three", lambda x, y, z: torch.einsum("ij,jk,kl->il", x, y, z), real(2, 3), real(3, 4), real(4, 2))
function(
    "F.bilinear",
    lambda x, y, w, b: (F.bilinear(x, y, w, b), F.bilinear(x, y, w)),
    real(2, 3),
    real(2, 4),
    real(5, 3, 4),
    real(5),
)
function(
    "inverse and det",
    lambda x: (
        torch.linalg.inv(x + 5 * torch.eye(3)),
        torch.inverse(x + 5 * torch.eye(3)),
        torch.det(x),
        torch.linalg.det(x),
    ),
    real(2, 3, 3),
)
function("inverse's own operators", lambda x: (aten.inverse(x + 5 * torch.eye(3)), aten.det(x)), real(3, 3))
function("matrix_power", lambda x: (torch.linalg.matrix_power(x, 3), torch.linalg.matrix_power(x, 0)), real(3, 3))
function(
    "scalars along an axis",
    lambda x, i, y: (
        x.gather(0, i), x.index_select(0, i), x.scatter(0, i, y), x.scatter(0, i, 2.0), x.scatter_add(0, i, y),
        x.index_add(0, i, y), x.index_fill(0, i, 3.0), x.index_reduce(0, i, y, "mean"), x.topk(1), x.sort(0),
        x.argsort(0), x.argmax(0), x.argmin(0), x.kthvalue(1, 0), x.max(0), x.cumsum(0), x.cummax(0), x.softmax(0),
        x.scatter_reduce(0, i, y, "amax"),
    ),
    real(),
    whole(below=1),
    real(),
)  # fmt: skip
function("cat of nothing", lambda x: torch.cat([x[:0], x[3:]]), real(3))
function(
    "index_fill, twice in a slice",
    lambda x, y, i: (x.index_fill(1, i, y), x.index_fill(0, i, 2.0)),
    real(4, 5),
    real(),
    exactly(2, 1, 2, 0),
)
function("norms of zeros", lambda x: (torch.norm(x, 0.5), torch.norm(x, 3, dim=1)), exactly([0.0, 0.0], [0.5, 0.0]))
function(
    "masked_scatter", lambda x, m, y: (x.masked_scatter(m, y), x.masked_scatter(m[0], y)), real(3, 4), truth(3, 4),
    real(5, 4),
)  # fmt: skip
function(
    "put",
    lambda x, i, y: (x.put(i, y), x.put(i, y, accumulate=True)),
    real(3, 4),
    exactly([1, 7], [5, 0]),
    real(2, 2),
)
function(
    "diagonal_scatter",
    lambda x, y, z: (x.diagonal_scatter(y), x.diagonal_scatter(z, 1), x.diagonal_scatter(y, 0, 1, 0)),
    real(3, 3),
    real(3),
    real(2),
)
function("logcumsumexp", lambda x: (x.logcumsumexp(0), x.logcumsumexp(-1)), real(3, 40, low=-90, high=90))


def _definite(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype)


function(
    "Cholesky factors",
    lambda x: (
        torch.linalg.cholesky(_definite(x)), torch.linalg.cholesky(_definite(x), upper=True),
        torch.linalg.cholesky_ex(_definite(x))[0], torch.cholesky_inverse(_definite(x).tril()),
        torch.cholesky_inverse(_definite(x).triu(), upper=True),
    ),
    real(2, 4, 4),
)  # fmt: skip
function(
    "solved by Cholesky factors",
    lambda x, y: (torch.cholesky_solve(y, _definite(x).tril()), torch.cholesky_solve(y, _definite(x).triu(), True)),
    real(2, 4, 4),
    real(2, 4, 3),
)
function(
    "linear equations",
    lambda x, y: (
        torch.linalg.solve(_definite(x), y), torch.linalg.solve(_definite(x), y[..., 0]),
        torch.linalg.solve(_definite(x), y.mT, left=False), torch.linalg.inv_ex(_definite(x))[0],
        torch.linalg.solve_triangular(_definite(x), y, upper=True),
        torch.linalg.solve_triangular(_definite(x), y, upper=False, unitriangular=True),
        torch.triangular_solve(y, _definite(x), transpose=True)[0],
    ),
    real(2, 4, 4),
    real(2, 4, 3),
)  # fmt: skip
function("slogdet", lambda x: (torch.linalg.slogdet(x)[1], torch.logdet(_definite(x))), real(3, 4, 4))
function("slogdet of a large matrix", lambda x: torch.linalg.slogdet(x + 9 * torch.eye(60))[1], real(60, 60))
function("unfold of a tensor", lambda x: x.unfold(1, 3, 2), real(2, 7))
function("take", torch.take, real(5, 4), whole(3, 2, below=20))
function("view_as", lambda x, y: (x.view_as(y), x.reshape_as(y)), real(2, 6), real(3, 4))
function("narrow_copy", lambda x: torch.narrow_copy(x, 1, 1, 2), real(3, 4))
function(
    "matrix_exp",
    lambda x, y: (
        torch.matrix_exp(x),
        torch.linalg.matrix_exp(200 * (y - y.mT)),
        torch.matrix_exp(-1e3 * torch.eye(2)),
    ),
    real(2, 3, 3),
    real(4, 4),
    tolerance=1e-4,
)
for size in ((4, 3), (3, 3), (2, 3, 5)):
    function(
        f"QR factors of {size}",
        lambda x: (*torch.linalg.qr(x), *torch.qr(x)),
        real(*size),
        tolerance=1e-4,
    )
    function(f"reflections of {size}", torch.geqrf, real(*size), gradient=False)
    function(
        f"LU factors of {size}",
        lambda x: (*torch.linalg.lu(x), torch.linalg.lu_factor(x)[0], *torch.lu_unpack(*torch.lu(x))),
        real(*size),
        tolerance=1e-4,
    )
function(
    "QR factors that have no gradient",
    lambda x: (*torch.linalg.qr(x, "complete"), torch.linalg.qr(x, "r")[1]),
    real(4, 2),
    gradient=False,
)
function("a part of what LU factors unpack", lambda x: torch.lu_unpack(*torch.lu(x), unpack_data=False)[0], real(3, 3))
function(
    "lu_solve",
    lambda x, y: (
        [
            torch.linalg.lu_solve(*torch.linalg.lu_factor(x), y, left=left, adjoint=adjoint)
            for left in (True, False)
            for adjoint in (True, False)
        ]
        + [torch.lu_solve(y, *torch.linalg.lu_factor(x))]
    ),
    real(2, 3, 3),
    real(2, 3, 3),
    tolerance=1e-4,
)
for left in (True, False):
    function(
        f"a product with reflections from the {'left' if left else 'right'}",
        lambda x, t, y, left=left: (torch.ormqr(x, t, y, left), torch.ormqr(x, t, y, left, transpose=True)),
        real(2, 4, 3),
        positive(2, 3),
        real(2, 4, 4),
    )
function(
    "factors of singular matrices",
    lambda x: (*torch.linalg.lu_factor_ex(torch.stack((x, x * 0))), *torch.linalg.qr(x * 0)),
    real(3, 3),
    gradient=False,
)
function(
    "medians of numbers",
    lambda x, y: (x.nanmedian(), *x.nanmedian(0), *x.nanmedian(1, keepdim=True), y.nanmedian(), *y.nanmedian(-1)),
    exactly([1.0, math.nan, 3.0, 2.0], [math.nan, math.nan, 5.0, 4.5], [math.nan, math.nan, 0.5, math.nan]),
    whole(3, 5, below=100),
)
function("median of no numbers", lambda x: x.nanmedian(), exactly(math.nan, math.nan), gradient=False)
function(
    "histc",
    lambda x: (x.histc(5, 0, 10), x.histc(4), torch.zeros(2).histc(3) + x.sum() * 0, x.histc(3, 2, 3)),
    exactly(0.0, 1.0, 2.0, 3.0, 9.9, 10.0, -1.0, 11.0),
    gradient=False,
)
function("histc of what is no number", lambda x: x.histc(5, 0, 10), exactly(0.0, math.nan, 3.0), gradient=False)
function(
    "nonzero_static",
    lambda x: (x.nonzero_static(size=3), x.nonzero_static(size=20, fill_value=7), x[0].nonzero_static(size=2)),
    whole(3, 4, below=2),
    reference=None,
)
