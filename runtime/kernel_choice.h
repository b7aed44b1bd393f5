// The kernel that a request gets, and why: pure functions of their arguments.
#pragma once

#include <string>

#include "runtime/kernel_registry.h"

namespace heed {

// A kernel and the reason in words, or no kernel (NULL) and a status with its sentence.
struct KernelChoice {
    const Kernel *kernel = nullptr;
    heed_status status = HEED_OK;
    std::string reason;
    std::string candidates;  // one line per kernel of the request's device: taken, or why not; the others are counted
};

// The best kernel that can serve the request, or NULL: preferred phase, then exact head dims, then ISA, storage, group,
// fewest extra features, fewest reads of the keys, fewest rows of work, table order. Allocates nothing.
const Kernel *best_kernel(const KernelTable &table, const KernelRequest &request, uint32_t targets);

// Whether the kernel, the best one for the request, is a decode kernel before all prefill kernels. Then no number of
// keys changes the choice: kernels that pack all of them first, and refuse too many, are for prefill.
bool is_preferred_decoder(const Kernel &kernel, const KernelRequest &request);

// Whether such a kernel is the best one for both: they differ at most in lengths of keys, and not in what the choice
// makes of these.
bool decode_alike(const KernelRequest &a, const KernelRequest &b);

// The same with all the words. `forced` is a kernel's name, NULL or "": that kernel or none.
KernelChoice choose_kernel(const KernelTable &table, const KernelRequest &request, uint32_t targets,
                           const char *forced);

}  // namespace heed
