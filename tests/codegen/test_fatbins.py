"""No chip that the build names meets the driver's compiler: test_fatbins.py DIR ARCH...

Reads the fat binary in each CUDA kernel's object: machine code for each ARCH that the kernel serves, and PTX that only chips newer
than all of them take. Kernels of sm90 use what only sm_90a has (wgmma): they serve that chip alone, with PTX for it."""
import pathlib
import re
import struct
import sys
import unittest

DIR = pathlib.Path(sys.argv[1])
ARCHS = sorted(map(int, sys.argv[2:]))
del sys.argv[1:]
MAGIC = struct.pack("<I", 0xBA55ED50)
PTX, ELF = 1, 2


def images(data):
    """(kind, architecture, payload) of each image. A header of 16 bytes: magic, u16 version, u16 its size, u64 bytes of what follows.
    Before each image: u16 kind, u16 version, u32 bytes of this header, u64 bytes of the image, .., at 28 u32 architecture."""
    begin = data.index(MAGIC)
    if data.find(MAGIC, begin + 1) >= 0:
        raise ValueError("several fat binaries")
    at = begin + struct.unpack_from("<H", data, begin + 6)[0]
    end = at + struct.unpack_from("<Q", data, begin + 8)[0]
    while at < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
        yield kind, struct.unpack_from("<I", data, at + 28)[0], data[at + header:at + header + size]
        at += header + size


class Fatbins(unittest.TestCase):
    def test_machine_code_for_each_chip_and_ptx_for_newer_ones(self):
        kernels = [path for path in DIR.glob("*.o") if re.search(r"_sm\d+(_wide)?$", path.stem)]
        self.assertTrue(kernels)
        for kernel in kernels:
            least = int(re.search(r"_sm(\d+)", kernel.stem)[1])
            served = [90] if least == 90 else [arch for arch in ARCHS if arch >= least]
            target = f".target sm_{served[-1]}{'a' if least == 90 else ''}\n"
            found = list(images(kernel.read_bytes()))
            self.assertEqual(sorted(arch for kind, arch, _ in found if kind == ELF), served, kernel)
            ptx = [(arch, payload) for kind, arch, payload in found if kind == PTX]
            self.assertEqual([arch for arch, _ in ptx], served[-1:], kernel)
            self.assertIn(target.encode(), ptx[0][1], kernel)


unittest.main()
