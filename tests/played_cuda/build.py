"""Build the stub libraries for this Python's CUDA torch and enable them.

    python build.py            # build what has changed, then install
    python build.py --force    # build everything again

Needs g++ and the headers of nvidia-cuda-runtime, nvidia-cuda-cupti and nvidia-cuda-crt. The
libraries go to ``lib`` beside this environment's site-packages, never into the checkout.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SRC = HERE / "src"
SITE = Path(sysconfig.get_paths()["platlib"])
OUT = SITE / "_played_cuda_lib"

# The libraries that torch links beside the runtime: which names of torch's undefined symbols are
# theirs. Each of these functions does nothing and reports success, but for those in `answers` and
# those written by hand.
GENERATED = {
    "libcublas.so.": r"cublas(?!Lt)",
    "libcublasLt.so.": r"cublasLt",
    "libcudnn.so.": r"cudnn",
    "libcufft.so.": r"cufft",
    "libcurand.so.": r"curand",
    "libcusparse.so.": r"cusparse(?!Lt)",
    "libcusparseLt.so.": r"cusparseLt",
    "libcusolver.so.": r"cusolver",
    "libnvrtc.so.": r"nvrtc",
    "libnccl.so.": r"p?nccl",
    "libcufile.so.": r"cuFile",
    "libnvshmem_host.so.": r"nvshmem",
}
BY_HAND = {"libnccl.so.": "nccl.cpp"}


class BuildError(Exception):
    """Something is missing; the message says how to get it."""


def include_folder() -> Path:
    """Where CUDA's public headers are."""
    for folder in (SITE / "nvidia/cu13/include", Path("/usr/local/cuda/include")):
        if (folder / "cupti.h").exists() and (folder / "cuda_runtime_api.h").exists():
            return folder
    raise BuildError(
        "CUDA's headers are missing: pip install --no-deps 'nvidia-cuda-runtime==13.0.*' "
        "'nvidia-cuda-cupti==13.0.*' 'nvidia-cuda-crt==13.0.*'"
    )


def torch_metadata() -> str:
    """The METADATA file of the torch that is installed, which must be a CUDA build."""
    found = sorted(SITE.glob("torch-*.dist-info"))
    if not found:
        raise BuildError(f"no torch in {SITE}: install the CUDA wheel first (see README.md)")
    if not (SITE / "torch/lib/libtorch_cuda.so").exists():
        raise BuildError(f"the torch in {SITE} is built without CUDA: install the CUDA wheel")
    return (found[0] / "METADATA").read_text()


def digest() -> str:
    """A hash of the sources and of torch's version: the build is current if it carries it."""
    total = hashlib.sha256(torch_metadata().encode())
    for path in [Path(__file__), *sorted(SRC.iterdir())]:
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{command[0]} failed:\n{done.stderr[-4000:]}")
    return done.stdout


def stub(include: Path, name: str, *parts: str | Path) -> None:
    """One of the hand-written libraries: sources in C++, and what it is linked with."""
    run(
        "g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-w", f"-I{include}",
        f"-Wl,-soname,{name}", "-Wl,--default-symver", "-Wl,-rpath,$ORIGIN",
        *parts, "-o", OUT / name,
    )  # fmt: skip


def bridge(include: Path, core: Path) -> None:
    """The library that computes ATen's CUDA operators by their CPU kernels."""
    torch_include = SITE / "torch/include"
    run(
        "g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-w", f"-I{torch_include}",
        f"-I{torch_include}/torch/csrc/api/include", f"-I{include}", SRC / "aten.cpp",
        "-o", OUT / "libplayed_aten.so", f"-L{SITE}/torch/lib",
        "-ltorch_cuda", "-ltorch_cpu", "-lc10_cuda", "-lc10", core,
        "-Wl,-rpath,$ORIGIN", "-Wl,--unresolved-symbols=ignore-in-shared-libs",
    )  # fmt: skip


def wanted_by_torch() -> tuple[set[str], dict[str, str]]:
    """Sonames that torch's libraries need, and their undefined symbols with the versions."""
    needed: set[str] = set()
    undefined: dict[str, str] = {}
    for library in (SITE / "torch/lib").glob("*.so"):
        needed.update(re.findall(r"NEEDED.*\[(.+)\]", run("readelf", "-d", library)))
        for line in run("nm", "-D", "--undefined-only", library).splitlines():
            name, _, version = line.split()[-1].partition("@")
            undefined[name] = version
    return needed, undefined


