"""Makes the torch of the Python that runs this start without the GPU packages that it links.

On a CPU nothing calls those 3 GB. One small library replaces all of them: it has the symbols that torch's libraries
miss, and every function answers 100, cudaErrorNoDevice, or its name. Needs gcc and binutils.
"""
import pathlib
import re
import subprocess
import sysconfig

GPU_NAME = r"(?:cu|nv|nccl)"


def output_of(*command, text=None):
    return subprocess.run(command, input=text, check=True, stdout=subprocess.PIPE, text=True).stdout


def main():
    folder = pathlib.Path(sysconfig.get_path("purelib")) / "torch" / "lib"
    libraries = [str(path) for path in folder.glob("lib*.so")]
    missing = set(re.findall(rf"NEEDED +(lib{GPU_NAME}\S*)", output_of("objdump", "-p", *libraries)))
    undefined = output_of("nm", "-D", "--undefined-only", "--with-symbol-versions", *libraries)
    symbols = set(re.findall(rf" [Uw] (_*{GPU_NAME}\w*)(?:@+(\S+))?\n", undefined))  # with the version of each
    if not missing:
        return
    source = 'long nothing(void) { return 100; }\nlong text(void) { return (long)"cudaErrorNoDevice"; }\n'
    for name in sorted({name for name, _ in symbols}):
        answer = "text" if name in ("cudaGetErrorName", "cudaGetErrorString") else "nothing"
        source += f'long {name}(void) __attribute__((alias("{answer}")));\n'
    versions = {version: [name for name, its in symbols if its == version] for _, version in symbols if version}
    script = folder / "no_gpu.map"
    script.write_text("".join(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in versions.items()))
    output_of("gcc", "-shared", "-fPIC", f"-Wl,--version-script={script}", "-o", str(folder / "libno_gpu.so"), "-x", "c", "-",
              text=source)
    for name in missing:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("libno_gpu.so")


if __name__ == "__main__":
    main()
