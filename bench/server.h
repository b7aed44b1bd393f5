// heed_bench --serve: another program sends requests, a line of JSON each, and gets a line of JSON for each, so that it
// can time our kernels in turns with something else.
//   {"do": "hello"}     the machine, every case, the CPUs that calls run on, the bytes of K and V that make them cold
//   {"do": "ceilings"}  measures them; of several measurements the larger counts
//   {"do": "add", "shape": {"case": NAME, "batch": 1, ...}}   one more, see case_json.h; answers all its fields
//   {"do": "time", "case": NAME, "dtype": "f32", "kv": "i8" or "", "kernel": NAME or "", "isa": NAME or "", "cold":
//   false,
//    "seconds": S}      calls for at least S seconds: the fastest in ms, how many samples, the kernel. All but "do" and
//                       "case" may be left out. The first request of a case prepares and checks it; what was prepared
//                       lives until a request names another case or element type.
//   {"do": "compare", "kernel": NAME, "with": NAME}   runs random problems on both kernels: how their results differ,
//   or ""
//   {"do": "report"}    ceilings and all results so far
// A request that cannot be served is answered with {"error": SENTENCE}.
#pragma once

#include "bench/options.h"

namespace heed_bench {

// Until stdin ends. The exit status of the process.
int serve(const Options &options);

}  // namespace heed_bench