def answers(metadata: str) -> dict[str, str]:
    """The generated functions whose return value torch uses."""

    def version(package: str) -> list[int]:
        found = re.search(rf"{package}-cu\d+==(\d+)\.(\d+)\.(\d+)", metadata)
        if found is None:
            raise BuildError(f"torch's METADATA does not say which {package} it wants")
        return [int(part) for part in found.groups()]

    cudnn, nccl = version("nvidia-cudnn"), version("nvidia-nccl")
    cudnn_number = cudnn[0] * 10000 + cudnn[1] * 100 + cudnn[2]
    nccl_number = nccl[0] * 10000 + nccl[1] * 100 + nccl[2]
    cudnn_parts = ", ".join(map(str, cudnn))
    text = {
        name: f'const char *{name}() {{ return "played CUDA"; }}'
        for name in ("cudnnGetErrorString", "nvrtcGetErrorString")
    }
    return text | {
        "cudnnGetVersion": f"size_t cudnnGetVersion(void) {{ return {cudnn_number}; }}",
        "cudnnGetCudartVersion": "size_t cudnnGetCudartVersion(void) { return 13000; }",
        "cudnnGetProperty": "int cudnnGetProperty(int t, int *v) "
        f"{{ static int p[] = {{{cudnn_parts}}}; *v = p[t]; return 0; }}",
        # too large for any module's weights: torch then hands them over one by one
        "cudnnGetRNNWeightSpaceSize": "int cudnnGetRNNWeightSpaceSize(void *h, void *d, size_t *n) "
        "{ *n = (size_t)1 << 40; return 0; }",
        "ncclGetVersion": f"int ncclGetVersion(int *v) {{ *v = {nccl_number}; return 0; }}",
        "nvrtcVersion": "int nvrtcVersion(int *a, int *b) { *a = 13; *b = 0; return 0; }",
    }


def generate(include: Path, core: Path, metadata: str) -> None:
    """Libraries that only have to exist: cuBLAS, cuDNN and the rest; and the rest of NCCL."""
    needed, undefined = wanted_by_torch()
    special = answers(metadata)
    for prefix, pattern in GENERATED.items():
        soname = next((name for name in needed if name.startswith(prefix)), None)
        if soname is None:
            continue
        names = sorted(name for name in undefined if re.match(pattern, name))
        parts: list[str | Path] = []
        if prefix in BY_HAND:
            by_hand = SRC / BY_HAND[prefix]
            text = by_hand.read_text()
            names = [name for name in names if not re.search(rf"^EXPORT .*\b{name}\(", text, re.M)]
            parts = [f"-I{include}", by_hand, core, "-lstdc++", "-Wl,-rpath,$ORIGIN"]
        version = next((undefined[name] for name in names if undefined[name]), soname)
        body = "\n".join(special.get(n, f"int {n}(void) {{ return 0; }}") for n in names)
        with tempfile.TemporaryDirectory() as scratch:
            source, script = Path(scratch) / "stub.c", Path(scratch) / "stub.map"
            source.write_text(f"#include <stddef.h>\n{body}\n")
            script.write_text(f"{version} {{ global: *; }};\n")
            run(
                "gcc", "-w", "-O1", "-fPIC", "-shared", f"-Wl,-soname,{soname}",
                f"-Wl,--version-script,{script}", source, *parts, "-o", OUT / soname,
            )  # fmt: skip


def build() -> None:
    include, metadata = include_folder(), torch_metadata()
    OUT.mkdir(exist_ok=True)
    core = OUT / "libcudart.so.13"
    stub(include, core.name, SRC / "cudart.cpp", SRC / "prof.cpp", "-lpthread", "-ldl")
    stub(include, "libcupti.so.13", SRC / "cupti.cpp", core)
    stub(include, "libcuda.so.1", SRC / "cuda.cpp", SRC / "cuda_none.cpp", core)
    stub(include, "libnvidia-ml.so.1", SRC / "nvml.cpp", core)
    generate(include, core, metadata)
    bridge(include, core)


def switch_on() -> None:
    """One module and one .pth file: every process of this environment has the device."""
    # in a folder without tests: pytest puts theirs on sys.path, and would find this file there
    # in place of the installed one
    boot = (SRC / "_played_cuda_boot.py").read_text()
    (SITE / "_played_cuda_boot.py").write_text(boot)
    (SITE / "zz_played_cuda.pth").write_text("import _played_cuda_boot\n")


def main() -> int:
    mark = OUT / "sources.sha256"
    try:
        current = digest()
        if "--force" in sys.argv or not mark.exists() or mark.read_text() != current:
            # while the old stubs are switched on, no process of this environment may load them
            (SITE / "zz_played_cuda.pth").unlink(missing_ok=True)
            mark.unlink(missing_ok=True)
            start = time.monotonic()
            build()
            mark.write_text(current)
            print(f"played CUDA: built {len(list(OUT.glob('*.so*')))} libraries "
                  f"in {time.monotonic() - start:.0f} s")  # fmt: skip
        switch_on()
    except BuildError as error:
        print(f"played CUDA cannot be built: {error}", file=sys.stderr)
        return 1
    except FileNotFoundError as error:
        program = os.path.basename(str(error.filename))  # noqa: PTH119
        print(f"played CUDA cannot be built: no {program} here; install g++ and binutils",
              file=sys.stderr)  # fmt: skip
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
