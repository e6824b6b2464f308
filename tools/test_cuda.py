"""Build for this machine's GPU, run tests on it, and write down how it went.

usage: make test-cuda [SUBSET="name ..."]
       python tools/test_cuda.py [--subset NAME ...] [--processes N] [--minutes M] [--no-build]

Subsets: `chosen` (the default: what is closest to the GPU, in six minutes with the build), `python`
(every Python test but those about other backends), `devices` (what several GPUs have a part in),
`multi` (torch.distributed, copies and models on two GPUs, in five minutes: make test-cuda-multi),
`replays` (random programs again and again, most of them as CUDA graphs), `forward` (the conformance
units of the forward phase), `conformance` (all of them), `marked` (what exchanges memory with CuPy,
JAX and CUDA tensors, with hologram on the CPU), or files of tests.
Python and torch are those that run this program: nothing is installed. Units of conformance that
fail are run once more on torch's own CUDA device, in processes without the package, and those that
pass there many times more: those that fail there too are not judged. The result is a line for each
subset in benchmarks/results/GPU.md, which is written also where the run is stopped or its time is
over, and files in build/test-cuda: SUBSET.failures.txt with every failure, SUBSET.judged.txt with
the units of them that torch's own device passes.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "test-cuda"
RESULTS = ROOT / "benchmarks" / "results"

CHOSEN = (
    "pointwise_native reductions layouts quick scans composites losses norms optimizers random "
    "programs cuda cuda_interop cuda_runtime cuda_faults delegate dlpack streams"
).split()
DEVICES = (
    "devices devices_autograd devices_copies devices_exchange devices_memory devices_streams comm "
    "model_parallel data_parallel mixed_devices cuda_runtime cuda_interop cuda_faults random "
    "streams interop autograd multiprocessing serialization"
).split()
MULTI = "distributed devices_copies comm model_parallel data_parallel".split()
SUBSETS = {"chosen": CHOSEN, "devices": DEVICES, "multi": MULTI}
# About other backends, the emulator, what a machine has to have installed, or needs several GPUs.
OTHERS = (
    "sim sim_faults sim_kernels sim_memory sim_streams gpu_compile gpu_dialect examples benchmarks "
    "tools vendor cuda_driver cuda_driver_faults cuda_driver_interop cuda_driver_products "
    "cuda_driver_compile cuda_driver_replay traced_models distributed torchrun metal_runtime"
).split()
if any(find_spec(name) is None for name in ("accelerate", "lightning", "transformers")):
    OTHERS.append("integrations")
else:
    DEVICES.append("integrations")


def files_of(subset: str) -> list[str]:
    """What pytest is given; raises ValueError for a subset that there is not."""
    if subset in SUBSETS:
        paths = [ROOT / "test" / f"test_{name}.py" for name in SUBSETS[subset]]
        return [str(path.relative_to(ROOT)) for path in paths if path.exists()]
    if subset == "replays":
        return ["test/test_programs.py"]
    if subset == "marked":
        return ["test", "--ignore=test/conformance"]
    if subset == "python":
        left_out = [f"--ignore=test/test_{name}.py" for name in OTHERS]
        return ["test", "--ignore=test/conformance", *left_out]
    if subset == "conformance":
        return ["test/conformance"]
    if subset == "forward":
        return ["test/conformance", "-k", "test_forward_ and not forward_ad"]
    if (ROOT / subset).exists():
        return [subset]
    raise ValueError(f"no subset or file {subset}")


def needing_the_gpu(files: list[str]) -> list[str]:
    """The files with tests that run alone, of files or folders with files."""
    given = [ROOT / name for name in files if not name.startswith("-")]
    paths = [
        path for name in given for path in (name.glob("test_*.py") if name.is_dir() else [name])
    ]
    wanted = [path for path in paths if path.is_file() and "mark.whole_gpu" in path.read_text()]
    return sorted(str(path.relative_to(ROOT)) for path in wanted)


def build(architecture: str) -> None:
    """The extension and the kernels of this GPU; raises CalledProcessError."""
    environment = {**os.environ, "HOLOGRAM_BUILD_CUDA": "0"}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    command = [sys.executable, "tools/build_kernels.py", "--architectures", architecture]
    subprocess.run(command, cwd=ROOT, check=True)


def describe() -> None:
    """The package's metadata, by which torch finds it when it is imported itself, for where the
    package is not installed; raises CalledProcessError."""
    if any(its.name == "torch_hologram" for its in entry_points(group="torch.backends")):
        return
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(FOLDER)]
    subprocess.run(command, cwd=ROOT, check=True)


def closing_line(log: Path) -> str:
    """Of pytest; how far it came where it did not end."""
    text = log.read_text(errors="replace")
    if found := re.findall(
        r"^(?:=+ )?(\d+ (?:passed|failed|error).* in [\d.:()s hm]+)", text, re.M
    ):
        return str(found[-1])
    marks = "".join(re.findall(r"^([.FEsxX]+)(?: *\[ *\d+%\])?$", text, re.M))
    failed = marks.count("F") + marks.count("E")
    return f"stopped: {marks.count('.')} passed, {failed} failed by then"


def failures(path: Path) -> list[str]:
    """The tests of a file of failures, in order, each once."""
    lines = path.read_text().splitlines() if path.exists() else []
    return list(dict.fromkeys(line.split(" [")[0] for line in lines))


def run(subset: str, processes: int, seconds: float) -> str:
    """Runs a subset for so long at most, and returns pytest's closing line, with how many of the
    failures of conformance are not judged."""
    name = subset.replace("/", "_")
    failed = FOLDER / f"{name}.failures.txt"
    failed.unlink(missing_ok=True)
    end = time.monotonic() + seconds
    backends = "cpu" if subset == "marked" else "cuda"
    marked = "cuda" if subset == "marked" else "not full"
    variables = {"HOLOGRAM_BACKENDS": backends, "HOLOGRAM_TEST_FAILURES": str(failed)}
    if subset == "replays":  # of the kernels that there are: more programs have theirs for good
        variables["HOLOGRAM_COMPILE"] = "0"
    files = files_of(subset)
    line = run_tests(
        name, ["-m", f"({marked}) and not whole_gpu", *files], variables, processes, end
    )
    if alone := needing_the_gpu(files):
        parts = ["-m", f"({marked}) and whole_gpu", *alone]
        line += f"; alone on the GPU: {run_tests(f'{name}.alone', parts, variables, 0, end)}"
    if subset in ("devices", "multi"):
        line += f"; on {torch.cuda.device_count()} GPUs"
    units = [test for test in failures(failed) if test.startswith("test/conformance/")]
    if not units:
        return line
    left, stopped = judged(name, units, processes, end)
    (FOLDER / f"{name}.judged.txt").write_text("".join(f"{test}\n" for test in left))
    line += f"; of the failed units {len(units) - len(left)} fail on torch's own cuda too"
    return f"{line}, whose run was stopped" if stopped else line


def judged(name: str, units: list[str], processes: int, end: float) -> tuple[list[str], bool]:
    """The units that torch's own device passes, and whether there was no time to ask all. What is
    left is run there once more, many times: some of its kernels add up in any order."""
    stopped = False
    for times, among in ((1, processes), (50, 2)):
        own = {
            test.replace("HOLOGRAM", "CUDA").replace("_hologram_", "_cuda_"): test for test in units
        }
        only, failed = FOLDER / f"{name}.units.txt", FOLDER / f"{name}.own{times}.failures.txt"
        failed.unlink(missing_ok=True)
        only.write_text("".join(f"{test}\n" for test in own))
        variables = {
            "HOLOGRAM_TEST_DEVICE": "cuda",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "HOLOGRAM_TEST_ONLY": str(only),
            "HOLOGRAM_TEST_TIMES": str(times),
            "HOLOGRAM_TEST_FAILURES": str(failed),
        }
        closing = run_tests(f"{name}.own{times}", ["test/conformance"], variables, among, end)
        stopped = stopped or closing.startswith("stopped")
        theirs = set(failures(failed))
        units = [test for its, test in own.items() if its not in theirs]
        if not units:
            break
    return units, stopped


def run_tests(
    name: str, arguments: list[str], variables: dict[str, str], processes: int, end: float
) -> str:
    """Runs pytest until `end` at most, its output in NAME.log; returns its closing line."""
    log = FOLDER / f"{name}.log"
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(
            filter(None, map(str, (ROOT, ROOT / "tools", FOLDER, os.environ.get("PYTHONPATH", ""))))
        ),
        **variables,
    }
    environment.pop("HOLOGRAM_COMMIT", None)  # which is no setting of the package's
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=10"]
    command += ["-p", "note_failures", "-n", str(processes), "--dist", "worksteal", *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None and time.monotonic() < end:
                time.sleep(1)
                print(f"\r{name}: {log.stat().st_size} bytes of log", end="", flush=True)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
    print()
    return closing_line(log)


def commit() -> str:
    """HOLOGRAM_COMMIT where the tree is a copy, else what git says."""
    if "HOLOGRAM_COMMIT" in os.environ:
        return os.environ["HOLOGRAM_COMMIT"]
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def write(gpu: str, subset: str, line: str) -> Path:
    """Puts the line of a subset in the GPU's file, in place of an earlier one."""
    path = RESULTS / f"{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}.md"
    rows: dict[str, str] = {}
    if path.exists():
        for row in re.findall(r"^\| `(.+?)` \|.*$", path.read_text(), re.M):
            rows[row] = next(
                text for text in path.read_text().splitlines() if text.startswith(f"| `{row}` |")
            )
    today = datetime.date.today().isoformat()
    versions = f"{torch.__version__}, Python {sys.version.split()[0]}"
    rows[subset] = f"| `{subset}` | {line} | {commit()} | {today} | {versions} |"
    path.write_text(
        f"# Tests on an {gpu}\n\nWritten by `make test-cuda` (tools/test_cuda.py).\n\n"
        "| subset | pytest's closing line | commit | date | torch |\n"
        "| --- | --- | --- | --- | --- |\n" + "".join(f"{row}\n" for row in rows.values())
    )
    return path


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--subset", nargs="+", default=["chosen"])
    parser.add_argument("--processes", type=int, default=min(15, os.cpu_count() or 1))
    parser.add_argument("--minutes", type=float, default=4, help="for all subsets together")
    parser.add_argument("--no-build", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU that torch sees", file=sys.stderr)
        return 1
    for subset in arguments.subset:
        files_of(subset)
    FOLDER.mkdir(parents=True, exist_ok=True)
    major, minor = torch.cuda.get_device_capability()
    if not arguments.no_build:
        build(f"{major}{minor}")
    describe()
    end = time.monotonic() + 60 * arguments.minutes
    clean = True
    for subset in arguments.subset:
        line = "stopped"
        try:
            line = run(subset, arguments.processes, max(10.0, end - time.monotonic()))
        finally:
            print(f"{subset}: {line}")
            print(f"written to {write(torch.cuda.get_device_name(), subset, line)}")
        clean = clean and "failed" not in line and "stopped" not in line
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
