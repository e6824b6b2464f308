"""Conjugate and negative bits of what a CPU kernel is given, returns and writes; zero tensors."""

from __future__ import annotations

import torch
from common import DEVICES, DelegateTestCase
from torch.testing._internal.common_utils import run_tests


class TestComplexBits(DelegateTestCase):
    """Conjugate and negative bits are handed in and come back."""

    def setUp(self) -> None:
        super().setUp()
        torch.manual_seed(0)
        self.a = torch.randn(4, 4, dtype=torch.complex64) + 2 * torch.eye(4)
        self.b = torch.randn(4, 2, dtype=torch.complex64)

    def test_in(self):
        for view in (torch.conj, torch.Tensor.adjoint, lambda t: t.conj().mT, lambda t: t):
            for function in (
                lambda a, b: torch.mm(a, b),
                lambda a, b: torch.linalg.solve(a, b),
                lambda a, b: torch.linalg.inv(a),
                lambda a, b: torch.fft.fft(a),
                lambda a, b: torch.fft.ifft2(a).abs(),
                lambda a, b: torch.linalg.eigvals(a).abs().sort().values,
                lambda a, b: torch.einsum("ij,jk->ik", a, b),
                lambda a, b: torch.vdot(a[0], a[1]),
                lambda a, b: torch.angle(a),
                lambda a, b: a.sum(0),
                lambda a, b: torch.cat([a, b], 1),
                lambda a, b: a.clone(),
                lambda a, b: a.resolve_conj(),
                lambda a, b: a.to(torch.complex128),
                lambda a, b: torch.view_as_real(a.resolve_conj()),
                lambda a, b: a.imag.sort().values,
                lambda a, b: a.imag.resolve_neg(),
                lambda a, b: torch.sgn(a),
                lambda a, b: torch.addmm(b, a, b, beta=1j),
                lambda a, b: torch.polar(a.real.abs(), a.imag),
                lambda a, b: torch.complex(a.real, a.imag),
            ):
                self.check(lambda a, b, f=function, v=view: f(v(a), b), self.a, self.b, exact=False)

    def test_out(self):
        """Kernels that leave a bit on the result."""

        def factored(a, b):
            lu, pivots = torch.linalg.lu_factor(a)
            results = []
            for left in (True, False):
                for adjoint in (True, False):
                    right = b if left else b.mT
                    results.append(
                        torch.linalg.lu_solve(lu, pivots, right, left=left, adjoint=adjoint)
                    )
                    out = torch.empty(0, dtype=a.dtype, device=a.device)
                    torch.linalg.lu_solve(lu, pivots, right, left=left, adjoint=adjoint, out=out)
                    results += [out, out * 1, out.sum()]
            return results

        self.check(factored, self.a, self.b, exact=False)
        for function in (
            lambda a, b: torch.linalg.solve(a.mH, b, out=torch.empty_like(b)),
            lambda a, b: torch.linalg.ldl_factor(a @ a.mH, hermitian=True).LD,
            lambda a, b: torch.linalg.cholesky(a @ a.mH, upper=True),
            lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a @ a.mH)),
            lambda a, b: torch.linalg.lstsq(a, b).solution,
            lambda a, b: torch.linalg.pinv(a),
            lambda a, b: torch.linalg.solve_triangular(a.mH, b, upper=False),
        ):
            self.check(function, self.a, self.b, exact=False)

    def test_lu_solve_leaves_a_bit(self):
        """The case all this is about: the kernel returns its out= as a conjugate view."""
        bits = {}
        for device in DEVICES:
            a, b = self.a.to(device), self.b.to(device)
            lu, pivots = torch.linalg.lu_factor(a)
            out = torch.empty(0, dtype=a.dtype, device=device)
            torch.linalg.lu_solve(lu, pivots, b.mT, left=False, out=out)
            bits[device] = (out.is_conj(), out.stride())
        self.assertEqual(bits["hologram"], bits["cpu"])
        self.assertTrue(bits["cpu"][0])

    def test_written(self):
        def write(a, b):
            a.conj()[0] = 2 + 3j
            torch.mul(a[1], 2j, out=a.conj()[1])
            a.conj().imag.mul_(3)
            a.mH.add_(b[:1, :1])
            torch.neg(a.real, out=a.imag)
            return a

        self.check(write, self.a, self.b)

    def test_of_a_copy(self):
        """Copies between devices resolve the bits once."""
        for view in (lambda t: t.conj(), lambda t: t.conj().imag, lambda t: t.conj().mT):
            self.assertEqual(view(self.a.hologram()).cpu(), view(self.a))
            self.assertEqual(view(self.a).hologram().cpu(), view(self.a))
            target = torch.zeros_like(view(self.a)).hologram()
            self.assertEqual(target.copy_(view(self.a)).cpu(), view(self.a))

    def test_zero_tensors(self):
        """Tensors without memory, which autograd makes."""
        for device in DEVICES:
            zero = torch._efficientzerotensor((2, 3), device=device)
            self.assertEqual(zero.device.type, device)
            x = torch.ones(2, 3, device=device)
            self.assertEqual((x + zero).cpu(), torch.ones(2, 3))
            self.assertEqual((x * zero).cpu(), torch.zeros(2, 3))
            self.assertEqual(torch.mm(x.t(), zero).cpu(), torch.zeros(3, 3))
            self.assertEqual(x.copy_(zero).cpu(), torch.zeros(2, 3))


if __name__ == "__main__":
    run_tests()
