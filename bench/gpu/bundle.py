"""Packs what a bare machine with a GPU needs: bundle.py BUILD_FOLDER SANITIZER_FOLDER OUT_FOLDER.

OUT_FOLDER/heed-gpu.tar.xz: bin (test programs), lib/libheed.so, sanitizer
(compute-sanitizer), bench/gpu, the headers that it reads, manifest.json. The tool is NVIDIA's: the bundle is for runs, not for publication."""
import json
import lzma
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 60 << 20
PROGRAMS = "heed_kernel_tests", "heed_adversarial_tests", "heed_device_ops_tests", "heed_device_layer_tests"
SANITIZER = ("bin/compute-sanitizer", "lib/libsanitizer-collection.so", "lib/libsanitizer-public.so",
             "lib/libInterceptorInjectionTarget.so", "lib/libTreeLauncherPlaceholder.so", "lib/libTreeLauncherTargetInjection.so",
             "lib/libTreeLauncherTargetUpdatePreloadInjection.so")


def answer(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def put(source, folder, strip=False):
    folder.mkdir(parents=True, exist_ok=True)
    to = folder / source.name
    shutil.copy(source, to)
    to.chmod(0o755)
    if strip:
        subprocess.run(["strip", "--strip-unneeded", str(to)], check=True)


def newest_glibc(files):
    """The glibc that the files need."""
    found = {tuple(map(int, version.split("."))) for file in files
             for version in re.findall(r"GLIBC_([0-9.]+)", answer("objdump", "-T", str(file)))}
    return ".".join(map(str, max(found)))


def stage(build, sanitizer, to):
    shutil.rmtree(to, ignore_errors=True)
    for program in PROGRAMS:
        put(next(build.glob(f"*/*/{program}")), to / "bin", strip=True)
    put((build / "runtime/libheed.so").resolve(), to / "lib", strip=True)
    next((to / "lib").glob("libheed.so.*")).rename(to / "lib/libheed.so")
    for file in SANITIZER:
        put(sanitizer / file, to / "sanitizer")
    for script in pathlib.Path(__file__).parent.glob("*.py"):
        put(script, to / "bench/gpu")
    put(ROOT / "runtime/headers.py", to / "runtime")
    for header in (ROOT / "runtime/include/heed").glob("*.h"):
        put(header, to / "runtime/include/heed")
    table = (build / "heed_kernels.dir/kernel_table.inc").read_text(encoding="utf-8")
    kernels = sorted(re.findall(r'"(\w+_sm\d+\w*)\.inc"', table))
    changed = [line[3:] for line in answer("git", "status", "--porcelain").splitlines()]
    manifest = {"commit": answer("git", "rev-parse", "HEAD"), "changed_files": len(changed), "kernels": kernels,
                "compiler": answer("g++", "--version").splitlines()[0],
                "glibc": newest_glibc([*(to / "bin").iterdir(), *(to / "lib").iterdir()])}
    (to / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def pack(folder, archive):
    """One archive, with a dictionary of 64 MiB: the same kernels are in each program and the library."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(archive, "wb", preset=9) as stream:
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            tar.add(folder, arcname=folder.name)


def size_of(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    build, sanitizer, out = map(pathlib.Path, sys.argv[1:])
    folder, archive = build / "heed-gpu", out / "heed-gpu.tar.xz"
    manifest = stage(build, sanitizer, folder)
    shutil.rmtree(out, ignore_errors=True)
    pack(folder, archive)
    packed, unpacked = size_of(out) / 2**20, size_of(folder) / 2**20
    print(f"{archive}: {packed:.1f} MiB, {unpacked:.1f} MiB unpacked, {len(manifest['kernels'])} kernels; "
          f"needs glibc {manifest['glibc']} and python3")
    if size_of(out) > LIMIT:
        sys.exit(f"{out} is larger than {LIMIT >> 20} MiB")


if __name__ == "__main__":
    main()
