"""Builds torch_hologram._C with ninja. Metadata is in pyproject.toml."""

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

ROOT = Path(__file__).parent.resolve()
os.chdir(ROOT)

try:
    import torch
    import torchgen
    from torch.utils.cpp_extension import BuildExtension, CppExtension, get_cxx_compiler
except ImportError as error:  # an isolated build has no torch to build against
    raise SystemExit(
        "torch_hologram builds against the torch it will run with: install torch first, then "
        "build with `pip install --no-build-isolation`"
    ) from error

from setuptools import setup

SUPPORTED = run_path("torch_hologram/_version_check.py")["SUPPORTED"]
# Compiles with any torch, to see what a newer one would need; the package still refuses to load.
ANY_TORCH = os.environ.get("HOLOGRAM_BUILD_ANY_TORCH") == "1"
TORCH_MINOR = ".".join(torch.__version__.split(".")[:2])
if TORCH_MINOR not in SUPPORTED and not ANY_TORCH:
    raise SystemExit(
        f"torch_hologram supports torch {SUPPORTED[0]} to {SUPPORTED[-1]}, "
        f"found {torch.__version__}"
    )

# A wheel runs with the minor version that it was compiled for and with no other. What is not
# compiled yet, the source distribution, can be with each that is supported.
FIRST, LAST = SUPPORTED[0], SUPPORTED[-1]
if "sdist" not in sys.argv and not ANY_TORCH:
    FIRST = LAST = TORCH_MINOR
TORCH = f"torch>={FIRST},<{LAST.split('.')[0]}.{int(LAST.split('.')[1]) + 1}"

# On macOS, compiled by Apple's clang for Apple's processors, Metal is the GPUs' backend and CUDA
# is none. A Python of python.org is for two kinds of processors and old systems: torch is not.
MACOS = sys.platform == "darwin"
if MACOS:
    OLDEST = os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", "14.0")
    if int(OLDEST.split(".")[0]) < 14:
        raise SystemExit(f"torch_hologram needs macOS 14; MACOSX_DEPLOYMENT_TARGET is {OLDEST}")
    os.environ.setdefault("ARCHFLAGS", "-arch arm64")
    # As which platform's the wheel is named.
    os.environ.setdefault("_PYTHON_HOST_PLATFORM", f"macosx-{OLDEST}-arm64")

VERSION = re.search(r'^version = "(.+)"$', Path("pyproject.toml").read_text(), re.M).group(1)


def repository() -> str | None:
    """The page of the repository: as an unpacked source distribution says, or of git's `origin`."""
    if Path("PKG-INFO").exists():
        found = re.search(r"^Project-URL: Source, (.+)$", Path("PKG-INFO").read_text(), re.M)
        return found.group(1) if found else None
    git = ["git", "config", "--get", "remote.origin.url"]
    try:
        remote = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        return None
    return run_path("tools/index_readme.py")["web_address"](remote)


def write_if_changed(path: Path, text: str) -> None:
    """Keeps the time stamp of an unchanged file, so that nothing is rebuilt for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def device_check_table() -> str:
    """The operators whose CUDA wrapper checks no devices, by torch's schema file, as C strings."""
    schema = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    names, name = [], ""
    for line in schema.read_text().splitlines():
        if match := re.match(r"- func: ([\w.]+)\(", line):
            name = match.group(1)
        elif re.match(r"\s+device_check: NoCheck", line):
            names.append(name)
    if not names:
        raise SystemExit(f"no `device_check: NoCheck` found in {schema}")
    return "".join(f'"{name}",\n' for name in names)


def autocast_table() -> str:
    """The operators of torch's autocast lists with what becomes of their arguments, as C rows."""
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    lists = {
        "LOWER_PRECISION_FP": "lower_precision_fp",
        "FP32": "fp32",
        "FP32_SET_OPT_DTYPE": "fp32_set_opt_dtype",
        "PROMOTE": "promote",
    }
    rows = []
    for macro, policy in lists.items():
        found = re.search(
            rf"#define AT_FORALL_{macro}\(_\)((?:[^\n]*\\\n)+[^\n]*)", header.read_text()
        )
        names = re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", found.group(1)) if found else []
        if not names:
            raise SystemExit(f"no AT_FORALL_{macro} found in {header}")
        for name, overload in names:
            full = f"{name}.{overload}" if overload else name
            rows.append(f'{{Policy::{policy}, "{full}"}},\n')
    return "".join(rows)


