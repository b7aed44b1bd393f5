// Keys and values as prefill kernels read them best: the rows of a head one after the other. In other layouts a head's
// keys are pages apart (the default layout, 8 heads of 128 floats: 4 KB), in few sets of a cache, out of reach of its
// prefetchers; each block of rows of each query head waits for them again.
#pragma once

#include "runtime/kernel_call.h"
#include "runtime/kernel_registry.h"

namespace heed {

enum class KeyCopies {
    none,
    of_heads,  // a thread copies the head of its task, unless its last task had it: the copy stays in its cache
    of_all,    // all heads, before the first task: where heads are fewer than threads
};

// What execute copies: keys, and values but for kernels that pack them. Who packs both reads them once; few blocks of
// rows do not repay a copy.
KeyCopies key_copies(const heed_problem &problem, const ProblemViews &views, const Kernel &kernel);

// Whether kernels serve pages that they do not know, or 16-bit keys and values that they read as floats: as of_heads,
// each thread copies the head of its task. Kernels of floats that look up pages copy each block of keys for each block
// of rows, and take 1.1 to 2.0 times the time (Zen 5, 2 threads); those that widen each block 1.05 to 1.2 times
// (Emerald Rapids, 2 threads). It does not depend on threads and batch, for it may change bits of results.
CopiesOfHeads copies_of_heads(const heed_problem &problem, const ProblemViews &views);

// Whether each thread has heads of its own, whose tasks follow each other: a copy serves all of them.
bool takes_whole_heads(const heed_problem &problem, const ProblemViews &views, const Kernel &kernel);

// The bytes that copies take.
Size key_copies_bytes(const heed_plan &plan);

// Elements from a row of a copy to the next: an odd number of cache lines, for a tile of values reads a line of each
// key of a block, and these spread over all sets of the L1 cache.
int64_t row_pitch(const View &rows, int64_t element_bytes);

// KeyCopies::of_all: copies the keys and values that the tasks see to `memory`, of key_copies_bytes(), and lets the
// call read them there.
heed_status copy_all_keys(const heed_plan &plan, const heed_execution &execution, char *memory, KernelCall *call);

}  // namespace heed
