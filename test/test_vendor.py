"""Kernels of a vendor, of another device type than the CPU, on the memory of the device."""

from __future__ import annotations

import textwrap

import torch
from common import ROOT, HologramTestCase
from sim_device import run_on_sim
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from vendor import load_vendor

# Before torch is asked for the device.
LOAD = f"""
import ctypes, os, sys
sys.path.insert(0, {str(ROOT / "test")!r})
from vendor import load_vendor
vendor = load_vendor()
import torch
from torch_hologram import _C
sim = ctypes.CDLL(os.environ["HOLOGRAM_BACKEND_PATH"] + "/libhologram_sim.so")
sim.sim_waits.restype = ctypes.c_uint64
sim.sim_stream.restype = ctypes.c_void_p
torch.mtia._lazy_init = lambda: None  # which asks for a library of the real one
torch.manual_seed(0)

def kinds():
    return {{row.operator: row.kind for row in torch.hologram.fallback_report()}}
"""


def run_with_vendor(program: str, **env: object) -> str:
    load_vendor()  # compiled by one process, once
    variables = {"HOLOGRAM_TEST_SIM_MEMORY": "hidden", "HOLOGRAM_TEST_SIM_VENDOR": "mtia"} | env
    return run_on_sim(LOAD + textwrap.dedent(program), **variables)


class TestTarget(HologramTestCase):
    """What calls of a device are delegated to."""

    @parametrize(
        "memory, vendor, target",
        [
            ("host", "", ("shared", "cpu")),
            ("host", "mtia", ("shared", "cpu")),  # a storage has one twin
            ("vendor", "", ("launched", "cpu")),
            ("device", "", ("copied", "cpu")),
            ("device", "mtia", ("copied", "cpu")),  # this torch has no such device
            ("device", "cpu", ("copied", "cpu")),
            ("device", "nobody", ("copied", "cpu")),
        ],
    )
    def test_without_the_vendor(self, memory, vendor, target):
        run_on_sim(
            f"""
            from torch_hologram import _C
            assert _C.delegate_target(0) == {target!r}, _C.delegate_target(0)
            x = torch.arange(6.0).reshape(2, 3)
            values = torch.linalg.svdvals(x.to("hologram"))
            assert torch.equal(values.cpu(), torch.linalg.svdvals(x))
            """,
            HOLOGRAM_TEST_SIM_MEMORY=memory,
            HOLOGRAM_TEST_SIM_VENDOR=vendor,
        )

    def test_cuda_is_used_where_torch_has_it(self):
        if torch.cuda.is_available():
            self.skipTest("memory of the simulated device is not CUDA's")
        run_on_sim(
            """
            from torch_hologram import _C
            assert _C.delegate_target(0) == ("copied", "cpu")
            """,
            HOLOGRAM_TEST_SIM_VENDOR="cuda",
        )

    def test_devices_in_order(self):
        run_with_vendor(
            """
            assert _C.delegate_target(0) == ("launched", "mtia:0")
            assert _C.delegate_target(1) == ("launched", "mtia:1")
            """
        )