# Translation units the quick kernels are spread over: small enough to compile side by side.
QUICK_UNITS = 2


def write_quick_kernels() -> list[str]:
    """Writes the tables of csrc/aten/quick.h for the overloads in quick_calls.tsv.

    An overload that this torch does not have is left out; so are factories, whose device argument
    is the boxed delegate's business.
    """
    headers = Path(torch.__file__).parent / "include/ATen/ops"
    rows: dict[str, tuple[str, str]] = {}  # struct -> its signature and header
    for line in Path("csrc/aten/quick_calls.tsv").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        full = line.split()[0].removeprefix("aten::")
        base, _, overload = full.partition(".")
        struct = f"{base}_{overload}" if overload else base
        header = headers / f"{base.removesuffix('_') if not base.startswith('__') else base}_ops.h"
        if not header.exists():
            header = headers / f"{base}_ops.h"
        text = header.read_text() if header.exists() else ""
        declared = re.search(
            rf"struct TORCH_API {re.escape(struct)} {{\s+using schema = (.+?);", text
        )
        if declared and "at::Device" not in declared.group(1):
            rows[struct] = declared.group(1), header.name
    folder, sources, tables = ROOT / "build/generated", [], []
    signatures = sorted({signature for signature, _ in rows.values()})
    for unit in range(QUICK_UNITS):
        # What takes time to compile is a signature, so no two units share one.
        share = set(signatures[unit::QUICK_UNITS])
        mine = sorted(name for name, (signature, _) in rows.items() if signature in share)
        table = f"quick_rows_{unit}"
        lines = ["// Written by setup.py.", '#include "aten/precompiled.h"', ""]
        lines += ['#include "aten/quick.h"', ""]
        lines += [f"#include <ATen/ops/{header}>" for header in sorted({rows[n][1] for n in mine})]
        lines += ["", "namespace hologram::aten {", f"extern const QuickRow {table}[] = {{"]
        lines += [f"    quick_row<at::_ops::{name}>()," for name in mine]
        lines += ["};", "}  // namespace hologram::aten", ""]
        path = folder / f"quick_{unit}.cpp"
        write_if_changed(path, "\n".join(lines))
        sources.append(str(path.relative_to(ROOT)))
        tables.append((table, len(mine)))
    declarations = [f"extern const QuickRow {table}[];" for table, _ in tables]
    entries = ", ".join(f"{{{table}, {count}}}" for table, count in tables)
    write_if_changed(
        folder / "quick_tables.inc",
        "\n".join(declarations)
        + "\nstatic std::vector<std::pair<const QuickRow*, size_t>> quick_tables() {\n"
        + f"  return {{{entries}}};\n}}\n",
    )
    return sources


