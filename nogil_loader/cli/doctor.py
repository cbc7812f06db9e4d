"""``nogil-loader doctor``: what this Python can do for a loader, and what keeps it from it.

Guarantees
- Every package is imported in a child process of its own that begins with the GIL off, so
  examining one neither changes this process nor hides another.
- A codec counts as there when a picture has gone through it and come back.
- Exit status 1 where something is broken: the GIL switched on by an import, a package that is
  installed but does not import, a Pillow without JPEG or PNG. What is merely not installed is
  no fault.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from nogil_loader import __version__, runtime
from nogil_loader.cli._terminal import Style, table

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Subparsers = _SubParsersAction[argparse.ArgumentParser]

# (what is imported, distributions that bring it, what it is for, the extra that installs it)
PACKAGES = (
    ("numpy", ("numpy",), "arrays and batches", ""),
    ("PIL.Image", ("pillow",), "decode.image", "image"),
    ("soundfile", ("soundfile",), "decode.audio", "audio"),
    ("pyarrow", ("pyarrow",), "from_parquet", "parquet"),
    ("obstore", ("obstore",), "from_store", "store"),
    ("cupy", ("cupy-cuda13x", "cupy-cuda12x", "cupy"), "to_device", "gpu"),
    ("mpi4py.MPI", ("mpi4py",), "ranks from MPI", "mpi"),
    ("rich", ("rich",), "live progress", "progress"),
    ("matplotlib", ("matplotlib",), "bench --html", "plot"),
)

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "TIFF", "JPEG2000", "GIF", "BMP")

# What a child says about importing argv[1]: an error or none, and what switched the GIL on.
_TRY_IMPORT = """
import importlib.util, json, sys
error = None
try:
    importlib.import_module(sys.argv[1])
except BaseException as problem:
    error = f"{type(problem).__name__}: {problem}".splitlines()[0]
# By its path: the package around it would import NumPy.
spec = importlib.util.spec_from_file_location("runtime", sys.argv[2])
runtime = sys.modules["runtime"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runtime)
culprits = runtime.gil_culprits(limit=1) if runtime.gil_enabled() else ()
print("\\n" + json.dumps([error, runtime.gil_enabled(), culprits]))
"""


@dataclass(frozen=True, slots=True)
class Package:
    """One package the loader can use; ``version`` is None where it is not installed.

    ``keeps_gil_off`` is None where the question does not arise: on GIL builds, and for what
    is not installed. ``note`` says what is wrong or special.
    """

    name: str
    version: str | None
    use: str
    extra: str
    keeps_gil_off: bool | None = None
    note: str = ""
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Codec:
    """A picture format: does Pillow really write and read it here?"""

    format: str
    works: bool
    library: str


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the doctor found."""

    loader: str
    interpreter: runtime.Interpreter
    machine_cores: int
    quota: float | None
    culprits: tuple[str, ...]
    executable: str
    system: str
    packages: tuple[Package, ...]
    codecs: tuple[Codec, ...]
    gpus: tuple[str, ...]
    gpu_note: str
    problems: tuple[str, ...]


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="is the GIL off, what switched it on, which packages and codecs are there",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Examine, print, and return 1 where something is broken."""
    facts = examine()
    print(json.dumps(asdict(facts), indent=2) if args.json else render(facts, Style(sys.stdout)))
    return 1 if facts.problems else 0


def examine() -> Facts:
    """Ask the interpreter, every package and the GPU's driver. Takes a second or two."""
    interpreter = runtime.interpreter()  # before any package can change the answer
    culprits = runtime.gil_culprits() if interpreter.gil_reason == "import" else ()
    with ThreadPoolExecutor(interpreter.cores) as pool:
        packages = tuple(pool.map(examine_package, *zip(*PACKAGES, strict=True)))
    codecs = examine_codecs() if _works(packages, "pillow") else ()
    gpus, gpu_note = examine_gpus()
    return Facts(
        loader=__version__,
        interpreter=interpreter,
        machine_cores=os.cpu_count() or 1,
        quota=runtime.cpu_quota(),
        culprits=culprits,
        executable=sys.executable,
        system=platform.platform(),
        packages=packages,
        codecs=codecs,
        gpus=gpus,
        gpu_note=gpu_note,
        problems=problems_of(culprits, packages, codecs),
    )


def problems_of(
    culprits: tuple[str, ...], packages: tuple[Package, ...], codecs: tuple[Codec, ...]
) -> tuple[str, ...]:
    """What is broken and needs a cure, in sentences."""
    problems = [f"importing {name} switched the GIL on" for name in culprits]
    problems += [f"{p.name} {p.version}: {p.note}" for p in packages if p.broken]
    problems += [
        f"this Pillow was built without {codec.format}: reinstall it from a wheel"
        ' (pip install --force-reinstall --only-binary=:all: "nogil_loader[image]")'
        for codec in codecs
        if codec.format in ("JPEG", "PNG") and not codec.works
    ]
    return tuple(problems)


def _works(packages: tuple[Package, ...], name: str) -> bool:
    return any(p.name == name and p.version and not p.broken for p in packages)


