#pragma once
// Tiles of AMX on a CPU without them: a handler of SIGILL carries out their instructions, some microseconds each, and
// VMOVW, all that the kernels of HEED_AMX use of AVX-512 FP16.

namespace heed_test {

// Makes kernels of HEED_AMX run where kernels of HEED_AVX512_BF16 do, in builds that have them for the tested device.
// Before threads start.
void emulate_amx();
bool amx_is_emulated();

}  // namespace heed_test
