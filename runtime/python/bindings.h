// The parts of heed._heed.
#pragma once

#include <nanobind/nanobind.h>

namespace heed::python {

void bind_attention(nanobind::module_ &module);
void bind_gradients(nanobind::module_ &module);
void bind_kernels(nanobind::module_ &module);
void bind_kv_cache(nanobind::module_ &module);
void bind_layer(nanobind::module_ &module);
void bind_layer_cache(nanobind::module_ &module);
void bind_ops(nanobind::module_ &module);
void bind_sdpa(nanobind::module_ &module);

}  // namespace heed::python
