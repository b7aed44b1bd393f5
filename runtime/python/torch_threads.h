// The threads that PyTorch computes with, so that its operators and Heed's calls do not wait for one another's.
#pragma once

#include "heed/heed.h"

namespace heed::python {

struct TorchThreads {
    const heed_parallel_for
        *pool;      // NULL: the process has no OpenMP of GNU's, or is a child of one that may have used it
    int32_t count;  // torch.get_num_threads(), 1024 at most; 0 where pool is NULL
};

TorchThreads torch_threads();

}  // namespace heed::python
