// Bytes -> an attention problem with small sizes, its data and the way it is called.
#pragma once

#include "tests/fuzz/fuzz.h"
#include "tests/support/call.h"

namespace heed_test {

struct ExecuteCase {
    Attention attention;
    CallOptions options;
    // The caller's mistake, if any: the call must be refused, or, with other metadata that is valid too, succeed.
    enum class Fault { none, metadata, capacity, workspace, alignment, missing } fault = Fault::none;
};

// Every input is a case. Lengths that make it long to compute are cut.
ExecuteCase read_case(ByteReader *bytes);

// Makes the case's fault in a prepared call, from what is left of the bytes. Returns what execute must answer.
heed_status make_fault(const ExecuteCase &c, ByteReader *bytes, Call *call);

}  // namespace heed_test
