// heed_bench --serve: another program sends requests, a line of JSON each, and gets a line of JSON for each, so that it
// can time our rows in turns with something else.
//   {"do": "hello"}     the machine, every case, the CPUs that calls run on, the bytes of K and V that make them cold
//   {"do": "ceilings"}  measures them; of several measurements the larger counts
//   {"do": "time", "case": NAME, "dtype": "f32", "kv": "i8" or "", "row": NAME or "", "isa": NAME or "", "cold": false,
//    "seconds": S}      calls for at least S seconds: the fastest in ms, how many samples, the row. All but "do" and
//                       "case" may be left out. The first request of a case prepares and checks it; what was prepared
//                       lives until a request names another case or element type.
//   {"do": "compare", "row": NAME, "with": NAME}   runs random problems on both rows: how their results differ, or ""
//   {"do": "report"}    ceilings and all results so far
// A request that cannot be served is answered with {"error": SENTENCE}.
#pragma once

#include "options.h"

namespace heed_bench {

// Until stdin ends. The exit status of the process.
int serve(const Options &options);

}  // namespace heed_bench