class TestVendor(HologramTestCase):
    def test_kernels_on_the_same_bytes(self):
        run_with_vendor(
            """
            a, b = torch.randn(20, 30), torch.randn(30, 20)
            x, y = a.to("hologram"), b.to("hologram")
            torch.hologram.synchronize()
            waits, calls = sim.sim_waits(), vendor.calls()
            z = ((x * 2) @ y).relu() + 1
            s = torch.sort(z, descending=True)
            z[3:5].index_add_(0, s.indices[0, :2] % 2, s.values[7:9])
            out = torch.empty(0, device="hologram")
            torch.cumsum(torch.complex(z, z), 1, out=(grown := out.to(torch.complex64)))
            assert sim.sim_waits() == waits and vendor.calls() >= calls + 4, vendor.calls() - calls
            w = ((a * 2) @ b).relu() + 1
            t = torch.sort(w, descending=True)
            assert torch.equal(s.values.cpu(), t.values) and torch.equal(s.indices.cpu(), t.indices)
            w[3:5].index_add_(0, t.indices[0, :2] % 2, t.values[7:9])
            assert torch.equal(z.cpu(), w)
            assert torch.equal(grown.cpu(), torch.cumsum(torch.complex(w, w), 1))
            assert {kinds()[name] for name in ("aten::mm", "aten::index_add_")} == {"delegated"}
            assert "copied" not in kinds().values(), kinds()
            """,
            HOLOGRAM_TEST_SIM_DELAY=500,
        )

    def test_what_the_vendor_lacks(self):
        run_with_vendor(
            """
            a = torch.randn(5, 7)
            x = a.to("hologram")
            calls = vendor.calls()
            for ours, theirs in zip((x + 1).median(dim=1), (a + 1).median(dim=1), strict=True):
                assert ours.device == x.device and torch.equal(ours.cpu(), theirs)
            y = x[:, :5] @ x[:, :5].T + torch.eye(5, device="hologram")
            calls = vendor.calls()
            torch.cholesky_inverse(y)
            assert vendor.calls() == calls
            assert kinds()["aten::median.dim_values"] == "copied", kinds()
            assert kinds()["aten::cholesky_inverse"] == "copied", kinds()
            assert kinds()["aten::mm"] == "delegated", kinds()
            """
        )

    def test_results_on_another_device(self):
        """The third device is the CPU, whose kernels are torch's own; the first two are the
        vendor's."""
        run_with_vendor(
            """
            library = torch.library.Library("test", "DEF")
            library.define("moved(Tensor x, *, Device? device) -> Tensor")
            for key in ("CPU", "MTIA"):
                library.impl("moved", lambda x, device: x.to(device) + 1, key)
            for here, there in ((0, 2), (2, 0), (0, 1), (1, 1)):
                x = torch.arange(5.0, device=f"hologram:{here}")
                y = torch.ops.test.moved(x * 2, device=torch.device("hologram", there))
                assert y.device == torch.device("hologram", there), (here, there, y.device)
                assert (y + y).tolist() == [2, 6, 10, 14, 18], (here, there, y)
            """,
            HOLOGRAM_BACKENDS="sim,cpu",
        )

    def test_streams_and_devices(self):
        run_with_vendor(
            """
            for device in (0, 1):
                vendor.set_stream(device, 7)
                x = torch.ones(4, 4, device=f"hologram:{device}")
                assert torch.equal((x @ x).cpu(), torch.full((4, 4), 4.0))
                assert sim.sim_stream() == 0x1007 + 0x100 * device, hex(sim.sim_stream())
                assert (x @ x).device.index == device
                y = torch.logspace(0, 1, 5, device=f"hologram:{device}")
                assert y.device.index == device
            assert vendor.calls_off_device() == 0
            """
        )

    def test_memory_of_results(self):
        """Is given back, and not before what is queued on it has run."""
        run_with_vendor(
            """
            import gc
            a = torch.randn(40, 40)
            x = a.to("hologram")
            torch.hologram.synchronize()
            before = vendor.live_bytes()
            for _ in range(20):
                y = x @ x
                assert torch.hologram.memory_stats()["foreign_bytes.all.current"] >= 6400
                z = y + 1
                del y                        # recorded on, then freed with NaN
                torch.hologram.flush()
                y = x @ x
                z2 = y * 2
                torch.hologram.flush()
                del y
                assert torch.equal(z.cpu(), a @ a + 1) and torch.equal(z2.cpu(), (a @ a) * 2)
                with torch.hologram.stream(torch.hologram.Stream()):
                    u = x @ x
                v = u - 1
                del u
                torch.hologram.flush()
                assert torch.equal(v.cpu(), a @ a - 1)
            del z, z2, v
            torch.hologram.synchronize()
            gc.collect()
            assert vendor.live_bytes() == before, vendor.live_bytes()
            assert torch.hologram.memory_stats()["foreign_bytes.all.current"] == 0
            """,
            HOLOGRAM_TEST_SIM_DELAY=2000,
        )

    def test_results_are_recorded_on(self):
        run_with_vendor(
            """
            x = torch.randn(8, 8, device="hologram")
            y = x @ x
            torch.hologram.synchronize()
            torch.hologram.reset_stream_stats()
            z = ((y + 1) * 2).exp()
            counts = torch.hologram.stream_stats()
            assert counts["recorded"] == 3 and counts["executed"] == 0, counts
            """
        )

    def test_copies_between_the_two(self):
        run_with_vendor(
            """
            a = torch.randn(6, 5)
            x = a.to("hologram")
            theirs = torch.empty(6, 5, device="mtia:0")
            waits = sim.sim_waits()
            theirs.copy_(x + 1)
            back = torch.empty(5, 6, device="hologram").t()
            back.copy_(theirs)
            assert sim.sim_waits() == waits
            assert torch.equal(back.cpu(), a + 1)
            assert torch.equal(x.to("mtia:0").to("hologram").cpu(), a)
            half = torch.empty(6, 5, dtype=torch.float16, device="hologram")
            half.copy_(x.to("mtia:0"))
            assert torch.equal(half.cpu(), a.half())
            """
        )

    def test_views_with_bits(self):
        """Conjugate and negative ones, copied within the device and to and from the host."""
        run_with_vendor(
            """
            a = torch.randn(4, 4, dtype=torch.complex64)
            for view in (lambda t: t.conj(), lambda t: t.conj().imag, lambda t: t.conj().mT):
                plain, here = view(a), view(a.to("hologram"))
                fresh = lambda device: torch.zeros(4, 4, dtype=plain.dtype, device=device)
                assert torch.equal(here.resolve_conj().resolve_neg().cpu(), plain)
                assert torch.equal(fresh("hologram").copy_(plain).cpu(), plain)
                assert torch.equal(fresh("cpu").copy_(here), plain)
                assert torch.equal(fresh("hologram").copy_(here).cpu(), plain)
            """
        )

    def test_counts_of_fused_steps(self):
        """CUDA's kernels take them for float32, whatever they are: so they are converted before."""
        run_with_vendor(
            """
            tensors = [torch.randn(5).abs() for _ in range(4)]
            options = {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}
            adam = {"beta1": 0.9, "beta2": 0.99, "amsgrad": False}
            def run(device, dtype):
                lists = [[t.clone().to(device)] for t in tensors]
                steps = [torch.tensor(3, device=device, dtype=dtype)]
                torch._fused_adamw_(*lists, [], steps, **options, **adam)
                torch._fused_adagrad_(*lists[:3], steps, lr_decay=0.1, **options)
                return [list[0].cpu() for list in lists]
            for dtype in (torch.int64, torch.float64):
                mine, wanted = run("hologram", dtype), run("cpu", torch.float32)
                torch.testing.assert_close(mine, wanted)
            names = {"aten::_fused_adamw_", "aten::_fused_adagrad_"}
            assert {kinds()[name] for name in names} == {"native"}, kinds()
            """
        )

    def test_mistakes(self):
        run_with_vendor(
            """
            x, y = torch.ones(3, 4, device="hologram"), torch.ones(3, 4, device="mtia:0")
            assert "at least two devices" in message(lambda: torch.kron(x, y))
            assert "cannot share" in message(lambda: _C.alias_as_cpu(x))
            bad = torch.ones(3, 4, device="hologram")
            assert "mat1 and mat2" in message(lambda: x @ bad)
            assert torch.equal((x @ bad.T).cpu(), torch.full((3, 3), 4.0))
            """
        )

    @parametrize("optimizer", ["Adam", "SGD"])
    def test_training(self, optimizer):
        run_with_vendor(
            f"""
            def train(device):
                torch.manual_seed(0)
                net = torch.nn.Sequential(
                    torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
                    torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(36, 10)).to(device)
                step = torch.optim.{optimizer}(net.parameters(), lr=0.05)
                data = torch.randn(16, 1, 8, 8).to(device)
                target = torch.arange(16).remainder(10).to(device)
                losses = []
                for _ in range(8):
                    step.zero_grad()
                    loss = torch.nn.functional.cross_entropy(net(data), target)
                    loss.backward()
                    step.step()
                    losses.append(loss.detach())
                return torch.stack(losses).cpu()
            torch.testing.assert_close(train("hologram"), train("cpu"), rtol=1e-3, atol=1e-4)
            assert "copied" not in kinds().values(), kinds()
            """
        )

    def test_networks_and_attention(self):
        run_with_vendor(
            """
            lstm = torch.nn.LSTM(5, 7, num_layers=2)
            data = torch.randn(4, 3, 5)
            sizes = (8, 5)  # of heads: a kernel's unit, and what is filled up to one
            heads = {n: [torch.randn(2, 3, 6, n) for _ in range(3)] for n in sizes}
            def run(device):
                net, x = lstm.to(device), data.to(device)
                with torch.no_grad():
                    plain = net(x)[0]
                results = net(x)[0]
                grads = torch.autograd.grad(results.square().sum(), list(net.parameters()))
                seen = []
                for tensors in heads.values():
                    q, k, v = (t.to(device).requires_grad_() for t in tensors)
                    attend = torch.nn.functional.scaled_dot_product_attention
                    seen.append(attend(q, k, v, is_causal=True))
                    grads += torch.autograd.grad(seen[-1].square().sum(), (q, k, v))
                return [t.detach().cpu() for t in (plain, results, *seen, *grads)]
            expected = run("cpu")
            torch.testing.assert_close(run("hologram"), expected, rtol=1e-4, atol=1e-5)
            assert vendor.calls_off_device() == 0
            names = " ".join(torch.hologram.fallback_report().operators("delegated"))
            assert "_scaled_dot_product_flash_attention_backward" in names, names
            """
        )


instantiate_parametrized_tests(TestTarget)
instantiate_parametrized_tests(TestVendor)

if __name__ == "__main__":
    run_tests()