def examine_package(module: str, distributions: tuple[str, ...], use: str, extra: str) -> Package:
    """Find the installed version and import the package in a child process."""
    for name in distributions:
        try:
            version = metadata.version(name)
            break
        except metadata.PackageNotFoundError:
            continue
    else:
        cure = "--no-deps soundfile" if _bare_soundfile(module) else f'"nogil_loader[{extra}]"'
        return Package(distributions[-1], None, use, extra, note=f"pip install {cure}")
    if _bare_soundfile(module):
        note = "libsndfile is called directly, without cffi"
        return Package(name, version, use, extra, True, note)
    env = {key: value for key, value in os.environ.items() if key != "PYTHON_GIL"}
    try:
        child = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _TRY_IMPORT, module, runtime.__file__],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
        )
    except subprocess.TimeoutExpired:
        return Package(name, version, use, extra, None, "importing it takes over 120 s", True)
    if child.returncode != 0:
        note = f"importing it ends the process (status {child.returncode})"
        return Package(name, version, use, extra, None, note, True)
    error, gil, culprits = json.loads(child.stdout.splitlines()[-1])
    keeps = None if not runtime.free_threaded() else not gil
    note = error or (
        f"{', '.join(culprits) or 'its import'} switches it on" if keeps is False else ""
    )
    return Package(name, version, use, extra, keeps, note, error is not None)


def _bare_soundfile(module: str) -> bool:
    # soundfile's Python half needs cffi, which free-threaded 3.13 cannot have with the GIL off;
    # its wheel alone brings the library that decode.audio calls.
    return module == "soundfile" and runtime.free_threaded() and sys.version_info < (3, 14)


def examine_codecs() -> tuple[Codec, ...]:
    """Send a picture through each of Pillow's codecs."""
    import io

    from PIL import Image, features

    libraries = {"JPEG": "jpg", "PNG": "zlib", "JPEG2000": "jpg_2000", "TIFF": "libtiff"}
    found = []
    for name in FORMATS:
        out = io.BytesIO()
        options = {"compression": "tiff_lzw"} if name == "TIFF" else {}  # plain TIFF needs no codec
        try:
            Image.new("RGB", (32, 32), (200, 60, 30)).save(out, name, **options)
            with Image.open(io.BytesIO(out.getvalue())) as picture:
                picture.load()
            works = True
        except (OSError, KeyError):
            works = False
        feature = libraries.get(name, name.lower())
        version = features.version(feature) if feature in features.get_supported() else None
        turbo = name == "JPEG" and features.check("libjpeg_turbo")
        library = f"libjpeg-turbo {features.version('libjpeg_turbo')}" if turbo else version or ""
        found.append(Codec(name, works, library))
    return tuple(found)


def examine_gpus() -> tuple[tuple[str, ...], str]:
    """The NVIDIA GPUs that the driver lists, and why there is none if so."""
    import ctypes

    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return (), "no NVIDIA driver here: batches stay in host memory"
    count, version = ctypes.c_int(), ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        return (), f"the NVIDIA driver finds no GPU (status {status})"
    driver.cuDriverGetVersion(ctypes.byref(version))
    names = []
    for index in range(count.value):
        name, device, memory = ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_size_t()
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetName(name, len(name), device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        names.append(f"{name.value.decode()}, {memory.value / 2**30:.0f} GiB")
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return tuple(names), f"the driver supports CUDA {cuda}"


def render(facts: Facts, style: Style) -> str:
    """The facts for a reader, the verdict last."""
    interpreter = facts.interpreter
    build = "free-threaded build" if interpreter.free_threaded else "build with a GIL"
    gil = {
        "off": style.good("off") + ": threads run Python at the same time",
        "build": "on: this build always has one; python3.13t runs without",
        "asked": "on, as PYTHON_GIL=1 or -X gil=1 asks",
        "import": style.bad("on") + f": importing {', '.join(facts.culprits) or '?'} did it",
    }[interpreter.gil_reason]
    quota = "no quota" if facts.quota is None else f"a quota of {facts.quota:g}"
    rows = [
        ["nogil_loader", facts.loader],
        ["Python", f"{interpreter.version}, {build}"],
        ["GIL", gil],
        ["cores", f"{interpreter.cores} usable of {facts.machine_cores}, {quota}"],
        ["system", facts.system],
        ["executable", facts.executable],
    ]
    parts = [style.bold("Interpreter"), table(rows, "<<"), "", style.bold("Packages")]
    rows = [[style.dim(head) for head in ("package", "version", "GIL stays off", "for", "")]]
    for package in facts.packages:
        keeps = {True: style.good("yes"), False: style.bad("NO"), None: "-"}[package.keeps_gil_off]
        note = style.bad(package.note) if package.broken else style.dim(package.note)
        rows.append([package.name, package.version or "none", keeps, package.use, note])
    parts += [table(rows, "<<<<<"), "", style.bold("Pillow's codecs")]
    if facts.codecs:
        words = {True: style.good("works"), False: style.bad("MISSING")}
        rows = [[codec.format, words[codec.works], codec.library] for codec in facts.codecs]
        parts.append(table(rows, "<<<"))
    else:
        parts.append("  no Pillow that works: pictures cannot be decoded")
    parts += ["", style.bold("GPU")]
    parts += [f"  {gpu}" for gpu in facts.gpus] + [f"  {facts.gpu_note}", ""]
    if facts.problems:
        parts += [style.bad("PROBLEM: ") + problem for problem in facts.problems]
    elif interpreter.gil:
        parts.append("No problem found, but the GIL is on: threads take turns to run Python.")
    else:
        parts.append(f"No problem found: {interpreter.cores} threads run at the same time.")
    return "\n".join(parts)
