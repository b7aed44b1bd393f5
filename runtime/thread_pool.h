// Heed's own threads: one pool per process, shared by concurrent calls.
#pragma once

#include <cstdint>

namespace heed {

using PoolItem = void (*)(void *item_context, int32_t index);

// Runs item(item_context, 0..num_items-1), each exactly once, and returns when all are done. The calling thread always
// takes part, so progress never depends on free workers, and at most num_items threads run. Threads are started when
// first needed and kept; where none can be started the caller runs all items. After a fork the child gets a fresh pool.
// Thread-safe. Items may not call it again.
void run_on_shared_pool(int32_t num_items, PoolItem item, void *item_context);

}  // namespace heed