# Files that are compiled as one, because their headers take longer than they do: pybind11 and
# torch's about Python and autograd ten seconds, torch's others one to three even where they are
# precompiled (templates that they use are compiled with each unit), the standard library's two.
# Who knows the rows of the op table is apart from who does not: a new row recompiles little.
UNITS = {
    "python": "aten/bindings aten/explain aten/measure aten/memory_trace aten/custom aten/rnn "
    "aten/autograd_threads aten/dlpack_api aten/kernel_texts aten/python_methods "
    "aten/python_flush aten/process_group aten/system_threads",
    "operators": "aten/factories aten/nn aten/autocast aten/attention aten/learned_call",
    "delegate": "aten/alias aten/call_schema aten/boxed_call aten/delegate aten/products "
    "aten/library_products aten/past_autograd aten/quick aten/delegate_target",
    "record": "aten/iteration aten/prepare aten/record aten/record_call aten/record_composite "
    "aten/activity aten/device_errors aten/generator aten/guard aten/hooks aten/profile "
    "aten/report aten/runtime aten/threads",
    "tensors": "aten/block aten/copy aten/empty_requests aten/foreign aten/pinned aten/stream_uses "
    "aten/transfer aten/vendor_launch aten/vendor_memory aten/vendor_streams",
    "rows": "aten/pointwise aten/composites aten/overloads aten/optimizers",
    "folds": "aten/folding aten/reductions aten/row_programs aten/norms aten/channel_norms "
    "aten/rms_norm",
    "random": "aten/random aten/random_choices",
    "layers": "aten/convolutions aten/gradient_scaling aten/library_attention aten/losses "
    "aten/smoothed_loss aten/sync_batch_norm aten/arange aten/arg_reductions aten/assembling "
    "aten/scans",
    "groups": "cpu/check_group cpu/compile cpu/compile_operations cpu/group_run "
    "cpu/group_run_strided cpu/strided_space cpu/stages cpu/row_group cpu/row_run atlas/algebra "
    "atlas/op_table",
    "gpu": "gpu/cold gpu/emit gpu/emit_bf16 gpu/emit_classes gpu/emit_elements gpu/emit_folds "
    "gpu/emit_places gpu/emit_rows gpu/emit_scans gpu/emit_values gpu/launch gpu/libraries "
    "gpu/op_text gpu/rounding gpu/steps gpu/variants",
    "launches": "gpu/code gpu/compiler gpu/indices gpu/move_launches gpu/moves gpu/pieces "
    "gpu/prepared",
    "cuda": "cuda/backend cuda/context cuda/cublas_lt cuda/driver cuda/host_run cuda/image "
    "cuda/kernel_cache cuda/kernels cuda/memory cuda/nvrtc cuda/products cuda/queue cuda/replay "
    "cuda/staging cuda/toolchain cuda/vendor_library",
    "device": "atlas/backends atlas/boundary atlas/channels atlas/config atlas/device atlas/error "
    "atlas/event atlas/exit atlas/fork atlas/linear_pool atlas/memory atlas/memory_counters "
    "atlas/memory_growth atlas/memory_report atlas/own_bindings atlas/stream "
    "cpu/backend cpu/fill cpu/math cpu/memory cpu/queue cpu/system",
    "stream": "atlas/window atlas/open_program atlas/immediates atlas/runner atlas/flush "
    "atlas/frame atlas/keep atlas/overlap atlas/canonicalise atlas/grouping atlas/batching "
    "atlas/dead_code atlas/epilogues atlas/plan_cache atlas/plan_text atlas/program atlas/checker",
}
if MACOS:
    del UNITS["cuda"]
LAYERS = ("cpu", "aten", "atlas", "gpu", "metal" if MACOS else "cuda")


def write_dialect() -> None:
    """Writes the headers of csrc/gpu/dialect but CUDA's, and the native kernels of csrc/metal, as
    rows of C strings: Metal's compiler is given text while a program runs, and finds no files."""
    rows = [
        f'{{"{path.name}", R"hg({path.read_text()})hg"}},\n'
        for path in sorted(
            [*Path("csrc/gpu/dialect").iterdir(), *Path("csrc/metal/native").iterdir()]
        )
        if path.name != "prelude_cuda.h"
    ]
    write_if_changed(ROOT / "build/generated/dialect.inc", "".join(rows))


def write_units() -> list[str]:
    """Writes a file for each of UNITS that includes its members; returns what is compiled."""
    paths, together = [], set()
    for name, members in UNITS.items():
        path = Path(f"build/generated/{name}.cpp")
        files = [f"{member}.cpp" for member in members.split()]
        # The compiler takes a compiled header where the file that it compiles includes it, not
        # where a file that is included does.
        first = ["aten/precompiled.h"] if includes_torch(str(path)) else []
        lines = ["// Written by setup.py.", *(f'#include "{file}"' for file in first + files)]
        write_if_changed(ROOT / path, "\n".join([*lines, ""]))
        paths.append(str(path))
        together.update(f"csrc/{file}" for file in files)
    alone = sorted(
        path
        for layer in LAYERS
        for path in glob.glob(f"csrc/{layer}/*.cpp")
        if path not in together
    )
    kernels = [path for path in alone if "kernels_" in path]
    # What takes longest first, so that no core is left with it in the end.
    return [paths[0], *kernels, *paths[1:], *(path for path in alone if path not in kernels)]


def includes_torch(source: str) -> bool:
    """Whether a source file, or a unit of UNITS, is of csrc/aten."""
    path = Path(source)
    if path.parent.name == "generated":
        return "aten/" in UNITS.get(path.stem, "aten/")
    return path.parent.name == "aten"


def compiler_version() -> str:
    """What the compiler says of itself; nothing where there is none: an sdist needs none."""
    try:
        return subprocess.check_output([*COMPILER, "--version"], text=True)
    except OSError:
        return ""


