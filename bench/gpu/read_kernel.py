"""A kernel that only reads, as PTX: the bandwidth that decoding is measured by."""
import ctypes

THREADS, BLOCKS_PER_PROCESSOR, UNROLL, CHUNK = 256, 8, 4, 16
MULTIPROCESSOR_COUNT = 16  # a device attribute

LOAD = "ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%d{n}];\n" + "".join(f"xor.b32 %r8, %r8, %r{n};\n" for n in range(4, 8))

# Thread t of T reads chunks t, t + T, t + 2 T, t + 3 T of 16 bytes, and so on; it stores what no data will make.
PTX = """.version 7.0
.target sm_75
.address_size 64
.visible .entry heed_read(.param .u64 data, .param .u64 chunks, .param .u64 out)
{
.reg .pred %p<3>;
.reg .b32 %r<10>;
.reg .b64 %d<12>;
ld.param.u64 %d0, [data];
ld.param.u64 %d1, [chunks];
ld.param.u64 %d2, [out];
mov.u32 %r0, %ctaid.x;
mov.u32 %r1, %ntid.x;
mov.u32 %r2, %tid.x;
mov.u32 %r3, %nctaid.x;
mul.wide.u32 %d3, %r0, %r1;
cvt.u64.u32 %d4, %r2;
add.s64 %d3, %d3, %d4;
mul.wide.u32 %d5, %r3, %r1;
shl.b64 %d6, %d5, 4;
mov.u32 %r8, 0;
again:
setp.ge.u64 %p0, %d3, %d1;
@%p0 bra done;
shl.b64 %d7, %d3, 4;
add.s64 %d7, %d0, %d7;
add.s64 %d8, %d7, %d6;
add.s64 %d9, %d8, %d6;
add.s64 %d10, %d9, %d6;
""" + "".join(LOAD.format(n=n) for n in (7, 8, 9, 10)) + """shl.b64 %d11, %d5, 2;
add.s64 %d3, %d3, %d11;
bra.uni again;
done:
setp.eq.u32 %p1, %r8, 0x9e3779b9;
@%p1 st.global.u32 [%d2], %r8;
ret;
}
"""


class ReadKernel:
    """Reads a buffer once per call."""

    def __init__(self, driver, stream, tiny):
        self._driver, self._stream = driver, stream
        self._function = driver.load_kernel(PTX, "heed_read")
        self._blocks = 1 if tiny else BLOCKS_PER_PROCESSOR * driver.attribute(MULTIPROCESSOR_COUNT)
        self._out = driver.allocate(4)

    def bytes_of(self, size):
        """What a call reads of `size` bytes: whole rounds of all threads."""
        step = UNROLL * self._blocks * THREADS * CHUNK
        return size // step * step

    def read(self, address, size):
        values = [ctypes.c_uint64(x) for x in (address, self.bytes_of(size) // CHUNK, self._out)]
        self._driver.launch(self._function, self._blocks, THREADS, self._stream, values)