COMPILER = shlex.split(get_cxx_compiler())
COMPILER_VERSION = compiler_version()
IS_CLANG = "clang" in COMPILER_VERSION  # else gcc

# Where Apple's metal-cpp is, which csrc/metal includes.
METAL_HEADERS = ROOT / "build/metal/include"


def link_flags() -> list[str]:
    if MACOS:
        frameworks = ("Metal", "Foundation", "QuartzCore")
        return [flag for name in frameworks for flag in ("-framework", name)]
    return [
        "-Wl,-O1",
        "-Wl,--as-needed",
        # The shared one, torch's. Some compilers link their own statically, and where
        # there are two in a process, writing a number into a message crashes.
        "-l:libstdc++.so.6",
    ]


# "address" compiles the extension with gcc's AddressSanitizer; `make test-asan` says how to run it.
SANITIZE = os.environ.get("HOLOGRAM_SANITIZE", "")
SANITIZE_FLAGS = [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer"] if SANITIZE else []

write_if_changed(ROOT / "build/generated/device_check.inc", device_check_table())
write_if_changed(ROOT / "build/generated/autocast.inc", autocast_table())
write_dialect()
write_if_changed(
    ROOT / "torch_hologram/_build_info.py",
    "# Written by setup.py.\n"
    f'VERSION = "{VERSION}"\n'
    f'TORCH_MINOR = "{TORCH_MINOR}"\n'
    f'TORCH_VERSION = "{torch.__version__}"\n',
)
# What a backend outside the package is compiled against (docs/add-a-backend.md): the core, and the
# CPU's kernels for one that runs plans on the host. Beside torch_hologram.h, in the wheel as well.
CPU_HEADERS = ("code", "compiled_group", "parallel", "system", "threaded_code")
HEADERS = sorted(glob.glob("csrc/atlas/*.h")) + [f"csrc/cpu/{name}.h" for name in CPU_HEADERS]
INCLUDE = ROOT / "torch_hologram/include"
for stale in INCLUDE.glob("*/*.h"):
    if f"csrc/{stale.relative_to(INCLUDE)}" not in HEADERS:
        stale.unlink()
for header in HEADERS:
    write_if_changed(INCLUDE / Path(header).relative_to("csrc"), Path(header).read_text())


# "1": kernels for NVIDIA's GPUs are compiled, "0": they are not, "": where there is a GPU.
BUILD_CUDA = os.environ.get("HOLOGRAM_BUILD_CUDA", "")
if BUILD_CUDA not in ("", "0", "1"):
    raise SystemExit(f"HOLOGRAM_BUILD_CUDA must be 0 or 1, not '{BUILD_CUDA}'")
if MACOS and BUILD_CUDA == "1":
    raise SystemExit("HOLOGRAM_BUILD_CUDA is 1, but NVIDIA GPUs are not supported on macOS")


# csrc/aten/precompiled.h, compiled. Files include "aten/precompiled.h": in each folder of the
# include path the compiler looks for the result first, and this folder is the first.
PRECOMPILED = ROOT / "build/temp/precompiled"


class build_ext(BuildExtension):
    """BuildExtension on every core; torch puts ccache in front where it is installed.

    Named as the command is: distutils looks up the command's options (pyproject.toml's build_temp)
    under the name of the class when it sets the command up again, as pip's editable build does.
    """

    def build_extensions(self) -> None:
        os.environ.setdefault("MAX_JOBS", str(os.cpu_count() or 1))
        precompiling = self.precompile()
        build = self.build_extension

        def with_header(extension: CppExtension) -> None:
            """What does not include torch is compiled beside the header, the rest after it."""
            compile = self.compiler.compile

            def in_two(sources: list[str], *arguments: Any, **options: Any) -> list[str]:
                sources = sorted(sources, key=SOURCES.index)  # setuptools sorts them by name
                if precompiling is not None:
                    core = [source for source in sources if not includes_torch(source)]
                    compile(core, *arguments, **options)
                    precompiling()
                return compile(sources, *arguments, **options)

            self.compiler.compile = in_two
            build(extension)

        self.build_extension = with_header
        super().build_extensions()

    def run(self) -> None:
        if MACOS:
            fetch = [sys.executable, "tools/metal_cpp.py", str(METAL_HEADERS)]
            subprocess.run(fetch, check=True)
        super().run()
        if BUILD_CUDA == "1" or (BUILD_CUDA == "" and Path("/dev/nvidiactl").exists()):
            self.build_kernels(ROOT if self.inplace else Path(self.build_lib))

    def build_kernels(self, folder: Path) -> None:
        """Compiles the kernels of the extension below a folder, which says what they are.

        Where nobody has asked for them, their compiler may be missing.
        """
        command = [sys.executable, "tools/build_kernels.py", str(folder)]
        if self.inplace and BUILD_CUDA == "":  # for this machine only
            command += ["--architectures", "native"]
        status = subprocess.run(command, check=False).returncode
        if status != 0 and BUILD_CUDA == "1":
            raise SystemExit("the kernels for CUDA do not compile")
        if status != 0:
            print("torch_hologram is built without CUDA (HOLOGRAM_BUILD_CUDA=0 says nothing)")

    def precompile(self) -> Callable[[], None] | None:
        """Starts to compile csrc/aten/precompiled.h with the flags that BuildExtension will use.

        With other flags the compiler would read the header instead, which only takes longer.

        Returns:
            what waits for the end; None where nothing is to be done: clang does not look for a
            compiled header beside one that is included.
        """
        if IS_CLANG:
            return None
        (extension,) = self.extensions
        header = ROOT / "csrc/aten/precompiled.h"
        result = PRECOMPILED / "aten" / "precompiled.h.gch"
        command = [
            *COMPILER,
            *self.compiler.compiler_so[1:],
            # "system": whoever wrote these headers has seen their warnings.
            *(f"-isystem{folder}" for folder in (*extension.include_dirs, *self.include_dirs)),
            *extension.extra_compile_args,
            *("-x", "c++-header", str(header), "-o", str(result)),
        ]
        made_from = "\n".join(
            [shlex.join(command), COMPILER_VERSION, torch.__version__, header.read_text()]
        )
        stamp = result.with_name("made_from")
        if result.exists() and stamp.exists() and stamp.read_text() == made_from:
            return None
        # What was compiled with the old one does not name it among its dependencies.
        shutil.rmtree(ROOT / "build/temp", ignore_errors=True)
        result.parent.mkdir(parents=True)
        # The members of a unit include the header again, which the compiler then looks for as text.
        shutil.copy(header, result.with_suffix(""))
        process = subprocess.Popen(command)

        def wait() -> None:
            if process.wait() != 0:
                raise subprocess.CalledProcessError(process.returncode, command)
            stamp.write_text(made_from)

        return wait

    def copy_extensions_to_source(self) -> None:
        # A running process keeps the file it has mapped; it must not be overwritten under it.
        for built in ROOT.glob("torch_hologram/_C.*.so"):
            built.unlink()
        super().copy_extensions_to_source()


SOURCE = repository()
SOURCES = write_quick_kernels() + write_units()

setup(
    install_requires=[TORCH, "numpy"],
    long_description=run_path("tools/index_readme.py")["for_index"](
        Path("README.md").read_text(), SOURCE, f"v{VERSION}"
    ),
    long_description_content_type="text/markdown",
    project_urls={"Source": SOURCE} if SOURCE else {},
    ext_modules=[
        CppExtension(
            "torch_hologram._C",
            sources=SOURCES,
            include_dirs=[
                str(PRECOMPILED),
                str(ROOT / "csrc"),
                str(ROOT / "build/generated"),
                *([str(METAL_HEADERS)] if MACOS else []),
            ],
            extra_compile_args=[
                "-std=c++20",
                "-O1" if SANITIZE else "-O2",
                "-g1" if SANITIZE else "-g0",
                "-Wall",
                "-fvisibility=hidden",
                "-ffp-contract=off",
                # Or torch's headers include those of every operator.
                "-DAT_PER_OPERATOR_HEADERS",
                # gcc collects its garbage with 128 MiB, a third of what most files take in the end.
                *([] if IS_CLANG else ["--param=ggc-min-heapsize=1000000"]),
                # Of metal-cpp's signatures.
                *(["-fblocks"] if MACOS else []),
                *(["-DHOLOGRAM_ANY_TORCH"] if ANY_TORCH else []),
                *SANITIZE_FLAGS,
            ],
            extra_link_args=[*link_flags(), *SANITIZE_FLAGS],
        )
    ],
    cmdclass={"build_ext": build_ext},
)
